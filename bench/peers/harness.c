/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness of bench/peers: processes, commands, time, CPU time. See harness.h. Knows no library.
 *
 * A measurement: a short warm-up that tells how long one operation takes, then as many as fit into the time asked for.
 * Where an operation takes less than three microseconds a sample is the mean of 16, so that reading the clock does not
 * weigh in. CPU time is that of both processes with all their threads, over the measured operations alone.
 *
 * Threads: one on each side.
 */
#include "harness.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS 20000000000ull
#define STREAM_KEYS (1u << 20)
#define GROUP       16u
#define GROUP_NS    3000.0
#define WARM        32u

static const char *const op_names[] = {"put", "get", "call", "stream", "fetch", "push", "line", "copy"};
static h_env env;

uint64_t h_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void say_error(const char *text)
{
	printf("{\"error\": \"");
	for (; *text; text++)
		putchar(*text == '"' || *text == '\\' || (unsigned char)*text < 32 ? ' ' : *text);
	printf("\"}\n");
	fflush(stdout);
}

void h_die(h_env *e, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (e->server) {
		memcpy(e->shared->error, text, sizeof(text));
	} else {
		say_error(text);
		signal(SIGCHLD, SIG_IGN);
		kill(e->pid, SIGKILL);
	}
	_exit(1);
}

/* The server is gone while work is under way: whatever the library makes of that, this is the answer. */
static void on_child(int signal_number)
{
	(void)signal_number;
	say_error(env.shared->error[0] ? env.shared->error : "the server ended");
	_exit(1);
}

static void futex(uint32_t *word, int what, uint32_t value)
{
	(void)syscall(SYS_futex, word, what, value, NULL, NULL, 0);
}

/* ---- mailboxes: set-up alone ---- */

static void await_full(h_env *e, h_mail *m, uint32_t want)
{
	uint64_t start = h_now();

	while (__atomic_load_n(&m->full, __ATOMIC_ACQUIRE) != want) {
		usleep(200);
		if (h_now() - start > PATIENCE_NS)
			h_die(e, "the other side did not answer during set-up");
	}
}

void h_give(h_env *e, const void *data, size_t bytes)
{
	h_mail *m = &e->shared->mail[e->server ? 1 : 0];

	if (bytes > sizeof(m->data))
		h_die(e, "%zu bytes of set-up do not fit", bytes);
	await_full(e, m, 0);
	memcpy(m->data, data, bytes);
	m->bytes = (uint32_t)bytes;
	__atomic_store_n(&m->full, 1, __ATOMIC_RELEASE);
}

size_t h_take(h_env *e, void *data, size_t capacity)
{
	h_mail *m = &e->shared->mail[e->server ? 0 : 1];
	size_t bytes;

	await_full(e, m, 1);
	bytes = m->bytes < capacity ? m->bytes : capacity;
	memcpy(data, m->data, bytes);
	__atomic_store_n(&m->full, 0, __ATOMIC_RELEASE);
	return bytes;
}

uint8_t *h_alloc(h_env *e, uint64_t bytes)
{
	void *p = mmap(NULL, (bytes + 4095) & ~4095ull, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		h_die(e, "no memory for %llu bytes", (unsigned long long)bytes);
	return p;
}

/* ---- the server's process ---- */

static void pin(unsigned n)
{
	cpu_set_t allowed, one;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return;
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, &allowed) || n-- != 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(i, &one);
		(void)sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static void server_main(h_env *e)
{
	uint32_t seen = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	e->server = true;
	pin(1);
	e->peer->server(e);
	for (;;) {
		h_work work;

		while (__atomic_load_n(&e->shared->seq, __ATOMIC_ACQUIRE) == seen)
			futex(&e->shared->seq, FUTEX_WAIT, seen);
		seen = __atomic_load_n(&e->shared->seq, __ATOMIC_ACQUIRE);
		if (seen == UINT32_MAX)
			_exit(0);
		work = e->shared->work;
		e->peer->serve(e, &work);
		__atomic_store_n(&e->shared->served, seen, __ATOMIC_RELEASE);
	}
}

/* ---- measuring ---- */

typedef struct usage {
	double client, server; /* CPU, ns */
	uint64_t steal_ms;
} usage;

static double cpu_ns(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
		return 0;
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* What the host gave to others, of all cores. */
static uint64_t steal_ms(void)
{
	unsigned long long v[8] = {0};
	FILE *f = fopen("/proc/stat", "r");

	if (f == NULL)
		return 0;
	if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
		   &v[6], &v[7]) != 8)
		v[7] = 0;
	fclose(f);
	return v[7] * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

static usage usage_now(const h_env *e)
{
	return (usage){.client = cpu_ns(0), .server = cpu_ns(e->pid), .steal_ms = steal_ms()};
}

/* One piece of work from beginning to end; nanoseconds. */
static double run_work(h_env *e, h_work *w, uint64_t count, unsigned group, usage *used)
{
	uint32_t seq = e->shared->seq + 1;
	usage before;
	double ns;

	w->count = count;
	e->shared->work = *w;
	__atomic_store_n(&e->shared->done, 0, __ATOMIC_RELAXED);
	before = usage_now(e);
	__atomic_store_n(&e->shared->seq, seq, __ATOMIC_RELEASE);
	futex(&e->shared->seq, FUTEX_WAKE, 1);
	e->group = group;
	e->since = 0;
	e->mark_count = 0;
	e->marks[e->mark_count++] = h_now();
	e->peer->run(e, w);
	ns = (double)(h_now() - e->marks[0]);
	*used = usage_now(e);
	*used = (usage){.client = used->client - before.client,
			.server = used->server - before.server,
			.steal_ms = used->steal_ms - before.steal_ms};
	__atomic_store_n(&e->shared->done, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&e->shared->served, __ATOMIC_ACQUIRE) != seq)
		usleep(20);
	return ns;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void report(h_env *e, const h_work *w, double ns, const usage *used)
{
	static double v[H_MARKS_MAX];
	double half = w->op == H_LINE || (w->op == H_PUT && w->depth == 1) ? 2 : 1, n = (double)w->count;
	unsigned k = e->mark_count - 1;
	uint64_t bytes = w->op == H_FETCH || w->op == H_PUSH ? w->size * H_DIM * sizeof(float) : w->size;

	for (unsigned i = 0; i < k; i++)
		v[i] = (double)(e->marks[i + 1] - e->marks[i]) / (e->group * half * 1000);
	qsort(v, k, sizeof(v[0]), by_value);
	printf("{\"op\": \"%s\", \"size\": %llu, \"depth\": %u, \"count\": %llu, \"mean_us\": %.4f, ",
	       op_names[w->op], (unsigned long long)w->size, w->depth, (unsigned long long)w->count,
	       ns / n / half / 1000);
	if (w->depth == 1 && k > 0)
		printf("\"p50_us\": %.4f, \"p99_us\": %.4f, ", v[k / 2],
		       v[(unsigned)((double)(k - 1) * 0.99 + 0.5)]);
	printf("\"bytes_per_s\": %.0f, \"cpu_us\": %.4f, \"cpu_client_us\": %.4f, \"cpu_server_us\": %.4f, "
	       "\"steal_ms\": %llu}\n",
	       (double)bytes * n * half / (ns * 1e-9), (used->client + used->server) / n / half / 1000,
	       used->client / n / half / 1000, used->server / n / half / 1000,
	       (unsigned long long)used->steal_ms);
	fflush(stdout);
}

static void measure(h_env *e, h_work *w, uint64_t ms)
{
	bool table = w->op == H_FETCH || w->op == H_PUSH;
	uint64_t warm = w->size >= 1u << 20 && !table ? w->depth + 1 : WARM + w->depth, count,
		 least = 3 * w->depth;
	usage used;
	double ns;

	ns = run_work(e, w, warm, 1, &used) / (double)warm;
	if (ns < 20000 || table) { /* the first ones were slow, or made the table: look again */
		warm = table ? 20 : 10 * WARM;
		ns = run_work(e, w, warm, 1, &used) / (double)warm;
	}
	count = (uint64_t)((double)ms * 1e6 / ns);
	count = count < least ? least : count;
	if (w->depth > 1) {
		ns = run_work(e, w, count, UINT32_MAX, &used);
	} else {
		unsigned group = ns < GROUP_NS ? GROUP : 1;

		if (count > (uint64_t)H_MARKS_MAX * group)
			count = (uint64_t)H_MARKS_MAX * group;
		ns = run_work(e, w, count, group, &used);
	}
	report(e, w, ns, &used);
}

static void set_sizes(h_work *w)
{
	uint64_t keys = 8 + w->size * 8, rows = w->size * H_DIM * sizeof(float);

	w->request = w->size;
	w->answer = w->size;
	if (w->op == H_GET)
		w->request = H_REQUEST;
	if (w->op == H_FETCH)
		w->request = keys, w->answer = rows;
	if (w->op == H_PUSH)
		w->request = keys + rows, w->answer = H_ACK;
	/* Puts in flight are a stream for who has messages alone. */
	if (w->op == H_STREAM || (w->op == H_PUT && w->depth > 1))
		w->answer = 0;
}

static void command(h_env *e, const char *line)
{
	unsigned long long size, depth, ms;
	char name[16];
	const char *why = NULL;
	h_work w = {.op = H_OPS};

	if (sscanf(line, "%15s %llu %llu %llu", name, &size, &depth, &ms) != 4) {
		say_error("a command is: OP BYTES DEPTH MILLISECONDS");
		return;
	}
	for (unsigned i = 0; i < H_OPS; i++)
		if (!strcmp(name, op_names[i]))
			w.op = i;
	w.size = size;
	w.depth = (uint32_t)depth;
	set_sizes(&w);
	if (w.op == H_OPS || depth == 0 || depth > H_DEPTH_MAX || size == 0)
		why = "there is no such work";
	else if (w.request > e->bytes_max || w.answer > e->bytes_max)
		why = "larger than --bytes";
	else if ((w.op == H_FETCH || w.op == H_PUSH) && (size > H_KEYS_MAX || depth != 1))
		why = "too many keys, or more than one at a time";
	else
		why = e->peer->cannot(e, &w);
	if (why)
		say_error(why);
	else
		measure(e, &w, ms);
}

const uint64_t *h_keys(h_env *e, uint64_t count)
{
	const uint64_t *keys;

	if (e->stream == NULL) {
		uint64_t x = 42;

		e->stream = malloc(STREAM_KEYS * sizeof(*e->stream));
		if (e->stream == NULL)
			h_die(e, "no memory");
		for (unsigned i = 0; i < STREAM_KEYS; i++) {
			x = x * 6364136223846793005ull + 1442695040888963407ull;
			e->stream[i] = h_key((x >> 33) % H_ROWS);
		}
	}
	if (e->stream_at + count > STREAM_KEYS)
		e->stream_at = 0;
	keys = e->stream + e->stream_at;
	e->stream_at += count;
	return keys;
}

uint64_t h_key(uint64_t i)
{
	return (i + 1) * 0x9e3779b97f4a7c15ull;
}

static int usage_text(const h_peer *peer)
{
	fprintf(stderr,
		"usage: bench-peer-%s --transport NAME [--spin|--default] [--keepalive] [--bytes N]\n"
		"Commands on standard input: OP SIZE DEPTH MILLISECONDS\n",
		peer->name);
	return 2;
}

int h_main(const h_peer *peer, int argc, char **argv)
{
	h_env *e = &env;
	char line[128];

	*e = (h_env){.peer = peer, .transport = "", .bytes_max = 1u << 20};
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--spin"))
			e->spin = true;
		else if (!strcmp(argv[i], "--default"))
			e->plain = true;
		else if (!strcmp(argv[i], "--keepalive"))
			e->keepalive = true;
		else if (!strcmp(argv[i], "--transport") && i + 1 < argc)
			e->transport = argv[++i];
		else if (!strcmp(argv[i], "--bytes") && i + 1 < argc)
			e->bytes_max = strtoull(argv[++i], NULL, 10);
		else
			return usage_text(peer);
	}
	/* Room for a request with keys and rows, whatever was asked for. */
	e->bytes_max = (e->bytes_max < 65536 ? 65536 : e->bytes_max) + 4096;
	e->shared = mmap(NULL, sizeof(*e->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (e->shared == MAP_FAILED)
		return 1;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, on_child);
	e->pid = fork();
	if (e->pid < 0)
		return 1;
	if (e->pid == 0)
		server_main(e);
	pin(0);
	peer->client(e);
	printf("{\"ready\": \"%s\"}\n", peer->name);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		command(e, line);
	signal(SIGCHLD, SIG_IGN);
	kill(e->pid, SIGKILL);
	waitpid(e->pid, NULL, 0);
	_exit(0); /* what a library's destructors do for a dead peer is not measured */
}
