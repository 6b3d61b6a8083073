/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-mem: tern's allocator against malloc of glibc, jemalloc and mimalloc (those that are installed), for
 * patterns x sizes x threads, and against malloc + ibv_reg_mr per buffer where there is an RDMA device.
 *
 * Figures are CPU nanoseconds per block, allocated and freed. Each comes from a process of its own: a rival replaces malloc by LD_PRELOAD. Rounds are interleaved
 * (tern, rival, rival, ..., tern, ...); a row is the median over the rounds, a ratio the median of the rounds' own
 * ratios with the smallest and the largest. Ratios below 1: tern is faster. Blocks of tern are registered memory
 * and their metadata lies apart; the others' are not.
 *
 * Usage: bench-mem [--rounds N] [--blocks N] [--threads 1,2,4] [--case NAME] [--api mem|arena]
 * --api arena: tern_arena_malloc and _free, which have malloc's arguments; mem (default): tern_mem_alloc and _free.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem_bench.h"

#define ROUNDS_MAX  101
#define RIVALS_MAX  4
#define THREADS_MAX 64

static const bench_case cases[] = {
	{"churn-small", BENCH_CHURN, 16, 1024},  {"churn-medium", BENCH_CHURN, 1024, 32768},
	{"churn-mixed", BENCH_CHURN, 16, 32768}, {"churn-line", BENCH_CHURN, 64, 1024},
	{"batch-64", BENCH_BATCH, 64, 64},       {"batch-mixed", BENCH_BATCH, 16, 4096},
	{"cross-small", BENCH_CROSS, 16, 1024},  {"cross-mixed", BENCH_CROSS, 16, 32768},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

/* The first that is there; "" = glibc. tern is rival 0, without a preload. */
static const struct {
	const char *name, *preload[4];
} rivals[RIVALS_MAX] = {
	{"tern", {""}},
	{"glibc", {""}},
	{"jemalloc",
	 {"/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"}},
	{"mimalloc",
	 {"/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.3",
	  "/usr/lib/aarch64-linux-gnu/libmimalloc.so.2"}},
};

static struct {
	int rounds;
	uint64_t blocks;
	const char *only;
	const char *api; /* "tern" (tern_mem_*) or "arena": what the measured process is told */
	int threads[8], nthreads;
} args = {.api = "tern", .rounds = 7, .blocks = 2000000, .threads = {1, 2, 4}, .nthreads = 3};

/* ---- the measured process ---- */

/* If there is none left, the loop meets NULL and the process ends: no figure. */
static void tern_fill(void *arg, size_t bytes, void **block)
{
	tern_mem_alloc(arg, bytes, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, block);
}

static void tern_give(void *arg, void *ptr)
{
	tern_mem_free(arg, ptr);
}

static void *arena_take(void *arg, size_t bytes)
{
	return tern_arena_malloc(arg, TERN_ACCESS_WRITE, bytes);
}

static void arena_give(void *arg, void *ptr)
{
	(void)arg;
	tern_arena_free(ptr);
}

static void *libc_take(void *arg, size_t bytes)
{
	(void)arg;
	return malloc(bytes);
}

static void libc_give(void *arg, void *ptr)
{
	(void)arg;
	free(ptr);
}

static int child(const char *who, const char *name, int threads, uint64_t blocks)
{
	bench_allocator with = {.alloc = libc_take, .release = libc_give};
	tern_ctx *ctx = NULL;

	if (strcmp(who, "tern") == 0 || strcmp(who, "arena") == 0) {
		tern_ctx_params params = {.flags = TERN_CTX_NO_HELPER, .listen = "", .transports = "shm"};

		if (tern_ctx_create(&params, &ctx) != TERN_OK) {
			fprintf(stderr, "bench-mem: %s\n", tern_detail());
			return 1;
		}
		with = (bench_allocator){.fill = tern_fill, .release = tern_give, .arg = tern_ctx_mem(ctx)};
		if (strcmp(who, "arena") == 0) {
			with.fill = NULL;
			with.alloc = arena_take;
			with.release = arena_give;
		}
	}
	for (size_t i = 0; i < CASES; i++) {
		if (strcmp(cases[i].name, name) != 0)
			continue;
		bench_run(&cases[i], &with, threads, blocks / 4); /* warm */
		printf("%.3f\n", bench_run(&cases[i], &with, threads, blocks));
	}
	if (ctx)
		tern_ctx_destroy(ctx);
	return 0;
}

/* ---- the measuring one ---- */

static const char *preload_of(int rival)
{
	for (int i = 0; i < 4 && rivals[rival].preload[i]; i++) {
		if (!*rivals[rival].preload[i] || access(rivals[rival].preload[i], R_OK) == 0)
			return rivals[rival].preload[i];
	}
	return NULL;
}

static double measure(int rival, const char *name, int threads)
{
	char command[512], line[64] = "";
	FILE *out;

	snprintf(command, sizeof(command), "LD_PRELOAD='%s' /proc/%d/exe --child %s %s %d %llu",
		 preload_of(rival), (int)getpid(), rival ? rivals[rival].name : args.api, name, threads,
		 (unsigned long long)(args.blocks / (uint64_t)(threads > 2 ? threads / 2 : 1)));
	out = popen(command, "r");
	if (!out || !fgets(line, sizeof(line), out))
		line[0] = 0;
	if (out)
		pclose(out);
	return strtod(line, NULL);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), ascending);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void row(const bench_case *c, int threads)
{
	static double ns[RIVALS_MAX][ROUNDS_MAX];

	for (int round = 0; round < args.rounds; round++) {
		for (int r = 0; r < RIVALS_MAX; r++)
			ns[r][round] = preload_of(r) ? measure(r, c->name, threads) : 0;
	}
	for (int r = 1; r < RIVALS_MAX; r++) {
		double ratio[ROUNDS_MAX], tern[ROUNDS_MAX], other[ROUNDS_MAX], mid;
		int n = 0;

		for (int round = 0; round < args.rounds; round++) {
			if (ns[r][round] <= 0 || ns[0][round] <= 0)
				continue;
			tern[n] = ns[0][round];
			other[n] = ns[r][round];
			ratio[n] = tern[n] / other[n];
			n++;
		}
		if (n == 0) {
			printf("%-13s %2d  %-9s not installed\n", c->name, threads, rivals[r].name);
			continue;
		}
		mid = median(ratio, n);
		printf("%-13s %2d  %-9s %8.1f %8.1f   %5.2f  (%.2f - %.2f)\n", c->name, threads,
		       rivals[r].name, median(tern, n), median(other, n), mid, ratio[0], ratio[n - 1]);
	}
	fflush(stdout);
}

/* Registered buffers: tern's cost nothing more than an allocation. */
static void registered(uint64_t bytes)
{
	double naive[ROUNDS_MAX], ours[ROUNDS_MAX], ratio[ROUNDS_MAX];
	tern_ctx_params params = {.flags = TERN_CTX_NO_HELPER, .listen = "", .transports = "auto"};
	tern_ctx *ctx = NULL;
	const char *why;
	int n = 0;

	if (tern_ctx_create(&params, &ctx) != TERN_OK)
		return;
	for (; n < args.rounds; n++) {
		uint64_t from = bench_now();

		for (int i = 0; i < 200; i++) {
			void *ptr;

			tern_fill(tern_ctx_mem(ctx), bytes, &ptr);
			*(volatile uint64_t *)ptr = 1;
			tern_give(tern_ctx_mem(ctx), ptr);
		}
		ours[n] = (double)(bench_now() - from) / 200;
		if (!bench_verbs_naive(bytes, 200, &naive[n], &why)) {
			printf("registered buffers of %llu bytes: %s\n", (unsigned long long)bytes, why);
			break;
		}
		ratio[n] = ours[n] / naive[n];
	}
	if (n == args.rounds)
		printf("%-13s %2d  %-9s %8.1f %8.1f   %5.4f  (%llu bytes)\n", "registered", 1, "reg_mr",
		       median(ours, n), median(naive, n), median(ratio, n), (unsigned long long)bytes);
	tern_ctx_destroy(ctx);
}

static void parse_threads(char *list)
{
	args.nthreads = 0;
	for (char *at = strtok(list, ","); at && args.nthreads < 8; at = strtok(NULL, ",")) {
		int n = atoi(at);

		if (n > 0 && n <= THREADS_MAX)
			args.threads[args.nthreads++] = n;
	}
}

static int parse(int argc, char **argv)
{
	static const struct option options[] = {{"rounds", 1, NULL, 'r'},  {"blocks", 1, NULL, 'b'},
						{"threads", 1, NULL, 't'}, {"case", 1, NULL, 'c'},
						{"api", 1, NULL, 'a'},     {0}};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'r':
			args.rounds = atoi(optarg);
			break;
		case 'b':
			args.blocks = strtoull(optarg, NULL, 10);
			break;
		case 't':
			parse_threads(optarg);
			break;
		case 'c':
			args.only = optarg;
			break;
		case 'a':
			args.api = strcmp(optarg, "arena") == 0 ? "arena" : "tern";
			break;
		default:
			return 2;
		}
	}
	return args.rounds < 1 || args.rounds > ROUNDS_MAX || args.blocks < 1000 ? 2 : 0;
}

int main(int argc, char **argv)
{
	if (argc == 6 && strcmp(argv[1], "--child") == 0)
		return child(argv[2], argv[3], atoi(argv[4]), strtoull(argv[5], NULL, 10));
	if (parse(argc, argv) != 0) {
		fprintf(stderr, "usage: bench-mem [--rounds N] [--blocks N] [--threads 1,2,4] [--case NAME] "
				"[--api mem|arena]\n");
		return 2;
	}
	printf("%-13s %2s  %-9s %8s %8s   %5s\n", "case", "th", "against", "tern ns", "ns", "ratio");
	for (size_t i = 0; i < CASES; i++) {
		for (int t = 0; t < args.nthreads; t++) {
			if (args.only && strcmp(args.only, cases[i].name) != 0)
				continue;
			if (cases[i].pattern != BENCH_CROSS || args.threads[t] % 2 == 0)
				row(&cases[i], args.threads[t]);
		}
	}
	if (!args.only || strcmp(args.only, "registered") == 0) {
		registered(65536);
		registered(1 << 20);
	}
	return 0;
}
