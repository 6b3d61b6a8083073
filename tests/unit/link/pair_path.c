/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of the pair: simulated lanes with wrs, completions and arrivals under way. See pair.h. */
#include "unit/link/pair.h"

static bool pair_path_over(const pair_path *path)
{
	for (int s = 0; s < 2; s++)
		if (path->end[s].handle && !path->end[s].gone)
			return false;
	return true;
}

pair_path *pair_path_for(pair_world *world, uint32_t epoch, uint32_t index)
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

pair_end *pair_end_of(pair_world *world, int side, uint32_t handle)
{
	for (uint32_t i = 0; i < world->path_count; i++) {
		pair_end *end = &world->paths[i].end[side];

		if (world->paths[i].used && end->handle == handle && handle && !end->gone)
			return end;
	}
	return NULL;
}

void pair_event_push(pair_world *world, pair_end *end, pair_event event)
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

static void pair_complete_later(pair_world *world, pair_end *end, uint64_t cookie, tern_status status)
{
	PAIR_CHECK(world, end->done_count < PAIR_QUEUE);
	end->done[end->done_count].cookie = cookie;
	end->done[end->done_count++].status = status;
}

void pair_flush(pair_world *world, pair_end *end)
{
	for (uint32_t i = 0; i < end->queue_count; i++)
		if (!end->queue[i].silent)
			pair_complete_later(world, end, end->queue[i].post.cookie,
					    pair_chance(world, 50) ? TERN_E_FLUSHED : TERN_E_LANE);
	end->queue_count = 0;
}

void pair_break(pair_world *world, pair_path *path)
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
static uint32_t pair_held(const pair_world *world)
{
	uint32_t n = world->ballast;

	for (uint32_t i = 0; i < world->path_count; i++)
		for (int s = 0; s < 2; s++)
			n += world->paths[i].used && !world->paths[i].end[s].gone
				     ? world->paths[i].end[s].held
				     : 0;
	return n - TN_MIN(n, world->came_twice);
}

static void pair_arrive_once(pair_world *world, pair_end *to, pair_event event)
{
	/* The receiver's slots: a sender within its credits never overruns them. */
	if (!to->closed && !to->told_down) {
		to->held++;
		PAIR_CHECK(world, world->pools[to->side] ? pair_held(world) <= world->pools[to->side]->slots
							 : to->held <= to->grant + to->twice);
	}
	pair_event_push(world, to, event);
}

static void pair_arrive(pair_world *world, pair_end *to, pair_event event)
{
	pair_event copy = event;

	if (world->left_out && pair_chance(world, world->left_out)) {
		world->were_left_out++;
		free(event.frame);
		return;
	}
	if (world->twice && !to->closed && !to->told_down && pair_chance(world, world->twice)) {
		if (event.frame) {
			copy.frame = malloc(event.bytes ? event.bytes : 1);
			memcpy(copy.frame, event.frame, event.bytes);
		}
		to->twice++;
		world->came_twice++;
		pair_arrive_once(world, to, copy);
	}
	pair_arrive_once(world, to, event);
}

tern_status pair_effect(pair_world *world, pair_end *end, const pair_wr *wr)
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

void pair_step_effect(pair_world *world, pair_end *end)
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
