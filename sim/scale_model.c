/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link as its window rules alone, for more links than fit into memory as machines.
 *
 *   push     pieces of at most piece_max bytes while they fit into the window, then a notification; ends when
 *            the peer's frame that acknowledges it is here
 *   fetch    one read on lane 0, beside them
 *
 * What is left out: hello, credits, channels, recovery, other operations. Frames are as long as the link's. The
 * test compares runs of it with runs of the machines.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_internal.h"

#include "link/wire.h"

enum { DONE_WRITE, DONE_FRAME, DONE_READ };
enum { MODEL_NOTIFY = 1, MODEL_ACK };

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

static void send_frame(scale_end *end, uint32_t lane, uint8_t what, uint64_t bytes)
{
	uint8_t frame[TN_FRAME_BYTES_MAX] = {what};

	TN_ASSERT(bytes <= sizeof(frame));
	post(end, lane, TN_POST_SEND, bytes, DONE_FRAME, frame);
}

void scale_model_start(scale_end *end)
{
	for (uint32_t i = 0; i < 2; i++)
		scale_lane_open(end, i);
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
}

void scale_model_pump(scale_end *end)
{
	scale_model *m = &end->model;
	const tn_link_config *config = &end->node->s->config.link;
	uint64_t piece = config->chunk_bytes;

	while (m->left > 0) {
		uint64_t n = TN_MIN(m->left, piece);

		if (m->in_flight > 0 && m->in_flight + n > config->window_bytes)
			return;
		m->in_flight += n;
		m->left -= n;
		post(end, 1, TN_POST_WRITE, n, DONE_WRITE, NULL);
		if (m->left == 0)
			send_frame(end, 1, MODEL_NOTIFY, sizeof(tn_frame_notify));
	}
}

void scale_model_frame(scale_end *end, const uint8_t *frame)
{
	scale_op *op = end->model.push;

	if (frame[0] == MODEL_NOTIFY) {
		send_frame(end, 0, MODEL_ACK, TN_FRAME_LANES_BYTES(1));
		return;
	}
	end->model.push = NULL;
	scale_load_done(end, op, end->model.bytes);
}

void scale_model_done(scale_end *end, uint64_t cookie)
{
	scale_op *op = end->model.fetch;

	if ((cookie & 3) == DONE_WRITE)
		end->model.in_flight -= cookie >> 2;
	if ((cookie & 3) != DONE_READ)
		return;
	end->model.fetch = NULL;
	scale_load_done(end, op, cookie >> 2);
}
