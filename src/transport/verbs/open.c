/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how a device is found, opened and taken apart: which one, why not the others, the objects in order,
 * the first fill of the receive queue. Whatever fails undoes what was done and says which call and limit it was.
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

#define LANES_AT_FIRST 8u         /* room in the completion queue before it has to grow */
#define WRITE_MAX      (1u << 30) /* of one request, whatever the port says: 64-bit lengths are cut above */

/* ---- finding ---- */

/* Open one device and choose its port; fills context, attr, port. On error the detail says why. */
static tern_status try_device(tn_vb_dev *dev, struct ibv_device *device)
{
	tern_status status;

	snprintf(dev->name, sizeof(dev->name), "%s", dev->api->get_device_name(device));
	errno = 0;
	dev->context = dev->api->open_device(device);
	if (!dev->context) {
		bool denied = errno == EACCES || errno == EPERM;

		return tn_fail_errno(
			TERN_E_NO_DEVICE, "ibv_open_device", "%s: %s", dev->name,
			denied ? "not permitted; give this user (or container) /dev/infiniband/uverbs*"
			       : "the kernel's driver and rdma-core may not fit each other");
	}
	status = dev->api->query_device(dev->context, &dev->attr) == 0
			 ? tn_vb_port_choose(dev->api, dev->context, dev->name, &dev->attr, &dev->port)
			 : tn_fail_errno(TERN_E_NO_DEVICE, "ibv_query_device", "%s", dev->name);
	if (status == TERN_OK && dev->attr.max_srq <= 0)
		status = tn_fail(TERN_E_NO_DEVICE, "%s has no shared receive queues", dev->name);
	if (status != TERN_OK) {
		dev->api->close_device(dev->context);
		dev->context = NULL;
	}
	return status;
}

/* The first usable one, or the named one. */
static tern_status find_device(tn_vb_dev *dev)
{
	struct ibv_device **list;
	tern_status status;
	int count = 0;

	TN_TRY(tn_verbs_api_get(&dev->api));
	list = dev->api->get_device_list(&count);
	if (!list)
		return tn_fail_errno(
			TERN_E_NO_DEVICE, "ibv_get_device_list",
			"is the module ib_uverbs loaded and /sys/class/infiniband_verbs visible?");
	status = tn_fail(TERN_E_NO_DEVICE,
			 "no RDMA devices on this host (see 'rdma link'); for tests without a NIC: "
			 "'rdma link add rxe0 type rxe netdev IF'");
	for (int i = 0; i < count && list[i]; i++) {
		const char *name = dev->api->get_device_name(list[i]);

		if (dev->opts.device[0] && strcmp(dev->opts.device, name ? name : "") != 0) {
			if (status == TERN_E_NO_DEVICE && i == 0)
				status = tn_fail(TERN_E_NO_DEVICE,
						 "no RDMA device is named %s (TERN_VERBS_DEVICE)",
						 dev->opts.device);
			continue;
		}
		status = try_device(dev, list[i]);
		if (status == TERN_OK)
			break;
		TN_LOG(DEBUG, VERBS, "%s", tn_detail_get());
	}
	dev->api->free_device_list(list);
	return status;
}

tern_status tn_vb_probe(char *reason, size_t reason_bytes)
{
	tn_vb_dev *dev = calloc(1, sizeof(*dev));
	tern_status status;

	if (!dev)
		return tn_fail(TERN_E_NOMEM, "no memory for a device");
	tn_vb_opts_load(NULL, &dev->opts);
	status = find_device(dev);
	if (reason && reason_bytes)
		snprintf(reason, reason_bytes, "%s%s%s", status == TERN_OK ? dev->name : "",
			 status == TERN_OK ? ": " : "",
			 status == TERN_OK ? dev->port.reason : tn_detail_get());
	if (dev->context)
		dev->api->close_device(dev->context);
	free(dev);
	return status;
}

/* ---- opening ---- */

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
	TN_TRY(nonblocking(dev->channel->fd, "completion channel"));
	TN_TRY(nonblocking(dev->context->async_fd, "asynchronous events"));
	TN_TRY(watch(dev, dev->timer_fd));
	TN_TRY(watch(dev, dev->kick_fd));
	TN_TRY(watch(dev, dev->channel->fd));
	return watch(dev, dev->context->async_fd);
}

static void choose_sizes(tn_vb_dev *dev)
{
	uint32_t wrs =
		(uint32_t)TN_MAX(dev->attr.max_qp_wr, (int)TN_VB_OPS_RESERVED + 8) - TN_VB_OPS_RESERVED;
	uint32_t slots =
		(uint32_t)TN_MAX(dev->attr.max_srq_wr, (int)TN_VB_RECV_RESERVE + 16) - TN_VB_RECV_RESERVE;

	dev->ops_max = (uint32_t)TN_MIN(dev->opts.lane_wrs, wrs);
	dev->ring = 1;
	while (dev->ring < dev->ops_max + TN_VB_OPS_RESERVED)
		dev->ring *= 2;
	dev->recv_slots = (uint32_t)TN_MIN(dev->opts.recv_slots, slots);
	dev->send_bytes = (uint32_t)dev->opts.send_bytes;
	dev->bounce_count = (uint32_t)dev->opts.bounces;
	dev->port.max_msg = dev->port.max_msg ? TN_MIN(dev->port.max_msg, WRITE_MAX) : WRITE_MAX;
}

static tern_status open_queues(tn_vb_dev *dev)
{
	struct ibv_srq_init_attr srq = {
		.attr = {.max_wr = dev->recv_slots + TN_VB_RECV_RESERVE, .max_sge = 1}};
	uint64_t depth = dev->ops_max + TN_VB_OPS_RESERVED;
	struct ibv_qp *probe;

	dev->pd = dev->api->alloc_pd(dev->context);
	if (!dev->pd)
		return tn_fail_errno(TERN_E_DEVICE, "ibv_alloc_pd", "%s has at most %d", dev->name,
				     dev->attr.max_pd);
	dev->channel = dev->api->create_comp_channel(dev->context);
	if (!dev->channel)
		return tn_fail_errno(TERN_E_DEVICE, "ibv_create_comp_channel", "%s: raise ulimit -n",
				     dev->name);
	dev->cq_used = srq.attr.max_wr;
	dev->cq = dev->api->create_cq(
		dev->context, (int)TN_MIN(dev->cq_used + LANES_AT_FIRST * depth, (uint64_t)dev->attr.max_cqe),
		NULL, dev->channel, 0);
	if (!dev->cq)
		return tn_fail_errno(TERN_E_DEVICE, "ibv_create_cq",
				     "%s takes at most %d entries and %d queues", dev->name,
				     dev->attr.max_cqe, dev->attr.max_cq);
	dev->srq = dev->api->create_srq(dev->pd, &srq);
	if (!dev->srq)
		return tn_fail_errno(TERN_E_DEVICE, "ibv_create_srq", "%u buffers; %s takes at most %d",
				     srq.attr.max_wr, dev->name, dev->attr.max_srq_wr);
	/* A queue pair that is thrown away says how much fits inline. */
	TN_TRY(tn_vb_qp_create(dev, TN_VB_INLINE_WANT, &probe, &dev->inline_bytes));
	dev->api->destroy_qp(probe);
	return TERN_OK;
}

static tern_status registered(tn_vb_dev *dev, uint64_t bytes, uint8_t **memory, uint32_t *lkey)
{
	void *ptr;

	TN_TRY(tern_mem_alloc(dev->base.mem, bytes, 4096, TERN_ACCESS_NONE, TERN_MEM_HOST, &ptr));
	*memory = ptr;
	*lkey = tn_mem_extent_of(dev->base.mem, ptr)->lkey[dev->mem_slot];
	return TERN_OK;
}

tern_status tn_vb_recv_post(tn_vb_dev *dev, uint32_t index)
{
	tn_vb_buf *buf = &dev->bufs[index];
	struct ibv_sge sge = {.addr = (uintptr_t)(dev->recv_memory + (uint64_t)index * dev->send_bytes),
			      .length = dev->send_bytes,
			      .lkey = dev->recv_lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	int err;

	TN_ASSERT(!buf->posted);
	buf->generation++;
	buf->posted = true;
	wr.wr_id = 1ull << 63 | (uint64_t)(buf->generation & 0x7fffffffu) << 32 | index;
	err = dev->api->post_srq_recv(dev->srq, &wr, &bad);
	if (err == 0)
		return TERN_OK;
	buf->posted = false;
	errno = err > 0 ? err : errno;
	dev->device_status = TERN_E_DEVICE;
	TN_LOG(ERROR, VERBS, "%s: ibv_post_srq_recv: %s: a receive buffer is lost", dev->name,
	       strerror(errno));
	return tn_fail_errno(TERN_E_DEVICE, "ibv_post_srq_recv", "%s", dev->name);
}

static tern_status open_buffers(tn_vb_dev *dev)
{
	uint32_t total = dev->recv_slots + TN_VB_RECV_RESERVE;

	dev->bufs = calloc(total, sizeof(*dev->bufs));
	dev->bounce_free = calloc(dev->bounce_count, sizeof(*dev->bounce_free));
	if (!dev->bufs || !dev->bounce_free)
		return tn_fail(TERN_E_NOMEM, "no memory for %u receive buffers", total);
	TN_TRY(registered(dev, (uint64_t)total * dev->send_bytes, &dev->recv_memory, &dev->recv_lkey));
	TN_TRY(registered(dev, (uint64_t)dev->bounce_count * dev->send_bytes, &dev->bounce_memory,
			  &dev->bounce_lkey));
	for (uint32_t i = 0; i < dev->bounce_count; i++)
		dev->bounce_free[dev->bounce_left++] = i;
	for (uint32_t i = 0; i < total; i++)
		TN_TRY(tn_vb_recv_post(dev, i));
	return TERN_OK;
}

static tern_status open_parts(tn_vb_dev *dev)
{
	uint64_t seed;

	TN_TRY(find_device(dev));
	choose_sizes(dev);
	TN_TRY(tn_os_random(&seed, sizeof(seed)));
	TN_TRY(tn_map_init(&dev->by_qpn, 64, false, seed));
	TN_TRY(open_queues(dev));
	TN_TRY(open_waiting(dev));
	TN_TRY(tn_mem_attach(dev->base.mem, &tn_vb_registrar, dev, &dev->mem_slot));
	dev->attached = true;
	return open_buffers(dev);
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
	dev->epoll_fd = dev->timer_fd = dev->kick_fd = -1;
	dev->next_ns = dev->timer_ns = TN_TIME_NEVER;
	tn_list_init(&dev->lanes);
	tn_list_init(&dev->due);
	pthread_mutex_init(&dev->bounce_lock, NULL);
	tn_vb_opts_load(params->options, &dev->opts);
	status = open_parts(dev);
	if (status != TERN_OK) {
		tn_vb_free(dev);
		return status;
	}
	dev->keepalive_ns = tn_now() + dev->opts.keepalive_ns;
	TN_LOG(INFO, VERBS, "%s: %s; MTU %u, inline %u bytes, %u requests a lane, %u receive buffers",
	       dev->name, dev->port.reason, 128u << dev->port.mtu, dev->inline_bytes, dev->ops_max,
	       dev->recv_slots);
	*out = &dev->base;
	return TERN_OK;
}

/* ---- taking apart ---- */

static void free_verbs(tn_vb_dev *dev)
{
	if (dev->srq)
		dev->api->destroy_srq(dev->srq);
	if (dev->attached)
		tn_mem_detach(dev->base.mem, dev->mem_slot);
	/* Only now does no NIC write into the buffers any more. */
	tern_mem_free(dev->base.mem, dev->recv_memory);
	tern_mem_free(dev->base.mem, dev->bounce_memory);
	if (dev->cq)
		dev->api->destroy_cq(dev->cq);
	if (dev->channel)
		dev->api->destroy_comp_channel(dev->channel);
	if (dev->pd)
		dev->api->dealloc_pd(dev->pd);
	if (dev->context)
		dev->api->close_device(dev->context);
}

void tn_vb_free(tn_vb_dev *dev)
{
	/* A forked child has no part in the device: its objects are the parent's. */
	if (dev->forks == tn_os_fork_generation())
		free_verbs(dev);
	tn_os_close(&dev->epoll_fd);
	tn_os_close(&dev->timer_fd);
	tn_os_close(&dev->kick_fd);
	tn_map_fini(&dev->by_qpn);
	pthread_mutex_destroy(&dev->bounce_lock);
	free(dev->bufs);
	free(dev->bounce_free);
	free(dev);
}
