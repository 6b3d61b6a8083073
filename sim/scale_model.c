/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link as its window rules alone, for more links than fit into memory as machines.
 *
 *   push     pieces of at most piece_max bytes while they fit into the window, then a notification; ends when
 *            the peer's frame that acknowledges it is here
 *   grants   if they are on, a push asks for its bytes first, and a node grants so much that what is granted and not
 *            arrived stays within grant_bytes, a quantum to each that asks in turn
 *   fetch    one read on lane 0, beside them
 *
 * What is left out: hello, credits (a lane has slots without end), channels, recovery, other operations. Frames are as long as the link's. The
 * test compares runs of it with runs of the machines.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_internal.h"

#include "link/wire.h"

enum { DONE_WRITE, DONE_FRAME, DONE_READ };
enum { MODEL_NOTIFY = 1, MODEL_ACK, MODEL_ASK, MODEL_GRANT, MODEL_SENT };

static void post(scale_end *end, uint32_t lane, tn_link_post_type type, uint64_t bytes, unsigned what,
		 const void *frame)
{
	tn_link_post p = {
		.type = type,
		.lane_user = &end->lanes[lane],
		.cookie = bytes << 2 | what,
		.bytes = bytes,
		.iov_count = frame ? 1 : 0,
		.iov = {{frame, bytes}},
	};
	tern_status status = scale_post(end, &p);

	TN_ASSERT(status == TERN_OK);
	(void)status;
}

static void send_frame(scale_end *end, uint32_t lane, uint8_t what, uint64_t amount, uint64_t bytes)
{
	uint8_t frame[TN_FRAME_BYTES_MAX] = {what};

	TN_ASSERT(bytes <= sizeof(frame));
	memcpy(frame + 8, &amount, sizeof(amount));
	post(end, lane, TN_POST_SEND, bytes, DONE_FRAME, frame);
}

void scale_model_start(scale_end *end)
{
	for (uint32_t i = 0; i < 2; i++)
		scale_lane_open(end, i)->slots = UINT32_MAX;
	end->model.seat.wake = scale_woken;
	end->model.seat.arg = end;
	end->node->links++;
	end->node->s->ready++;
}

void scale_model_connect(scale_end *end)
{
	for (uint32_t i = 0; i < 2; i++)
		end->lanes[i].up = true;
}

void scale_model_submit(scale_end *end, scale_op *op, uint64_t bytes)
{
	scale_model *m = &end->model;

	if (op->kind == SCALE_FETCH) {
		m->fetch = op;
		post(end, 0, TN_POST_READ, bytes, DONE_READ, NULL);
		return;
	}
	TN_ASSERT(op->kind == SCALE_PUSH && !m->push);
	m->push = op;
	m->left = m->bytes = bytes;
	if (end->node->s->config.grant_bytes)
		send_frame(end, 0, MODEL_ASK, bytes, sizeof(tn_frame_window));
}

/* The peers of this node's ends that asked, in turn. */
static void grant(scale_node *node)
{
	uint64_t budget = node->s->config.grant_bytes;

	while (node->asking) {
		scale_end *end = node->asking;
		uint64_t n = TN_MIN(end->model.want, node->s->config.grant_quantum);

		if (node->granted > 0 && node->granted + n > budget)
			return;
		node->asking = end->model.next;
		if (!node->asking)
			node->asking_end = &node->asking;
		node->granted += n;
		end->model.want -= n;
		send_frame(end, 0, MODEL_GRANT, n, sizeof(tn_frame_window));
		if (end->model.want == 0)
			continue;
		end->model.next = NULL;
		*node->asking_end = end;
		node->asking_end = &end->model.next;
	}
}

static void asked(scale_end *end, uint64_t bytes)
{
	scale_node *node = end->node;

	TN_ASSERT(end->model.want == 0);
	end->model.want = bytes;
	end->model.next = NULL;
	*node->asking_end = end;
	node->asking_end = &end->model.next;
	grant(node);
}

/* May a piece go? As in link/window.c: bulk is more than small_bytes. */
static bool may_go(scale_end *end, uint64_t n)
{
	const scale_config *config = &end->node->s->config;
	scale_model *m = &end->model;

	if (n <= config->link.small_bytes)
		return true;
	if (m->in_flight > 0 && m->in_flight + n > config->link.window_bytes)
		return false;
	return !config->device_bytes || tn_budget_open(&end->node->budget, &m->seat, n);
}

static void in_flight(scale_end *end, uint64_t n)
{
	if (n <= end->node->s->config.link.small_bytes)
		return;
	end->model.in_flight += n;
	if (end->node->s->config.device_bytes)
		tn_budget_take(&end->node->budget, &end->model.seat, n);
}

static void arrived(scale_end *end, uint64_t n)
{
	if (n <= end->node->s->config.link.small_bytes)
		return;
	end->model.in_flight -= n;
	if (end->node->s->config.device_bytes)
		tn_budget_give(&end->node->budget, &end->model.seat, n);
}

void scale_model_pump(scale_end *end)
{
	scale_model *m = &end->model;
	const tn_link_config *config = &end->node->s->config.link;
	bool grants = end->node->s->config.grant_bytes > 0;

	while (m->left > 0 && (!grants || m->allowed > 0)) {
		uint64_t piece = TN_MAX(config->window_bytes / 4, 4096u), n;

		n = TN_MIN(m->left, TN_MIN(piece, config->chunk_bytes));

		if (grants)
			n = TN_MIN(n, m->allowed);
		if (!may_go(end, n))
			return;
		in_flight(end, n);
		m->left -= n;
		post(end, 1, TN_POST_WRITE, n, DONE_WRITE, NULL);
		if (grants) {
			m->allowed -= n;
			m->untold += n;
		}
		if (m->untold > 0 && m->allowed == 0) {
			send_frame(end, 1, MODEL_SENT, m->untold, sizeof(tn_frame_window));
			m->untold = 0;
		}
		if (m->left == 0)
			send_frame(end, 1, MODEL_NOTIFY, 0, sizeof(tn_frame_notify));
	}
}

void scale_model_frame(scale_end *end, const uint8_t *frame)
{
	scale_op *op = end->model.push;
	uint64_t amount;

	memcpy(&amount, frame + 8, sizeof(amount));
	switch (frame[0]) {
	case MODEL_NOTIFY:
		send_frame(end, 0, MODEL_ACK, 0, TN_FRAME_LANES_BYTES(1));
		break;
	case MODEL_ASK:
		asked(end, amount);
		break;
	case MODEL_GRANT:
		end->model.allowed += amount;
		break;
	case MODEL_SENT:
		TN_ASSERT(end->node->granted >= amount);
		end->node->granted -= amount;
		grant(end->node);
		break;
	default:
		end->model.push = NULL;
		scale_load_done(end, op, end->model.bytes);
		break;
	}
}

void scale_model_done(scale_end *end, uint64_t cookie)
{
	scale_op *op = end->model.fetch;

	if ((cookie & 3) == DONE_WRITE)
		arrived(end, cookie >> 2);
	if ((cookie & 3) != DONE_READ)
		return;
	end->model.fetch = NULL;
	scale_load_done(end, op, cookie >> 2);
}
