/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithms over a group of ranks. `each` is the bytes of an element; blocks are runs of elements, block i of n begins at
 * count * i / n.
 *
 *   ring scatter   n - 1 steps; in step s send block me - s - 1, reduce block me - s - 2: block me is whole in the end
 *                  (Patarasuk and Yuan, 2009)
 *   ring gather    n - 1 steps; in step s send block me - s, store block me - s - 1
 *   halving        ranks at a distance of half the group swap halves and reduce, then quarters, ...; then back by doubling
 *                  (Rabenseifner, 2004). Little data: whole vectors at distances 1, 2, 4 (recursive doubling)
 *
 * The last two need a power of two: ranks beyond it give what they have to one below, and get the result from it.
 *
 * Steps have the same number at both ends, also where ranks take part in different ones: phases begin at numbers of
 * their own.
 *
 * Threads: the communicator's. Tests: tests/unit/coll/coll_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "coll/comm.h"

uint64_t tn_coll_block(uint64_t count, uint32_t n, uint32_t i)
{
	return count / n * i + count % n * i / n;
}

static tn_coll_leg leg_of(const tn_coll_group *g, uint32_t who, uint8_t *buf, uint64_t from, uint64_t to,
			  uint64_t each, bool reduce)
{
	return (tn_coll_leg){.rank = g->ranks[who],
			     .ptr = buf + from * each,
			     .bytes = (to - from) * each,
			     .reduce = reduce};
}

/* One step of a ring: block `out` to the next, block `in` from the one before. */
static tern_status ring_step(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf, uint64_t count,
			     uint64_t each, uint32_t out, uint32_t in, bool reduce)
{
	uint32_t next = (g->me + 1) % g->n, before = (g->me + g->n - 1) % g->n;
	tn_coll_leg send = leg_of(g, next, buf, tn_coll_block(count, g->n, out),
				  tn_coll_block(count, g->n, out + 1), each, false);
	tn_coll_leg recv = leg_of(g, before, buf, tn_coll_block(count, g->n, in),
				  tn_coll_block(count, g->n, in + 1), each, reduce);

	return tn_coll_exchange(comm, &send, &recv);
}

tern_status tn_coll_ring_scatter(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf,
				 uint64_t count, uint64_t each)
{
	for (uint32_t s = 0; s + 1 < g->n; s++)
		TN_TRY(ring_step(comm, g, buf, count, each, (g->me + 2 * g->n - s - 1) % g->n,
				 (g->me + 2 * g->n - s - 2) % g->n, true));
	return tn_coll_settle(comm); /* blocks that were sent are written next */
}

tern_status tn_coll_ring_gather(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf, uint64_t count,
				uint64_t each)
{
	for (uint32_t s = 0; s + 1 < g->n; s++)
		TN_TRY(ring_step(comm, g, buf, count, each, (g->me + g->n - s) % g->n,
				 (g->me + 2 * g->n - s - 1) % g->n, false));
	return tn_coll_settle(comm);
}

/* ---- powers of two ---- */

static uint32_t power_below(uint32_t n)
{
	uint32_t p = 1;

	while (p * 2 <= n)
		p *= 2;
	return p;
}

/* Little data: everybody has the vector of ever more ranks. It is copied when it is sent, so the partner's can be added to
   it then (tn_coll_exchange sends before it receives into the same memory). */
static tern_status doubling(tern_communicator *comm, const tn_coll_group *g, uint32_t p, uint8_t *buf,
			    uint64_t count, uint64_t each)
{
	for (uint32_t d = 1; d < p; d *= 2) {
		tn_coll_leg send = leg_of(g, g->me ^ d, buf, 0, count, each, false);
		tn_coll_leg recv = leg_of(g, g->me ^ d, buf, 0, count, each, true);

		TN_TRY(tn_coll_exchange(comm, &send, &recv));
	}
	return TERN_OK;
}

static tern_status halving(tern_communicator *comm, const tn_coll_group *g, uint32_t p, uint8_t *buf,
			   uint64_t count, uint64_t each)
{
	uint64_t from[32], to[32];
	uint32_t depth = 0;

	from[0] = 0;
	to[0] = count;
	for (uint32_t d = p / 2; d;
	     d /= 2, depth++) { /* [from, to) is ours to reduce; half of it is the partner's */
		uint64_t middle = from[depth] + (to[depth] - from[depth]) / 2;
		bool lower = (g->me & d) == 0;
		uint64_t a = lower ? from[depth] : middle, b = lower ? middle : to[depth];
		tn_coll_leg send = leg_of(g, g->me ^ d, buf, lower ? middle : from[depth],
					  lower ? to[depth] : middle, each, false);
		tn_coll_leg recv = leg_of(g, g->me ^ d, buf, a, b, each, true);

		TN_TRY(tn_coll_exchange(comm, &send, &recv));
		from[depth + 1] = a;
		to[depth + 1] = b;
	}
	TN_TRY(tn_coll_settle(comm));
	for (uint32_t d = 1; d < p; d *= 2, depth--) {
		uint64_t a = from[depth], b = to[depth], x = from[depth - 1], y = to[depth - 1];
		tn_coll_leg send = leg_of(g, g->me ^ d, buf, a, b, each, false);
		tn_coll_leg recv = leg_of(g, g->me ^ d, buf, a == x ? b : x, a == x ? y : a, each, false);

		TN_TRY(tn_coll_exchange(comm, &send, &recv));
	}
	return tn_coll_settle(comm);
}

static tern_status by_halves(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf, uint64_t count,
			     uint64_t each)
{
	uint32_t p = power_below(g->n);
	bool spare = g->me >= p, helps = g->me + p < g->n;
	uint32_t base = comm->call.step, last = base + 1000;
	tn_coll_leg with =
		leg_of(g, spare ? g->me - p : g->me + (helps ? p : 0), buf, 0, count, each, helps && !spare);

	if (spare) {
		TN_TRY(tn_coll_exchange(comm, &with, NULL));
		TN_TRY(tn_coll_settle(comm));
		comm->call.step = last;
		return tn_coll_exchange(comm, NULL, &with);
	}
	if (helps)
		TN_TRY(tn_coll_exchange(comm, NULL, &with));
	comm->call.step = base + 1;
	if (count * each <= TN_COLL_SMALL)
		TN_TRY(doubling(comm, g, p, buf, count, each));
	else
		TN_TRY(halving(comm, g, p, buf, count, each));
	comm->call.step = last;
	if (!helps)
		return TERN_OK;
	with.reduce = false;
	TN_TRY(tn_coll_exchange(comm, &with, NULL));
	return tn_coll_settle(comm);
}

tern_status tn_coll_all_reduce(tern_communicator *comm, const tn_coll_group *g, uint8_t *buf, uint64_t count,
			       uint64_t each)
{
	if (g->n < 2)
		return TERN_OK;
	if (count * each < comm->state->ring_bytes || count < g->n)
		return by_halves(comm, g, buf, count, each);
	TN_TRY(tn_coll_ring_scatter(comm, g, buf, count, each));
	return tn_coll_ring_gather(comm, g, buf, count, each);
}
