/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two links against each other over an in-memory wire, for tests and the fuzzer.
 *
 *   world   two nodes, virtual time, one source of decisions (a seed, or fuzz bytes)
 *   wire    the control connection: a queue of bytes per direction
 *   path    one simulated lane: two ends, each with posted wrs, completions on their way, arrived events
 *
 * The device is as adversarial as the transport's contract allows: it reads sources and completes at any
 * time, in any order between lanes, and completions of one lane in any order; it answers AGAIN, refuses,
 * breaks. What it may not do (more arrivals than granted slots, two completions) is asserted.
 *
 * pair_step() does one thing that is possible, chosen by the world. pair_load.h adds a workload and judges it.
 * Threads: none.
 */
#ifndef TERN_TESTS_LINK_PAIR_H
#define TERN_TESTS_LINK_PAIR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/rand.h"
#include "base/time.h"
#include "link/link.h"
#include "link/wire.h"
#include "link/share.h"

#define PAIR_PATHS 256
#define PAIR_QUEUE 128
#define PAIR_CTRL  65536

/* Judgement: prints both links and traps, so that fuzzers and tests stop at once. */
#define PAIR_CHECK(world, expr)                                        \
	do {                                                           \
		if (!(expr))                                           \
			pair_broken(world, #expr, __FILE__, __LINE__); \
	} while (0)

typedef struct pair_world pair_world;

#define PAIR_INLINE 64

typedef struct pair_wr {
	tn_link_post post;
	uint8_t key[TN_LINK_KEY_BYTES];
	bool silent; /* done at the post, from a copy; takes effect later */
	uint8_t copy[PAIR_INLINE];
} pair_wr;

typedef enum pair_event_type { PAIR_UP, PAIR_DOWN, PAIR_FRAME, PAIR_IMM } pair_event_type;

typedef struct pair_event {
	pair_event_type type;
	uint32_t imm;
	uint64_t bytes;
	uint8_t *frame; /* malloc */
} pair_event;

/* One end of a path. */
typedef struct pair_end {
	struct pair_path *path;
	int side;
	uint32_t handle;      /* of the link's lane; 0 = not created */
	uint32_t grant, held; /* receive slots; held: arrived and not given back */
	int32_t extra;        /* slots beyond `grant` when it was closed */
	bool connecting, up, closed, gone, told_down;
	uint8_t token[TN_LINK_TOKEN_BYTES];
	pair_wr queue[PAIR_QUEUE]; /* accepted, without effect so far, in order */
	uint32_t queue_count;
	struct {
		uint64_t cookie;
		tern_status status;
	} done[PAIR_QUEUE]; /* completions on their way */
	uint32_t done_count;
	pair_event events[PAIR_QUEUE];
	uint32_t event_count;
	uint32_t processed; /* slots that the link has seen and the shell not freed yet */
} pair_end;

typedef struct pair_path {
	bool used, broken;
	uint32_t address; /* epoch << 8 | index */
	pair_end end[2];
} pair_path;

typedef struct pair_node {
	pair_world *world;
	int side;
	tn_link *link;
	void *memory;
	tn_link_config config;
	tn_link_provider providers[2];
	bool pump_due;
	bool ctrl_up, ctrl_closed, ctrl_down_due;
	bool dial_due;
	bool cut;   /* what it sends goes nowhere */
	bool fresh; /* the acceptor: what comes is another connection's first message */
	uint32_t dials;
	uint8_t ctrl[PAIR_CTRL]; /* bytes on their way to this node */
	uint32_t ctrl_bytes;
	bool up, down;
	tern_status status;
	char detail[TN_LINK_TEXT_MAX];
	uint32_t downs;
	uint64_t old[4]; /* cookies that were completed long ago */
} pair_node;

struct pair_world {
	pair_node node[2];
	pair_path paths[PAIR_PATHS];
	uint32_t path_count;
	uint64_t now;
	uint64_t steps;
	tn_rand rand;
	const uint8_t *bytes; /* decisions of a fuzzer, before the seed's */
	uint64_t bytes_left;
	/* how the devices behave, in percent */
	unsigned again, sync, refuse_piece, defer_pump;
	uint32_t heals;  /* steps until providers that fail work again; 0 = never */
	bool nak_breaks; /* an access that the target refuses breaks the path, as on a NIC */
	bool silent; /* short writes below the remote level are done at their post, before they take effect */
	bool reach_fails[2]; /* provider i of node 1 can't be reached */
	bool create_fails;   /* provider 0's lanes can't be made at node 1 */
	bool connect_fails;  /* provider 0's lanes never connect */
	uint32_t room[2];    /* lanes of an epoch that the node has room for; 0 = any number */
	bool room_known;     /* it says so when it is asked whether it reaches the peer */
	uint32_t slow_path;  /* number + 1 of a path that lags far behind the others; 0 = none */
	bool mute;           /* nothing moves any more on the wire: a peer that stands still */
	bool frozen;         /* time stands still */
	int check_level;
	/* Of both links, as if they shared a device; cap and capacity 0 = none. */
	tn_link_budget budget;
	tn_link_arbiter arbiter;
	tn_link_pool pool;
	tn_link_pool *pools[2]; /* of the sides' devices; NULL = none */
	uint32_t ballast;       /* slots of it that nobody has */
	/* what a test listens to; may be NULL */
	void (*on_action)(pair_world *world, int side, const tn_link_action *act);
	void (*on_rx)(pair_world *world, int side, const tn_link_rx *rx);
	/* effect of one-sided access; returns the status */
	tern_status (*on_access)(pair_world *world, int side, const tn_link_post *post);
	void *arg;
};

static inline void pair_broken(pair_world *world, const char *what, const char *file, int line)
{
	static char text[1 << 16];

	fprintf(stderr, "%s:%d: %s\nat step %llu, time %llu\n", file, line, what,
		(unsigned long long)world->steps, (unsigned long long)world->now);
	for (int i = 0; i < 2; i++) {
		if (!world->node[i].link)
			continue;
		tn_link_print(world->node[i].link, text, sizeof(text));
		fprintf(stderr, "%s", text);
	}
	fflush(stderr);
	__builtin_trap();
}

/* A decision in 0..n-1. */
static inline uint32_t pair_pick(pair_world *world, uint32_t n)
{
	if (n <= 1)
		return 0;
	if (world->bytes_left > 0) {
		world->bytes_left--;
		return *world->bytes++ % n;
	}
	return (uint32_t)tn_rand_below(&world->rand, n);
}

static inline bool pair_chance(pair_world *world, unsigned percent)
{
	return percent > 0 && pair_pick(world, 100) < percent;
}

static inline void pair_log(int level, const char *line, void *arg)
{
	pair_node *node = arg;

	if (getenv("PAIR_LOG"))
		fprintf(stderr, "%llu n%d [%d] %s\n", (unsigned long long)node->world->steps, node->side,
			level, line);
}

/* ---- set-up ---- */

static inline void pair_provider(tn_link_provider *p, const char *name, uint32_t caps, uint64_t send_max)
{
	*p = (tn_link_provider){
		.caps = caps,
		.lane_wrs_max = 64,
		.write_bytes_max = 1u << 20,
		.send_bytes_max = send_max,
		.data_lanes = UINT32_MAX,
		.address_bytes = 4,
		.address = "dev",
	};
	snprintf(p->name, sizeof(p->name), "%s", name);
}

#define PAIR_CAPS                                                                          \
	(TN_LINK_CAP_WRITE | TN_LINK_CAP_WRITE_IMM | TN_LINK_CAP_READ | TN_LINK_CAP_SEND | \
	 TN_LINK_CAP_REMOTE_DONE | TN_LINK_CAP_ORDERED_WRITES)

/* Defaults; change node[i].config and providers, then pair_start. */
static inline void pair_init(pair_world *world, uint64_t seed)
{
	memset(world, 0, sizeof(*world));
	world->rand.state = seed;
	world->now = 1000000;
	world->check_level = 2;
	for (int i = 0; i < 2; i++) {
		pair_node *node = &world->node[i];

		node->world = world;
		node->side = i;
		tn_link_config_defaults(&node->config);
		node->config.active = i == 0;
		memset(node->config.incarnation, 0x11 * (i + 1), TN_LINK_ID_BYTES);
		memset(node->config.node, 0x21 + i, TN_LINK_ID_BYTES);
		memset(node->config.nonce, 0x31 + i, TN_LINK_NONCE_BYTES);
		node->config.name = i ? "bob" : "alice";
		node->config.providers = node->providers;
		node->config.provider_count = 1;
		node->config.log = pair_log;
		node->config.log_arg = node;
		pair_provider(&node->providers[0], "mem", PAIR_CAPS, 4096);
		pair_provider(&node->providers[1], "alt", PAIR_CAPS, 2048);
	}
}

static inline void pair_wake(void *arg)
{
	pair_node *node = arg;

	node->pump_due = true;
}

static inline void pair_start_node(pair_world *world, int side)
{
	pair_node *node = &world->node[side];
	size_t bytes;

	node->config.wake = pair_wake;
	node->config.wake_arg = node;
	for (uint32_t i = 0; i < node->config.provider_count; i++) {
		if (world->budget.cap)
			node->providers[i].budget = &world->budget;
		if (world->arbiter.capacity)
			node->providers[i].arbiter = &world->arbiter;
		node->providers[i].pool = world->pools[side];
	}
	bytes = tn_link_memory_bytes(&node->config);

	node->memory = aligned_alloc(64, bytes);
	memset(node->memory, 0xa5, bytes); /* the link must not count on zeroes */
	PAIR_CHECK(world,
		   tn_link_init(node->memory, bytes, &node->config, world->now, &node->link) == TERN_OK);
	tn_link_on_ctrl_up(node->link, world->now);
	node->ctrl_up = true;
	node->pump_due = true;
}

static inline void pair_start(pair_world *world)
{
	pair_start_node(world, 0);
	pair_start_node(world, 1);
}

static inline void pair_free_events(pair_end *end)
{
	for (uint32_t i = 0; i < end->event_count; i++)
		free(end->events[i].frame);
	end->event_count = 0;
}

static inline void pair_fini(pair_world *world)
{
	for (uint32_t i = 0; i < world->path_count; i++)
		for (int s = 0; s < 2; s++)
			pair_free_events(&world->paths[i].end[s]);
	for (int i = 0; i < 2; i++) {
		if (world->node[i].link)
			tn_link_fini(world->node[i].link);
		free(world->node[i].memory);
		world->node[i].memory = NULL;
		world->node[i].link = NULL;
	}
}

/* ---- paths ---- */

static inline bool pair_path_over(const pair_path *path)
{
	for (int s = 0; s < 2; s++)
		if (path->end[s].handle && !path->end[s].gone)
			return false;
	return true;
}

/* Both ends of (epoch, index) meet on one path: number epoch * TN_LINK_LANES_MAX + index, unless an old one is there. */
static inline pair_path *pair_path_for(pair_world *world, uint32_t epoch, uint32_t index)
{
	uint32_t address = epoch << 8 | index, at = epoch * TN_LINK_LANES_MAX + index;
	pair_path *path;

	for (uint32_t i = 0; i < PAIR_PATHS; i++)
		if (world->paths[i].address == address)
			return &world->paths[i];
	for (uint32_t i = 0; i < PAIR_PATHS; i++) {
		path = &world->paths[at++ % PAIR_PATHS];
		if (path->address >> 8 < epoch && pair_path_over(path))
			break;
	}
	PAIR_CHECK(world, pair_path_over(path));
	for (int s = 0; s < 2; s++) {
		pair_free_events(&path->end[s]);
		path->end[s] = (pair_end){.path = path, .side = s};
	}
	path->address = address;
	path->used = true;
	path->broken = false;
	world->path_count = TN_MAX(world->path_count, (uint32_t)(path - world->paths) + 1);
	return path;
}

static inline pair_end *pair_end_of(pair_world *world, int side, uint32_t handle)
{
	for (uint32_t i = 0; i < world->path_count; i++) {
		pair_end *end = &world->paths[i].end[side];

		if (world->paths[i].used && end->handle == handle && handle && !end->gone)
			return end;
	}
	return NULL;
}

static inline void pair_event_push(pair_world *world, pair_end *end, pair_event event)
{
	if (end->closed || end->told_down) {
		free(event.frame);
		return;
	}
	PAIR_CHECK(world, end->event_count < PAIR_QUEUE);
	end->events[end->event_count++] = event;
	if (event.type == PAIR_DOWN)
		end->told_down = true;
}

static inline void pair_complete_later(pair_world *world, pair_end *end, uint64_t cookie, tern_status status)
{
	PAIR_CHECK(world, end->done_count < PAIR_QUEUE);
	end->done[end->done_count].cookie = cookie;
	end->done[end->done_count++].status = status;
}

/* Nothing that is queued at this end takes effect any more. */
static inline void pair_flush(pair_world *world, pair_end *end)
{
	for (uint32_t i = 0; i < end->queue_count; i++)
		if (!end->queue[i].silent)
			pair_complete_later(world, end, end->queue[i].post.cookie,
					    pair_chance(world, 50) ? TERN_E_FLUSHED : TERN_E_LANE);
	end->queue_count = 0;
}

/* The path dies: a part of what has arrived may still be seen. */
static inline void pair_break(pair_world *world, pair_path *path)
{
	if (path->broken)
		return;
	path->broken = true;
	for (int s = 0; s < 2; s++) {
		pair_end *end = &path->end[s];

		if (!end->handle || end->gone)
			continue;
		pair_flush(world, end);
		while (end->event_count > 0 && pair_chance(world, 50)) {
			if (end->events[end->event_count - 1].type == PAIR_FRAME ||
			    end->events[end->event_count - 1].type == PAIR_IMM)
				end->held--;
			free(end->events[--end->event_count].frame);
		}
		pair_event_push(world, end, (pair_event){.type = PAIR_DOWN});
	}
}

/* Slots of the pool that are in use. */
static inline uint32_t pair_held(const pair_world *world)
{
	uint32_t n = world->ballast;

	for (uint32_t i = 0; i < world->path_count; i++)
		for (int s = 0; s < 2; s++)
			n += world->paths[i].used && !world->paths[i].end[s].gone
				     ? world->paths[i].end[s].held
				     : 0;
	return n;
}

static inline void pair_arrive(pair_world *world, pair_end *to, pair_event event)
{
	/* The receiver's slots: a sender within its credits never overruns them. */
	if (!to->closed && !to->told_down) {
		to->held++;
		PAIR_CHECK(world, world->pools[to->side] ? pair_held(world) <= world->pools[to->side]->slots
							 : to->held <= to->grant);
	}
	pair_event_push(world, to, event);
}

/* The first queued wr of an end takes effect. Returns its status. */
static inline tern_status pair_effect(pair_world *world, pair_end *end, const pair_wr *wr)
{
	const tn_link_post *post = &wr->post;
	pair_end *to = &end->path->end[!end->side];
	tern_status status = TERN_OK;
	pair_event event = {0};
	uint64_t at = 0;

	if (post->type == TN_POST_SEND) {
		event.type = PAIR_FRAME;
		for (uint32_t i = 0; i < post->iov_count; i++)
			event.bytes += post->iov[i].bytes;
		event.frame = malloc(event.bytes ? event.bytes : 1);
		for (uint32_t i = 0; i < post->iov_count; i++) {
			memcpy(event.frame + at, post->iov[i].base, post->iov[i].bytes);
			at += post->iov[i].bytes;
		}
		PAIR_CHECK(world, event.bytes <= world->node[!end->side].providers[0].send_bytes_max ||
					  event.bytes <= world->node[!end->side].providers[1].send_bytes_max);
		pair_arrive(world, to, event);
		return TERN_OK;
	}
	if (world->on_access)
		status = world->on_access(world, end->side, post);
	if (status == TERN_OK && post->type == TN_POST_WRITE_IMM) {
		event.type = PAIR_IMM;
		event.imm = post->imm;
		event.bytes = post->bytes;
		pair_arrive(world, to, event);
	}
	return status;
}

static inline void pair_step_effect(pair_world *world, pair_end *end)
{
	pair_wr wr = end->queue[0];
	tern_status status;

	wr.post.key = wr.key;
	if (wr.silent)
		wr.post.local = wr.copy;
	memmove(end->queue, end->queue + 1, (end->queue_count - 1) * sizeof(end->queue[0]));
	end->queue_count--;
	status = pair_effect(world, end, &wr);
	if (!wr.silent)
		pair_complete_later(world, end, wr.post.cookie, status);
	if (status != TERN_OK && world->nak_breaks)
		pair_break(world, end->path);
}

/* ---- what the link asks for ---- */

static inline tern_status pair_post(pair_world *world, int side, const tn_link_post *post, bool *done)
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

static inline bool pair_no_room(const pair_world *world, int side, uint32_t lanes)
{
	return world->room[side] && lanes > world->room[side];
}

static inline void pair_lane_create(pair_world *world, int side, const tn_link_action *act)
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

static inline void pair_lane_connect(pair_world *world, int side, const tn_link_action *act)
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

static inline void pair_lane_close(pair_world *world, int side, const tn_link_action *act)
{
	pair_end *end = act->lane.user;

	PAIR_CHECK(world, end && end->handle == act->lane.lane && !end->closed);
	end->closed = true;
	end->extra = act->lane.extra;
	pair_flush(world, end);
	pair_free_events(end);
	(void)side;
}

static inline void pair_ctrl_send(pair_world *world, int side, const tn_link_action *act)
{
	pair_node *peer = &world->node[!side];

	if (world->node[side].cut || peer->ctrl_bytes + act->ctrl.n > PAIR_CTRL)
		return; /* a peer that is dead and does not read */
	memcpy(peer->ctrl + peer->ctrl_bytes, act->ctrl.bytes, act->ctrl.n);
	peer->ctrl_bytes += act->ctrl.n;
}

/* The control connection is gone; what was on its way arrives in part. */
static inline void pair_ctrl_cut(pair_world *world)
{
	for (int i = 0; i < 2; i++) {
		world->node[i].ctrl_bytes = pair_pick(world, world->node[i].ctrl_bytes + 1);
		world->node[i].ctrl_down_due = world->node[i].cut = true;
	}
	world->node[1].fresh = false;
}

/* The dialer connects again: the acceptor may not have seen the end of the old connection yet. */
static inline void pair_dial(pair_world *world)
{
	if (world->node[0].dial_due || !world->node[0].cut)
		return; /* it has one */
	world->node[0].dials++;
	world->node[0].ctrl_bytes = world->node[1].ctrl_bytes = 0;
	world->node[0].dial_due = true;
	world->node[1].fresh = true;
}

static inline void pair_act(pair_world *world, int side, tn_link_action *act)
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

static inline void pair_check(pair_world *world, int side)
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
}

static inline void pair_pump(pair_world *world, int side)
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

/* After any input: pump now, or later as a step of its own. */
static inline void pair_kick(pair_world *world, int side)
{
	if (pair_chance(world, world->defer_pump)) {
		world->node[side].pump_due = true;
		return;
	}
	pair_pump(world, side);
}

/* ---- steps ---- */

static inline void pair_step_event(pair_world *world, pair_end *end)
{
	pair_node *node = &world->node[end->side];
	pair_event event = end->events[0];
	tn_link_rx rx = {0};
	bool pending;

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
		tn_link_on_frame(node->link, end->handle, event.frame, event.bytes, world->now, &rx);
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

static inline void pair_step_done(pair_world *world, pair_end *end)
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
static inline bool pair_step_fresh(pair_world *world, pair_node *node)
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

static inline void pair_step_dial(pair_world *world, int side)
{
	world->node[side].dial_due = world->node[side].cut = false;
	tn_link_on_ctrl_up(world->node[side].link, world->now);
	pair_kick(world, side);
}

static inline void pair_step_ctrl(pair_world *world, int side)
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

static inline void pair_step_free(pair_world *world, pair_end *end)
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

static inline void pair_step_gone(pair_world *world, pair_end *end)
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

static inline uint32_t pair_choices_of_end(pair_world *world, pair_end *end, pair_choice *out)
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

static inline void pair_step_ctrl_down(pair_world *world, int side)
{
	world->node[side].ctrl_down_due = false;
	tn_link_on_ctrl_down(world->node[side].link, TERN_E_PEER_LOST, "connection reset", world->now);
	pair_kick(world, side);
}

static inline uint32_t pair_choices_of_node(pair_world *world, int side, pair_choice *out)
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
static inline bool pair_step_time(pair_world *world)
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

/* One thing that is possible now, time only if nothing else is; false: nothing will ever happen. */
static inline bool pair_step(pair_world *world)
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

/* Step until cond holds or `max` steps passed; says whether it does. */
#define PAIR_UNTIL(world, cond, max)                               \
	({                                                         \
		uint64_t left_ = (max);                            \
		while (!(cond) && left_-- > 0 && pair_step(world)) \
			;                                          \
		(cond);                                            \
	})

static inline bool pair_both_up(const pair_world *world)
{
	return world->node[0].up && world->node[1].up;
}

static inline bool pair_both_down(const pair_world *world)
{
	return world->node[0].down && world->node[1].down;
}

#endif
