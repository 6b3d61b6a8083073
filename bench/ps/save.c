/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-ps-save: what pulls take while a checkpoint is written.
 *
 *   peak     a client pulls and pushes, one operation after the other: operations per second
 *   alone    the same operations at half that rate, each at its time (an operation that another one delays is measured from
 *            the time it was due): P50 and P99 of the pulls
 *   beside   the same while all tables are saved at so many bytes per second, from the call to its end
 *
 * In rounds: alone, beside, alone, beside; figures are medians, and the ratio is the median of the rounds' own ratios. Three
 * processes, all blocking: server, client, and the one that leads the save. Rows: Adagrad, so that a save has row and state.
 *
 * Where it may (SCHED_FIFO), P99 is told a second time, of the pulls that neither met a stall of the machine nor waited behind
 * one that did (bench/stalls.h), with the share of the time that was stalled: a save that made the kernel stall would show there.
 *
 * Usage: bench-ps-save --dir DIR [--rows N] [--dim N] [--batch N] [--reads PERCENT] [--rate BYTES_PER_SECOND]
 *                      [--load PERCENT] [--seconds N] [--rounds N] [--json]
 * DIR gets a directory of checkpoints, which is removed at the end.
 *
 * Threads: one in each process, those of the library beside it.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tern/mem.h>
#include <tern/ps_save.h>

#include "base/clock.h"
#include "base/options.h"
#include "base/rand.h"
#include "save.h"

#define FILL_KEYS 8192u

static uint64_t rows = 1000000, dim = 64, batch = 256, reads = 90, rate = 100 << 20, load = 50, seconds = 4,
		rounds = 5, json;
static const char *dir;
static stalls *machine; /* NULL: it may not be watched */

typedef struct client {
	tern_ctx *ctx;
	tern_ps *ps;
	tern_table *table;
	float *memory;
	uint64_t *keys;
	tn_rand rand;
} client;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench-ps-save: %s: %s\n", what, why);
	exit(1);
}

static uint64_t key_of(uint64_t i)
{
	return (i + 1) * 0x9e3779b97f4a7c15ull;
}

/* ---- the other processes ---- */

static pid_t serve(char *address, size_t size)
{
	tern_ctx_params params = {.name = "server", .listen = "127.0.0.1:0"};
	tern_ps_server *server;
	tern_ctx *ctx;
	int fds[2];
	pid_t pid = -1;

	if (pipe(fds) != 0 || (pid = fork()) < 0)
		die("server", strerror(errno));
	if (pid) {
		close(fds[1]);
		if (read(fds[0], address, size) <= 0)
			die("server", "it did not start");
		close(fds[0]);
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (tern_ctx_create(&params, &ctx) != TERN_OK || tern_ps_server_open(ctx, NULL, &server) != TERN_OK)
		die("server", tern_detail());
	if (write(fds[1], tern_ctx_address(ctx), strlen(tern_ctx_address(ctx)) + 1) < 0)
		exit(1);
	for (;;)
		pause();
}

static void join(const char *name, const char *address, tern_ctx **ctx, tern_ps **ps)
{
	const char *servers[] = {address};
	tern_ctx_params params = {.name = name};
	tern_ps_params list = {.servers = servers, .count = 1};

	if (tern_ctx_create(&params, ctx) != TERN_OK || tern_ps_open(*ctx, &list, ps) != TERN_OK)
		die(name, tern_detail());
}

/* Saves when it is told to (a byte), and says how it went; ends when nobody is left to tell it. */
static pid_t lead(const char *address, const char *path, int *to, int *from)
{
	tern_ps_save_params params = {.dir = path, .bytes_per_second = rate, .keep = 1};
	tern_ps_save_result result;
	tern_ctx *ctx;
	tern_ps *ps;
	int down[2], up[2];
	pid_t pid = -1;
	char go;

	if (pipe(down) != 0 || pipe(up) != 0 || (pid = fork()) < 0)
		die("leader", strerror(errno));
	if (pid) {
		close(down[0]);
		close(up[1]);
		*to = down[1];
		*from = up[0];
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	close(down[1]);
	close(up[0]);
	join("leader", address, &ctx, &ps);
	while (read(down[0], &go, 1) == 1) {
		if (tern_ps_save(ps, &params, &result) != TERN_OK)
			die("save", tern_detail());
		if (write(up[1], &result, sizeof(result)) != (ssize_t)sizeof(result))
			break;
	}
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	exit(0);
}

/* ---- the client ---- */

static void operate(client *c, bool read)
{
	const uint64_t *keys = c->keys + tn_rand_below(&c->rand, 1 << 20);
	tern_table_pull_params pull = {.keys = keys, .count = batch, .rows = c->memory};
	tern_table_push_params push = {.keys = keys, .count = batch, .rows = c->memory};

	if ((read ? tern_table_pull_wait(c->table, &pull, 0) : tern_table_push_wait(c->table, &push, 0)) !=
	    TERN_OK)
		die(read ? "pull" : "push", tern_detail());
}

static bool reads_now(client *c)
{
	return tn_rand_below(&c->rand, 100) < reads;
}

static void set_up(client *c, const char *address)
{
	tern_table_schema schema = {.name = "bench", .dim = (uint32_t)dim};
	uint64_t most = batch > FILL_KEYS ? batch : FILL_KEYS;
	void *memory = NULL;

	join("client", address, &c->ctx, &c->ps);
	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAGRAD, 0.01f);
	schema.init = (tern_row_init){.kind = TERN_ROW_UNIFORM, .value = 0.1f, .seed = 1};
	if (tern_table_create(c->ps, &schema, &c->table) != TERN_OK ||
	    tern_mem_alloc(tern_ctx_mem(c->ctx), most * dim * sizeof(float), 0,
			   TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &memory) != TERN_OK)
		die("client", tern_detail());
	c->memory = memory;
	c->rand = (tn_rand){42};
	c->keys = malloc(((1 << 20) + most) * sizeof(*c->keys));
	for (uint64_t i = 0, n; i < rows; i += n) {
		tern_table_pull_params pull = {.keys = c->keys, .rows = c->memory};

		n = rows - i < FILL_KEYS ? rows - i : FILL_KEYS;
		for (uint64_t k = 0; k < n; k++)
			c->keys[k] = key_of(i + k);
		pull.count = n;
		if (tern_table_pull_wait(c->table, &pull, 0) != TERN_OK)
			die("filling the table", tern_detail());
	}
	for (uint64_t i = 0; i < (1 << 20) + batch; i++)
		c->keys[i] = key_of(tn_rand_below(&c->rand, rows));
}

static double peak(client *c)
{
	uint64_t start = tn_now(), n = 0;

	for (; tn_now() - start < seconds * TN_NS_PER_SEC / 2; n++)
		operate(c, reads_now(c));
	return (double)n / ((double)(tn_now() - start) * 1e-9);
}

static void sleep_until(uint64_t due)
{
	struct timespec at = {.tv_sec = (time_t)(due / TN_NS_PER_SEC),
			      .tv_nsec = (long)(due % TN_NS_PER_SEC)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

/* Has the save ended? from < 0: there is none, and the phase lasts as long as it is told to. */
static bool over(int from, uint64_t start, tern_ps_save_result *saved)
{
	ssize_t got;

	if (from < 0)
		return tn_now() - start >= seconds * TN_NS_PER_SEC;
	got = read(from, saved, sizeof(*saved));
	if (got == (ssize_t)sizeof(*saved))
		return true;
	if (got >= 0 || errno != EAGAIN)
		die("leader", "it ended");
	return false;
}

static figures phase(client *c, double per_second, int from, tern_ps_save_result *saved)
{
	static took list[SAVE_OPS_MAX];
	uint64_t start = tn_now(), n = 0, gap = (uint64_t)(1e9 / per_second);
	figures f = {0};

	for (; !over(from, start, saved) && n < SAVE_OPS_MAX; n++) {
		uint64_t due = start + n * gap;
		took *t = &list[n];

		*t = (took){.due = due, .read = reads_now(c), .queued = tn_now() >= due};
		if (!t->queued) {
			sleep_until(due);
			t->due = tn_now(); /* a timer that fires late is not the server's fault */
		}
		operate(c, t->read);
		t->end = tn_now();
	}
	if (!save_figures(list, n, start, machine, &f))
		die("measuring", "no pull in this time: more seconds");
	return f;
}

/* ---- the run ---- */

static void options(int argc, char **argv)
{
	static const struct {
		const char *name;
		uint64_t *value;
	} numbers[] = {{"--rows", &rows}, {"--dim", &dim},   {"--batch", &batch},     {"--reads", &reads},
		       {"--rate", &rate}, {"--load", &load}, {"--seconds", &seconds}, {"--rounds", &rounds}};

	for (int i = 1; i < argc; i++) {
		bool known = false;

		if (!strcmp(argv[i], "--json") && (json = 1))
			continue;
		if (!strcmp(argv[i], "--dir") && i + 1 < argc && (known = true))
			dir = argv[++i];
		for (size_t k = 0; !known && i + 1 < argc && k < sizeof(numbers) / sizeof(numbers[0]); k++)
			if (!strcmp(argv[i], numbers[k].name) && (known = true) &&
			    !tn_parse_bytes(argv[++i], numbers[k].value))
				die(argv[i], "not a number (a rate may have a unit: 50MiB)");
		if (!known)
			die(argv[i], "usage: bench-ps-save --dir DIR [--rows N] [--dim N] [--batch N] "
				     "[--reads PERCENT] [--rate BYTES] [--load PERCENT] [--seconds N] "
				     "[--rounds N] [--json]");
	}
	if (!dir || !rows || !dim || !batch || !load || !seconds || !rounds || rounds > SAVE_ROUNDS_MAX ||
	    batch > 1 << 20)
		die("options", "--dir DIR is needed; numbers from 1, at most 25 rounds");
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

int main(int argc, char **argv)
{
	char address[128] = "", path[PATH_MAX], whole[PATH_MAX];
	static figures alone[SAVE_ROUNDS_MAX], beside[SAVE_ROUNDS_MAX];
	static tern_ps_save_result saved[SAVE_ROUNDS_MAX];
	pid_t server, leader;
	int to = -1, from = -1;
	double per_second;
	client c;

	options(argc, argv);
	prctl(PR_SET_TIMERSLACK, 1ul);
	if (!realpath(dir, whole) ||
	    snprintf(path, sizeof(path), "%s/bench-ps-save-XXXXXX", whole) >= (int)sizeof(path) ||
	    !mkdtemp(path))
		die(dir, strerror(errno));
	server = serve(address, sizeof(address)); /* they fork: before this process has threads */
	leader = lead(address, path, &to, &from);
	fcntl(from, F_SETFL, O_NONBLOCK);
	set_up(&c, address);
	machine = stalls_start();
	(void)peak(&c);
	per_second = peak(&c);
	for (uint64_t i = 0; i < rounds; i++) {
		alone[i] = phase(&c, per_second * (double)load / 100, -1, NULL);
		if (write(to, "", 1) != 1)
			die("leader", strerror(errno));
		beside[i] = phase(&c, per_second * (double)load / 100, from, &saved[i]);
	}
	save_report(&(save_run){.per_second = per_second,
				.load = load,
				.rate = rate,
				.rounds = rounds,
				.json = json,
				.watched = machine},
		    alone, beside, saved);
	stalls_stop(machine);
	close(to);
	waitpid(leader, NULL, 0);
	tern_table_close(c.table);
	tern_ps_close(c.ps);
	tern_ctx_destroy(c.ctx);
	kill(server, SIGTERM);
	waitpid(server, NULL, 0);
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return 0;
}
