/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of seeds: one here, or many in processes of their own, so that one that dies is a result as well.
 *
 *   worker   a process; takes seeds first + its index, then every jobs-th; writes a row for each into its pipe
 *
 * Threads: none. Tests: sim-smoke, sim-same.
 */
#ifndef TERN_SIM_RUN_H
#define TERN_SIM_RUN_H

#include "sim/world.h"

#define SIM_JOBS_MAX 64u

typedef struct sim_run_params {
	sim_options options;
	uint64_t first, last, jobs;
	double hours;
	bool json;
} sim_run_params;

/* All return the exit status. */
int sim_run_one(const sim_run_params *params);
int sim_run_range(const sim_run_params *params);
int sim_run_minimise(const sim_run_params *params);
int sim_run_regress(const sim_run_params *params, const char *file);
int sim_run_same(const sim_run_params *params, uint64_t seeds);
/* Each planted bug until a seed finds it; only: a single one, 0 = all. Needs a build with TERN_MUTANTS. */
int sim_run_mutants(const sim_run_params *params, uint64_t only);
void sim_run_choose_mutant(uint64_t mutant);
/* The first of these seeds that fails, in processes of their own. */
bool sim_run_first(const sim_options *options, uint64_t first, uint64_t last, sim_result *result);
/* In a process of its own; what it prints is dropped. */
void sim_run_apart(const sim_options *options, sim_result *result);

#endif
