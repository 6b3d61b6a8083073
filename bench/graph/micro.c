/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-graph-micro: one tensor from one process to another, by each way that a plan's edges can take. What is timed is what
 * the executor pays: post the tensor, wait until the receiver has polled it and its answer, a tensor of 64 bytes, is
 * here. One tensor is under way at a time. Two limits are timed in turns with the transfers:
 *
 *   memcpy  between two buffers of the sender: both in its own caches and, if the kernel likes, in huge pages. No bytes
 *           reach anybody
 *   bare    memcpy from the same source into memory that both processes map (4 KiB pages of shared memory, as a receive slot
 *           is), two slots in turn, and a word to say so, answered by another word, for which both poll: nobody sleeps, and so
 *           nobody has to be woken. What bytes that are moved once to another process cost at least
 *
 * Each transfer and each bare copy comes behind one memcpy, so that both find the same in the caches and the receiver, which
 * may sleep, has waited as long for the one as for the other.
 *
 *   coordinator   forks a pair for each way, so that no way inherits threads or memory of another; prints
 *   receiver      listens, polls, answers
 *   sender        dials, measures, reports through a pipe
 *
 * Threads: one per process, besides those of contexts and gRPC. Not a test.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "graph/xfer_link.h"

#define WAIT_NS 20000000000ull
#define MIB     1048576ull
#define ACK     64
#define SIZES   16
#define ROUNDS  64
#define WARM    2
#define LINE    128 /* an address, in the pipe */

enum { SENDER, RECEIVER };

typedef struct way {
	const char *name, *comm, *transport, *module_way;
} way;

static const way ways[] = {
	{"zerocopy shm", "zerocopy", "shm", NULL}, {"copy shm", "copy", "shm", NULL},
	{"rpc shm", "rpc", "shm", NULL},           {"zerocopy tcp", "zerocopy", "tcp", NULL},
	{"copy tcp", "copy", "tcp", NULL},         {"rpc tcp", "rpc", "tcp", NULL},
	{"grpc plain", "grpc", "tcp", "plain"},    {"grpc tuned", "grpc", "tcp", "tuned"},
};

static struct {
	uint64_t sizes[SIZES];
	unsigned count, rounds;
	bool spin, json;
	const char *only, *module;
} opt = {.sizes = {1, 4, 16, 64, 256}, .count = 5, .rounds = 0};

/* The bare limit: shared by a pair. */
typedef struct bare {
	_Alignas(64) _Atomic uint32_t there, answered; /* numbers of tensors */
	_Alignas(4096) uint8_t slots[];
} bare;

static bare *shared;
static uint64_t shared_bytes;

typedef struct side {
	int who;
	const way *how;
	tern_ctx *ctx;
	tern_link *link, *links[2];
	tn_xfer *xfer;
	tn_xfer_end *data, *ack;
	uint8_t *source, *copy; /* sender: what is sent, and where memcpy goes */
	uint64_t *word;         /* receiver: what the answer carries */
	uint32_t number;        /* of the last bare copy */
} side;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench-graph-micro: %s: %s\n", what, why);
	exit(1);
}

static void check(tern_status status, const char *what)
{
	if (status != TERN_OK)
		die(what, tern_detail());
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- both sides ---- */

static void on_link(tern_link *link, void *arg)
{
	__atomic_store_n(&((side *)arg)->link, link, __ATOMIC_RELEASE);
}

static void open_context(side *s)
{
	tern_ctx_params params = {.name = s->who == SENDER ? "sender" : "receiver",
				  .listen = s->who == SENDER ? "" : NULL,
				  .transports = s->how->transport};

	check(tern_ctx_create(&params, &s->ctx), "context");
}

static void open_xfer(side *s)
{
	bool dialed[2] = {false, s->who == SENDER};
	tn_xfer_link_params params = {
		.ctx = s->ctx, .device = (uint32_t)s->who, .devices = 2, .links = s->links, .dialed = dialed};

	s->links[1 - s->who] = s->link;
	if (s->how->module_way)
		check(tn_xfer_module_open(&params, opt.module, s->how->module_way, &s->xfer), s->how->name);
	else if (strcmp(s->how->comm, "rpc") == 0)
		check(tn_xfer_rpc_open(&params, &s->xfer), s->how->name);
	else
		check(tn_xfer_tensor_open(&params, strcmp(s->how->comm, "copy") == 0, &s->xfer),
		      s->how->name);
}

static tn_xfer_end *open_edge(side *s, uint32_t id, uint64_t bytes, bool sends)
{
	tn_edge_desc desc = {.id = id,
			     .name = "tensor",
			     .dtype = TERN_U8,
			     .shape = {.rank = 1, .dims = {bytes}},
			     .bytes = bytes,
			     .peer = (uint32_t)(1 - s->who),
			     .peer_name = s->who == SENDER ? "receiver" : "sender",
			     .one_sided = true};
	tn_xfer_end *end;

	check(sends ? s->xfer->ops->send_open(s->xfer, &desc, &end)
		    : s->xfer->ops->recv_open(s->xfer, &desc, &end),
	      "edge");
	return end;
}

static void await(side *s)
{
	check(s->xfer->ops->wait(s->xfer, opt.spin ? 0 : TN_TIME_NEVER), "wait");
}

static void send_one(side *s, tn_xfer_end *end, const void *data, uint64_t bytes)
{
	tern_status status;

	while ((status = s->xfer->ops->send_test(end)) == TERN_AGAIN)
		await(s);
	check(status, "send");
	while ((status = s->xfer->ops->send_post(end, data, bytes, 0)) == TERN_AGAIN)
		await(s);
	check(status, "send");
}

static const void *receive_one(side *s, tn_xfer_end *end)
{
	const void *data;
	tern_status status;

	while ((status = s->xfer->ops->recv_poll(end, &data)) == TERN_AGAIN)
		await(s);
	check(status, "receive");
	return data;
}

/* ---- the bare limit ---- */

static void bare_await(_Atomic uint32_t *word, uint32_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		tn_cpu_relax();
}

static void bare_send(const side *s, uint64_t bytes, uint32_t number)
{
	memcpy(shared->slots + number % 2 * bytes, s->source, bytes);
	atomic_store_explicit(&shared->there, number, memory_order_release);
	bare_await(&shared->answered, number);
}

/* Returns the CPU time that it took. */
static uint64_t bare_receive(uint32_t number)
{
	uint64_t cpu = cpu_ns();

	bare_await(&shared->there, number);
	atomic_store_explicit(&shared->answered, number, memory_order_release);
	return cpu_ns() - cpu;
}

static void close_side(side *s)
{
	s->xfer->ops->close(s->xfer);
	tern_link_release(s->link);
	tern_ctx_destroy(s->ctx);
}

static unsigned rounds_of(uint64_t bytes)
{
	uint64_t n = 2048 * MIB / bytes;

	return opt.rounds ? opt.rounds : (unsigned)(n < 9 ? 9 : n > ROUNDS ? ROUNDS : n);
}

/* ---- the receiver ---- */

static void receive_size(side *s, uint64_t bytes, int address_fd, int done_fd)
{
	char address[LINE] = "", byte;
	uint64_t polled = 0; /* CPU time that is not the transfers' */
	void *word;

	open_context(s);
	tern_ctx_on_link(s->ctx, on_link, NULL, s);
	snprintf(address, sizeof(address), "%s", tern_ctx_address(s->ctx));
	if (write(address_fd, address, LINE) != LINE)
		die("pipe", "write");
	while (!__atomic_load_n(&s->link, __ATOMIC_ACQUIRE))
		tern_ctx_wait(s->ctx, 10000000);
	open_xfer(s);
	s->data = open_edge(s, 0, bytes, false);
	s->ack = open_edge(s, 1, ACK, true);
	check(s->xfer->ops->alloc(s->xfer, ACK, &word), "memory");
	s->word = word;
	check(s->xfer->ops->start(s->xfer, tn_now() + WAIT_NS), "start");
	for (unsigned i = 0; i < rounds_of(bytes) + WARM; i++) {
		receive_one(s, s->data);
		while (s->xfer->ops->send_test(s->ack) == TERN_AGAIN)
			await(s);
		s->word[0] = cpu_ns() - polled;
		send_one(s, s->ack, s->word, ACK);
		check(s->xfer->ops->recv_release(s->data), "release");
		polled += bare_receive(++s->number);
	}
	if (read(done_fd, &byte, 1) != 1) /* the sender has everything */
		die("pipe", "read");
	s->xfer->ops->free(s->xfer, word);
	close_side(s);
}

static void receiver(const way *how, int address_fd, int done_fd)
{
	uint32_t number = 0;

	for (unsigned i = 0; i < opt.count; i++) {
		side s = {.who = RECEIVER, .how = how, .number = number};

		receive_size(&s, opt.sizes[i] * MIB, address_fd, done_fd);
		number = s.number;
	}
}

/* ---- the sender ---- */

typedef struct figures {
	uint64_t median_ns, least_ns, memcpy_ns, bare_ns;
	uint64_t sender_cpu_ns, receiver_cpu_ns; /* per tensor */
	unsigned rounds;
} figures;

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *values, unsigned n)
{
	qsort(values, n, sizeof(*values), by_value);
	return values[n / 2];
}

/* The executor's view of one tensor and the news that it is there. Returns the receiver's CPU time so far. */
static uint64_t move(side *s, uint64_t bytes)
{
	uint64_t cpu;

	send_one(s, s->data, s->source, bytes);
	memcpy(&cpu, receive_one(s, s->ack), sizeof(cpu));
	check(s->xfer->ops->recv_release(s->ack), "release");
	return cpu;
}

static uint64_t copy_here(side *s, uint64_t bytes)
{
	uint64_t t0 = tn_now();

	memcpy(s->copy, s->source, bytes);
	return tn_now() - t0;
}

static figures measure(side *s, uint64_t bytes)
{
	unsigned n = rounds_of(bytes);
	uint64_t took[ROUNDS + WARM], copies[ROUNDS + WARM], bares[ROUNDS + WARM], mine = 0, theirs = 0;
	figures f = {.rounds = n};

	for (unsigned i = 0; i < n + WARM; i++) {
		uint64_t t0, cpu, before = theirs;

		copies[i] = copy_here(s, bytes);
		cpu = cpu_ns();
		t0 = tn_now();
		theirs = move(s, bytes);
		took[i] = tn_now() - t0;
		mine = cpu_ns() - cpu;
		if (i >= WARM) {
			f.sender_cpu_ns += mine / n;
			f.receiver_cpu_ns += (theirs - before) / n;
		}
		copies[i] = TN_MIN(copies[i], copy_here(s, bytes));
		t0 = tn_now();
		bare_send(s, bytes, ++s->number);
		bares[i] = tn_now() - t0;
	}
	f.memcpy_ns = median(copies + WARM, n);
	f.bare_ns = median(bares + WARM, n);
	f.median_ns = median(took + WARM, n);
	f.least_ns = took[WARM];
	return f;
}

static void send_size(side *s, uint64_t bytes, int address_fd, int done_fd, int result_fd)
{
	tern_connect_params params = {.timeout_ns = WAIT_NS, .retry = 1};
	char address[LINE];
	void *source;
	figures f;

	open_context(s);
	if (read(address_fd, address, LINE) != LINE)
		die("pipe", "read");
	check(tern_link_connect(s->ctx, address, &params, &s->link), "connect");
	check(tern_link_wait(s->link, WAIT_NS), "connect");
	open_xfer(s);
	s->data = open_edge(s, 0, bytes, true);
	s->ack = open_edge(s, 1, ACK, false);
	check(s->xfer->ops->alloc(s->xfer, bytes, &source), "memory");
	s->source = source;
	s->copy = malloc(bytes);
	if (!s->copy)
		die("memory", "malloc");
	memset(s->source, 1, bytes);
	memset(s->copy, 2, bytes);
	check(s->xfer->ops->start(s->xfer, tn_now() + WAIT_NS), "start");
	f = measure(s, bytes);
	while (s->xfer->ops->send_test(s->data) == TERN_AGAIN)
		await(s);
	if (write(done_fd, "", 1) != 1 || write(result_fd, &f, sizeof(f)) != sizeof(f))
		die("pipe", "write");
	free(s->copy);
	s->xfer->ops->free(s->xfer, s->source);
	close_side(s);
}

static void sender(const way *how, int address_fd, int done_fd, int result_fd)
{
	uint32_t number = 0;

	for (unsigned i = 0; i < opt.count; i++) {
		side s = {.who = SENDER, .how = how, .number = number};

		send_size(&s, opt.sizes[i] * MIB, address_fd, done_fd, result_fd);
		number = s.number;
	}
}

/* ---- the coordinator ---- */

static void row(const way *how, uint64_t mib, const figures *f, bool first)
{
	double ms = (double)f->median_ns * 1e-6;

	if (opt.json) {
		printf("%s{\"way\": \"%s\", \"MiB\": %" PRIu64
		       ", \"ms\": %.4f, \"least_ms\": %.4f, \"memcpy_ms\": %.4f, \"bare_ms\": %.4f, "
		       "\"sender_cpu_ms\": %.4f, "
		       "\"receiver_cpu_ms\": %.4f, \"rounds\": %u, \"waits\": \"%s\"}",
		       first ? "" : ",\n ", how->name, mib, ms, (double)f->least_ns * 1e-6,
		       (double)f->memcpy_ns * 1e-6, (double)f->bare_ns * 1e-6,
		       (double)f->sender_cpu_ns * 1e-6, (double)f->receiver_cpu_ns * 1e-6, f->rounds,
		       opt.spin ? "spin" : "block");
		return;
	}
	printf("%-13s %5" PRIu64 " %10.3f %8.2f %10.3f %8.2f %10.3f %8.2f %9.3f %9.3f\n", how->name, mib, ms,
	       (double)mib * (double)MIB * 1e-6 / ms, (double)f->memcpy_ns * 1e-6,
	       (double)f->memcpy_ns / (double)f->median_ns, (double)f->bare_ns * 1e-6,
	       (double)f->bare_ns / (double)f->median_ns, (double)f->sender_cpu_ns * 1e-6,
	       (double)f->receiver_cpu_ns * 1e-6);
}

static void reap(pid_t pid, const char *who)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || status != 0)
		die(who, "ended with an error");
}

static void run_way(const way *how, bool first)
{
	int address[2], done[2], result[2];
	pid_t pids[2];
	figures f;

	if (pipe(address) || pipe(done) || pipe(result))
		die("pipe", "cannot be made");
	shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("memory", "mmap");
	fflush(stdout);
	for (int who = SENDER; who <= RECEIVER; who++) {
		pids[who] = fork();
		if (pids[who] < 0)
			die("fork", "failed");
		if (pids[who] > 0)
			continue;
		close(result[0]);
		if (who == SENDER)
			sender(how, address[0], done[1], result[1]);
		else
			receiver(how, address[1], done[0]);
		_exit(0);
	}
	close(result[1]);
	for (unsigned i = 0; i < opt.count; i++) {
		if (read(result[0], &f, sizeof(f)) != sizeof(f))
			die(how->name, "no result");
		row(how, opt.sizes[i], &f, first && i == 0);
		fflush(stdout);
	}
	reap(pids[SENDER], "the sender");
	reap(pids[RECEIVER], "the receiver");
	close(result[0]);
	munmap(shared, shared_bytes);
	for (int i = 0; i < 2; i++) {
		close(address[i]);
		close(done[i]);
	}
}

static void parse_sizes(char *text)
{
	opt.count = 0;
	for (char *word = strtok(text, ","); word && opt.count < SIZES; word = strtok(NULL, ","))
		opt.sizes[opt.count++] = strtoull(word, NULL, 10);
	if (!opt.count || !opt.sizes[0])
		die("--sizes", "give MiB with commas between: 1,4,16");
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{"sizes", required_argument, NULL, 's'}, {"rounds", required_argument, NULL, 'r'},
		{"only", required_argument, NULL, 'o'},  {"module", required_argument, NULL, 'm'},
		{"spin", no_argument, NULL, 'p'},        {"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},        {0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 's')
			parse_sizes(optarg);
		else if (c == 'r')
			opt.rounds = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'o')
			opt.only = optarg;
		else if (c == 'm')
			opt.module = optarg;
		else if (c == 'p')
			opt.spin = true;
		else if (c == 'j')
			opt.json = true;
		else {
			printf("usage: bench-graph-micro [--sizes MIB,...] [--rounds N] [--only WORD] "
			       "[--module FILE] "
			       "[--spin] [--json]\n\nways:");
			for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++)
				printf("%s %s", i ? "," : "", ways[i].name);
			printf("\n");
			exit(c == 'h' ? 0 : 2);
		}
	}
	if (opt.rounds > ROUNDS)
		die("--rounds", "64 at most");
}

int main(int argc, char **argv)
{
	bool first = true;

	opt.module = TN_GRPC_MODULE;
	parse(argc, argv);
	for (unsigned i = 0; i < opt.count; i++)
		if (shared_bytes < sizeof(*shared) + 2 * opt.sizes[i] * MIB)
			shared_bytes = sizeof(*shared) + 2 * opt.sizes[i] * MIB;
	if (opt.json)
		printf("[");
	else
		printf("%-13s %5s %10s %8s %10s %8s %10s %8s %9s %9s\n", "way", "MiB", "ms", "GB/s",
		       "memcpy ms", "of it", "bare ms", "of it", "send CPU", "recv CPU");
	for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		if ((opt.only && !strstr(ways[i].name, opt.only)) || (ways[i].module_way && !opt.module[0]))
			continue;
		run_way(&ways[i], first);
		first = false;
	}
	if (opt.json)
		printf("]\n");
	return 0;
}
