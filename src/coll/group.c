/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks are near each other.
 *
 *   all    every rank
 *   near   those of this rank's host, in order
 *   far    those of the same place in each host: there if all hosts have the same number of ranks, more than one, and
 *          there is more than one host. Else n = 0, and everything goes in one level
 *
 * Pure but for malloc. Threads: the communicator's. Tests: tests/unit/coll/coll_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "coll/comm.h"

static uint64_t host_length(const char *words, bool address)
{
	const char *colon = address ? strrchr(words, ':') : NULL;

	return colon ? (uint64_t)(colon - words) : strlen(words);
}

static bool same_host(const tern_comm_params *p, uint32_t a, uint32_t b)
{
	const char *const *words = p->hosts ? p->hosts : p->addresses;
	uint64_t x = host_length(words[a], !p->hosts), y = host_length(words[b], !p->hosts);

	return x == y && memcmp(words[a], words[b], x) == 0;
}

/* Place of a rank among those of its host, and how many these are. */
static uint32_t place(const tern_comm_params *p, uint32_t rank, uint32_t *count)
{
	uint32_t at = 0;

	*count = 0;
	for (uint32_t i = 0; i < p->size; i++) {
		bool same = same_host(p, i, rank);

		at += same && i < rank;
		*count += same;
	}
	return at;
}

static void add(tn_coll_group *g, uint32_t rank, uint32_t own)
{
	if (rank == own)
		g->me = g->n;
	g->ranks[g->n++] = rank;
}

tern_status tn_coll_groups_make(tern_communicator *comm, const tern_comm_params *p)
{
	uint32_t own = p->rank, mine, here, there;
	bool even = true;

	comm->all.ranks = calloc(p->size, sizeof(uint32_t));
	comm->near.ranks = calloc(p->size, sizeof(uint32_t));
	comm->far.ranks = calloc(p->size, sizeof(uint32_t));
	if (!comm->all.ranks || !comm->near.ranks || !comm->far.ranks)
		return tn_fail(TERN_E_NOMEM, "no memory for %u ranks", p->size);
	mine = place(p, own, &here);
	for (uint32_t i = 0; i < p->size; i++) {
		uint32_t at = place(p, i, &there);

		even = even && there == here;
		add(&comm->all, i, own);
		if (same_host(p, i, own))
			add(&comm->near, i, own);
		if (at == mine)
			add(&comm->far, i, own);
	}
	if (!even || here < 2 || comm->far.n < 2 || !comm->state->levels)
		comm->far.n = 0;
	return TERN_OK;
}

void tn_coll_groups_free(tern_communicator *comm)
{
	free(comm->all.ranks);
	free(comm->near.ranks);
	free(comm->far.ranks);
}
