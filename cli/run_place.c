/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each engine sets, and what follows from it. All ranks find the same master: the first host, and a port that is a
 * function of the job's name.
 *
 *   torchrun    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: all there already
 *   Slurm       SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID   (srun(1))
 *   Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, PMIX_NAMESPACE                        (mpirun(1))
 *   MPICH       PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
 *   Kubernetes  JOB_COMPLETION_INDEX of an indexed Job; WORLD_SIZE and MASTER_ADDR are the manifest's
 *
 * Threads: main. Tests: tests/e2e/run_test.py.
 */
#include "run_place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT_FIRST 20000u
#define PORT_COUNT 10000u
#define PORT_KUBE  29400u

static bool number(const char *name, uint64_t *value)
{
	const char *text = getenv(name);
	char *end;

	if (!text || !text[0])
		return false;
	errno = 0;
	*value = strtoull(text, &end, 10);
	return errno == 0 && *end == '\0' && text[0] != '-';
}

/* FNV-1a: the same port for all ranks of a job, another one for the next job. */
static uint32_t port_of(const char *job, const char *step)
{
	uint32_t h = 2166136261u;

	for (const char *p = job; p && *p; p++)
		h = (h ^ (uint8_t)*p) * 16777619u;
	for (const char *p = step; p && *p; p++)
		h = (h ^ (uint8_t)*p) * 16777619u;
	return PORT_FIRST + h % PORT_COUNT;
}

bool run_first_host(const char *list, char *host, uint64_t bytes)
{
	uint64_t head = strcspn(list, "[,"), number_end;
	const char *inside;

	if (list[head] != '[')
		return head > 0 && snprintf(host, bytes, "%.*s", (int)head, list) < (int)bytes;
	inside = list + head + 1;
	number_end = strcspn(inside, ",-]");
	if (number_end == 0 || !strchr(inside, ']'))
		return false;
	return snprintf(host, bytes, "%.*s%.*s%.*s", (int)head, list, (int)number_end, inside,
			(int)strcspn(strchr(inside, ']') + 1, ",["), strchr(inside, ']') + 1) < (int)bytes;
}

static void slurm(run_place *p)
{
	const char *nodes = getenv("SLURM_STEP_NODELIST"), *job = getenv("SLURM_JOB_ID");
	uint64_t hosts = 0;

	p->engine = "slurm";
	number("SLURM_LOCALID", &p->local_rank);
	if (!number("SLURM_STEP_NUM_TASKS", &p->size))
		number("SLURM_NTASKS", &p->size);
	if (!nodes)
		nodes = getenv("SLURM_JOB_NODELIST");
	p->port = port_of(job, getenv("SLURM_STEP_ID"));
	if (number("SLURM_STEP_NUM_NODES", &hosts) && hosts == 1)
		snprintf(p->master, sizeof(p->master), "127.0.0.1");
	else if (!nodes || !run_first_host(nodes, p->master, sizeof(p->master)))
		snprintf(p->why, sizeof(p->why),
			 "Slurm names no hosts (SLURM_STEP_NODELIST): set MASTER_ADDR");
}

static void one_host_or_told(run_place *p, const char *how)
{
	if (p->local_size == p->size)
		snprintf(p->master, sizeof(p->master), "127.0.0.1");
	else
		snprintf(p->why, sizeof(p->why), "%s", how);
}

static bool detect(run_place *p)
{
	if (number("RANK", &p->rank) && number("WORLD_SIZE", &p->size)) {
		p->engine = getenv("TORCHELASTIC_RUN_ID") ? "torchrun" : "environment";
		number("LOCAL_RANK", &p->local_rank);
		snprintf(p->why, sizeof(p->why), "RANK and WORLD_SIZE are set, but not MASTER_ADDR: set it");
	} else if (number("SLURM_PROCID", &p->rank)) {
		slurm(p);
	} else if (number("OMPI_COMM_WORLD_RANK", &p->rank) && number("OMPI_COMM_WORLD_SIZE", &p->size)) {
		p->engine = "openmpi";
		number("OMPI_COMM_WORLD_LOCAL_RANK", &p->local_rank);
		number("OMPI_COMM_WORLD_LOCAL_SIZE", &p->local_size);
		p->port = port_of(getenv("PMIX_NAMESPACE"), getenv("OMPI_MCA_ess_base_jobid"));
		one_host_or_told(p, "Open MPI does not tell where rank 0 is: mpirun -x MASTER_ADDR=HOST ...");
	} else if (number("PMI_RANK", &p->rank) && number("PMI_SIZE", &p->size)) {
		p->engine = "mpich";
		number("MPI_LOCALRANKID", &p->local_rank);
		number("MPI_LOCALNRANKS", &p->local_size);
		p->port = port_of(getenv("PMI_JOBID"), "");
		one_host_or_told(p, "PMI does not tell where rank 0 is: mpiexec -env MASTER_ADDR HOST ...");
	} else if (number("JOB_COMPLETION_INDEX", &p->rank)) {
		p->engine = "kubernetes";
		p->port = PORT_KUBE;
		number("WORLD_SIZE", &p->size);
		snprintf(p->why, sizeof(p->why),
			 "an indexed Job does not tell where index 0 is: set MASTER_ADDR in its manifest");
	} else {
		return false;
	}
	return true;
}

bool run_place_find(run_place *p)
{
	const char *master = getenv("MASTER_ADDR");
	uint64_t port;

	*p = (run_place){.size = 0};
	if (!detect(p))
		return true;
	if (master && master[0])
		snprintf(p->master, sizeof(p->master), "%s", master);
	if (number("MASTER_PORT", &port) && port > 0 && port < 65536)
		p->port = (uint32_t)port;
	if (p->size == 0 || p->rank >= p->size) {
		fprintf(stderr,
			"tern run: %s says that this is rank %llu of %llu: which ranks there are has to be "
			"told%s\n",
			p->engine, (unsigned long long)p->rank, (unsigned long long)p->size,
			p->engine[0] == 'k' ? " (WORLD_SIZE in the manifest)" : "");
		return false;
	}
	if (!p->master[0]) {
		fprintf(stderr, "tern run: %s\n", p->why);
		return false;
	}
	if (p->port == 0)
		p->port = PORT_KUBE;
	return true;
}
