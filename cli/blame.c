/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who it is because of whom a job ends, from what its processes left behind:
 *
 *   ended by a signal           it
 *   witnesses lost their peers  whom the largest share of its peers lost, the first accused among equals
 *   anything else               the first that failed, or whom it waited for in vain
 *
 * A network that is cut between two processes has a witness on either side. All peers of a process that is cut off or stands
 * still lose it; it loses all of them, and names one. Witnesses keep their links for a while (train_role.c): whoever closed
 * them would end its other peers before these have seen for themselves.
 *
 * Pure. Threads: main. Tests: tests/e2e/train_faults_test.py, train_shrink_test.py.
 */
#include <stdio.h>
#include <string.h>

#include "launch.h"

/* Is it NAME that the witness speaks of? Peers are "NAME at ADDRESS" or "NAME, tensor". */
static bool names(const proc *witness, const proc *p)
{
	char at[40], tensor[40];

	snprintf(at, sizeof(at), "%s at ", p->name);
	snprintf(tensor, sizeof(tensor), "%s, tensor", p->name);
	return witness != p && (strstr(witness->error, at) || strstr(witness->error, tensor));
}

static const proc *first_of(const proc *a, const proc *b)
{
	return !a || b->failed_ns < a->failed_ns ? b : a;
}

static const proc *by_signal(const proc *procs, uint32_t count)
{
	const proc *first = NULL;

	for (uint32_t i = 0; i < count; i++)
		if (proc_failed(&procs[i]) && proc_signal(&procs[i]))
			first = first_of(first, &procs[i]);
	return first;
}

/* How many may have links with it: the other role; of a stage also those before and after. */
static uint64_t peers_of(const proc *procs, uint32_t servers, uint32_t count, const proc *p)
{
	uint64_t n = p->is_worker ? servers : count - servers;

	for (uint32_t i = servers; i < count && p->is_worker; i++)
		n += procs[i].index == p->index &&
		     (procs[i].stage + 1 == p->stage || p->stage + 1 == procs[i].stage);
	return n;
}

/* Those that lost it. */
static uint32_t witnesses(const proc *procs, uint32_t count, const proc *p, const proc **first)
{
	uint32_t n = 0;

	*first = NULL;
	for (uint32_t i = 0; i < count; i++) {
		if (!procs[i].lost || !names(&procs[i], p))
			continue;
		*first = first_of(*first, &procs[i]);
		n++;
	}
	return n;
}

static const proc *by_witnesses(const proc *procs, uint32_t servers, uint32_t count, bool *sure, char *text,
				size_t bytes)
{
	const proc *most = NULL, *most_first = NULL;
	uint64_t most_n = 0, most_of = 1;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t of = peers_of(procs, servers, count, &procs[i]), n;
		const proc *first;

		n = witnesses(procs, count, &procs[i], &first);
		if (n == 0 || n * most_of < most_n * of ||
		    (n * most_of == most_n * of && first->failed_ns >= most_first->failed_ns))
			continue;
		most = &procs[i];
		most_first = first;
		most_n = n;
		most_of = of;
	}
	if (!most)
		return NULL;
	*sure = most_n == most_of;
	snprintf(text, bytes, "%s (pid %d) is lost to %llu of its %llu peers: %s: %s", most->name,
		 (int)most->pid, (unsigned long long)most_n, (unsigned long long)most_of, most_first->name,
		 most_first->error);
	return most;
}

/* Who said why comes before who ended without a word. */
static const proc *by_time(const proc *procs, uint32_t count)
{
	const proc *first[2] = {NULL, NULL};

	for (uint32_t i = 0; i < count; i++) {
		const proc **of = &first[procs[i].error[0] == '\0'];

		if (proc_failed(&procs[i]))
			*of = first_of(*of, &procs[i]);
	}
	return first[0] ? first[0] : first[1];
}

const proc *blame(const proc *procs, uint32_t servers, uint32_t count, bool *sure, char *text, size_t bytes)
{
	const proc *who = by_signal(procs, count);

	*sure = true;
	if (!who) {
		who = by_witnesses(procs, servers, count, sure, text, bytes);
		if (who)
			return who;
		who = by_time(procs, count);
	}
	if (!who)
		return NULL;
	proc_describe(who, text, bytes);
	for (uint32_t i = 0; i < count && !proc_signal(who); i++)
		if (procs[i].pid > 0 && !procs[i].exited && names(who, &procs[i]))
			return &procs[i];
	return who;
}
