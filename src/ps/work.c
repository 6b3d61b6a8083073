/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers: threads of a server that take batches which would keep the driver for long.
 *
 * Threads: jobs come from the driver, are taken by workers; work_lock. Tests: tests/unit/ps/ps_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/server.h"

static ps_job *take(tern_ps_server *server)
{
	ps_job *job = NULL;

	pthread_mutex_lock(&server->work_lock);
	while (tn_list_empty(&server->jobs) && !server->stopping)
		pthread_cond_wait(&server->work_ready, &server->work_lock);
	if (!tn_list_empty(&server->jobs))
		job = TN_CONTAINER_OF(tn_list_pop_front(&server->jobs), ps_job, node);
	pthread_mutex_unlock(&server->work_lock);
	return job;
}

static void *worker(void *arg)
{
	tern_ps_server *server = arg;
	ps_bench bench = {0};
	ps_job *job;

	while ((job = take(server))) {
		if (job->method == (tn_ps_method)TN_PS_REPLICATE)
			tn_ps_replicate(server, job->request, job->args, job->bytes);
		else if (job->method == (tn_ps_method)TN_PS_CLOSE)
			tn_ps_round_work(&server->rounds, job->request, job->args, job->bytes);
		else
			tn_ps_work_on(server, &bench, job->request, job->method, job->args, job->bytes);
		free(job);
		atomic_fetch_sub_explicit(&server->busy, 1, memory_order_release);
	}
	tn_ps_bench_free(&bench);
	return NULL;
}

tern_status tn_ps_work_start(tern_ps_server *server, uint32_t workers)
{
	if (server->alone)
		return TERN_OK; /* whatever it takes, the owner works */
	server->workers = calloc(workers, sizeof(*server->workers));
	if (!server->workers)
		return tn_fail(TERN_E_NOMEM, "no memory for %u workers", workers);
	for (; server->worker_count < workers; server->worker_count++)
		if (TN_FAULT("ps.worker.start") ||
		    pthread_create(&server->workers[server->worker_count], NULL, worker, server) != 0)
			return tn_fail_errno(TERN_E_LIMIT, "pthread_create",
					     "worker %u of %u (ps.workers): RLIMIT_NPROC or pids.max",
					     server->worker_count + 1, workers);
	return TERN_OK;
}

void tn_ps_work_stop(tern_ps_server *server)
{
	pthread_mutex_lock(&server->work_lock);
	server->stopping = true;
	pthread_cond_broadcast(&server->work_ready);
	pthread_mutex_unlock(&server->work_lock);
	while (server->worker_count)
		pthread_join(server->workers[--server->worker_count], NULL);
	free(server->workers);
	server->workers = NULL;
}

bool tn_ps_work_hand(tern_ps_server *server, tern_rpc_request *request, tn_ps_method method, const void *args,
		     uint64_t bytes)
{
	ps_job *job = server->alone || TN_FAULT("ps.job.alloc") ? NULL : malloc(sizeof(*job) + bytes);

	if (!job)
		return false;
	memset(&job->node, 0, sizeof(job->node));
	job->request = request;
	job->method = method;
	job->bytes = bytes;
	memcpy(job->args, args, bytes);
	TN_PS_COUNT(server->counters, handed, 1);
	TN_PS_COUNT(server->counters, handed_bytes, bytes);
	atomic_fetch_add_explicit(&server->busy, 1, memory_order_relaxed);
	pthread_mutex_lock(&server->work_lock);
	tn_list_push_back(&server->jobs, &job->node);
	pthread_cond_signal(&server->work_ready);
	pthread_mutex_unlock(&server->work_lock);
	return true;
}
