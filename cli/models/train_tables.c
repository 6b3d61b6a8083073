/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop around a model of rows: servers, workers, steps, what came out. Without servers one process does the work of
 * all workers, in their order, on plain arrays: the oracle of the same job.
 *
 *   step s of an epoch: worker w of W takes block order[s W + w]; where there is none left it only counts the step
 *
 * Threads: main of each process. Tests: tests/e2e/models_test.py.
 */
#include "train_tables.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../crew.h"
#include "../progress.h"
#include "../zipf.h"
#include "model.h"

#define COMMAND "tern train"
/* Near each other whatever the seed. */
#define BIBLE_PAIRS                                                                            \
	"moses~aaron,gold~silver,peter~john,abraham~isaac,father~mother,horses~chariots,wise~" \
	"foolish,israel~judah,brother~sister"

/* Written by one worker, read by the launcher. */
typedef struct worker_board {
	_Alignas(64) _Atomic uint64_t steps; /* done */
	_Atomic uint64_t items;
	_Atomic float recent; /* loss of the last block */
	double last_epoch;    /* sums, of the last epoch */
	uint64_t last_items;
} worker_board;

typedef struct board {
	_Atomic uint32_t joined, done;
	double seconds;
	model_loss final;
	worker_board worker[TERN_PLAN_WORKERS_MAX];
	_Alignas(64) char result[]; /* the model's, then a loss per worker and step if they are wanted */
} board;

typedef struct job {
	const train_options *o;
	model *m;
	crew crew;
	board *board;
	float *losses; /* (steps, workers), or NULL */
	uint64_t steps, epoch_steps;
	uint32_t *order; /* of the blocks, in the epoch that it is of */
	uint64_t order_of;
	progress bar;
} job;

static bool alone(const job *j)
{
	return j->o->servers == 0 && !j->o->cluster;
}

/* ---- a worker ---- */

static bool order_blocks(job *j, uint64_t epoch)
{
	rng r = rng_make(j->o->seed ^ 0x6f72646572, epoch);

	if (!j->order && !(j->order = malloc(j->m->blocks * sizeof(*j->order))))
		return false;
	if (j->order_of == epoch + 1)
		return true;
	for (uint64_t i = 0; i < j->m->blocks; i++)
		j->order[i] = (uint32_t)i;
	for (uint64_t i = j->m->blocks; i > 1; i--) {
		uint64_t k = rng_below(&r, i);
		uint32_t was = j->order[k];

		j->order[k] = j->order[i - 1];
		j->order[i - 1] = was;
	}
	j->order_of = epoch + 1;
	return true;
}

/* What worker w does in a step. */
static bool do_step(job *j, rows *r, uint64_t step, uint64_t w)
{
	uint64_t epoch = step / j->epoch_steps, at = step % j->epoch_steps * j->o->workers + w;
	worker_board *out = &j->board->worker[w];
	model_loss loss = {0};

	if (!order_blocks(j, epoch)) {
		snprintf(r->error, sizeof(r->error), "no memory for the order of %" PRIu64 " blocks",
			 j->m->blocks);
		return false;
	}
	if (at < j->m->blocks && !j->m->ops->work(j->m, r, epoch, j->order[at], step, &loss))
		return false;
	if (loss.items) {
		float mean = (float)(loss.sum / (double)loss.items);

		atomic_fetch_add(&out->items, loss.items);
		atomic_store(&out->recent, mean);
		if (j->losses)
			j->losses[step * j->o->workers + w] = mean;
	}
	if (step + j->epoch_steps >= j->steps) {
		out->last_epoch += loss.sum;
		out->last_items += loss.items;
	}
	return true;
}

/* Steps of worker w; of all of them, one after the other, for the oracle. */
static bool do_steps(job *j, rows *r, uint64_t w)
{
	uint64_t last = alone(j) ? j->o->workers - 1 : w;

	for (uint64_t step = 0; step < j->steps && !crew_stopping(&j->crew); step++) {
		if (!r->ops->begin(r, step))
			return false;
		for (uint64_t i = alone(j) ? 0 : w; i <= last; i++)
			if (!do_step(j, r, step, i))
				return false;
		if (!r->ops->end(r, step))
			return false;
		for (uint64_t i = alone(j) ? 0 : w; i <= last; i++)
			atomic_store(&j->board->worker[i].steps, step + 1);
	}
	return true;
}

static void wait_for(job *j, _Atomic uint32_t *count, uint64_t n)
{
	while (atomic_load(count) < n && !crew_stopping(&j->crew))
		crew_sleep_ms(1);
}

static int train(job *j, rows *r, uint32_t w)
{
	uint64_t processes = alone(j) ? 1 : j->o->workers, start;

	atomic_fetch_add(&j->board->joined, 1);
	wait_for(j, &j->board->joined, processes); /* the first step is everybody's */
	start = progress_now_ns();
	if (!do_steps(j, r, w))
		return crew_stopping(&j->crew) ? 1 : crew_fail(&j->crew, "worker %u: %s", w, r->error);
	atomic_fetch_add(&j->board->done, 1);
	if (w != 0)
		return 0;
	wait_for(j, &j->board->done, processes);
	j->board->seconds = (double)(progress_now_ns() - start) * 1e-9;
	if (!crew_stopping(&j->crew) && !j->m->ops->evaluate(j->m, r, &j->board->final))
		return crew_fail(&j->crew, "worker %u: evaluation: %s", w, r->error);
	return 0;
}

static int worker(crew *c, uint32_t w, void *arg)
{
	job *j = arg;
	char name[32], error[512];
	rows_ps_params params = {.group = j->m->name,
				 .member = j->o->consistency == JOB_ASYNC ? NULL : name,
				 .consistency = j->o->consistency,
				 .staleness = j->o->staleness,
				 .seed = j->o->seed};
	rows *r = NULL;
	int rc = 1;

	snprintf(name, sizeof(name), "worker%03u", w);
	if (!crew_wait_meeting(c))
		return 0;
	if (alone(j)) {
		r = rows_local(j->m->spec, j->m->tables, j->o->consistency == JOB_BSP, j->o->seed);
		snprintf(error, sizeof(error), "no memory");
	} else if (crew_join(c, name, &params.ctx, &params.ps)) {
		r = rows_ps(j->m->spec, j->m->tables, &params, error, sizeof(error));
	}
	if (r) {
		rc = train(j, r, w);
		r->ops->close(r);
	} else {
		crew_fail(c, "worker %u: %s", w, error);
	}
	tern_ps_close(params.ps);
	if (params.ctx)
		tern_ctx_destroy(params.ctx);
	return rc;
}

/* ---- the launcher ---- */

static void show(job *j, uint64_t *items, uint64_t *then, double *rate)
{
	uint64_t least = j->steps, sum = 0, now = progress_now_ns();
	double loss = 0;
	char words[96];

	for (uint64_t w = 0; w < j->o->workers; w++) {
		const worker_board *b = &j->board->worker[w];
		uint64_t steps = atomic_load(&b->steps);

		least = steps < least ? steps : least;
		sum += atomic_load(&b->items);
		loss += (double)atomic_load(&b->recent) / (double)j->o->workers;
	}
	if (now - *then >= 500000000) {
		*rate = (double)(sum - *items) / ((double)(now - *then) * 1e-9);
		*items = sum;
		*then = now;
	}
	snprintf(words, sizeof(words), "loss %.4f  %.0f %s/s", loss, *rate, j->m->ops->item);
	progress_draw(&j->bar, least, false, sum ? words : "starting");
}

static bool watch(job *j)
{
	uint64_t items = 0, then = progress_now_ns();
	double rate = 0;

	while (crew_running(&j->crew)) {
		show(j, &items, &then, &rate);
		if (!crew_watch(&j->crew, 20))
			return false;
	}
	return !atomic_load(&j->crew.board->failed);
}

static bool write_losses(const job *j)
{
	FILE *file = fopen(j->o->losses, "we");
	bool ok = file != NULL;

	for (uint64_t s = 0; ok && s < j->steps; s++) {
		double sum = 0;
		uint64_t n = 0;

		for (uint64_t w = 0; w < j->o->workers; w++) {
			sum += (double)j->losses[s * j->o->workers + w];
			n += j->losses[s * j->o->workers + w] != 0;
		}
		ok = fprintf(file, "%" PRIu64 " %a\n", s, n ? sum / (double)n : NAN) > 0;
	}
	ok = file && fclose(file) == 0 && ok;
	if (!ok)
		fprintf(stderr, COMMAND ": cannot write --losses %s\n", j->o->losses);
	return ok;
}

static void print_json(const job *j, uint64_t items, double loss, double last)
{
	static const char *const modes[] = {"async", "bsp", "ssp"};
	const train_options *o = j->o;
	char trained[32];
	json out;

	json_init(&out, stdout);
	json_object(&out, NULL);
	json_string(&out, "model", j->m->name);
	json_real(&out, "loss", loss);
	json_real(&out, "last_epoch_loss", last);
	json_u64(&out, "steps", j->steps);
	snprintf(trained, sizeof(trained), "%s_trained", j->m->ops->item);
	json_u64(&out, trained, items);
	json_real(&out, "seconds", j->board->seconds);
	json_bool(&out, "oracle", alone(j));
	json_u64(&out, "servers", j->crew.servers);
	json_u64(&out, "workers", o->workers);
	json_string(&out, "consistency", modes[o->consistency]);
	json_u64(&out, "staleness", o->consistency == JOB_SSP ? o->staleness : 0);
	json_u64(&out, "seed", o->seed);
	j->m->ops->say(j->m, j->board->result, &out);
	json_object_end(&out);
	putchar('\n');
}

static void print(const job *j)
{
	uint64_t items = 0, last_items = 0;
	double loss = j->board->final.sum / (double)j->board->final.items, last = 0;

	for (uint64_t w = 0; w < j->o->workers; w++) {
		items += atomic_load(&j->board->worker[w].items);
		last += j->board->worker[w].last_epoch;
		last_items += j->board->worker[w].last_items;
	}
	last /= (double)last_items;
	if (j->o->json) {
		print_json(j, items, loss, last);
		return;
	}
	printf("%s: %" PRIu64 " steps in %.1f s (%.0f %s/s), loss %.4f (%.4f in the last epoch)\n",
	       j->m->name, j->steps, j->board->seconds, (double)items / j->board->seconds, j->m->ops->item,
	       loss, last);
	j->m->ops->say(j->m, j->board->result, NULL);
}

static int run(job *j)
{
	const train_options *o = j->o;
	char servers[24];
	uint64_t result = (j->m->ops->result_bytes + 63) & ~63ull;
	crew_params params = {.command = COMMAND,
			      .servers = o->cluster ? o->cluster : servers,
			      .transport = o->transport ? transport_names[o->transport] : NULL,
			      .spin = o->spin,
			      .shared_bytes = sizeof(board) + result +
					      (o->losses ? j->steps * o->workers * sizeof(float) : 0)};
	int rc;

	snprintf(servers, sizeof(servers), "%" PRIu64, o->servers);
	rc = crew_open(&j->crew, &params);
	if (rc)
		return rc;
	j->board = j->crew.shared;
	j->m->result = j->board->result;
	j->losses = o->losses ? (float *)(void *)(j->board->result + result) : NULL;
	progress_init(&j->bar, j->m->name, j->steps, o->quiet);
	if (crew_add(&j->crew, alone(j) ? 1 : (uint32_t)o->workers, worker, j) && crew_meet(&j->crew) &&
	    watch(j)) {
		progress_draw(&j->bar, j->steps, true, "done");
		progress_end(&j->bar);
		print(j);
		rc = o->losses && !write_losses(j);
	}
	progress_end(&j->bar);
	fflush(stdout);
	result = (uint64_t)crew_close(&j->crew);
	return result ? (int)result : rc;
}

int train_tables(const train_options *o)
{
	model_options mo = {.text = o->text,
			    .dim = o->dim,
			    .window = o->window,
			    .negative = o->negative,
			    .min_count = o->min_count,
			    .block = o->batch,
			    .seed = o->seed,
			    .lr = o->lr > 0 ? o->lr : 0.05,
			    .sample = o->sample,
			    .samples = o->samples,
			    .vocabulary = o->vocabulary,
			    .skew = o->skew,
			    .pairs = o->pairs  ? o->pairs
				     : o->text ? ""
					       : BIBLE_PAIRS};
	job *j = calloc(1, sizeof(*j));
	char error[512];
	int rc = 1;

	if (!j)
		return 1;
	j->o = o;
	if (!(strcmp(model_names[o->model], "dlrm") == 0 ? dlrm_new : word2vec_new)(&mo, &j->m, error,
										    sizeof(error))) {
		fprintf(stderr, COMMAND ": %s\n", error);
	} else {
		j->epoch_steps = (j->m->blocks + o->workers - 1) / o->workers;
		j->steps = o->steps ? o->steps : o->epochs * j->epoch_steps;
		rc = run(j);
		j->m->ops->free(j->m);
	}
	free(j->order);
	free(j);
	return rc;
}
