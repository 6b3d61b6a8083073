/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue pairs of an experiment: what is posted goes through the network, and its answer completes it.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_internal.h"

/* ---- rows ---- */

static scale_wr *wr_new(scale *s)
{
	scale_wr *wr = s->wr_free;

	if (!wr)
		return sim_alloc(1, sizeof(*wr));
	s->wr_free = wr->next;
	*wr = (scale_wr){0};
	return wr;
}

static void wr_free(scale *s, scale_wr *wr)
{
	wr->next = s->wr_free;
	s->wr_free = wr;
}

/* ---- what a node sees ---- */

static void slot_give(scale_lane *lane)
{
	lane->held--;
	lane->end->node->held--;
}

static void frame_seen(scale_end *end, void *arg, uint64_t value)
{
	scale_lane *lane = &end->lanes[value & 0xff];
	tn_link_rx rx;

	slot_give(lane);
	if (!end->link) {
		scale_model_frame(end, arg);
		free(arg);
		return;
	}
	tn_link_on_frame(end->link, lane->handle, arg, value >> 8, scale_now(end), &rx);
	free(arg);
	tn_link_on_slot_free(end->link, lane->handle, 1);
}

static void imm_seen(scale_end *end, void *arg, uint64_t value)
{
	scale_lane *lane = arg;
	tn_link_rx rx;

	tn_link_on_imm(end->link, lane->handle, (uint32_t)value, value >> 32, scale_now(end), &rx);
	slot_give(lane);
	tn_link_on_slot_free(end->link, lane->handle, 1);
}

static void wr_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)arg;
	if (end->link)
		tn_link_on_wr_done(end->link, value, TERN_OK, scale_now(end));
	else
		scale_model_done(end, value);
}

static void lane_up_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)value;
	tn_link_on_lane_up(end->link, ((scale_lane *)arg)->handle, scale_now(end));
}

/* ---- requests and answers ---- */

/* A request that needs no slot, or has one. at: the lane where it arrived. */
static void execute(scale_lane *at, scale_wr *wr)
{
	scale *s = at->end->node->s;

	switch (wr->type) {
	case TN_POST_SEND:
		scale_input_push(at->end, frame_seen, wr->frame, wr->frame_bytes << 8 | at->index);
		wr->frame = NULL;
		break;
	case TN_POST_WRITE_IMM:
		scale_input_push(at->end, imm_seen, at, wr->bytes << 32 | wr->imm);
		break;
	default:
		break;
	}
	sim_flow_send(s->net, at->answers, wr->type == TN_POST_READ ? wr->bytes : 0, (uintptr_t)wr);
}

static bool take_slot(scale_lane *at, const scale_wr *wr)
{
	scale_node *node = at->end->node;
	scale_result *result = node->s->result;
	uint32_t pool = node->s->config.pool_slots;

	if (wr->type != TN_POST_SEND && wr->type != TN_POST_WRITE_IMM)
		return true;
	if (pool ? node->held >= pool : at->held == at->slots) {
		result->rnr++;
		return false;
	}
	at->held++;
	node->held++;
	result->slots_peak = TN_MAX(result->slots_peak, pool ? node->held : at->held);
	return true;
}

/* The sender tries again what met no slot, and what is behind it. */
static void rnr_again(void *arg, uint64_t value)
{
	scale_lane *at = arg;

	(void)value;
	at->stalled = false;
	while (at->waiting) {
		scale_wr *wr = at->waiting;

		if (!take_slot(at, wr)) {
			at->stalled = true;
			sim_at(&at->end->node->s->events,
			       scale_now(at->end) + at->end->node->s->config.rnr_ns, rnr_again, at, 0);
			return;
		}
		at->waiting = wr->next;
		execute(at, wr);
	}
}

static void request_arrived(void *arg, uint64_t cookie, bool marked)
{
	scale_wr *wr = (scale_wr *)(uintptr_t)cookie;
	scale_lane *at = ((scale_lane *)arg)->other;
	scale *s = at->end->node->s;

	(void)marked;
	if (!at->stalled && take_slot(at, wr)) {
		execute(at, wr);
		return;
	}
	if (!at->waiting)
		at->waiting_end = &at->waiting;
	wr->next = NULL;
	*at->waiting_end = wr;
	at->waiting_end = &wr->next;
	if (!at->stalled) {
		at->stalled = true;
		sim_at(&s->events, s->events.now + s->config.rnr_ns, rnr_again, at, 0);
	}
}

static void answer_arrived(void *arg, uint64_t cookie, bool marked)
{
	scale_wr *wr = (scale_wr *)(uintptr_t)cookie;

	(void)arg;
	(void)marked;
	scale_input_push(wr->lane->end, wr_seen, NULL, wr->cookie);
	wr_free(wr->lane->end->node->s, wr);
}

static const sim_flow_ops request_ops = {.arrived = request_arrived};
static const sim_flow_ops answer_ops = {.arrived = answer_arrived};

tern_status scale_post(scale_end *end, const tn_link_post *post)
{
	scale_lane *lane = post->lane_user;
	scale *s = end->node->s;
	scale_wr *wr = wr_new(s);
	uint64_t at = 0;

	TN_ASSERT(lane->up && lane->end == end);
	wr->lane = lane;
	wr->type = post->type;
	wr->cookie = post->cookie;
	wr->bytes = post->bytes;
	wr->imm = post->imm;
	s->result->posts++;
	if (post->type == TN_POST_SEND) {
		for (uint32_t i = 0; i < post->iov_count; i++)
			wr->frame_bytes += post->iov[i].bytes;
		wr->frame = sim_alloc(1, wr->frame_bytes);
		for (uint32_t i = 0; i < post->iov_count; at += post->iov[i++].bytes)
			memcpy((char *)wr->frame + at, post->iov[i].base, post->iov[i].bytes);
		s->result->frames++;
	}
	sim_flow_send(s->net, lane->requests,
		      post->type == TN_POST_SEND   ? wr->frame_bytes
		      : post->type == TN_POST_READ ? 0
						   : post->bytes,
		      (uintptr_t)wr);
	return TERN_OK;
}

/* ---- lanes ---- */

scale_lane *scale_lane_open(scale_end *end, uint32_t index)
{
	scale *s = end->node->s;
	scale_lane *lane = &end->lanes[index];

	TN_ASSERT(index < SCALE_LANES && !lane->end);
	lane->end = end;
	lane->other = &end->other->lanes[index];
	lane->index = index;
	lane->slots = index == 0 ? s->config.lane0_slots : s->config.lane_slots;
	lane->requests =
		sim_flow_open(s->net, end->node->host, end->other->node->host, 0, &request_ops, lane);
	lane->answers = sim_flow_open(s->net, end->node->host, end->other->node->host, 0 | SIM_NET_URGENT,
				      &answer_ops, lane);
	end->node->qps++;
	return lane;
}

void scale_lane_create(scale_end *end, const tn_link_action *act)
{
	scale *s = end->node->s;
	scale_lane *lane = scale_lane_open(end, act->lane.index);
	uint32_t address = act->lane.index;

	lane->handle = act->lane.lane;
	tn_link_on_lane_created(end->link, lane->handle, TERN_OK, lane, &address, sizeof(address),
				address == 0 ? s->config.lane0_grant : s->config.lane_grant, s->events.now);
}

void scale_lane_connect(scale_end *end, const tn_link_action *act)
{
	scale_lane *lane = act->lane.user;

	lane->connecting = true;
	if (!lane->other->connecting)
		return;
	lane->up = lane->other->up = true;
	scale_input_push(end, lane_up_seen, lane, 0);
	scale_input_push(end->other, lane_up_seen, lane->other, 0);
}
