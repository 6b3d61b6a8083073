/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a rail: its objects in order, room in its completion queue, the turn of its receive buffers, and its
 * health. Whatever fails says which call and limit it was; tn_vb_rail_stop and _free take apart what there is.
 *
 * Must not know lanes but to end those of a rail that is lost. Threads: serialised with poll.
 * Tests: tests/unit/transport/test_verbs_life.c, test_verbs_rails.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

#define LANES_AT_FIRST 8u /* room in the completion queue before it has to grow */

static const char *const health_names[] = {"UP", "DOWN", "PROBATION", "LOST"};

/* ---- opening ---- */

static void moderate(tn_vb_rail *rail)
{
	const tn_vb_opts *opts = &rail->dev->opts;
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = {.cq_count = opts->cq_moderation, .cq_period = opts->cq_period_us},
	};
	int err = rail->dev->api->modify_cq ? rail->dev->api->modify_cq(rail->cq, &attr) : ENOSYS;

	if (err != 0)
		TN_LOG(WARN, VERBS, "%s has no completion moderation (%s): going on without it", rail->name,
		       strerror(err > 0 ? err : errno));
}

static tern_status open_cq(tn_vb_rail *rail)
{
	tn_vb_dev *dev = rail->dev;
	uint64_t depth = dev->ops_max + TN_VB_OPS_RESERVED;

	rail->channel = dev->api->create_comp_channel(rail->context);
	if (!rail->channel)
		return tn_vb_fail_errno("ibv_create_comp_channel", "%s: raise ulimit -n", rail->name);
	rail->cq_used = dev->recv_slots + TN_VB_RECV_RESERVE;
	rail->cq = dev->api->create_cq(
		rail->context,
		(int)TN_MIN(rail->cq_used + LANES_AT_FIRST * depth, (uint64_t)TN_MAX(rail->attr.max_cqe, 1)),
		rail, rail->channel, 0);
	if (!rail->cq)
		return tn_vb_fail_errno("ibv_create_cq", "%s takes at most %d entries and %d queues",
					rail->name, rail->attr.max_cqe, rail->attr.max_cq);
	if (dev->opts.cq_moderation > 0)
		moderate(rail);
	return TERN_OK;
}

/* A queue pair that is thrown away says how much fits inline, and whether writes are placed in order. */
static tern_status ask_queue_pair(tn_vb_rail *rail)
{
	const tn_verbs_api *api = rail->dev->api;
	struct ibv_qp *qp;

	TN_TRY(tn_vb_qp_create(rail, TN_VB_INLINE_WANT, &qp, &rail->inline_bytes));
	rail->in_order =
		api->query_qp_data_in_order && api->query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 1;
	api->destroy_qp(qp);
	return TERN_OK;
}

tern_status tn_vb_rail_open(tn_vb_rail *rail)
{
	tn_vb_dev *dev = rail->dev;
	struct ibv_srq_init_attr srq = {
		.attr = {.max_wr = dev->recv_slots + TN_VB_RECV_RESERVE, .max_sge = 1}};
	uint64_t seed;

	TN_TRY(tn_os_random(&seed, sizeof(seed)));
	TN_TRY(tn_map_init(&rail->by_qpn, 64, false, seed));
	rail->pd = dev->api->alloc_pd(rail->context);
	if (!rail->pd)
		return tn_vb_fail_errno("ibv_alloc_pd", "%s has at most %d", rail->name, rail->attr.max_pd);
	TN_TRY(open_cq(rail));
	rail->srq = dev->api->create_srq(rail->pd, &srq);
	if (!rail->srq)
		return tn_vb_fail_errno("ibv_create_srq", "%u buffers; %s takes at most %d", srq.attr.max_wr,
					rail->name, rail->attr.max_srq_wr);
	TN_TRY(ask_queue_pair(rail));
	TN_TRY(tn_mem_attach(dev->base.mem, &tn_vb_registrar, rail, &rail->mem_slot));
	rail->attached = true;
	rail->rnr_at_open = tn_vb_rnr_read(rail);
	return TERN_OK;
}

tern_status tn_vb_rail_fill(tn_vb_rail *rail)
{
	tn_vb_dev *dev = rail->dev;
	uint32_t total = dev->recv_slots + TN_VB_RECV_RESERVE;
	void *memory;

	if (!rail->bufs)
		rail->bufs = calloc(total, sizeof(*rail->bufs));
	if (!rail->pending)
		rail->pending = calloc(total, sizeof(*rail->pending));
	if (!rail->bufs || !rail->pending)
		return tn_fail(TERN_E_NOMEM, "no memory for %u receive buffers", total);
	TN_TRY(tern_mem_alloc(dev->base.mem, (uint64_t)total * dev->send_bytes, 4096, TERN_ACCESS_NONE,
			      TERN_MEM_HOST, &memory));
	rail->recv_memory = memory;
	rail->recv_lkey = tn_mem_extent_of(dev->base.mem, memory)->lkey[rail->mem_slot];
	rail->bounce_lkey = tn_mem_extent_of(dev->base.mem, dev->bounce_memory)->lkey[rail->mem_slot];
	for (uint32_t i = 0; i < total; i++)
		TN_TRY(tn_vb_recv_return(rail, i));
	return TERN_OK;
}

void tn_vb_rail_stop(tn_vb_rail *rail)
{
	if (rail->srq)
		rail->dev->api->destroy_srq(rail->srq);
	rail->srq = NULL;
	if (rail->attached)
		tn_mem_detach(rail->dev->base.mem, rail->mem_slot);
	rail->attached = false;
	/* Only now does no NIC write into the buffers any more. */
	tern_mem_free(rail->dev->base.mem, rail->recv_memory);
	rail->recv_memory = NULL;
}

void tn_vb_rail_free(tn_vb_rail *rail)
{
	const tn_verbs_api *api = rail->dev->api;

	/* The library waits for acknowledgements when a queue ends. */
	if (rail->cq && rail->cq_unacked)
		api->ack_cq_events(rail->cq, rail->cq_unacked);
	if (rail->cq)
		api->destroy_cq(rail->cq);
	if (rail->channel)
		api->destroy_comp_channel(rail->channel);
	if (rail->pd)
		api->dealloc_pd(rail->pd);
	if (rail->context)
		api->close_device(rail->context);
	rail->cq = NULL;
	rail->channel = NULL;
	rail->pd = NULL;
	rail->context = NULL;
}

/* ---- completion queue ---- */

tern_status tn_vb_cq_reserve(tn_vb_rail *rail)
{
	uint64_t want = rail->cq_used + rail->dev->ops_max + TN_VB_OPS_RESERVED,
		 size = (uint64_t)rail->cq->cqe;

	if (want > size) {
		uint64_t most = (uint64_t)TN_MAX(rail->attr.max_cqe, 0);

		size = TN_MIN(TN_MAX(size * 2, want), most);
		if (want > most || rail->dev->api->resize_cq(rail->cq, (int)size) != 0)
			return tn_fail(TERN_E_LIMIT,
				       "%s: a completion queue of %llu is needed for one lane more, its "
				       "limit is %d: lower TERN_VERBS_LANE_WRS",
				       rail->name, (unsigned long long)want, rail->attr.max_cqe);
	}
	rail->cq_used = want;
	return TERN_OK;
}

void tn_vb_cq_release(tn_vb_rail *rail)
{
	rail->cq_used -= rail->dev->ops_max + TN_VB_OPS_RESERVED;
}

/* ---- receive buffers ---- */

static tern_status refill_failed(tn_vb_rail *rail, int err)
{
	errno = err > 0 ? err : errno;
	rail->dev->device_status = TERN_E_DEVICE;
	TN_LOG_LIMITED(ERROR, VERBS, 1, "%s: ibv_post_srq_recv: %s: %u receive buffers wait", rail->name,
		       strerror(errno), rail->pending_count);
	return tn_fail_errno(TERN_E_DEVICE, "ibv_post_srq_recv", "%s", rail->name);
}

tern_status tn_vb_refill(tn_vb_rail *rail, uint32_t n)
{
	tn_vb_dev *dev = rail->dev;
	uint32_t from = rail->pending_count - n, done = n;
	struct ibv_recv_wr wr[TN_VB_REFILL], *bad = NULL;
	struct ibv_sge sge[TN_VB_REFILL];
	int err;

	/* What is refused waits for the next buffer to come back, not for each poll. */
	rail->refill_due = false;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t index = rail->pending[from + i];

		sge[i] = (struct ibv_sge){
			.addr = (uintptr_t)(rail->recv_memory + (uint64_t)index * dev->send_bytes),
			.length = dev->send_bytes,
			.lkey = rail->recv_lkey};
		wr[i] = (struct ibv_recv_wr){
			.wr_id = 1ull << 63 | (uint64_t)(rail->bufs[index].generation & 0x7fffffffu) << 32 |
				 index,
			.next = i + 1 < n ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1};
	}
	err = tn_verbs_post_srq_recv(dev->api, rail->srq, wr, &bad);
	if (err != 0) {
		/* Those before bad were taken. */
		done = bad >= wr && bad < wr + n ? (uint32_t)(bad - wr) : 0;
		memmove(&rail->pending[from], &rail->pending[from + done],
			(n - done) * sizeof(*rail->pending));
	}
	rail->pending_count -= done;
	return err ? refill_failed(rail, err) : TERN_OK;
}

void tn_vb_rail_forget(tn_vb_rail *rail, uint32_t qpn)
{
	tn_map_remove(&rail->by_qpn, qpn, NULL);
	rail->last = NULL;
}

/* ---- health ---- */

bool tn_vb_is_last_usable(const tn_vb_rail *rail)
{
	const tn_vb_dev *dev = rail->dev;

	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (&dev->rails[i] != rail && tn_vb_usable(&dev->rails[i]))
			return false;
	}
	return true;
}

/* Lanes of a rail that is gone; those of one that is down only if there is another: it may come back in time. */
static void end_lanes(tn_vb_rail *rail, tern_status status)
{
	TN_LIST_FOREACH(node, &rail->dev->lanes) {
		tn_vb_lane *lane = TN_LIST_ENTRY(node, tn_vb_lane, all);

		if (lane->rail == rail)
			tn_vb_lane_fail(lane, status);
	}
}

void tn_vb_rail_set_health(tn_vb_rail *rail, tn_vb_health health)
{
	tn_vb_dev *dev = rail->dev;

	if (rail->health == health || rail->health == TN_VB_RAIL_LOST)
		return;
	TN_LOG(WARN, VERBS, "rail %u (%s): %s -> %s: %s", rail->index, rail->name, health_names[rail->health],
	       health_names[health], rail->port.reason);
	rail->health = health;
	if (health == TN_VB_RAIL_PROBATION) {
		rail->probation_ns = tn_deadline(tn_now(), dev->opts.probation_ns);
		tn_vb_deadline(dev, rail->probation_ns);
	}
	if (health == TN_VB_RAIL_DOWN || health == TN_VB_RAIL_LOST) {
		tn_count(&dev->counters.rail_downs, 1);
		dev->device_status = TERN_E_DEVICE;
		if (health == TN_VB_RAIL_LOST)
			end_lanes(rail, TERN_E_DEVICE);
		else if (!tn_vb_is_last_usable(rail))
			end_lanes(rail, TERN_E_LANE);
	}
}

void tn_vb_rail_tick(tn_vb_rail *rail, uint64_t now_ns)
{
	if (rail->health != TN_VB_RAIL_PROBATION)
		return;
	if (now_ns >= rail->probation_ns)
		tn_vb_rail_set_health(rail, TN_VB_RAIL_UP);
	else
		tn_vb_deadline(rail->dev, rail->probation_ns);
}

void tn_vb_rail_refresh(tn_vb_rail *rail)
{
	uint32_t max_msg = rail->port.max_msg;
	tn_vb_port now;

	if (rail->health == TN_VB_RAIL_LOST)
		return;
	if (tn_vb_port_query(rail->dev->api, rail->context, rail->port.number, &now) != TERN_OK) {
		memcpy(rail->port.reason, now.reason, sizeof(now.reason));
		tn_vb_rail_set_health(rail, TN_VB_RAIL_DOWN);
		return;
	}
	if (now.gid_count != rail->port.gid_count || now.lid != rail->port.lid || now.mtu != rail->port.mtu ||
	    memcmp(now.gids, rail->port.gids, sizeof(now.gids)) != 0) {
		TN_LOG(INFO, VERBS, "%s: %s; MTU %u", rail->name, now.reason, 128u << now.mtu);
		rail->dev->address_changed = true;
	}
	rail->port = now;
	rail->port.max_msg = max_msg; /* as the link was told */
	if (rail->health == TN_VB_RAIL_DOWN)
		tn_vb_rail_set_health(rail, TN_VB_RAIL_PROBATION);
}

void tn_vb_rail_describe(const tn_vb_rail *rail, uint32_t gids_max, tn_vb_rail_addr *addr)
{
	*addr = (tn_vb_rail_addr){
		.rail = rail->index,
		.healthy = rail->health == TN_VB_RAIL_UP,
		.ethernet = rail->port.ethernet,
		.mtu = (uint8_t)rail->port.mtu,
		.rd_atomic = (uint8_t)TN_MIN(TN_MAX(rail->attr.max_qp_rd_atom, 0), 255),
		.mem_slot = (uint8_t)rail->mem_slot,
		.lid = rail->port.lid,
		.gid_count = (uint8_t)TN_MIN(rail->port.gid_count, gids_max),
	};
	memcpy(addr->gids, rail->port.gids, addr->gid_count * sizeof(addr->gids[0]));
}
