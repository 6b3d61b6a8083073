/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the device: opening and closing, its address, capabilities, options, counters, the probe of the host.
 *
 * Must not: know what a lane does. Threads: transport.h rule 5; tn_shm_attention from any.
 * Tests: tests/unit/transport/test_shm_device.c.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/shm/fence.h"
#include "transport/shm/shm.h"

const tn_option_row tn_shm_option_rows[] = {
	{.layer = "shm",
	 .name = "slots",
	 .type = TN_OPT_U64,
	 .dflt = "1024",
	 .min = TN_SHM_SLOTS_MIN,
	 .max = TN_SHM_SLOTS_MAX,
	 .help = "messages that a lane holds undelivered (power of two)"},
	{.layer = "shm",
	 .name = "send_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "16KiB",
	 .min = TN_SHM_BUF_MIN,
	 .max = TN_SHM_BUF_MAX,
	 .help = "longest message, and size of a receive buffer (power of two)"},
	{.layer = "shm",
	 .name = "nt_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "0",
	 .help = "from this size on copies go past the caches; 0 = measured default of the processor"},
	{.layer = "shm",
	 .name = "idle_polls",
	 .type = TN_OPT_U64,
	 .dflt = "64",
	 .min = 1,
	 .max = 65536,
	 .help = "polls without events between two looks at the sockets; 16 times as many while short "
		 "messages "
		 "come"},
	{.layer = "shm",
	 .name = "membarrier",
	 .type = TN_OPT_BOOL,
	 .dflt = "on",
	 .help = "keep fences off the data path where the kernel has membarrier"},
	{0},
};
TN_OPTION_TABLE(shm, tn_shm_option_rows)

TN_COUNTERS_NAMES(counter_names, TN_SHM_COUNTERS)

#define COUNTERS (sizeof(tn_shm_counters) / sizeof(tn_counter))

/* ---- descriptors ---- */

tern_status tn_shm_watch(tn_shm_dev *dev, int fd, uint32_t epoll_events, tn_shm_source *source)
{
	struct epoll_event ev = {.events = epoll_events, .data.ptr = source};

	if (epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
		return tn_fail_errno(TERN_E_LIMIT, "epoll_ctl",
				     "a descriptor to wait for (fs.epoll.max_user_watches)");
	return TERN_OK;
}

void tn_shm_unwatch(tn_shm_dev *dev, int fd)
{
	/* Closing alone would not do: a forked child may hold the same socket open. */
	(void)epoll_ctl(dev->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void tn_shm_attention(tn_shm_dev *dev)
{
	atomic_store_explicit(&dev->attention, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&dev->page->sleep, memory_order_seq_cst) != 0)
		tn_os_event_signal(dev->self_fd);
}

/* ---- address ---- */

static tern_status own_address(tn_shm_address *address)
{
	tn_os_limits limits;
	struct stat st;

	tn_os_limits_get(&limits);
	address->magic = TN_SHM_WIRE_MAGIC;
	address->version = TN_SHM_WIRE_VERSION;
	if (limits.boot_id[0] == 0)
		return tn_fail(TERN_E_NO_DEVICE, "the boot id can't be read (is /proc mounted, are there "
						 "descriptors left, ulimit -n?): whether a peer is on this "
						 "host is unknown");
	memcpy(address->boot_id, limits.boot_id, sizeof(address->boot_id));
	address->uid = geteuid();
	if (stat("/proc/self/ns/net", &st) != 0)
		return tn_fail_errno(TERN_E_NO_DEVICE, "stat", "/proc/self/ns/net (is /proc mounted?)");
	address->netns_dev = st.st_dev;
	address->netns_ino = st.st_ino;
	return TERN_OK;
}

static void shm_address(tn_dev *base, tn_blob *blob)
{
	const tn_shm_dev *dev = (const tn_shm_dev *)base;

	memset(blob, 0, sizeof(*blob));
	blob->length = sizeof(dev->address);
	memcpy(blob->bytes, &dev->address, sizeof(dev->address));
}

static tern_status shm_reach(tn_dev *base, const tn_blob *blob)
{
	const tn_shm_address *own = &((const tn_shm_dev *)base)->address;
	tn_shm_address peer;

	if (blob->length != sizeof(peer))
		return tn_fail(TERN_E_UNREACHABLE, "not the address of a shm device (%u bytes)",
			       blob->length);
	memcpy(&peer, blob->bytes, sizeof(peer));
	if (peer.magic != TN_SHM_WIRE_MAGIC)
		return tn_fail(TERN_E_UNREACHABLE, "not the address of a shm device");
	if (peer.version != TN_SHM_WIRE_VERSION)
		return tn_fail(TERN_E_VERSION, "the peer's shm speaks version %u, this one %u", peer.version,
			       TN_SHM_WIRE_VERSION);
	if (memcmp(peer.boot_id, own->boot_id, sizeof(own->boot_id)) != 0)
		return tn_fail(TERN_E_UNREACHABLE, "the peer runs on another host");
	if (peer.netns_dev != own->netns_dev || peer.netns_ino != own->netns_ino)
		return tn_fail(TERN_E_UNREACHABLE,
			       "the peer lives in another network namespace of this host");
	if (peer.uid != own->uid)
		return tn_fail(TERN_E_UNREACHABLE,
			       "the peer runs as uid %u and this process as uid %u: shm is for processes of "
			       "one user",
			       peer.uid, own->uid);
	return TERN_OK;
}

static void shm_caps(tn_dev *base, tn_dev_caps *caps)
{
	const tn_shm_config *config = &((const tn_shm_dev *)base)->config;

	*caps = (tn_dev_caps){
		.flags = TN_CAP_WRITE | TN_CAP_WRITE_IMM | TN_CAP_READ | TN_CAP_SEND | TN_CAP_REMOTE_DONE |
			 TN_CAP_ORDERED_WRITES | TN_CAP_PASSIVE_TARGET | TN_CAP_SAME_HOST,
		.write_bytes_max = TN_MEM_EXTENT_BYTES_MAX,
		.send_bytes_max = config->buf_bytes,
		/* Each lane brings its own; the sum is bounded by the number of lanes. */
		.recv_slots = config->slots * TN_SHM_LANES_MAX,
		.lane_recv_slots = config->slots,
		/* Nothing stays in flight: every wr is done at post. */
		.lane_wrs_max = 1u << 20,
		.inline_bytes = config->buf_bytes,
		.send_done_bytes = UINT32_MAX,
		.copies = true,
	};
}

static int shm_fd(tn_dev *base)
{
	return ((const tn_shm_dev *)base)->epoll_fd;
}

static void shm_counters(tn_dev *base, tern_counter_fn fn, void *arg)
{
	tn_shm_dev *dev = (tn_shm_dev *)base;
	tn_shm_counters sum = {0};
	tn_counter *to = (tn_counter *)&sum;

	pthread_mutex_lock(&dev->guard_lock); /* asked in any thread: the poller destroys lanes meanwhile */
	for (size_t i = 0; i < COUNTERS; i++)
		tn_count_set(&to[i], tn_counter_read(&((const tn_counter *)&dev->gone)[i]) +
					     tn_counter_read(&((const tn_counter *)&dev->counters)[i]));
	for (uint32_t k = 0; k < dev->lane_count; k++)
		tn_shm_lane_counters(dev->lanes[k], &sum);
	pthread_mutex_unlock(&dev->guard_lock);
	tn_counters_each(counter_names, &sum, "shm", fn, arg);
}

/* ---- life ---- */

static void shm_dev_close(tn_dev *base)
{
	tn_shm_dev *dev = (tn_shm_dev *)base;
	tn_list *node;

	while (dev->lane_count > 0) {
		tn_lane *lane = &dev->lanes[dev->lane_count - 1]->base;

		tn_shm_lane_close(lane);
		tn_shm_lane_destroy(lane);
	}
	if (dev->guard_added)
		tn_mem_guard_remove(dev->base.mem, dev);
	tn_shm_guard_reap(dev, true);
	while ((node = tn_list_first(&dev->conns)) != NULL)
		tn_shm_conn_close(TN_CONTAINER_OF(node, tn_shm_conn, node));
	tn_shm_conn_bury(dev);
	TN_ASSERT(tn_list_empty(&dev->peers) && dev->inbound == 0 && dev->pending == 0 && dev->urgent == 0);
	tn_os_close(&dev->listen_fd);
	tn_os_close(&dev->timer_fd);
	tn_os_close(&dev->self_fd);
	tn_os_close(&dev->epoll_fd);
	tn_os_close(&dev->page_fd);
	tn_os_close(&dev->keys_fd);
	tn_os_close(&dev->spare_fd);
	tn_shm_seg_unmap(dev->page, sizeof(*dev->page));
	free(dev->lanes);
	free(dev->zombies);
	free(dev->polled);
	pthread_mutex_destroy(&dev->guard_lock);
	free(dev);
}

static const tn_dev_ops shm_ops = {
	.caps = shm_caps,
	.address = shm_address,
	.reach = shm_reach,
	.poll = tn_shm_poll,
	.take = tn_shm_take,
	.arm = tn_shm_arm,
	.fd = shm_fd,
	.recv_done = tn_shm_recv_done,
	.close = shm_dev_close,
	.lane_create = tn_shm_lane_create,
	.lane_connect = tn_shm_lane_connect,
	.lane_break = tn_shm_lane_break,
	.lane_close = tn_shm_lane_close,
	.lane_drained = tn_shm_lane_drained,
	.lane_destroy = tn_shm_lane_destroy,
	.write = tn_shm_write,
	.write_imm = tn_shm_write_imm,
	.read = tn_shm_read,
	.access = tn_shm_access,
	.send = tn_shm_send,
	.flush = tn_shm_flush,
	.copy_begin = tn_shm_copy_begin,
	.copy = tn_shm_copy_beside,
	.copy_end = tn_shm_copy_end,
	.counters = shm_counters,
};

static tern_status read_config(const tn_options *options, tn_shm_config *config)
{
	const tn_option_row *rows = tn_shm_option_rows;

	config->slots = (uint32_t)tn_opt_u64(options, rows, "slots");
	config->buf_bytes = (uint32_t)tn_opt_u64(options, rows, "send_bytes");
	config->nt_bytes = tn_opt_u64(options, rows, "nt_bytes");
	config->idle_polls = (uint32_t)tn_opt_u64(options, rows, "idle_polls");
	if (!tn_shm_sizes_valid(config->slots, config->buf_bytes))
		return tn_fail(TERN_E_OPTION, "shm.slots (%u) and shm.send_bytes (%u) must be powers of two",
			       config->slots, config->buf_bytes);
	return TERN_OK;
}

static tern_status open_page(tn_shm_dev *dev)
{
	void *base;
	int fd;
	tern_status status;

	TN_TRY(tn_shm_seg_create("tern-shm-dev", sizeof(tn_shm_page), true, &fd, &base));
	dev->page = base;
	status = tn_shm_seg_read_only(fd, &dev->page_fd);
	tn_os_close(&fd);
	TN_TRY(status);
	TN_TRY(tn_shm_seg_read_only(dev->keys->fd, &dev->keys_fd));
	dev->spare_fd = fcntl(dev->page_fd, F_DUPFD_CLOEXEC, 0);
	if (dev->spare_fd < 0)
		return tn_fail_errno(TERN_E_LIMIT, "F_DUPFD_CLOEXEC",
				     "descriptors may be used up (ulimit -n)");
	return TERN_OK;
}

static tern_status open_descriptors(tn_shm_dev *dev)
{
	dev->epoll_fd = TN_FAULT("shm.epoll.create") ? -1 : epoll_create1(EPOLL_CLOEXEC);
	if (dev->epoll_fd < 0)
		return tn_fail_errno(TERN_E_LIMIT, "epoll_create1", "descriptors may be used up (ulimit -n)");
	dev->timer_fd = TN_FAULT("shm.timer.create")
				? -1
				: timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (dev->timer_fd < 0)
		return tn_fail_errno(TERN_E_LIMIT, "timerfd_create",
				     "descriptors may be used up (ulimit -n)");
	TN_TRY(tn_os_event_create(&dev->self_fd));
	TN_TRY(tn_shm_sock_listen(&dev->address.id, &dev->listen_fd));
	TN_TRY(tn_shm_watch(dev, dev->listen_fd, EPOLLIN, &dev->on_listener));
	TN_TRY(tn_shm_watch(dev, dev->timer_fd, EPOLLIN, &dev->on_timer));
	return tn_shm_watch(dev, dev->self_fd, EPOLLIN, &dev->on_self);
}

static tern_status open_device(tn_shm_dev *dev, const tn_dev_params *params)
{
	TN_TRY(read_config(params->options, &dev->config));
	TN_TRY(own_address(&dev->address));
	TN_TRY(open_page(dev));
	TN_TRY(open_descriptors(dev));
	TN_TRY(tn_mem_guard_add(dev->base.mem, &tn_shm_guard, dev));
	dev->guard_added = true;
	tn_shm_copier_init(&dev->copier, dev->config.nt_bytes);
	dev->light = tn_opt_bool(params->options, tn_shm_option_rows, "membarrier") &&
		     tn_shm_membarrier_register();
	TN_LOG(DEBUG, SHM, "device open: middle copies by %s, from %" PRIu64 " bytes on by %s, %s fences",
	       dev->copier.middle_name, dev->copier.nt_bytes, dev->copier.large_name,
	       dev->light ? "light" : "full");
	return TERN_OK;
}

static tern_status shm_dev_open(const tn_dev_params *params, tn_dev **out);
static tern_status shm_dev_probe(char *reason, size_t reason_bytes);

const tn_provider tn_provider_shm = {.name = "shm", .probe = shm_dev_probe, .open = shm_dev_open};

static tern_status shm_dev_open(const tn_dev_params *params, tn_dev **out)
{
	tn_shm_dev *dev = aligned_alloc(64, (sizeof(*dev) + 63) & ~63ull);
	tern_status status;

	*out = NULL;
	if (!dev)
		return tn_fail(TERN_E_NOMEM, "no memory for a device");
	memset(dev, 0, sizeof(*dev));
	dev->base = (tn_dev){.ops = &shm_ops, .provider = &tn_provider_shm, .mem = params->mem};
	dev->keys = tn_mem_keys(params->mem);
	dev->epoll_fd = dev->listen_fd = dev->timer_fd = dev->self_fd = -1;
	dev->page_fd = dev->keys_fd = dev->spare_fd = -1;
	dev->on_listener = (tn_shm_source){.kind = TN_SHM_ON_LISTENER, .owner = dev};
	dev->on_timer = (tn_shm_source){.kind = TN_SHM_ON_TIMER, .owner = dev};
	dev->on_self = (tn_shm_source){.kind = TN_SHM_ON_SELF, .owner = dev};
	dev->timer_ns = TN_TIME_NEVER;
	pthread_mutex_init(&dev->guard_lock, NULL);
	tn_list_init(&dev->conns);
	tn_list_init(&dev->closed_conns);
	tn_list_init(&dev->peers);
	status = open_device(dev, params);
	if (status != TERN_OK) {
		shm_dev_close(&dev->base);
		return status;
	}
	*out = &dev->base;
	return TERN_OK;
}

/* ---- probe ---- */

/* What a lane needs, once through: a sealed memfd that goes through a socket and is seen on both sides. */
static tern_status probe_memory(void)
{
	tn_shm_id id;
	tn_shm_seg_id seg_id;
	void *base = NULL, *again = NULL;
	uint64_t bytes;
	int listen_fd = -1, dial_fd = -1, accept_fd = -1, fd = -1, fds[TN_SHM_FDS_MAX] = {-1, -1, -1, -1};
	uint32_t fd_count;
	pid_t pid;
	tn_shm_any msg = {.extent = {.head = {TN_SHM_WIRE_MAGIC, TN_SHM_WIRE_VERSION, TN_SHM_EXTENT}}};
	tern_status status = tn_shm_seg_create("tern-shm-probe", 4096, false, &fd, &base);

	if (status == TERN_OK)
		status = tn_shm_sock_listen(&id, &listen_fd);
	if (status == TERN_OK)
		status = tn_shm_sock_dial(&id, &dial_fd);
	if (status == TERN_OK)
		status = tn_shm_sock_accept(listen_fd, &accept_fd);
	if (status == TERN_OK)
		status = tn_shm_sock_peer(accept_fd, &pid);
	if (status == TERN_OK)
		status = tn_shm_sock_send(dial_fd, &msg, sizeof(msg.extent), &fd, 1);
	if (status == TERN_OK)
		status = tn_shm_sock_recv(accept_fd, &msg, fds, &fd_count);
	if (status == TERN_OK)
		status = tn_shm_seg_check(fds[0], 4096, &bytes, &seg_id);
	if (status == TERN_OK)
		status = tn_shm_seg_map(fds[0], 4096, TN_SHM_RW, &again);
	if (status == TERN_OK) {
		atomic_store((_Atomic uint64_t *)base, TN_SHM_SEG_MAGIC);
		if (atomic_load((_Atomic uint64_t *)again) != TN_SHM_SEG_MAGIC)
			status = tn_fail(TERN_E_NO_DEVICE, "shared memory is not shared on this host");
	}
	tn_shm_seg_unmap(base, 4096);
	tn_shm_seg_unmap(again, 4096);
	tn_os_close(&fd);
	tn_os_close(&listen_fd);
	tn_os_close(&dial_fd);
	tn_os_close(&accept_fd);
	for (int i = 0; i < TN_SHM_FDS_MAX; i++)
		tn_os_close(&fds[i]);
	return status;
}

static tern_status shm_dev_probe(char *reason, size_t reason_bytes)
{
	tn_shm_address address = {0};
	tn_shm_copier copier;
	tern_status status = own_address(&address);

	if (status == TERN_OK)
		status = probe_memory();
	if (status != TERN_OK) {
		if (reason)
			snprintf(reason, reason_bytes, "not usable: %s", tn_detail_get());
		return status == TERN_AGAIN ? TERN_E_NO_DEVICE : status;
	}
	tn_shm_copier_init(&copier, 0);
	if (reason)
		snprintf(reason, reason_bytes,
			 "memfd and descriptor passing work; copies by %s, large ones by %s",
			 copier.middle_name, copier.large_name);
	return TERN_OK;
}
