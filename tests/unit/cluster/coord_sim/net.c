/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: a heap by time; some are lost, some late. See world.h. */
#include <stdlib.h>

#include "world.h"

static bool earlier(const event *a, const event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void net_post(world *w, event *e, uint64_t after)
{
	unsigned i = w->events++;
	event *kept = malloc(sizeof(*kept));

	e->at = w->now + after;
	e->order = w->posted++;
	if (i == w->room) {
		w->room = w->room ? 2 * w->room : 256;
		w->queue = realloc(w->queue, w->room * sizeof(*w->queue));
	}
	TN_ASSERT(kept && w->queue);
	*kept = *e;
	for (; i > 0 && earlier(kept, w->queue[(i - 1) / 2]); i = (i - 1) / 2)
		w->queue[i] = w->queue[(i - 1) / 2];
	w->queue[i] = kept;
}

event net_take(world *w)
{
	event e = *w->queue[0], *last = w->queue[--w->events];
	unsigned i = 0, child;

	free(w->queue[0]);
	while ((child = 2 * i + 1) < w->events) {
		child += child + 1 < w->events && earlier(w->queue[child + 1], w->queue[child]);
		if (!earlier(w->queue[child], last))
			break;
		w->queue[i] = w->queue[child];
		i = child;
	}
	if (w->events)
		w->queue[i] = last;
	return e;
}

void net_send(world *w, event *e)
{
	uint64_t delay = 20 + world_below(w, 200);

	if (!w->healing && world_below(w, 50) == 0)
		return; /* lost */
	if (!w->healing && world_below(w, 20) == 0)
		delay += world_below(w, 3 * LEASE);
	if (w->cut[e->from][e->to] > w->now)
		return;
	net_post(w, e, delay);
}

/* Server behind a number; -1: none that runs as that. */
int world_who(const world *w, uint16_t number)
{
	for (int i = 0; i < SERVERS; i++)
		if (number != TN_CL_NONE && w->s[i].running && w->s[i].number == number)
			return i;
	return -1;
}
