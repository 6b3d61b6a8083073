/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bugs that are planted in the product (TN_MUTANT), and the search for the first seed of a simulator that finds each.
 * Only in builds of `./dev mutate`. Threads: none; a process for each bug.
 */
#ifndef TERN_TESTS_PLANTED_H
#define TERN_TESTS_PLANTED_H
#ifdef TN_MUTANTS

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mutant.h"
#include "cmocka_all.h"

typedef struct planted_bug {
	int number;
	const char *text;
} planted_bug;

/* Those of the coordinator, which two simulators run. */
/* clang-format off */
#define PLANTED_COORD \
	{201, "a server is taken for dead as soon as its lease is over by this clock"}, \
	{202, "who takes over need not have been heard of"}, \
	{203, "reports of an older epoch count"}, \
	{204, "half a copy takes over"}, \
	{209, "who takes over begins with nothing"}, \
	{211, "a backup is in sync when it is chosen"}, \
	{213, "a server that was taken for dead is so for ever"}
/* clang-format on */

/* In a process of its own: the bug may end it in any way. holds: nothing was found with the seed. */
static inline bool planted_found(const planted_bug *bug, uint64_t most, bool (*holds)(uint64_t seed))
{
	uint64_t seed = 1;
	pid_t child;
	int status = 0;

	printf("%3d %-72s ", bug->number, bug->text);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		tn_mutant = bug->number;
		while (seed <= most && holds(seed))
			seed++;
		if (seed <= most)
			printf("seed %llu\n", (unsigned long long)seed);
		fflush(stdout);
		_exit(seed <= most);
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	if (status == 0)
		printf("LIVES\n");
	else if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
		printf("it ends the simulator\n");
	return status != 0;
}

/* only: the number of one of them, or 0. The exit status of the search: 0 if all were found. */
static inline int planted_find(const planted_bug *bugs, size_t n, bool (*holds)(uint64_t seed), int only,
			       uint64_t most)
{
	int found = 0, tried = 0;

	for (size_t i = 0; i < n; i++) {
		if (only && only != bugs[i].number)
			continue;
		tried++;
		found += planted_found(&bugs[i], most, holds);
	}
	printf("%d of %d mutants were found within %llu seeds\n", found, tried, (unsigned long long)most);
	return found != tried;
}

#endif /* TN_MUTANTS */
#endif
