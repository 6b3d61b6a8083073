/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how a device is opened and taken apart: its rails, what they share, what it waits on. A rail that cannot
 * be opened is left out while another can. Whatever fails undoes what was done.
 *
 * Must not post or poll. Threads: one. Tests: tests/unit/transport/test_verbs_probe.c, test_verbs_life.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

#define WRITE_MAX (1u << 30) /* of one request, whatever the port says: 64-bit lengths are cut above */

/* ---- fork ---- */

/*
 * Queues are private memory that a NIC knows: after a fork on a kernel that copies pinned pages late (before
 * 5.12) the parent could go on with a page that the NIC doesn't have. Extents are shared mappings and don't
 * care. The library does nothing if the kernel needs nothing, or if it was asked already.
 */
static void fork_prepare(const tn_verbs_api *api)
{
	enum ibv_fork_status status;

	if (!api->is_fork_initialized || !api->fork_init)
		return;
	status = api->is_fork_initialized();
	if (status == IBV_FORK_DISABLED && api->fork_init() != 0)
		TN_LOG(WARN, VERBS,
		       "ibv_fork_init is too late and this kernel needs it: a fork of this process can break "
		       "its "
		       "queue pairs; set IBV_FORK_SAFE=1 or call ibv_fork_init first");
}

/* ---- waiting ---- */

static tern_status nonblocking(int fd, const char *what)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
		return tn_fail_errno(TERN_E_OS, "fcntl(O_NONBLOCK)", "%s", what);
	return TERN_OK;
}

static tern_status watch(tn_vb_dev *dev, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (epoll_ctl(dev->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
		return tn_fail_errno(TERN_E_OS, "epoll_ctl", "descriptor %d", fd);
	return TERN_OK;
}

static tern_status open_waiting(tn_vb_dev *dev)
{
	dev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (dev->epoll_fd < 0)
		return tn_fail_errno(TERN_E_LIMIT, "epoll_create1", "raise ulimit -n");
	dev->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (dev->timer_fd < 0)
		return tn_fail_errno(TERN_E_LIMIT, "timerfd_create", "raise ulimit -n");
	TN_TRY(tn_os_event_create(&dev->kick_fd));
	TN_TRY(watch(dev, dev->timer_fd));
	return watch(dev, dev->kick_fd);
}

static tern_status watch_rail(tn_vb_rail *rail)
{
	TN_TRY(nonblocking(rail->channel->fd, "completion channel"));
	TN_TRY(nonblocking(rail->context->async_fd, "asynchronous events"));
	TN_TRY(watch(rail->dev, rail->channel->fd));
	return watch(rail->dev, rail->context->async_fd);
}

/* ---- sizes ---- */

static uint32_t without(int limit, uint32_t reserve, uint32_t at_least)
{
	return (uint32_t)TN_MAX(limit, (int)(reserve + at_least)) - reserve;
}

/* What every rail can. */
static void choose_sizes(tn_vb_dev *dev)
{
	dev->ops_max = (uint32_t)dev->opts.lane_wrs;
	dev->recv_slots = (uint32_t)dev->opts.recv_slots;
	dev->send_bytes = (uint32_t)dev->opts.send_bytes;
	dev->bounce_count = (uint32_t)dev->opts.bounces;
	dev->max_msg = WRITE_MAX;
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tn_vb_rail *rail = &dev->rails[i];

		dev->ops_max = TN_MIN(dev->ops_max, without(rail->attr.max_qp_wr, TN_VB_OPS_RESERVED, 8));
		dev->recv_slots =
			TN_MIN(dev->recv_slots, without(rail->attr.max_srq_wr, TN_VB_RECV_RESERVE, 16));
		if (rail->port.max_msg)
			dev->max_msg = TN_MIN(dev->max_msg, rail->port.max_msg);
	}
	dev->ring = 1;
	while (dev->ring < dev->ops_max + TN_VB_OPS_RESERVED)
		dev->ring *= 2;
	/* A short ring must not fill up with silent ones alone. */
	dev->signal_mask = TN_VB_SIGNAL_EVERY - 1;
	while (dev->signal_mask >= dev->ops_max / 2)
		dev->signal_mask /= 2;
}

/* ---- rails ---- */

/* It cannot be used: LOST from the start, if another is left. Its place stays, others are pointed to. */
static bool leave_out(tn_vb_rail *rail)
{
	if (tn_vb_is_last_usable(rail))
		return false;
	TN_LOG(WARN, VERBS, "%s is left out: %s", rail->name, tn_detail_get());
	tn_vb_rail_stop(rail);
	tn_vb_rail_free(rail);
	rail->health = TN_VB_RAIL_LOST;
	return true;
}

static tern_status find_rails(tn_vb_dev *dev)
{
	tn_vb_found found[TN_VB_RAILS_MAX];

	TN_TRY(tn_vb_find(dev->api, dev->opts.device, found, &dev->rail_count));
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tn_vb_rail *rail = &dev->rails[i];

		rail->dev = dev;
		rail->index = (uint8_t)i;
		rail->context = found[i].context;
		rail->attr = found[i].attr;
		rail->port = found[i].port;
		memcpy(rail->name, found[i].name, sizeof(rail->name));
	}
	return TERN_OK;
}

static tern_status open_rails(tn_vb_dev *dev)
{
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tern_status status = tn_vb_rail_open(&dev->rails[i]);

		if (status == TERN_OK)
			status = watch_rail(&dev->rails[i]);
		if (status != TERN_OK && !leave_out(&dev->rails[i]))
			return status;
	}
	return TERN_OK;
}

static tern_status open_bounces(tn_vb_dev *dev)
{
	void *memory;

	if (!dev->bounce_memory) {
		TN_TRY(tern_mem_alloc(dev->base.mem, (uint64_t)dev->bounce_count * dev->send_bytes, 4096,
				      TERN_ACCESS_NONE, TERN_MEM_HOST, &memory));
		dev->bounce_memory = memory;
	}
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tn_vb_rail *rail = &dev->rails[i];

		if (rail->cq && !rail->recv_memory)
			TN_TRY(tn_vb_rail_fill(rail));
	}
	return TERN_OK;
}

/* Memory grows for all devices or not at all: a rail that refuses it is left out, and then it works. */
static tern_status open_memory(tn_vb_dev *dev)
{
	dev->bounce_free = calloc(dev->bounce_count, sizeof(*dev->bounce_free));
	if (!dev->bounce_free)
		return tn_fail(TERN_E_NOMEM, "no memory for %u bounce buffers", dev->bounce_count);
	for (uint32_t i = 0; i < dev->bounce_count; i++)
		dev->bounce_free[dev->bounce_left++] = i;
	for (;;) {
		tern_status status = open_bounces(dev);
		bool again = false;

		if (status == TERN_OK)
			return TERN_OK;
		for (uint32_t i = 0; i < dev->rail_count; i++) {
			if (dev->rails[i].cq && dev->rails[i].refused)
				again = leave_out(&dev->rails[i]) || again;
		}
		if (!again)
			return status;
	}
}

static void name_device(tn_vb_dev *dev)
{
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		const tn_vb_rail *rail = &dev->rails[i];
		size_t at = strlen(dev->name);

		if (!rail->cq)
			continue;
		snprintf(dev->name + at, sizeof(dev->name) - at, "%s%.30s", at ? "+" : "", rail->name);
		TN_LOG(INFO, VERBS, "rail %u is %s: %s; MTU %u, inline %u bytes", i, rail->name,
		       rail->port.reason, 128u << rail->port.mtu, rail->inline_bytes);
	}
}

static tern_status open_parts(tn_vb_dev *dev)
{
	TN_TRY(tn_verbs_api_get(&dev->api));
	fork_prepare(dev->api);
	TN_TRY(find_rails(dev));
	choose_sizes(dev);
	TN_TRY(open_waiting(dev));
	TN_TRY(open_rails(dev));
	TN_TRY(open_memory(dev));
	dev->inline_bytes = TN_VB_INLINE_WANT;
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (dev->rails[i].cq)
			dev->inline_bytes = TN_MIN(dev->inline_bytes, dev->rails[i].inline_bytes);
	}
	name_device(dev);
	return TERN_OK;
}

tern_status tn_vb_open(const tn_dev_params *params, tn_dev **out)
{
	tn_vb_dev *dev = calloc(1, sizeof(*dev));
	tern_status status;

	*out = NULL;
	if (!dev)
		return tn_fail(TERN_E_NOMEM, "no memory for a device");
	dev->base = (tn_dev){.ops = &tn_vb_ops, .provider = &tn_provider_verbs, .mem = params->mem};
	dev->forks = tn_os_fork_generation();
	dev->one_thread = params->one_thread;
	dev->epoll_fd = dev->timer_fd = dev->kick_fd = -1;
	dev->next_ns = dev->timer_ns = TN_TIME_NEVER;
	tn_list_init(&dev->lanes);
	tn_list_init(&dev->due);
	tn_list_init(&dev->held_lanes);
	pthread_mutex_init(&dev->bounce_lock, NULL);
	pthread_mutex_init(&dev->held_lock, NULL);
	tn_vb_opts_load(params->options, &dev->opts);
	status = open_parts(dev);
	if (status != TERN_OK) {
		tn_vb_free(dev);
		return status;
	}
	dev->keepalive_ns = tn_now() + dev->opts.keepalive_ns;
	dev->watch_every_ns = TN_MIN(dev->opts.keepalive_ns, TN_MAX(dev->opts.stuck_ns / 4, TN_NS_PER_MS));
	dev->watch_ns = dev->opts.stuck_ns ? tn_now() + dev->watch_every_ns : TN_TIME_NEVER;
	TN_LOG(INFO, VERBS, "%s: %u requests a lane, %u receive buffers a rail", dev->name, dev->ops_max,
	       dev->recv_slots);
	*out = &dev->base;
	return TERN_OK;
}

/* ---- taking apart ---- */

void tn_vb_free(tn_vb_dev *dev)
{
	/* A forked child has no part in the device: its objects are the parent's. */
	bool own = dev->forks == tn_os_fork_generation();

	for (uint32_t i = 0; own && i < dev->rail_count; i++)
		tn_vb_rail_stop(&dev->rails[i]);
	if (own)
		tern_mem_free(dev->base.mem, dev->bounce_memory);
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tn_vb_rail *rail = &dev->rails[i];

		if (own)
			tn_vb_rail_free(rail);
		tn_map_fini(&rail->by_qpn);
		free(rail->bufs);
		free(rail->pending);
	}
	tn_os_close(&dev->epoll_fd);
	tn_os_close(&dev->timer_fd);
	tn_os_close(&dev->kick_fd);
	pthread_mutex_destroy(&dev->bounce_lock);
	pthread_mutex_destroy(&dev->held_lock);
	free(dev->bounce_free);
	free(dev);
}
