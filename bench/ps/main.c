/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-ps: options, rounds, time. See bench.h. Threads: one.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rand.h"
#include "bench.h"
#include "ps/table.h"

options opt = {.rows = 1000000, .iterations = 2000, .dim = 64, .rounds = 9};

void bench_die(const char *what, const char *why)
{
	fprintf(stderr, "bench-ps: %s: %s\n", what, why);
	exit(1);
}

void bench_pin(unsigned n)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(n % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

uint64_t bench_key(uint64_t i)
{
	return (i + 1) * 0x9e3779b97f4a7c15ull;
}

tern_table_schema bench_schema(void)
{
	tern_table_schema s = {.name = "bench", .dim = opt.dim};

	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.01f);
	s.init = (tern_row_init){.kind = TERN_ROW_UNIFORM, .value = 0.1f, .seed = 1};
	return s;
}

static void *shared_alloc(void *arg, uint64_t bytes, uint64_t align)
{
	uint8_t *at = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	(void)arg;
	return at == MAP_FAILED ? NULL : at + (align - (uintptr_t)at % align) % align;
}

static void shared_free(void *arg, void *ptr, uint64_t bytes)
{
	(void)arg; /* the process ends with it */
	(void)ptr;
	(void)bytes;
}

struct tn_table *bench_table(bool small_pages)
{
	const tn_table_env shared = {.memory = {.alloc = shared_alloc, .free = shared_free}};
	tern_table_schema s = bench_schema();
	tn_pull how = {.unknown = TERN_UNKNOWN_CREATE};
	float *rows = malloc((uint64_t)KEYS_MAX * opt.dim * sizeof(float));
	uint64_t *keys = malloc(KEYS_MAX * sizeof(uint64_t));
	tn_table *table;

	if (!rows || !keys || tn_table_create(&s, small_pages ? &shared : NULL, &table) != TERN_OK)
		bench_die("table", tern_detail());
	for (uint64_t i = 0, n; i < opt.rows; i += n) {
		n = opt.rows - i < KEYS_MAX ? opt.rows - i : KEYS_MAX;
		for (uint64_t j = 0; j < n; j++)
			keys[j] = bench_key(i + j);
		if (tn_table_pull(table, keys, n, &how, rows, NULL, NULL, NULL) != TERN_OK)
			bench_die("filling the table", tern_detail());
	}
	free(rows);
	free(keys);
	return table;
}

void bench_apply(struct tn_table *table, const request *r)
{
	tn_pull pull = {.unknown = TERN_UNKNOWN_CREATE, .flags = TN_PULL_TOUCH};
	tn_push push = {.mode = TERN_PUSH_GRADIENT};
	tern_status status =
		opt.push ? tn_table_push(table, r->keys, r->rows, r->count, &push, NULL)
			 : tn_table_pull(table, r->keys, r->count, &pull, r->rows, NULL, NULL, NULL);

	if (status != TERN_OK)
		bench_die("engine", tern_status_name(status));
}

void line_end(line *l)
{
	if (!l->server)
		return;
	kill(l->server, SIGCONT);
	if (l->leave)
		l->leave(l);
	kill(l->server, SIGTERM);
	waitpid(l->server, NULL, 0);
}

/* ---- measuring ---- */

static uint64_t cpu_of(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
		return 0;
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static figures measure(line *l, uint32_t count, const uint64_t *stream, uint64_t stream_keys, float *rows)
{
	uint64_t *took = malloc(opt.iterations * sizeof(*took)), warm = opt.iterations / 10 + 10, sum = 0,
		 cpu = 0;
	static uint64_t at;
	figures f;

	if (l->server)
		kill(l->server, SIGCONT);
	for (uint64_t i = 0; i < warm + opt.iterations; i++) {
		request r = {.count = count, .rows = rows};
		uint64_t start;

		if (at + count > stream_keys)
			at = 0;
		r.keys = stream + at;
		at += count;
		if (i == warm)
			cpu = cpu_of(0) + (l->server ? cpu_of(l->server) : 0);
		start = tn_now();
		l->run(l, &r);
		if (i >= warm)
			sum += took[i - warm] = tn_now() - start;
	}
	cpu = cpu_of(0) + (l->server ? cpu_of(l->server) : 0) - cpu;
	if (l->server)
		kill(l->server, SIGSTOP);
	qsort(took, opt.iterations, sizeof(*took), by_value);
	f = (figures){{[MEAN] = (double)sum / (double)opt.iterations / 1000,
		       [P50] = (double)took[opt.iterations / 2] / 1000,
		       [P99] = (double)took[opt.iterations * 99 / 100] / 1000,
		       [CPU] = (double)cpu / (double)opt.iterations / 1000}};
	free(took);
	return f;
}

static void parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";

		if (!strcmp(a, "--spin"))
			opt.spin = true;
		else if (!strcmp(a, "--json"))
			opt.json = true;
		else if (!strcmp(a, "--case") && ++i)
			opt.push = !strcmp(v, "push");
		else if (!strcmp(a, "--rows") && ++i)
			opt.rows = strtoull(v, NULL, 10);
		else if (!strcmp(a, "--dim") && ++i)
			opt.dim = (uint32_t)strtoul(v, NULL, 10);
		else if (!strcmp(a, "--iterations") && ++i)
			opt.iterations = strtoull(v, NULL, 10);
		else if (!strcmp(a, "--rounds") && ++i)
			opt.rounds = (uint32_t)strtoul(v, NULL, 10);
		else if (!strcmp(a, "--keys") && ++i)
			opt.keys = (uint32_t)strtoul(v, NULL, 10);
		else if (!strcmp(a, "--only") && ++i)
			opt.only = v;
		else
			bench_die(
				a,
				"usage: bench-ps [--case fetch|push] [--spin] [--json] [--rows N] [--dim N] "
				"[--iterations N] [--rounds N] [--keys N] [--only LINE]");
	}
	if (opt.keys > KEYS_MAX || opt.rounds == 0 || opt.rounds > ROUNDS_MAX || opt.rows == 0 ||
	    opt.iterations < 100)
		bench_die("options", "1 to 31 rounds, a row, 100 iterations at least, up to 16384 keys");
}

bool measures(unsigned number)
{
	static const char *const names[] = {[SHM] = "tern shm",
					    [SHM_ASLEEP] = "tern shm, no spin",
					    [ONE_SIDED] = "tern one-sided",
					    [TCP] = "tern tcp",
					    [TCP_ASLEEP] = "tern tcp, no spin"};

	if ((number == SHM_ASLEEP || number == TCP_ASLEEP) && opt.spin)
		return false;
	if (number == ONE_SIDED && opt.push)
		return false;
	return number < SHM || !opt.only || strstr(names[number], opt.only);
}

static void set_up(line *lines)
{
	line_kernel(&lines[KERNEL]); /* these fork: before this process has threads */
	line_bare(&lines[BARE]);
	if (measures(SHM))
		line_tern(&lines[SHM], "tern shm", "shm", false, false);
	if (measures(SHM_ASLEEP))
		line_tern(&lines[SHM_ASLEEP], "tern shm, no spin", "shm", false, true);
	if (measures(ONE_SIDED))
		line_tern(&lines[ONE_SIDED], "tern one-sided", "shm", true, false);
	if (measures(TCP))
		line_tern(&lines[TCP], "tern tcp", "tcp", false, false);
	if (measures(TCP_ASLEEP))
		line_tern(&lines[TCP_ASLEEP], "tern tcp, no spin", "tcp", false, true);
	line_local(&lines[LOCAL], "local", false);
	line_local(&lines[LOCAL_4K], "local 4k", true);
}

static void measure_size(line *lines, uint32_t keys, const uint64_t *stream, uint64_t stream_keys)
{
	static figures got[LINES][ROUNDS_MAX];
	float *rows[LINES];

	for (unsigned i = 0; i < LINES; i++)
		rows[i] = measures(i) ? lines[i].rows(&lines[i], (uint64_t)keys * opt.dim * sizeof(float))
				      : NULL;
	for (uint32_t round = 0; round < opt.rounds; round++)
		for (unsigned i = 0; i < LINES; i++)
			if (measures(i))
				got[i][round] = measure(&lines[i], keys, stream, stream_keys, rows[i]);
	for (unsigned i = 0; i < LINES; i++)
		if (measures(i))
			report(lines, i, keys, got);
	report_aims(lines, keys, got);
}

int main(int argc, char **argv)
{
	static const uint32_t sizes[] = {16, 128, 1024};
	enum { STREAM = 4 << 20 };
	uint64_t *stream = malloc(STREAM * sizeof(*stream));
	line lines[LINES] = {{0}};
	tn_rand rand = {42};

	parse(argc, argv);
	for (uint64_t i = 0; i < STREAM; i++)
		stream[i] = bench_key(tn_rand_below(&rand, opt.rows));
	set_up(lines);
	bench_pin(0);
	if (opt.keys)
		measure_size(lines, opt.keys, stream, STREAM);
	for (unsigned s = 0; s < 3 && !opt.keys; s++)
		measure_size(lines, sizes[s], stream, STREAM);
	for (unsigned i = 0; i < LINES; i++)
		line_end(&lines[i]);
	free(stream);
	return 0;
}
