/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table engine alone, against the limits of the machine, all in one run and interleaved, in CPU time of the one thread:
 *
 *   gather      the same rows, in the same order, by addresses that are known beforehand, with the best prefetch
 *               distance of several
 *   access      the same, and for each row the line of an index: the least that a look-up by key has to touch, so what
 *               random access allows. The lines are the table's own, in the pages that it lies in (how much of it in huge
 *               ones is said); a pull reads the head before the row too, a third of a line more
 *   copy        one long memcpy, in rows: what memory bandwidth allows
 *   pull        tn_table_pull of the same keys, 1024 (or --batch) at a time
 *   push        tn_table_push, for each optimiser
 *   bytes       of memory per key beyond row and state, with and without metadata
 *
 * Medians of --rounds. Usage: bench-table [--keys N] [--dim N] [--batch N] [--rounds N] [--only pull|push|bytes]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "ps/table_impl.h"

#define ROUNDS_MAX 51
#define DISTANCES  6

static uint64_t keys_n = 1000000, dim = 64, batch = 1024, rounds = 5;
static const char *only = "";

static void die(const char *what)
{
	fprintf(stderr, "bench-table: %s: %s\n", what, tern_detail());
	exit(1);
}

static void ok(tern_status status, const char *what)
{
	if (status != TERN_OK)
		die(what);
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static double median(const double *values, uint64_t n)
{
	double sorted[ROUNDS_MAX * DISTANCES];

	memcpy(sorted, values, n * sizeof(*values));
	qsort(sorted, n, sizeof(*sorted), by_value);
	return sorted[n / 2];
}

static uint64_t key_of(uint64_t i)
{
	return tn_hash_u64(i, 0x6b657973);
}

static tn_table *table_of(tern_row_optimizer kind, uint32_t flags, uint64_t n, uint64_t width)
{
	tern_table_schema s = {.name = "bench", .dim = (uint32_t)width, .flags = flags};
	tn_pull how = {.unknown = TERN_UNKNOWN_CREATE};
	uint64_t keys[1024];
	float *rows = malloc(1024 * width * sizeof(float));
	tn_table *t;

	tern_optimizer_init(&s.optimizer, kind, 0.01f);
	ok(tn_table_create(&s, NULL, &t), "create");
	for (uint64_t i = 0; i < n; i += 1024) {
		uint64_t count = TN_MIN(n - i, 1024);

		for (uint64_t k = 0; k < count; k++)
			keys[k] = key_of(i + k);
		ok(tn_table_pull(t, keys, count, &how, rows, NULL, NULL, NULL), "fill");
	}
	free(rows);
	return t;
}

/* A random order of random keys. */
static uint64_t *draw(uint64_t n, uint64_t count)
{
	uint64_t *keys = malloc(count * sizeof(*keys));
	tn_rand r = {11};

	for (uint64_t i = 0; i < count; i++)
		keys[i] = key_of(tn_rand_below(&r, n));
	return keys;
}

/* Bytes of this process in huge pages. */
static uint64_t huge_bytes(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	uint64_t kib = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib << 10;
}

/* ---- limits ---- */

/* Where a key's row is, and the bucket that says so. */
typedef struct place {
	const float *row;
	const tn_bucket *bucket;
} place;

static place *places_of(tn_table *t, const uint64_t *keys, uint64_t count)
{
	place *at = malloc(count * sizeof(*at));
	const tn_dir *dir = atomic_load(&t->dir);

	for (uint64_t i = 0; i < count; i++) {
		uint64_t hash = tn_table_hash(keys[i]);

		at[i].row = tn_value_of(t, tn_head_of(t, tn_index_find(t, dir, keys[i], hash)));
		at[i].bucket = tn_entry_home(tn_dir_entry(dir, hash), hash);
	}
	return at;
}

static TN_ALWAYS_INLINE uint64_t gather(const place *at, uint64_t n, float *out, uint64_t ahead, bool index)
{
	uint64_t bytes = dim * sizeof(float), sum = 0;

	for (uint64_t i = 0; i < n; i++) {
		if (i + ahead < n) {
			const char *line = (const char *)at[i + ahead].row;

			if (index)
				__builtin_prefetch(at[i + ahead].bucket);
			for (uint64_t b = 0; b < bytes; b += 64)
				__builtin_prefetch(line + b);
			__builtin_prefetch(line + bytes - 1);
		}
		if (index)
			sum += at[i].bucket->ids[i % TN_BUCKET_PLACES];
		memcpy(out + i * dim, at[i].row, bytes);
	}
	return sum;
}

static volatile uint64_t sink;

static double time_gather(const place *at, uint64_t count, float *out, uint64_t ahead, bool index)
{
	uint64_t start = tn_cpu_thread_ns();

	for (uint64_t i = 0; i + batch <= count; i += batch)
		sink = index ? gather(at + i, batch, out, ahead, true)
			     : gather(at + i, batch, out, ahead, false);
	return (double)(count / batch * batch) * 1e3 / (double)(tn_cpu_thread_ns() - start);
}

static double time_copy(char *a, char *b, uint64_t bytes)
{
	uint64_t start = tn_cpu_thread_ns();

	memcpy(a, b, bytes);
	return (double)(bytes / (dim * sizeof(float))) * 1e3 / (double)(tn_cpu_thread_ns() - start);
}

/* ---- pull ---- */

static double time_pull(tn_table *t, const uint64_t *keys, uint64_t count, float *out)
{
	tn_pull how = {.unknown = TERN_UNKNOWN_ERROR};
	uint64_t start = tn_cpu_thread_ns();

	for (uint64_t i = 0; i + batch <= count; i += batch)
		ok(tn_table_pull(t, keys + i, batch, &how, out, NULL, NULL, NULL), "pull");
	return (double)(count / batch * batch) * 1e3 / (double)(tn_cpu_thread_ns() - start);
}

static double best_of(double (*rate)[ROUNDS_MAX])
{
	double best = 0;

	for (int d = 0; d < DISTANCES; d++)
		best = TN_MAX(best, median(rate[d], rounds));
	return best;
}

static void bench_pull(void)
{
	static const uint64_t distances[DISTANCES] = {4, 8, 12, 16, 24, 32};
	uint64_t count = TN_MAX(TN_MIN(keys_n, 2000000), batch), copy_bytes = 512ull << 20;
	tn_table *t = table_of(TERN_OPT_SGD, 0, keys_n, dim);
	double huge = (double)huge_bytes() * 100;
	uint64_t *keys = draw(keys_n, count);
	place *at = places_of(t, keys, count);
	float *out = aligned_alloc(4096, (batch * dim * sizeof(float) + 4095) & ~4095ull);
	char *a = malloc(copy_bytes), *b = malloc(copy_bytes);
	double g[DISTANCES][ROUNDS_MAX], x[DISTANCES][ROUNDS_MAX], c[ROUNDS_MAX], p[ROUNDS_MAX * DISTANCES],
		limit;
	tn_table_stats s;

	tn_table_stats_get(t, &s);
	memset(a, 1, copy_bytes);
	memset(b, 2, copy_bytes);
	time_pull(t, keys, count, out);
	for (uint64_t i = 0; i < rounds; i++) {
		for (int d = 0; d < DISTANCES; d++) {
			g[d][i] = time_gather(at, count, out, distances[d], false);
			x[d][i] = time_gather(at, count, out, distances[d], true);
			p[i * DISTANCES + d] = time_pull(t, keys, count, out);
		}
		c[i] = time_copy(a, b, copy_bytes);
	}
	limit = TN_MIN(best_of(x), median(c, rounds));
	printf("pull   %9" PRIu64 " keys x %" PRIu64 " f32, batch %" PRIu64
	       ": %.2f M keys/s; access %.2f, copy %.2f: of the lower limit %.2f; gather %.2f; %.0f %% in "
	       "huge pages\n",
	       keys_n, dim, batch, median(p, rounds * DISTANCES), best_of(x), median(c, rounds),
	       median(p, rounds * DISTANCES) / limit, best_of(g), huge / (double)s.bytes);
	free(a);
	free(b);
	free(out);
	free(at);
	free(keys);
	tn_table_destroy(t);
}

/* ---- push ---- */

static void bench_push(void)
{
	static const char *const names[] = {"none", "sgd",   "momentum", "adagrad",
					    "adam", "adamw", "ftrl",     "rmsprop"};
	uint64_t count = TN_MAX(TN_MIN(keys_n, 1000000), batch);
	uint64_t *keys = draw(keys_n, count);
	float *grads = malloc(batch * dim * sizeof(float));
	tn_rand r = {5};

	for (uint64_t i = 0; i < batch * dim; i++)
		grads[i] = (float)tn_rand_double(&r) - 0.5f;
	for (int kind = 0; kind <= TERN_OPT_RMSPROP; kind++) {
		tn_table *t = table_of((tern_row_optimizer)kind, 0, keys_n, dim);
		double m[ROUNDS_MAX];

		for (uint64_t i = 0; i < rounds; i++) {
			tn_push how = {.step = i};
			uint64_t start = tn_cpu_thread_ns();

			for (uint64_t k = 0; k + batch <= count; k += batch)
				ok(tn_table_push(t, keys + k, grads, batch, &how, NULL), "push");
			m[i] = (double)(count / batch * batch) * 1e3 / (double)(tn_cpu_thread_ns() - start);
		}
		printf("push   %9" PRIu64 " keys x %" PRIu64 " f32, batch %" PRIu64
		       ", %-8s: %.2f M keys/s, %.0f ns a key\n",
		       keys_n, dim, batch, names[kind], median(m, rounds), 1e3 / median(m, rounds));
		tn_table_destroy(t);
	}
	free(keys);
	free(grads);
}

/* ---- memory ---- */

static void bench_bytes(void)
{
	for (uint64_t n = 10000; n <= keys_n; n = n * 7 / 2) {
		for (uint32_t flags = 0; flags < 2; flags++) {
			tn_table *t = table_of(TERN_OPT_ADAGRAD, flags ? TERN_TABLE_NO_META : 0, n, 16);
			tn_table_stats s;
			double row = (double)(tn_table_value_bytes(t) + tn_table_state_bytes(t));

			tn_table_stats_get(t, &s);
			printf("bytes  %9" PRIu64
			       " keys, %s: %.1f a key beyond row and state (record %.0f, index %.1f, "
			       "room in slabs %.1f)\n",
			       n, flags ? "no metadata" : "metadata   ", (double)s.bytes / (double)n - row,
			       (double)s.record_bytes - row, (double)s.index_bytes / (double)n,
			       (double)s.slab_bytes / (double)n - (double)s.record_bytes);
			tn_table_destroy(t);
		}
	}
}

static void options(int argc, char **argv)
{
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		uint64_t *number = !strcmp(argv[i], "--keys")     ? &keys_n
				   : !strcmp(argv[i], "--dim")    ? &dim
				   : !strcmp(argv[i], "--batch")  ? &batch
				   : !strcmp(argv[i], "--rounds") ? &rounds
								  : NULL;

		if (!value || (!number && strcmp(argv[i], "--only"))) {
			fprintf(stderr, "usage: bench-table [--keys N] [--dim N] [--batch N] [--rounds N] "
					"[--only pull|push|bytes]\n");
			exit(2);
		}
		if (number)
			*number = strtoull(value, NULL, 10);
		else
			only = value;
	}
	if (!keys_n || !batch || !rounds || rounds > ROUNDS_MAX || !dim || dim > TERN_TABLE_DIM_MAX) {
		fprintf(stderr, "bench-table: numbers from 1, at most %d rounds and %d columns\n", ROUNDS_MAX,
			TERN_TABLE_DIM_MAX);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	options(argc, argv);
	printf("loops: %s\n", tn_loops_get()->name);
	if (!*only || !strcmp(only, "pull"))
		bench_pull();
	if (!*only || !strcmp(only, "push"))
		bench_push();
	if (!*only || !strcmp(only, "bytes"))
		bench_bytes();
	return 0;
}
