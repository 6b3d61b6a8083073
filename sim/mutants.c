/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planted bugs: which there are, and whether the checkers find each of them. A mutant that lives through all seeds is
 * a hole in the checkers, or in what the simulator does to the code.
 *
 * Threads: none. Tests: ./dev mutate.
 */
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "sim/run.h"

#ifdef TN_MUTANTS

#define SEEDS 1000u

typedef struct planted {
	int number;
	const char *text;
} planted;

static const planted mutants[] = {
	{1, "a credit is returned twice"},
	{2, "sent again after a recovery without asking what arrived"},
	{3, "RESUME counts one too many"},
	{4, "the send window does not get back what failed"},
	{5, "an operation ends before its pieces have drained"},
	{6, "ABORT does not take the number of its message"},
	{7, "an unknown outcome is reported as success"},
	{8, "a revoked key is accepted"},
	{9, "a deadline gives sinks back at once"},
	{10, "a cancel is acknowledged while puts into sinks are on their way"},
	{11, "an answer does not wait for the puts into its sinks"},
	{12, "a release gives one slot too many back"},
	{13, "a call that comes twice is executed twice"},
	{14, "messages wait for tern_recv in the wrong order"},
	{15, "a lane is destroyed before it is drained"},
	{16, "a get that was cut off counts as done"},
	{17, "what may be sent again is not kept"},
	{18, "LANE_ADDR of an older epoch is taken"},
	{19, "a receive slot is given back before its message was taken"},
	{20, "an immediate overtakes a notification before it"},
	{21, "the notification goes with the first piece of a transfer"},
	{22, "REMOTE is reported without an acknowledgement"},
	{23, "a channel's window is not charged"},
	{24, "a sender of tensors does not wait for the release"},
	{25, "a device's budget does not get back what failed"},
	{26, "what a link had granted when its lanes ended stays granted"},
	{27, "a receive slot that was asked back is free before it was given back"},
	{28, "a unit that came twice counts as received"},
	{29, "a frame that follows a missing one is taken"},
	{30, "of the last units of a lane nobody looks whether they came"},
	{31, "a number that an immediate carries is not looked at"},
	{32, "data lanes that were given up count on"},
};

void sim_run_choose_mutant(uint64_t mutant)
{
	tn_mutant = (int)mutant;
}

int sim_run_mutants(const sim_run_params *params, uint64_t only)
{
	unsigned lived = 0, tried = 0;

	for (size_t i = 0; i < TN_COUNT_OF(mutants); i++) {
		sim_result r;

		if (only && only != (uint64_t)mutants[i].number)
			continue;
		tried++;
		tn_mutant = mutants[i].number;
		printf("%3d %-64s ", tn_mutant, mutants[i].text);
		fflush(stdout);
		if (sim_run_first(&params->options, 1, SEEDS, &r)) {
			printf("seed %4llu  %s\n", (unsigned long long)r.seed, r.checker);
		} else {
			printf("LIVES\n");
			lived++;
		}
	}
	tn_mutant = 0;
	printf("%u of %u mutants were found within %u seeds\n", tried - lived, tried, SEEDS);
	return lived ? 1 : 0;
}

#else

void sim_run_choose_mutant(uint64_t mutant)
{
	(void)mutant;
}

int sim_run_mutants(const sim_run_params *params, uint64_t only)
{
	(void)params;
	(void)only;
	fprintf(stderr, "tern-sim: this build has no mutants: say ./dev mutate\n");
	return 2;
}

#endif
