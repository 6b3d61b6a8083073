/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold always, and in the end. See world.h. */
#include <stdio.h>

#include "world.h"

void judge_serving(world *w)
{
	for (int i = 0; i < SAMPLES; i++)
		for (int k = 0, n = 0; k < SERVERS; k++) {
			const server *s = &w->s[k];

			n += s->running && s->part[i].role == 2 && !s->part[i].released &&
			     server_leased(w, s);
			if (n > 1)
				w->why = "two servers serve a slot";
		}
}

/* NULL: all is as it should be in the end. */
const char *judge_end(world *w)
{
	const char *why = NULL;

	for (uint32_t i = 0; i < TN_CL_SLOTS && !why; i++) {
		const tn_cl_slot *slot = &w->c->map.slot[i];
		int k = world_who(w, slot->primary);

		if (k < 0 || !tn_cl_alive(&w->c->map, slot->primary))
			why = "a slot has no primary in the end";
		else if (w->replicas == 2 && !(slot->flags & TN_CL_IN_SYNC))
			why = "a slot has one copy in the end";
		else if (w->c->map.server[slot->primary].state == TN_CL_DRAINING)
			why = "a server that is drained has a slot in the end";
		w->bad_slot = i;
	}
	for (int i = 0; i < SAMPLES && !why; i++) {
		const server *s = &w->s[world_who(w, w->c->map.slot[sample[i]].primary)];

		if (!set_has(&s->part[i].rows, &w->acked[i]) || !set_has(&s->part[i].rows, &w->seen[i]))
			why = "what was acknowledged is gone in the end";
	}
	return why;
}

void judge_dump(const world *w)
{
	for (int i = 0; i < SERVERS; i++)
		printf("  process %d: running %d, number %d, map %llu\n", i, w->s[i].running, w->s[i].number,
		       (unsigned long long)w->s[i].map.version);
	for (uint32_t i = 0; i < w->c->map.servers; i++)
		printf("  server %u: state %u\n", i, w->c->map.server[i].state);
	for (int i = 0; i < SAMPLES; i++)
		coord_print_slot(w, sample[i]);
	coord_print_slot(w, w->bad_slot);
}
