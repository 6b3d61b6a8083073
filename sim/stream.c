/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control connections: real descriptors for the contexts, virtual time between them.
 *
 *   context a -- socket pair -- side 0 | chunks with their times | side 1 -- socket pair -- context b
 *
 *   a chunk of no bytes is the end of the stream. Chunks of a side come in order
 *   a side is over when its fd is -1: what is still on its way to it is dropped
 *
 * Threads: none. Tests: sim-smoke.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sim/alloc.h"
#include "sim/check.h"
#include "sim/device.h"
#include "sim/world.h"

#define FIRST_PORT 41000u

typedef struct chunk {
	struct chunk *next;
	uint64_t at;
	uint32_t bytes, sent;
	uint8_t data[];
} chunk;

typedef struct side {
	sim_node *node;
	int fd;
	chunk *queue, **tail; /* to this side */
	uint64_t last_at;
} side;

struct sim_stream {
	sim_stream *next;
	sim_world *world;
	uint32_t number;
	side sides[2];
	bool accepted;
};

static bool pair(int *ours, int *theirs)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
		return false;
	*ours = fds[0];
	*theirs = fds[1];
	return true;
}

static void end_side(side *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	while (s->queue) {
		chunk *c = s->queue;

		s->queue = c->next;
		free(c);
	}
	s->tail = &s->queue;
}

static void deliver(void *arg, uint64_t which)
{
	sim_stream *stream = arg;
	sim_world *world = stream->world;
	side *s = &stream->sides[which];
	chunk *c = s->queue;
	ssize_t n;

	if (!c || s->fd < 0 || c->at > world->events.now)
		return;
	if (c->bytes == 0) {
		SIM_TRACE(world, stream->number, 1, "stream %u: %s sees its end", stream->number,
			  s->node->name);
		end_side(s);
		sim_poke(s->node);
		return;
	}
	n = send(s->fd, c->data + c->sent, c->bytes - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n > 0)
		c->sent += (uint32_t)n;
	if (c->sent < c->bytes) { /* full: the process does not read */
		c->at = world->events.now + 100 * TN_NS_PER_US;
		sim_at(&world->events, c->at, deliver, stream, which);
		return;
	}
	s->queue = c->next;
	if (!s->queue)
		s->tail = &s->queue;
	free(c);
	sim_poke(s->node);
	if (s->queue)
		sim_at(&world->events, TN_MAX(s->queue->at, world->events.now), deliver, stream, which);
}

static void queue(sim_stream *stream, unsigned which, const void *data, uint32_t bytes, uint64_t delay)
{
	sim_world *world = stream->world;
	side *s = &stream->sides[which];
	uint64_t now = world->events.now, at = now + delay;
	chunk *c;

	if (stream->accepted && s->fd < 0)
		return;
	for (unsigned i = 0; i < 2; i++) {
		unsigned host = stream->sides[i].node->index;

		at = TN_MAX(at, world->unplugged_until[host] + delay);
		at = TN_MAX(at, world->ctrl_stall_until[host]);
	}
	c = sim_alloc(1, sizeof(*c) + bytes);
	c->at = s->last_at = TN_MAX(s->last_at, at);
	c->bytes = bytes;
	if (bytes)
		memcpy(c->data, data, bytes);
	*s->tail = c;
	s->tail = &c->next;
	sim_at(&world->events, c->at, deliver, stream, which);
}

/* Some worlds have a slow network for control: what is decided meanwhile makes stale what is on its way. */
static uint64_t delay_of(sim_world *world)
{
	return 20 * TN_NS_PER_US + sim_wire_delay(world, 0) * 2 +
	       (world->ctrl_jitter_ns ? tn_rand_below(&world->ctrl, world->ctrl_jitter_ns) : 0);
}

static void on_accept(void *arg, uint64_t value)
{
	sim_stream *stream = arg;
	sim_world *world = stream->world;
	side *s = &stream->sides[1];
	int theirs;

	(void)value;
	stream->accepted = true;
	if (!s->node->ctx || s->node->dying || stream->sides[0].fd < 0 || !pair(&s->fd, &theirs)) {
		end_side(s);
		queue(stream, 0, NULL, 0, delay_of(world));
		return;
	}
	SIM_TRACE(world, stream->number, 2, "stream %u: %s accepts %s", stream->number, s->node->name,
		  stream->sides[0].node->name);
	tn_ctx_welcome(s->node->ctx, theirs, stream->sides[0].node->address);
	if (s->queue)
		deliver(stream, 1);
	sim_poke(s->node);
}

int sim_stream_dial(sim_node *from, const char *address)
{
	sim_world *world = from->world;
	const char *colon = strrchr(address, ':');
	unsigned index = colon ? (unsigned)atoi(colon + 1) - FIRST_PORT : world->node_count;
	sim_stream *stream;
	int theirs;

	if (index >= world->node_count || !world->nodes[index].ctx || world->nodes[index].dying ||
	    from->dying) {
		errno = ECONNREFUSED;
		return -1;
	}
	if (world->unplugged_until[index] > world->events.now ||
	    world->unplugged_until[from->index] > world->events.now) {
		errno = EHOSTUNREACH;
		return -1;
	}
	stream = sim_alloc(1, sizeof(*stream));
	stream->world = world;
	stream->sides[0] = (side){.node = from, .fd = -1};
	stream->sides[1] = (side){.node = &world->nodes[index], .fd = -1};
	for (int i = 0; i < 2; i++)
		stream->sides[i].tail = &stream->sides[i].queue;
	stream->number = world->streams ? world->streams->number + 1 : 1;
	stream->next = world->streams;
	world->streams = stream;
	if (!pair(&stream->sides[0].fd, &theirs))
		return -1;
	SIM_TRACE(world, stream->number, 0, "stream %u: %s dials %s", stream->number, from->name,
		  world->nodes[index].name);
	sim_at(&world->events, world->events.now + delay_of(world), on_accept, stream, 0);
	return theirs;
}

/* A stream keeps no boundaries: in some worlds what was written at once arrives in pieces. */
static void queue_pieces(sim_stream *stream, unsigned which, const uint8_t *data, uint32_t bytes)
{
	sim_world *world = stream->world;

	while (bytes > 0) {
		uint32_t n = bytes;

		if (world->ctrl_pieces)
			n = 1 + (uint32_t)tn_rand_below(&world->ctrl, 2 * world->ctrl_pieces);
		n = TN_MIN(n, bytes);
		queue(stream, which, data, n, delay_of(world));
		data += n;
		bytes -= n;
	}
}

/* True: more may be there. */
static bool carry(sim_stream *stream, unsigned which)
{
	side *s = &stream->sides[which];
	uint8_t buf[16384];
	ssize_t n = recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0)
		return false;
	if (n == 0) {
		queue(stream, 1 - which, NULL, 0, delay_of(stream->world));
		end_side(s);
		return false;
	}
	queue_pieces(stream, 1 - which, buf, (uint32_t)n);
	return true;
}

void sim_streams_pump(sim_node *node)
{
	if (!node->wrote)
		return;
	node->wrote = false;
	for (sim_stream *stream = node->world->streams; stream; stream = stream->next) {
		for (unsigned i = 0; i < 2; i++) {
			while (stream->sides[i].node == node && stream->sides[i].fd >= 0 && carry(stream, i))
				;
		}
	}
}

void sim_streams_cut(sim_node *node, bool silently)
{
	sim_streams_pump(node);
	for (sim_stream *stream = node->world->streams; stream; stream = stream->next) {
		for (unsigned i = 0; i < 2; i++) {
			if (stream->sides[i].node != node || stream->sides[i].fd < 0)
				continue;
			end_side(&stream->sides[i]);
			if (!silently)
				queue(stream, 1 - i, NULL, 0, delay_of(node->world));
		}
	}
}

bool sim_stream_break(sim_world *world, unsigned a, unsigned b, bool one_side)
{
	for (sim_stream *stream = world->streams; stream; stream = stream->next) {
		unsigned first = stream->sides[0].node->index == a ? 0 : 1;

		if (stream->sides[first].node->index != a || stream->sides[1 - first].node->index != b ||
		    stream->sides[first].fd < 0 || !stream->accepted)
			continue;
		SIM_TRACE(world, stream->number, 3, "stream %u: cut", stream->number);
		end_side(&stream->sides[first]);
		sim_poke(stream->sides[first].node);
		queue(stream, 1 - first, NULL, 0,
		      delay_of(world) + (one_side ? sim_between(&world->net, 0, 300) * TN_NS_PER_MS : 0));
		return true;
	}
	return false;
}

void sim_streams_free(sim_world *world)
{
	while (world->streams) {
		sim_stream *stream = world->streams;

		world->streams = stream->next;
		end_side(&stream->sides[0]);
		end_side(&stream->sides[1]);
		free(stream);
	}
}
