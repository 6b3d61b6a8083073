/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who this process is in a job that another program started: Slurm, Open MPI, MPICH and its kin, Kubernetes, torchrun.
 *
 * Pure but for the environment and the host's name. Threads: main. Tests: tests/e2e/run_test.py.
 */
#ifndef CLI_RUN_PLACE_H
#define CLI_RUN_PLACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct run_place {
	const char *engine; /* "slurm", ...; NULL: none, this process was started by hand */
	uint64_t rank, size, local_rank, local_size;
	char master[256]; /* "" if the engine does not tell; then `why` says what to set */
	uint32_t port;
	char why[256];
} run_place;

/* False: the engine's variables make no sense (printed). */
bool run_place_find(run_place *place);

/* The first host of a list as Slurm writes it: "gpu[03-07,11],login" is gpu03. */
bool run_first_host(const char *list, char *host, uint64_t bytes);

#endif
