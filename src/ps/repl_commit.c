/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for backups. See repl_commit.h. Pure. Tests: tests/unit/ps/repl_sim.
 */
#include "ps/repl_commit.h"

#include <string.h>

#include "base/mutant.h"

void tn_commits_init(tn_commits *queue)
{
	tn_list_init(&queue->list);
	atomic_init(&queue->count, 0);
}

void tn_commit_begin(tn_commits *queue, tn_commit *c, bool reader)
{
	memset(&c->node, 0, sizeof(c->node));
	c->queue = queue;
	c->pending = 1;
	c->reader = reader;
	c->refused = false;
	tn_list_push_back(&queue->list, &c->node);
	atomic_fetch_add_explicit(&queue->count, 1, memory_order_release);
}

void tn_commit_reads(tn_commit *c)
{
	c->reader = !TN_MUTANT(124);
}

static void leave(tn_commit *c, tn_list *over)
{
	tn_list_remove(&c->node);
	tn_list_push_back(over, &c->node);
	TN_ASSERT(atomic_load_explicit(&c->queue->count, memory_order_relaxed) > 0);
	atomic_fetch_sub_explicit(&c->queue->count, 1, memory_order_release);
}

void tn_commit_release(tn_commit *c, tn_list *over)
{
	tn_commits *queue = c->queue;

	TN_ASSERT(c->pending > 0);
	if (--c->pending > 0)
		return;
	if (!c->reader)
		leave(c, over);
	if (TN_MUTANT(102) && c->reader)
		leave(c, over);
	while (!tn_list_empty(&queue->list)) {
		tn_commit *first = TN_CONTAINER_OF(queue->list.next, tn_commit, node);

		if (!first->reader || first->pending > 0)
			return;
		leave(first, over);
	}
}

tn_commit_end tn_commit_judge(const tn_commit *c, const tn_repl *r, bool lease)
{
	if (!tn_ps_slots_within(&c->slots, &r->mine))
		return TN_COMMIT_WRONG;
	if (!lease || c->refused || (c->reader && tn_repl_any_frozen(r, &c->slots)))
		return TN_COMMIT_AGAIN;
	return TN_COMMIT_OK;
}
