/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of an experiment: pushes one after the other, reads of a few bytes in between, messages.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_internal.h"

/* Never read or written: payload is not copied. */
#define SOMEWHERE ((void *)(uintptr_t)4096)

static const uint8_t key[TN_LINK_KEY_BYTES];

static scale_op *op_new(scale_end *end, scale_op_kind kind)
{
	scale *s = end->node->s;
	scale_op *op = s->op_free;

	if (op)
		s->op_free = op->next;
	else
		op = sim_alloc(1, sizeof(*op));
	*op = (scale_op){.end = end, .kind = kind, .start = s->events.now};
	return op;
}

static void op_free(scale *s, scale_op *op)
{
	op->next = s->op_free;
	s->op_free = op;
}

static uint32_t message_channel(scale_end *end)
{
	uint32_t extra = end->node->s->config.channels_open;

	return extra && end->extra ? end->extra[end->extra_turn++ % extra] : end->channel[SCALE_MESSAGE];
}

/* False: not now. */
static bool submit(scale_end *end, scale_op_kind kind)
{
	const scale_config *config = &end->node->s->config;
	scale_op *op = op_new(end, kind);
	tn_link_op_params params = {.user = op, .deadline_ns = UINT64_MAX, .level = TN_LINK_REMOTE};
	tn_link_xfer xfer = {.local = SOMEWHERE, .key = key};
	static uint8_t payload[SCALE_SLOT_BYTES];
	tn_link_iov iov = {payload, config->message_bytes};
	tern_status status;
	uint64_t handle;

	if (!end->link) {
		scale_model_submit(end, op, kind == SCALE_PUSH ? config->push_bytes : config->fetch_bytes);
		return true;
	}
	if (kind == SCALE_MESSAGE) {
		status = tn_link_send(end->link, message_channel(end), &iov, 1, &params, &handle);
	} else {
		xfer.type = kind == SCALE_PUSH ? TN_XFER_PUT_NOTIFY : TN_XFER_GET;
		xfer.bytes = kind == SCALE_PUSH ? config->push_bytes : config->fetch_bytes;
		status = tn_link_transfer(end->link, end->channel[kind], &xfer, &params, &handle);
	}
	if (status == TERN_OK)
		return true;
	op_free(end->node->s, op);
	if (status != TERN_AGAIN) {
		fprintf(stderr, "sim: an operation was not taken: status %d\n", status);
		exit(1);
	}
	return false;
}

static void fill(scale_end *end)
{
	const scale_config *config = &end->node->s->config;

	while (end->pushes_left > 0 && end->pushes_out < config->push_depth && submit(end, SCALE_PUSH)) {
		end->pushes_left--;
		end->pushes_out++;
	}
	while (end->messages_left > 0 && end->messages_out < config->depth && submit(end, SCALE_MESSAGE)) {
		end->messages_left--;
		end->messages_out++;
	}
}

/* ---- fetches ---- */

static void fetch_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)arg;
	(void)value;
	if (end->node->s->loading)
		submit(end, SCALE_FETCH);
}

static void fetch_due(void *arg, uint64_t value)
{
	(void)value;
	scale_input_push(arg, fetch_seen, NULL, 0);
}

/* The next one after 0.5 to 1.5 gaps. */
static void fetch_later(scale_end *end)
{
	scale *s = end->node->s;
	uint64_t gap = s->config.fetch_gap_ns;

	sim_at(&s->events, s->events.now + gap / 2 + tn_rand_below(&s->rand, gap + 1), fetch_due, end, 0);
}

/* ---- ends of operations ---- */

static bool finished(const scale_end *end)
{
	return end->pushes_left + end->pushes_out + end->messages_left + end->messages_out == 0;
}

void scale_load_done(scale_end *end, scale_op *op, uint64_t bytes)
{
	scale *s = end->node->s;
	uint64_t ns = s->events.now - op->start;

	switch (op->kind) {
	case SCALE_PUSH:
		tn_hist_add(&s->result->push_ns, ns);
		s->result->pushes++;
		s->result->payload += bytes;
		end->pushes_out--;
		break;
	case SCALE_MESSAGE:
		tn_hist_add(&s->result->message_ns, ns);
		s->result->messages++;
		end->messages_out--;
		break;
	case SCALE_FETCH:
		if (s->loading) {
			tn_hist_add(&s->result->fetch_ns, ns);
			s->result->fetches++;
			fetch_later(end);
		}
		break;
	}
	if (op->kind != SCALE_FETCH) {
		fill(end);
		if (finished(end) && --s->unfinished == 0) {
			s->loading = false;
			s->result->ns = s->events.now - s->start;
		}
	}
	op_free(s, op);
}

static void start_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)arg;
	(void)value;
	fill(end);
	if (end->node->s->config.fetch_gap_ns)
		fetch_later(end);
}

static void start(scale_end *end)
{
	scale *s = end->node->s;

	end->pushes_left = s->config.pushes;
	end->messages_left = s->config.messages;
	s->unfinished++;
	scale_input_push(end, start_seen, NULL, 0);
}

/* The end at host `from` of the k-th link between two hosts of an all-to-all, as scale_run.c lays them out. */
static scale_end *end_of(scale *s, uint32_t from, uint32_t to, uint32_t k)
{
	uint64_t hi = TN_MAX(from, to), lo = TN_MIN(from, to);
	uint64_t link = (hi * (hi - 1) / 2 + lo) * s->config.pair_links + k;
	scale_end *end = &s->ends[2 * link + (from < to)];

	TN_ASSERT(end->node->host == from && end->other->node->host == to);
	return end;
}

static void start_in_steps(scale *s)
{
	uint32_t hosts = s->config.net.hosts;

	for (uint32_t step = 1; step < hosts; step++)
		for (uint32_t host = 0; host < hosts; host++)
			for (uint32_t k = 0; k < s->config.pair_links; k++)
				start(end_of(s, host, (host + step) % hosts, k));
}

static void start_anyhow(scale *s)
{
	uint32_t *order = sim_alloc(s->end_count, sizeof(*order));

	for (uint32_t i = 0; i < s->end_count; i++) {
		uint32_t at = (uint32_t)tn_rand_below(&s->rand, i + 1);

		order[i] = order[at];
		order[at] = i;
	}
	for (uint32_t i = 0; i < s->end_count; i++)
		start(&s->ends[order[i]]);
	free(order);
}

void scale_load_start(scale *s)
{
	bool all = s->config.pattern == SCALE_ALL_TO_ALL;

	s->start = s->events.now;
	s->loading = true;
	if (all && s->config.order == SCALE_RANDOM) {
		start_anyhow(s);
		return;
	}
	if (all && s->config.order == SCALE_IN_STEPS) {
		start_in_steps(s);
		return;
	}
	for (uint32_t i = 0; i < s->end_count; i++)
		if (all || i % 2 == 0)
			start(&s->ends[i]);
}
