/* SPDX-License-Identifier: Apache-2.0 */
/* One step of the pair: what is possible now, and one of it. See pair.h. */
#include "unit/link/pair.h"

static void pair_step_event(pair_world *world, pair_end *end)
{
	pair_node *node = &world->node[end->side];
	pair_event event = end->events[0];
	tn_link_rx rx = {0};
	bool pending, more;

	memmove(end->events, end->events + 1, (end->event_count - 1) * sizeof(end->events[0]));
	end->event_count--;
	switch (event.type) {
	case PAIR_UP:
		tn_link_on_lane_up(node->link, end->handle, world->now);
		break;
	case PAIR_DOWN:
		tn_link_on_lane_down(node->link, end->handle, TERN_E_LANE, "the wire was cut", world->now);
		break;
	case PAIR_FRAME:
		pending = tn_link_pending(node->link);
		if (!tn_link_fast_frame(node->link, end->handle, event.frame, event.bytes, &rx, &more))
			tn_link_on_frame(node->link, end->handle, event.frame, event.bytes, world->now, &rx);
		else
			PAIR_CHECK(world, pending || more || !tn_link_pending(node->link));
		end->processed++;
		break;
	case PAIR_IMM:
		pending = tn_link_pending(node->link);
		if (!tn_link_fast_imm(node->link, end->handle, event.imm, event.bytes, &rx))
			tn_link_on_imm(node->link, end->handle, event.imm, event.bytes, world->now, &rx);
		else
			PAIR_CHECK(world, pending || !tn_link_pending(node->link));
		end->processed++;
		break;
	}
	if (rx.type != TN_RX_NONE && world->on_rx)
		world->on_rx(world, end->side, &rx);
	free(event.frame);
	pair_kick(world, end->side);
}

void pair_step_done(pair_world *world, pair_end *end)
{
	uint32_t i = pair_pick(world, end->done_count);
	uint64_t cookie = end->done[i].cookie;
	tern_status status = end->done[i].status;

	end->done[i] = end->done[--end->done_count];
	tn_link_on_wr_done(world->node[end->side].link, cookie, status, world->now);
	/* A second time it must touch nothing, at once or much later, when its row serves another. */
	if (pair_chance(world, 10))
		world->node[end->side].old[pair_pick(world, TN_COUNT_OF(world->node[0].old))] = cookie;
	cookie = world->node[end->side].old[pair_pick(world, TN_COUNT_OF(world->node[0].old))];
	if (cookie && pair_chance(world, 20))
		tn_link_on_wr_done(world->node[end->side].link, cookie, TERN_OK, world->now);
	pair_kick(world, end->side);
}

/* As the shell does: the first message of a new connection finds its link. False: it is not whole yet. */
static bool pair_step_fresh(pair_world *world, pair_node *node)
{
	uint32_t bytes = TN_CTRL_HEAD_BYTES + TN_CTRL_REJOIN_BYTES;

	if (node->ctrl_bytes < bytes)
		return false;
	node->fresh = node->ctrl_down_due = node->cut = false;
	PAIR_CHECK(world, tn_link_rejoin(node->link, node->ctrl + TN_CTRL_HEAD_BYTES, TN_CTRL_REJOIN_BYTES,
					 world->now));
	/* Said once more it is worth nothing. */
	PAIR_CHECK(world, !tn_link_rejoin(node->link, node->ctrl + TN_CTRL_HEAD_BYTES, TN_CTRL_REJOIN_BYTES,
					  world->now));
	memmove(node->ctrl, node->ctrl + bytes, node->ctrl_bytes - bytes);
	node->ctrl_bytes -= bytes;
	pair_kick(world, node->side);
	return true;
}

static void pair_step_dial(pair_world *world, int side)
{
	world->node[side].dial_due = world->node[side].cut = false;
	tn_link_on_ctrl_up(world->node[side].link, world->now);
	pair_kick(world, side);
}

static void pair_step_ctrl(pair_world *world, int side)
{
	pair_node *node = &world->node[side];
	uint32_t n = 1 + pair_pick(world, node->ctrl_bytes);
	uint8_t chunk[PAIR_CTRL];

	if (node->fresh && !pair_step_fresh(world, node))
		return;
	if (node->ctrl_bytes == 0)
		return;
	n = TN_MIN(n, node->ctrl_bytes);

	memcpy(chunk, node->ctrl, n);
	memmove(node->ctrl, node->ctrl + n, node->ctrl_bytes - n);
	node->ctrl_bytes -= n;
	tn_link_on_ctrl_bytes(node->link, chunk, n, world->now);
	pair_kick(world, side);
}

static void pair_step_free(pair_world *world, pair_end *end)
{
	uint32_t n = 1 + pair_pick(world, end->processed);
	tn_link *link = world->node[end->side].link;
	bool pending = tn_link_pending(link);

	end->processed -= n;
	end->held -= n;
	if (!tn_link_on_slot_free(link, end->handle, n))
		PAIR_CHECK(world, pending || !tn_link_pending(link));
	pair_kick(world, end->side);
}

static void pair_step_gone(pair_world *world, pair_end *end)
{
	pair_end *peer = &end->path->end[!end->side];
	uint32_t handle = end->handle;

	end->gone = true;
	if (world->pools[end->side])
		tn_pool_give(world->pools[end->side], end->grant + (uint32_t)end->extra);
	/* The other end of a closed lane breaks, some time. */
	if (!peer->gone && !peer->closed && peer->handle && !peer->told_down) {
		pair_flush(world, peer);
		end->path->broken = true;
		pair_event_push(world, peer, (pair_event){.type = PAIR_DOWN});
	}
	tn_link_on_lane_gone(world->node[end->side].link, handle, world->now);
	pair_kick(world, end->side);
}

typedef struct pair_choice {
	void (*end_step)(pair_world *world, pair_end *end);
	pair_end *end;
	void (*node_step)(pair_world *world, int side);
	int side;
} pair_choice;

static uint32_t pair_choices_of_end(pair_world *world, pair_end *end, pair_choice *out)
{
	pair_node *node = &world->node[end->side];
	uint32_t n = 0;

	if (!end->handle || end->gone || node->down || !node->link)
		return 0;
	if (end->event_count && !end->closed)
		out[n++] = (pair_choice){.end_step = pair_step_event, .end = end};
	if (end->queue_count && !world->mute)
		out[n++] = (pair_choice){.end_step = pair_step_effect, .end = end};
	if (end->done_count)
		out[n++] = (pair_choice){.end_step = pair_step_done, .end = end};
	if (end->processed)
		out[n++] = (pair_choice){.end_step = pair_step_free, .end = end};
	if (end->closed && end->done_count == 0 && end->queue_count == 0)
		out[n++] = (pair_choice){.end_step = pair_step_gone, .end = end};
	return n;
}

static void pair_step_ctrl_down(pair_world *world, int side)
{
	world->node[side].ctrl_down_due = false;
	tn_link_on_ctrl_down(world->node[side].link, TERN_E_PEER_LOST, "connection reset", world->now);
	pair_kick(world, side);
}

static uint32_t pair_choices_of_node(pair_world *world, int side, pair_choice *out)
{
	pair_node *node = &world->node[side];
	uint32_t n = 0;

	if (!node->link || node->down)
		return 0;
	if (node->pump_due)
		out[n++] = (pair_choice){.node_step = pair_pump, .side = side};
	if (node->ctrl_closed || world->mute)
		return n;
	if (node->dial_due)
		out[n++] = (pair_choice){.node_step = pair_step_dial, .side = side};
	if (node->ctrl_bytes)
		out[n++] = (pair_choice){.node_step = pair_step_ctrl, .side = side};
	else if (node->ctrl_down_due)
		out[n++] = (pair_choice){.node_step = pair_step_ctrl_down, .side = side};
	return n;
}

/* Let the next timer fire. False if none runs. */
static bool pair_step_time(pair_world *world)
{
	uint64_t wake = UINT64_MAX;

	for (int i = 0; i < 2; i++)
		if (world->node[i].link && !world->node[i].down)
			wake = TN_MIN(wake, tn_link_next_wake(world->node[i].link));
	if (wake == UINT64_MAX)
		return false;
	world->now = TN_MAX(world->now, wake);
	for (int i = 0; i < 2; i++) {
		if (!world->node[i].link || world->node[i].down)
			continue;
		tn_link_on_time(world->node[i].link, world->now);
		pair_kick(world, i);
	}
	return true;
}

bool pair_step(pair_world *world)
{
	static pair_choice choices[PAIR_PATHS * 10 + 16];
	uint32_t n = 0, skip = world->slow_path && pair_chance(world, 95) ? world->slow_path : 0;

	world->steps++;
	if (world->heals && --world->heals == 0)
		world->reach_fails[0] = world->create_fails = world->connect_fails = false;
	for (uint32_t i = 0; i < world->path_count; i++)
		for (int s = 0; s < 2 && world->paths[i].used && i + 1 != skip; s++)
			n += pair_choices_of_end(world, &world->paths[i].end[s], choices + n);
	for (int s = 0; s < 2; s++)
		n += pair_choices_of_node(world, s, choices + n);
	for (int s = 0; s < 2 && n == 0 && skip; s++)
		n += pair_choices_of_end(world, &world->paths[skip - 1].end[s], choices + n);
	if (n == 0)
		return !world->frozen && pair_step_time(world);
	n = pair_pick(world, n);
	if (choices[n].end_step)
		choices[n].end_step(world, choices[n].end);
	else
		choices[n].node_step(world, choices[n].side);
	return true;
}

bool pair_both_up(const pair_world *world)
{
	return world->node[0].up && world->node[1].up;
}

bool pair_both_down(const pair_world *world)
{
	return world->node[0].down && world->node[1].down;
}
