/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of `tern bench ps`: makes its part of the rows, then pulls and pushes until it is told to end. What to ask
 * for is drawn beforehand, so that the time of drawing is not measured.
 *
 * Threads: one per lane, the library's beside them. Tests: tests/e2e/bench_test.py.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <tern/mem.h>

#include "bench_ps.h"
#include "progress.h"
#include "zipf.h"

#define POOL_KEYS (1u << 20) /* drawn beforehand; batches begin at any of them */
#define FILL_KEYS 8192u

typedef struct lane {
	crew *c;
	const bench_ps_options *o;
	bench_ps_shared *shared;
	bench_ps_lane *out;
	tern_ctx *ctx;
	tern_ps *ps;
	tern_table *table;
	uint32_t client, thread, number;
	uint64_t *keys;
	float *rows;
	float *ones; /* gradients; in the same memory, behind rows */
	bool failed;
} lane;

static bool failed(lane *l, const char *what)
{
	if (!crew_stopping(l->c))
		crew_fail(l->c, "client %u: %s: %s", l->client, what, tern_detail());
	l->failed = true;
	return false;
}

static bool make_room(lane *l)
{
	const bench_ps_options *o = l->o;
	uint64_t rows = o->batch > FILL_KEYS ? o->batch : FILL_KEYS, bytes;
	rng r = rng_make(o->seed, l->number);
	void *memory;
	zipf z;

	bytes = (rows + o->batch) * o->dim * sizeof(float);
	l->keys = malloc((POOL_KEYS + o->batch) * sizeof(*l->keys));
	if (!l->keys || tern_mem_alloc(tern_ctx_mem(l->ctx), bytes, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
				       TERN_MEM_HOST, &memory) != TERN_OK)
		return failed(l, "no memory for keys and rows");
	l->rows = memory;
	l->ones = l->rows + rows * o->dim;
	for (uint64_t i = 0; i < o->batch * o->dim; i++)
		l->ones[i] = 1;
	zipf_init(&z, o->keys, o->skew);
	for (uint64_t i = 0; i < POOL_KEYS + o->batch; i++)
		l->keys[i] = zipf_key(zipf_draw(&z, &r));
	return true;
}

/* Rows [of all keys] that are this lane's to make. */
static bool fill(lane *l)
{
	uint64_t lanes = l->o->clients * l->o->threads;
	uint64_t at = l->o->keys * l->number / lanes, end = l->o->keys * (l->number + 1) / lanes;
	uint64_t keys[FILL_KEYS];

	while (at < end && !crew_stopping(l->c)) {
		tern_table_pull_params pull = {
			.keys = keys, .rows = l->rows, .dtype = TERN_F32, .unknown = TERN_UNKNOWN_CREATE};

		for (; pull.count < FILL_KEYS && at < end; pull.count++)
			keys[pull.count] = zipf_key(at++);
		if (tern_table_pull_wait(l->table, &pull, 0) != TERN_OK)
			return failed(l, "making rows");
		atomic_fetch_add(&l->shared->rows_made, pull.count);
	}
	return true;
}

static tern_status pull(lane *l, const uint64_t *keys, uint64_t step)
{
	tern_table_pull_params params = {.keys = keys,
					 .count = l->o->batch,
					 .rows = l->rows,
					 .dtype = TERN_F32,
					 .unknown = TERN_UNKNOWN_ERROR,
					 .step = step};

	return tern_table_pull_wait(l->table, &params, 0);
}

static tern_status push(lane *l, const uint64_t *keys, uint64_t step)
{
	tern_table_push_params params = {.keys = keys, .count = l->o->batch, .rows = l->ones, .step = step};

	return tern_table_push_wait(l->table, &params, 0);
}

/* One operation. False: it is over. */
static bool operate(lane *l, rng *r, uint64_t step, bool measured)
{
	const uint64_t *keys = l->keys + rng_below(r, POOL_KEYS);
	bool read = rng_real(r) * 100 < l->o->reads;
	uint64_t start;

	start = progress_now_ns();
	if ((read ? pull(l, keys, step) : push(l, keys, step)) != TERN_OK)
		return failed(l, read ? "pull" : "push");
	start = progress_now_ns() - start;
	if (measured) {
		histogram_add(read ? &l->out->pull : &l->out->push, start);
		l->out->measured_keys += l->o->batch;
	}
	*(read ? &l->out->pulled : &l->out->pushed) += l->o->batch;
	atomic_fetch_add_explicit(&l->out->keys, l->o->batch, memory_order_relaxed);
	return true;
}

static void work(lane *l, tern_ps_group *group, uint64_t step)
{
	rng r = rng_make(l->o->seed ^ 0x6f7073, l->number);
	uint32_t phase;

	while ((phase = atomic_load_explicit(&l->shared->phase, memory_order_relaxed)) != BENCH_OVER &&
	       !crew_stopping(l->c)) {
		if (group && tern_ps_group_begin(group, step, 0) != TERN_OK) {
			failed(l, "waiting for the step");
			return;
		}
		if (!operate(l, &r, step, phase == BENCH_MEASURED))
			return;
		if (group && tern_ps_group_end(group, step) != TERN_OK) {
			failed(l, "ending the step");
			return;
		}
		step++;
	}
}

static tern_status join(lane *l, tern_ps_group **group, uint64_t *step)
{
	static const uint64_t none = TERN_PS_ASYNCHRONOUS;
	char member[32];
	tern_ps_group_params params = {.name = l->shared->table, .member = member};

	if (l->o->consistency == BENCH_ASYNC)
		return TERN_OK;
	snprintf(member, sizeof(member), "client %u.%u", l->client, l->thread);
	params.staleness = l->o->consistency == BENCH_BSP ? 0 : l->o->staleness;
	if (params.staleness == none)
		params.staleness--;
	return tern_ps_group_join(l->ps, &params, step, group);
}

static void *run(void *arg)
{
	lane *l = arg;
	tern_ps_group *group = NULL;
	uint64_t step = 0;

	if (make_room(l) && fill(l)) {
		if (join(l, &group, &step) != TERN_OK) {
			failed(l, "joining the group");
		} else {
			atomic_fetch_add(&l->shared->lanes_ready, 1);
			while (atomic_load(&l->shared->phase) == BENCH_SETUP && !crew_stopping(l->c))
				crew_sleep_ms(1);
			work(l, group, step);
		}
		tern_ps_group_leave(group);
	}
	if (l->rows)
		tern_mem_free(tern_ctx_mem(l->ctx), l->rows);
	free(l->keys);
	return NULL;
}

static int run_lanes(lane *lanes, uint64_t count)
{
	pthread_t threads[BENCH_PS_THREADS_MAX];
	uint64_t started = 0;
	bool bad = false;

	while (started < count && pthread_create(&threads[started], NULL, run, &lanes[started]) == 0)
		started++;
	if (started < count)
		crew_fail(lanes[0].c, "client %u: cannot start thread %u", lanes[0].client,
			  (unsigned)started);
	for (uint64_t i = 0; i < started; i++) {
		pthread_join(threads[i], NULL);
		bad |= lanes[i].failed;
	}
	return started < count || bad;
}

int bench_ps_client(crew *c, uint32_t index, void *arg)
{
	const bench_ps_options *o = arg;
	bench_ps_shared *shared = c->shared;
	lane *lanes = calloc(o->threads, sizeof(*lanes));
	tern_table *table = NULL;
	tern_ctx *ctx = NULL;
	tern_ps *ps = NULL;
	char name[32];
	int rc = 1;

	while (!atomic_load(&shared->table_ready) && !crew_stopping(c))
		crew_sleep_ms(2);
	snprintf(name, sizeof(name), "client%u-%d", index, (int)getpid());
	if (crew_stopping(c)) {
		rc = 0;
	} else if (!lanes || !crew_wait_meeting(c) || !crew_join(c, name, &ctx, &ps) ||
		   tern_table_open(ps, shared->table, NULL, &table) != TERN_OK) {
		crew_fail(c, "client %u: %s", index, tern_detail());
	} else {
		for (uint32_t i = 0; i < o->threads; i++) {
			uint32_t number = (uint32_t)(index * o->threads) + i;

			lanes[i] = (lane){.c = c,
					  .o = o,
					  .shared = shared,
					  .out = &shared->lanes[number],
					  .ctx = ctx,
					  .ps = ps,
					  .table = table,
					  .client = index,
					  .thread = i,
					  .number = number};
		}
		rc = run_lanes(lanes, o->threads);
	}
	tern_table_close(table);
	tern_ps_close(ps);
	if (ctx)
		tern_ctx_destroy(ctx);
	free(lanes);
	return rc;
}
