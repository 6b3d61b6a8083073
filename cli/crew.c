/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes around parameter servers. See crew.h. Children are forked, not executed: there are no threads yet, and they
 * need the board. Threads: main of each process. Tests: tests/e2e/bench_test.py.
 */
#include "crew.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

#define PATIENCE_NS 5000000000ull /* for processes to end by themselves */
#define BOARD_BYTES ((sizeof(crew_board) + 4095) & ~4095ull)

static volatile sig_atomic_t got_signal, signal_count;

static void on_signal(int sig)
{
	got_signal = sig;
	signal_count++;
}

void crew_sleep_ms(unsigned ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

int crew_fail(crew *c, const char *fmt, ...)
{
	va_list args;

	if (atomic_exchange(&c->board->failed, 1))
		return 1;
	va_start(args, fmt);
	vsnprintf(c->board->error, sizeof(c->board->error), fmt, args);
	va_end(args);
	atomic_store(&c->board->told, 1);
	atomic_store(&c->board->stop, 1);
	return 1;
}

/* ---- servers ---- */

static tern_ctx_params context(const crew *c, const char *name, const char *listen)
{
	static const char *const spinning[] = {"ctx.spin_ns=1000000000", NULL};

	return (tern_ctx_params){.name = name,
				 .listen = listen,
				 .transports = c->params.transport,
				 .options = c->params.spin ? spinning : NULL};
}

static uint32_t list_of(const crew *c, const char **list)
{
	for (uint32_t i = 0; i < c->servers; i++)
		list[i] = c->board->address[i];
	return c->servers;
}

static int serve(crew *c, uint32_t index, tern_ctx *ctx, const sigset_t *ends)
{
	const char *list[CREW_SERVERS_MAX];
	tern_ps_server_params params = {.servers = list, .count = list_of(c, list), .index = index};
	tern_ps_server *server;
	int sig;

	if (tern_ps_server_open(ctx, &params, &server) != TERN_OK)
		return crew_fail(c, "server %u: cannot serve: %s", index, tern_detail());
	atomic_fetch_add(&c->board->ready, 1);
	while (sigwait(ends, &sig) != 0)
		;
	tern_ps_server_close(server);
	return 0;
}

static int server(crew *c, uint32_t index)
{
	char name[32];
	tern_ctx_params params = context(c, name, "127.0.0.1:0");
	sigset_t ends;
	tern_ctx *ctx;
	int rc = 0;

	snprintf(name, sizeof(name), "server%u", index);
	c->serving = true;
	params.options = NULL; /* not where clients poll: its helper has a core of its own then */
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (tern_ctx_create(&params, &ctx) != TERN_OK)
		return crew_fail(c, "server %u: cannot start: %s", index, tern_detail());
	snprintf(c->board->address[index], CREW_ADDRESS_MAX, "%s", tern_ctx_address(ctx));
	atomic_fetch_add(&c->board->ready, 1);
	if (crew_wait_meeting(c))
		rc = serve(c, index, ctx, &ends);
	tern_ctx_destroy(ctx);
	return rc;
}

/* ---- starting ---- */

static bool start(crew *c, int (*run)(crew *c, uint32_t index, void *arg), uint32_t index, void *arg)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		fprintf(stderr, "%s: cannot start a process: %s\n", c->params.command, strerror(errno));
		c->spoiled = true;
		return false;
	}
	if (pid == 0) {
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_DFL);
		signal(SIGPIPE, SIG_IGN);
		_exit(run ? (prctl(PR_SET_PDEATHSIG, SIGKILL), run(c, index, arg)) : server(c, index));
	}
	c->pid[c->processes++] = pid;
	return true;
}

bool crew_add(crew *c, uint32_t count, int (*run)(crew *c, uint32_t index, void *arg), void *arg)
{
	for (uint32_t i = 0; i < count; i++) {
		if (c->processes == CREW_SERVERS_MAX + CREW_MEMBERS_MAX || !start(c, run, i, arg))
			return false;
		c->running_members++;
	}
	return true;
}

/* A local job's own, so that no other user of the host can join it; a secret of the user's own stays. */
static void make_secret(void)
{
	unsigned char bytes[16];
	char text[2 * sizeof(bytes) + 1];

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		return;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	setenv("TERN_CTX_SECRET", text, 0);
}

/* "3" or "host:port,...". */
static bool read_servers(crew *c)
{
	const char *at = c->params.servers;
	char *end;
	unsigned long n = strtoul(at, &end, 10);

	if (*end == '\0' && end != at && n <= CREW_SERVERS_MAX) {
		c->local = true;
		c->servers = (uint32_t)n;
		return true;
	}
	while (*at && c->servers < CREW_SERVERS_MAX) {
		size_t bytes = strcspn(at, ",");

		if (bytes == 0 || bytes >= CREW_ADDRESS_MAX || !memchr(at, ':', bytes))
			break;
		memcpy(c->board->address[c->servers++], at, bytes);
		at += bytes + (at[bytes] == ',');
	}
	if (!*at && c->servers)
		return true;
	fprintf(stderr, "%s: --servers %s: give a number from 1 to %d, or addresses, \"host:port,...\"\n",
		c->params.command, c->params.servers, CREW_SERVERS_MAX);
	return false;
}

int crew_open(crew *c, const crew_params *params)
{
	struct sigaction action = {.sa_handler = on_signal};

	*c = (crew){.params = *params, .map_bytes = BOARD_BYTES + params->shared_bytes};
	c->board = mmap(NULL, c->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c->board == MAP_FAILED) {
		fprintf(stderr, "%s: no memory: %s\n", params->command, strerror(errno));
		return 1;
	}
	c->shared = (char *)c->board + BOARD_BYTES;
	if (!read_servers(c)) {
		munmap(c->board, c->map_bytes);
		return 2;
	}
	got_signal = signal_count = 0;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGCHLD, SIG_DFL);
	if (c->local)
		make_secret();
	for (uint32_t i = 0; c->local && i < c->servers; i++)
		if (!start(c, NULL, i, NULL))
			break;
	c->first_member = c->processes;
	if (!c->spoiled)
		return 0;
	crew_close(c);
	return 1;
}

/* ---- watching ---- */

static void describe(crew *c, uint32_t i, int status)
{
	const char *what = i < c->first_member ? "server" : "member";
	uint32_t number = i < c->first_member ? i : i - c->first_member;

	if (WIFSIGNALED(status))
		crew_fail(c, "%s %u (pid %d) was killed by signal %d (%s)", what, number, (int)c->pid[i],
			  WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		crew_fail(c, "%s %u (pid %d) exited with status %d", what, number, (int)c->pid[i],
			  WEXITSTATUS(status));
}

/* Those that have ended. Members may; a server must not before the end. */
static void reap(crew *c, bool at_end)
{
	for (uint32_t i = 0; i < c->processes; i++) {
		int status;

		if (c->pid[i] <= 0 || waitpid(c->pid[i], &status, WNOHANG) != c->pid[i])
			continue;
		if (!c->killed && ((i < c->first_member && !at_end) || status != 0))
			describe(c, i, status);
		c->running_members -= i >= c->first_member;
		c->pid[i] = -c->pid[i];
	}
}

uint32_t crew_running(const crew *c)
{
	return c->running_members;
}

bool crew_watch(crew *c, unsigned ms)
{
	reap(c, false);
	if (got_signal || atomic_load(&c->board->failed))
		return false;
	crew_sleep_ms(ms);
	return !got_signal;
}

bool crew_meet(crew *c)
{
	if (c->local) {
		while (atomic_load(&c->board->ready) < c->servers)
			if (!crew_watch(c, 2))
				return false;
		atomic_store(&c->board->meet, 1);
		while (atomic_load(&c->board->ready) < 2 * c->servers)
			if (!crew_watch(c, 2))
				return false;
	}
	atomic_store(&c->board->meet, 2);
	return true;
}

/* Servers go on when the list is complete, members when all serve. */
bool crew_wait_meeting(crew *c)
{
	while (atomic_load(&c->board->meet) < (c->serving ? 1u : 2u)) {
		if (crew_stopping(c))
			return false;
		crew_sleep_ms(2);
	}
	return !crew_stopping(c);
}

bool crew_join(crew *c, const char *name, tern_ctx **ctx, tern_ps **ps)
{
	const char *list[CREW_SERVERS_MAX];
	tern_ctx_params params = context(c, name, "");
	tern_ps_params ps_params = {.servers = list, .count = list_of(c, list)};

	*ps = NULL;
	if (tern_ctx_create(&params, ctx) != TERN_OK) {
		*ctx = NULL;
	} else if (tern_ps_open(*ctx, &ps_params, ps) == TERN_OK) {
		return true;
	}
	crew_fail(c, "%s: %s", name, tern_detail());
	return false;
}

double crew_cpu_seconds(const crew *c, bool of_members)
{
	uint32_t from = of_members ? c->first_member : 0, to = of_members ? c->processes : c->first_member;
	double sum = 0;

	for (uint32_t i = from; i < to; i++) {
		struct timespec t;
		clockid_t clock;

		if (c->pid[i] > 0 && clock_getcpuclockid(c->pid[i], &clock) == 0 &&
		    clock_gettime(clock, &t) == 0)
			sum += (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
	}
	return sum;
}

/* ---- ending ---- */

static void tell(const crew *c, uint32_t from, uint32_t to, int sig)
{
	for (uint32_t i = from; i < to; i++)
		if (c->pid[i] > 0)
			kill(c->pid[i], sig);
}

static bool any(const crew *c, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (c->pid[i] > 0)
			return true;
	return false;
}

/* Until those have ended: by themselves, or killed. */
static void wait_for(crew *c, uint32_t from, uint32_t to)
{
	uint64_t start = progress_now_ns();
	int before = signal_count;

	while (any(c, from, to)) {
		reap(c, true);
		if (progress_now_ns() - start > PATIENCE_NS || signal_count > before) {
			c->killed = true;
			tell(c, from, to, SIGKILL);
		}
		crew_sleep_ms(2);
	}
}

int crew_close(crew *c)
{
	int status = c->spoiled ? 1 : 0;

	atomic_store(&c->board->stop, 1);
	wait_for(c, c->first_member, c->processes);
	tell(c, 0, c->first_member, SIGTERM);
	wait_for(c, 0, c->first_member);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	if (got_signal) {
		fprintf(stderr, "%s: stopped by signal %d; all %u processes have ended%s\n",
			c->params.command, (int)got_signal, c->processes,
			c->killed ? " (some had to be killed)" : "");
		status = 128 + got_signal;
	} else if (atomic_load(&c->board->failed)) {
		fprintf(stderr, "%s: %s\n", c->params.command, c->board->error);
		status = 1;
	}
	munmap(c->board, c->map_bytes);
	return status;
}
