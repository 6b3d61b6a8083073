/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of an experiment: a CPU that takes inputs one after the other, and the links that it drives as the
 * channel shell does.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_internal.h"

/* ---- the CPU ---- */

static void work(void *arg, uint64_t value);

static void arm(scale_node *node)
{
	if (node->armed || node->input_count == 0)
		return;
	node->armed = true;
	sim_at(&node->s->events, node->cpu_free, work, node, 0);
}

static void work(void *arg, uint64_t value)
{
	scale_node *node = arg;
	scale_input in = node->inputs[node->input_head];

	(void)value;
	node->armed = false;
	node->input_head = (node->input_head + 1) & (node->input_room - 1);
	node->input_count--;
	node->cpu_free = node->s->events.now + node->s->config.cpu_ns;
	in.fn(in.end, in.arg, in.value);
	scale_pump(in.end);
	arm(node);
}

void scale_input_push(scale_end *end, scale_input_fn fn, void *arg, uint64_t value)
{
	scale_node *node = end->node;

	if (node->input_count == node->input_room) {
		uint32_t room = node->input_room ? 2 * node->input_room : 16;
		scale_input *inputs = sim_alloc(room, sizeof(*inputs));

		for (uint32_t i = 0; i < node->input_count; i++)
			inputs[i] = node->inputs[(node->input_head + i) & (node->input_room - 1)];
		free(node->inputs);
		node->inputs = inputs;
		node->input_head = 0;
		node->input_room = room;
	}
	node->inputs[(node->input_head + node->input_count++) & (node->input_room - 1)] =
		(scale_input){fn, end, arg, value};
	arm(node);
}

/* ---- the control connection ---- */

typedef struct ctrl_bytes {
	scale_end *to;
	uint32_t n;
	uint8_t bytes[];
} ctrl_bytes;

static void ctrl_seen(scale_end *end, void *arg, uint64_t value)
{
	ctrl_bytes *c = arg;

	(void)value;
	tn_link_on_ctrl_bytes(end->link, c->bytes, c->n, scale_now(end));
	free(c);
}

static void ctrl_arrived(void *arg, uint64_t value)
{
	ctrl_bytes *c = arg;

	(void)value;
	scale_input_push(c->to, ctrl_seen, c, 0);
}

static void ctrl_send(scale_end *end, const void *bytes, uint32_t n)
{
	ctrl_bytes *c = sim_alloc(1, sizeof(*c) + n);

	c->to = end->other;
	c->n = n;
	memcpy(c->bytes, bytes, n);
	sim_at(&end->node->s->events, scale_now(end) + end->node->s->config.ctrl_ns, ctrl_arrived, c, 0);
}

/* ---- actions ---- */

static void channel_ready(scale_end *end)
{
	if (++end->open == SCALE_CHANNELS + end->node->s->config.channels_open)
		end->node->s->ready++;
}

static void incoming(scale_end *end, uint32_t channel)
{
	tern_status status = tn_link_channel_accept(end->link, channel, end, 0);

	TN_ASSERT(status == TERN_OK);
	(void)status;
	if (end->open < SCALE_CHANNELS)
		end->channel[end->open] = channel;
	channel_ready(end);
}

static void link_up(scale_end *end)
{
	uint32_t extra = end->node->s->config.channels_open;

	if (end > end->other)
		return;
	end->extra = sim_alloc(extra, sizeof(*end->extra));
	for (uint32_t i = 0; i < SCALE_CHANNELS + extra; i++) {
		uint32_t *channel = i < SCALE_CHANNELS ? &end->channel[i] : &end->extra[i - SCALE_CHANNELS];
		tern_status status = tn_link_channel_open(end->link, "scale", end, 0, channel);

		TN_ASSERT(status == TERN_OK);
		(void)status;
	}
}

static void act_on(scale_end *end, tn_link_action *act)
{
	uint64_t now = scale_now(end);

	switch (act->type) {
	case TN_ACT_CTRL_SEND:
		ctrl_send(end, act->ctrl.bytes, act->ctrl.n);
		break;
	case TN_ACT_PEER:
		tn_link_on_peer_answer(end->link, TERN_OK, NULL, now);
		break;
	case TN_ACT_REACH:
		tn_link_on_reach(end->link, act->lane.provider, TERN_OK, "", now);
		break;
	case TN_ACT_LANE_CREATE:
		scale_lane_create(end, act);
		break;
	case TN_ACT_LANE_CONNECT:
		scale_lane_connect(end, act);
		break;
	case TN_ACT_POST:
		tn_link_posted(end->link, &act->post, scale_post(end, &act->post), false, now);
		break;
	case TN_ACT_OP_DONE:
		if (act->done.status != TERN_OK) {
			fprintf(stderr, "sim: an operation failed: %s\n", act->done.detail);
			exit(1);
		}
		scale_load_done(end, act->done.user, act->done.length);
		break;
	case TN_ACT_CHANNEL_INCOMING:
		incoming(end, act->channel.channel);
		break;
	case TN_ACT_CHANNEL_OPENED:
		channel_ready(end);
		break;
	case TN_ACT_LINK_UP:
		link_up(end);
		break;
	case TN_ACT_LINK_DOWN:
	case TN_ACT_CHANNEL_CLOSED:
		fprintf(stderr, "sim: a link ended: %s\n", tn_link_detail(end->link));
		exit(1);
	default:
		break;
	}
}

/* ---- time ---- */

static void time_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)arg;
	(void)value;
	tn_link_on_time(end->link, scale_now(end));
}

static void wake(void *arg, uint64_t value)
{
	scale_end *end = arg;

	(void)value;
	end->wake = 0;
	end->wake_at = UINT64_MAX;
	scale_input_push(end, time_seen, NULL, 0);
}

void scale_pump(scale_end *end)
{
	sim_events *events = &end->node->s->events;
	tn_link_action act;
	uint64_t at;

	if (!end->link) {
		scale_model_pump(end);
		return;
	}
	while (tn_link_next_action(end->link, events->now, &act))
		act_on(end, &act);
	at = tn_link_next_wake(end->link);
	/* A timer that moved away fires once for nothing. */
	if (at >= end->wake_at)
		return;
	sim_cancel(events, end->wake);
	end->wake_at = at;
	end->wake = sim_at(events, at, wake, end, 0);
}

/* ---- birth ---- */

static void ctrl_up_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)arg;
	(void)value;
	tn_link_on_ctrl_up(end->link, scale_now(end));
}

static void woken_seen(scale_end *end, void *arg, uint64_t value)
{
	(void)end;
	(void)arg;
	(void)value;
}

void scale_woken(void *end)
{
	scale_input_push(end, woken_seen, NULL, 0);
}

static void *store_get(size_t bytes, void *arg)
{
	scale_node *node = arg;

	node->memory += bytes;
	node->memory_peak = TN_MAX(node->memory_peak, node->memory);
	return sim_check_alloc(aligned_alloc(64, bytes), bytes);
}

static void store_put(void *memory, size_t bytes, void *arg)
{
	scale_node *node = arg;

	node->memory -= bytes;
	free(memory);
}

void scale_node_store(scale_node *node)
{
	tn_store_source source = {.get = store_get, .put = store_put, .arg = node};

	tn_link_store_init(&node->store, &source, NULL);
}

void scale_link_start(scale *s, scale_end *end, bool active)
{
	tn_link_provider provider = {
		.name = "sim",
		.caps = TN_LINK_CAP_WRITE | TN_LINK_CAP_WRITE_IMM | TN_LINK_CAP_READ | TN_LINK_CAP_SEND |
			TN_LINK_CAP_ORDERED_WRITES | TN_LINK_CAP_PASSIVE_TARGET,
		.lane_wrs_max = 128,
		.write_bytes_max = 1u << 30,
		.send_bytes_max = SCALE_SLOT_BYTES,
		.data_lanes = UINT32_MAX,
		.address_bytes = sizeof(uint32_t),
		.budget = s->config.device_bytes ? &end->node->budget : NULL,
		.arbiter = s->config.grant_bytes ? &end->node->arbiter : NULL,
	};
	tn_link_config config = s->config.link;
	size_t bytes = tn_link_memory_bytes(&config);
	uint32_t id = end->node->host + 1;
	tern_status status;

	config.active = active;
	memcpy(config.node, &id, sizeof(id));
	memcpy(config.incarnation, &id, sizeof(id));
	memcpy(config.nonce, &id, sizeof(id));
	config.name = "node";
	config.providers = &provider;
	config.provider_count = 1;
	config.wake = scale_woken;
	config.wake_arg = end;
	config.store = &end->node->store;
	end->memory = sim_check_alloc(aligned_alloc(64, (bytes + 63) & ~63ull), bytes);
	end->wake_at = UINT64_MAX;
	status = tn_link_init(end->memory, bytes, &config, s->events.now, &end->link);
	TN_ASSERT(status == TERN_OK);
	(void)status;
	end->node->links++;
	scale_input_push(end, ctrl_up_seen, NULL, 0);
}
