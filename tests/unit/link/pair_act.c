/* SPDX-License-Identifier: Apache-2.0 */
/* What a link of the pair asks its shell for. See pair.h. */
#include "unit/link/pair.h"

tern_status pair_post(pair_world *world, int side, const tn_link_post *post, bool *done)
{
	pair_end *end = pair_end_of(world, side, post->lane);
	pair_wr wr = {.post = *post};

	*done = false;
	PAIR_CHECK(world, end && end->up && !end->closed && post->lane_user == end);
	if (end->path->broken)
		return pair_chance(world, 50) ? TERN_E_LANE : TERN_AGAIN;
	if (end->queue_count + end->done_count >= PAIR_QUEUE - 8 || pair_chance(world, world->again))
		return TERN_AGAIN;
	if (post->type != TN_POST_SEND) {
		memcpy(wr.key, post->key, sizeof(wr.key));
		if (pair_chance(world, world->refuse_piece))
			return TERN_E_ACCESS;
	}
	wr.post.key = wr.key;
	if (end->queue_count == 0 && !world->nak_breaks && pair_chance(world, world->sync)) {
		tern_status status = pair_effect(world, end, &wr);

		*done = status == TERN_OK;
		return status;
	}
	/* Like a NIC that takes the bytes at the post. */
	if (world->silent && !post->signal &&
	    (post->type == TN_POST_WRITE || post->type == TN_POST_WRITE_IMM) &&
	    post->level == TN_LINK_LOCAL && post->bytes <= PAIR_INLINE) {
		memcpy(wr.copy, post->local, post->bytes);
		wr.silent = *done = true;
	}
	end->queue[end->queue_count++] = wr;
	return TERN_OK;
}

bool pair_post_brief(pair_world *world, int side, const tn_link_brief *brief, const tn_link_iov *iov,
		     uint32_t count)
{
	pair_end *end = brief->lane_user;
	pair_wr wr = {.post = {.type = TN_POST_SEND, .iov_count = 1 + count}};

	PAIR_CHECK(world, end->up && !end->closed && end->side == side);
	if (end->path->broken || end->queue_count > 0 || end->done_count >= PAIR_QUEUE - 8 ||
	    pair_chance(world, world->again))
		return false;
	wr.post.iov[0] = (tn_link_iov){brief->header, sizeof(brief->header)};
	memcpy(wr.post.iov + 1, iov, count * sizeof(*iov));
	return pair_effect(world, end, &wr) == TERN_OK;
}

static bool pair_no_room(const pair_world *world, int side, uint32_t lanes)
{
	return world->room[side] && lanes > world->room[side];
}

static void pair_lane_create(pair_world *world, int side, const tn_link_action *act)
{
	pair_node *node = &world->node[side];
	pair_path *path = pair_path_for(world, act->lane.epoch, act->lane.index);
	pair_end *end = &path->end[side];
	uint32_t address = act->lane.epoch << 8 | act->lane.index;

	PAIR_CHECK(world, act->lane.index < act->lane.lanes);
	if ((world->create_fails && side == 1 && act->lane.provider == 0) ||
	    pair_no_room(world, side, act->lane.index + 1)) {
		tn_link_on_lane_created(node->link, act->lane.lane,
					tn_fail(TERN_E_LIMIT, "a limit is reached"), NULL, NULL, 0, 0,
					world->now);
		return;
	}
	PAIR_CHECK(world, end->handle == 0);
	end->handle = act->lane.lane;
	end->grant = 8 + pair_pick(world, 24);
	if (world->pools[side])
		PAIR_CHECK(world, tn_pool_take(world->pools[side], end->grant));
	memcpy(end->token, act->lane.token, sizeof(end->token));
	tn_link_on_lane_created(node->link, act->lane.lane, TERN_OK, end, &address, sizeof(address),
				end->grant, world->now);
}

static void pair_lane_connect(pair_world *world, int side, const tn_link_action *act)
{
	pair_end *end = act->lane.user;
	pair_end *peer = &end->path->end[!side];
	uint32_t address = act->lane.epoch << 8 | act->lane.index;

	PAIR_CHECK(world, act->lane.peer_lane_bytes == sizeof(address) &&
				  !memcmp(act->lane.peer_lane, &address, sizeof(address)));
	PAIR_CHECK(world, act->lane.peer_device_bytes == 4);
	end->connecting = true;
	if (world->connect_fails && act->lane.provider == 0) {
		pair_event_push(world, end, (pair_event){.type = PAIR_DOWN});
		return;
	}
	if (!peer->connecting || peer->closed || memcmp(peer->token, end->token, sizeof(end->token)))
		return;
	end->up = peer->up = true;
	pair_event_push(world, end, (pair_event){.type = PAIR_UP});
	pair_event_push(world, peer, (pair_event){.type = PAIR_UP});
}

static void pair_lane_close(pair_world *world, int side, const tn_link_action *act)
{
	pair_end *end = act->lane.user;

	PAIR_CHECK(world, end && end->handle == act->lane.lane && !end->closed);
	end->closed = true;
	end->extra = act->lane.extra;
	pair_flush(world, end);
	pair_free_events(end);
	(void)side;
}

static void pair_ctrl_send(pair_world *world, int side, const tn_link_action *act)
{
	pair_node *peer = &world->node[!side];

	if (world->node[side].cut || peer->ctrl_bytes + act->ctrl.n > PAIR_CTRL)
		return; /* a peer that is dead and does not read */
	memcpy(peer->ctrl + peer->ctrl_bytes, act->ctrl.bytes, act->ctrl.n);
	peer->ctrl_bytes += act->ctrl.n;
}

void pair_ctrl_cut(pair_world *world)
{
	for (int i = 0; i < 2; i++) {
		world->node[i].ctrl_bytes = pair_pick(world, world->node[i].ctrl_bytes + 1);
		world->node[i].ctrl_down_due = world->node[i].cut = true;
	}
	world->node[1].fresh = false;
}

/* The dialer connects again: the acceptor may not have seen the end of the old connection yet. */
static void pair_dial(pair_world *world)
{
	if (world->node[0].dial_due || !world->node[0].cut)
		return; /* it has one */
	world->node[0].dials++;
	world->node[0].ctrl_bytes = world->node[1].ctrl_bytes = 0;
	world->node[0].dial_due = true;
	world->node[1].fresh = true;
}

static void pair_act(pair_world *world, int side, tn_link_action *act)
{
	pair_node *node = &world->node[side];
	tern_status status;
	bool done;

	switch (act->type) {
	case TN_ACT_CTRL_SEND:
		pair_ctrl_send(world, side, act);
		break;
	case TN_ACT_CTRL_CLOSE:
		node->ctrl_closed = true;
		world->node[!side].ctrl_down_due = true;
		break;
	case TN_ACT_PEER:
		PAIR_CHECK(world, tn_link_get_peer(node->link) != NULL);
		tn_link_on_peer_answer(node->link, TERN_OK, NULL, world->now);
		break;
	case TN_ACT_REACH:
		PAIR_CHECK(world, act->lane.lanes >= 1);
		status = side == 1 && world->reach_fails[act->lane.provider] ? TERN_E_UNREACHABLE
			 : world->room_known && pair_no_room(world, side, act->lane.lanes) ? TERN_E_LIMIT
											   : TERN_OK;
		tn_link_on_reach(node->link, act->lane.provider, status, "not from here", world->now);
		break;
	case TN_ACT_LANE_CREATE:
		pair_lane_create(world, side, act);
		break;
	case TN_ACT_LANE_CONNECT:
		pair_lane_connect(world, side, act);
		break;
	case TN_ACT_LANE_CLOSE:
		pair_lane_close(world, side, act);
		break;
	case TN_ACT_CTRL_DIAL:
		pair_dial(world);
		break;
	case TN_ACT_POST:
		status = pair_post(world, side, &act->post, &done);
		tn_link_posted(node->link, &act->post, status, done, world->now);
		break;
	case TN_ACT_LINK_UP:
		node->up = true;
		break;
	case TN_ACT_LINK_DOWN:
		node->down = true;
		node->downs++;
		node->status = act->link.status;
		snprintf(node->detail, sizeof(node->detail), "%s", act->link.detail);
		PAIR_CHECK(world, node->downs == 1);
		break;
	default:
		break;
	}
	if (world->on_action)
		world->on_action(world, side, act);
}

static void pair_check(pair_world *world, int side)
{
	uint64_t taken = 0;

	if (world->node[side].link)
		tn_link_check(world->node[side].link, world->check_level);
	for (int i = 0; i < 2 && world->budget.cap; i++)
		taken += world->node[i].link ? tn_link_in_flight(world->node[i].link) : 0;
	PAIR_CHECK(world, taken == world->budget.taken);
	if (world->arbiter.capacity)
		tn_link_arbiter_check(&world->arbiter);
	if (world->pools[side])
		tn_link_pool_check(world->pools[side]);
	if (world->quota[side].cap)
		PAIR_CHECK(world, tn_quota_sums_hold(&world->quota[side]));
}

void pair_pump(pair_world *world, int side)
{
	pair_node *node = &world->node[side];
	tn_link_action act;
	unsigned n = 0;

	node->pump_due = false;
	while (node->link && !node->down && tn_link_next_action(node->link, world->now, &act)) {
		pair_act(world, side, &act);
		PAIR_CHECK(world, ++n < 100000);
	}
	pair_check(world, side);
}

void pair_kick(pair_world *world, int side)
{
	if (pair_chance(world, world->defer_pump)) {
		world->node[side].pump_due = true;
		return;
	}
	pair_pump(world, side);
}
