/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory provider against the limits of the machine, all in one run: two processes, one core
 * each.
 *
 *   probe       cache-line ping-pong: one word each way, no library; half a round trip
 *   put 8 B     flagged ping-pong: each side puts 8 bytes into the other's memory and polls its own
 *   put + flag  the same with 8 bytes of data before a flag word
 *   post        what a put of 8 B costs the one who posts it
 *   send, imm   ping-pong through the rings
 *   wake        the same with both sides asleep in between (arm, wait)
 *   put N       against memcpy and a non-temporal copy between the same two mappings, interleaved
 *
 * Medians of `rounds` repetitions; the probe is measured before and after, because the cores of a virtual
 * machine move. Usage: bench-shm [rounds] [cpu cpu]
 */
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/options.h"
#include "base/os.h"
#include "transport/shm/shm.h"

#define ROUNDS_MAX 101
#define BIG        (64ull << 20)

typedef struct shared {
	_Alignas(128) _Atomic uint64_t to_b;
	_Alignas(128) _Atomic uint64_t to_a;
	_Atomic uint32_t steady;
	_Alignas(128) _Atomic uint32_t warm; /* sides that have mapped the other's memory */
} shared;

typedef struct side {
	bool a;
	shared *shared;
	int sock;
	tern_mem *mem;
	tn_dev *dev;
	tn_lane *lane;
	bool up;
	_Atomic uint64_t *own; /* [0] flag, [16] data: in own memory */
	tn_key small, big;     /* the peer's */
	uint8_t *own_big;
	uint8_t *source;
} side;

static unsigned rounds = 9;

static void die(const char *what)
{
	fprintf(stderr, "bench-shm: %s: %s\n", what, tern_detail());
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

static double median(double *values, unsigned n)
{
	qsort(values, n, sizeof(*values), by_value);
	return values[n / 2];
}

/* Both sides run the same sections in step; only A prints. */
static void in_step(side *s)
{
	uint8_t byte = 0;

	if (write(s->sock, &byte, 1) != 1 || read(s->sock, &byte, 1) != 1)
		die("the other side is gone");
}

/* ---- set-up ---- */

static int poll_one(side *s, tn_event *event)
{
	int n = tn_dev_poll(s->dev, event, 1);

	if (n == 1 && event->type == TN_EV_LANE_DOWN)
		die("the lane went down");
	return n;
}

static void exchange(side *s, const void *mine, void *theirs, size_t bytes)
{
	if (write(s->sock, mine, bytes) != (ssize_t)bytes || read(s->sock, theirs, bytes) != (ssize_t)bytes)
		die("the other side is gone");
}

static tn_key export_to_peer(side *s, void *ptr, uint64_t bytes)
{
	tern_key mine, theirs;
	tn_key key;

	ok(tern_mem_export(s->mem, ptr, bytes, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &mine), "export");
	exchange(s, &mine, &theirs, sizeof(mine));
	if (!tn_key_decode(&theirs, &key))
		die("key");
	return key;
}

static void set_up(side *s)
{
	const tn_provider *shm = tn_provider_find("shm");
	const uint32_t rw = TERN_ACCESS_READ | TERN_ACCESS_WRITE;
	tn_mem_params mem = {0};
	tn_dev_params dev = {0};
	tn_lane_params lane = {.active = s->a, .token = {1, 2, 3}};
	tn_blob mine, theirs, my_lane, their_lane;
	tn_event event;
	void *ptr;

	ok(tn_mem_create(&mem, &s->mem), "mem");
	dev.mem = s->mem;
	ok(tn_options_load(NULL, (tn_options **)&dev.options), "options");
	ok(shm->open(&dev, &s->dev), "open");
	s->dev->ops->address(s->dev, &mine);
	exchange(s, &mine, &theirs, sizeof(mine));
	ok(s->dev->ops->lane_create(s->dev, &lane, &s->lane, &my_lane), "lane");
	exchange(s, &my_lane, &their_lane, sizeof(my_lane));
	ok(s->dev->ops->lane_connect(s->lane, &theirs, &their_lane), "connect");
	while (!s->up) {
		if (poll_one(s, &event) == 1 && event.type == TN_EV_LANE_UP)
			s->up = true;
	}
	ok(tern_mem_alloc(s->mem, 4096, 4096, rw, TERN_MEM_HOST, &ptr), "alloc");
	memset(ptr, 0, 4096);
	s->own = ptr;
	s->small = export_to_peer(s, ptr, 4096);
	ok(tern_mem_alloc(s->mem, BIG, 4096, rw, TERN_MEM_HOST, &ptr), "alloc");
	s->own_big = ptr;
	memset(ptr, 1, BIG);
	s->big = export_to_peer(s, ptr, BIG);
	ok(tern_mem_alloc(s->mem, BIG, 4096, rw, TERN_MEM_HOST, &ptr), "alloc");
	s->source = ptr;
	memset(ptr, 2, BIG);
	in_step(s);
}

static void put(side *s, const tn_key *key, uint64_t offset, const void *from, uint64_t bytes)
{
	tn_wr wr = {.level = TN_LEVEL_REMOTE,
		    .local = (void *)(uintptr_t)from,
		    .bytes = bytes,
		    .key = *key,
		    .offset = offset};
	tern_status status;
	tn_event event;

	while ((status = tn_lane_write(s->lane, &wr)) == TERN_AGAIN)
		(void)poll_one(s, &event);
	ok(status, "put");
}

/* Extents are mapped at the first use, and the owner has to poll for that. */
static void warm_up(side *s)
{
	tn_event event;
	uint64_t word = 0;

	put(s, &s->small, 1024, &word, 8);
	put(s, &s->big, 0, s->source, BIG);
	atomic_fetch_add(&s->shared->warm, 1);
	while (atomic_load(&s->shared->warm) != 2)
		(void)poll_one(s, &event);
	in_step(s);
}

/* ---- latency ---- */

/* One way in ns, median. `turn(s, i)` is one half of a ping-pong: A sends then waits, B waits then sends. */
static double ping_pong(side *s, unsigned turns, void (*send)(side *, uint64_t),
			void (*wait)(side *, uint64_t))
{
	double ns[ROUNDS_MAX];
	uint64_t seq = 0;

	in_step(s);
	for (unsigned r = 0; r < rounds; r++) {
		uint64_t from = tn_now();

		for (unsigned i = 0; i < turns; i++) {
			seq++;
			if (s->a)
				send(s, seq);
			wait(s, seq);
			if (!s->a)
				send(s, seq);
		}
		ns[r] = (double)(tn_now() - from) / turns / 2;
	}
	in_step(s);
	atomic_store(&s->own[0], 0);
	atomic_store(&s->shared->to_a, 0);
	atomic_store(&s->shared->to_b, 0);
	in_step(s);
	return median(ns, rounds);
}

static void probe_send(side *s, uint64_t seq)
{
	atomic_store_explicit(s->a ? &s->shared->to_b : &s->shared->to_a, seq, memory_order_release);
}

static void probe_wait(side *s, uint64_t seq)
{
	_Atomic uint64_t *word = s->a ? &s->shared->to_a : &s->shared->to_b;

	while (atomic_load_explicit(word, memory_order_acquire) != seq)
		;
}

static void put_send(side *s, uint64_t seq)
{
	put(s, &s->small, 0, &seq, 8);
}

static void put_wait(side *s, uint64_t seq)
{
	while (atomic_load_explicit(&s->own[0], memory_order_acquire) != seq)
		;
}

static void flagged_send(side *s, uint64_t seq)
{
	put(s, &s->small, 8, &seq, 8);
	put(s, &s->small, 0, &seq, 8);
}

static void flagged_wait(side *s, uint64_t seq)
{
	put_wait(s, seq);
	if (atomic_load_explicit(&s->own[1], memory_order_relaxed) != seq)
		die("the flag came before the data");
}

static uint64_t send_bytes = 8;

static void msg_send(side *s, uint64_t seq)
{
	tn_iov iov = {.base = s->source, .bytes = send_bytes};
	tern_status status;
	bool done;

	memcpy(s->source, &seq, sizeof(seq));
	while ((status = tn_lane_send(s->lane, &iov, 1, 0, &done)) == TERN_AGAIN)
		;
	ok(status, "send");
}

static void msg_wait(side *s, uint64_t seq)
{
	tn_event event;

	while (poll_one(s, &event) == 0)
		;
	if (memcmp(event.buf, &seq, sizeof(seq)) != 0)
		die("a wrong message");
	s->dev->ops->recv_done(s->dev, &event);
}

static void imm_send(side *s, uint64_t seq)
{
	tn_wr wr = {.local = &seq, .bytes = 8, .key = s->small, .offset = 64, .imm = (uint32_t)seq};

	ok(tn_lane_write_imm(s->lane, &wr), "write_imm");
}

static void imm_wait(side *s, uint64_t seq)
{
	tn_event event;

	while (poll_one(s, &event) == 0)
		;
	if (event.imm != (uint32_t)seq)
		die("a wrong immediate");
	s->dev->ops->recv_done(s->dev, &event);
}

static void asleep_wait(side *s, uint64_t seq)
{
	tn_event event;

	while (poll_one(s, &event) == 0) {
		struct pollfd pfd = {.fd = s->dev->ops->fd(s->dev), .events = POLLIN};

		if (s->dev->ops->arm(s->dev) == TERN_OK)
			(void)poll(&pfd, 1, -1);
	}
	if (memcmp(event.buf, &seq, sizeof(seq)) != 0)
		die("a wrong message");
	s->dev->ops->recv_done(s->dev, &event);
}

static double probe(side *s)
{
	return ping_pong(s, 20000, probe_send, probe_wait);
}

static void row(const side *s, const char *what, double before, double ns, double after)
{
	double line = before < after ? before : after;

	if (s->a)
		printf("%-28s %9.1f ns  %6.2f x the line (probe %.0f before, %.0f after)\n", what, ns,
		       ns / line, before, after);
}

static void latency(side *s)
{
	static const struct {
		const char *name;
		void (*send)(side *, uint64_t);
		void (*wait)(side *, uint64_t);
		uint64_t bytes;
		unsigned turns;
	} rows[] = {
		{"put 8 B", put_send, put_wait, 8, 20000},
		{"put 8 B + flag", flagged_send, flagged_wait, 8, 20000},
		{"write_imm 8 B", imm_send, imm_wait, 8, 20000},
		{"send 8 B", msg_send, msg_wait, 8, 20000},
		{"send 48 B", msg_send, msg_wait, 48, 20000},
		{"send 240 B", msg_send, msg_wait, 240, 10000},
		{"send 4 KiB", msg_send, msg_wait, 4096, 5000},
		{"send 16 KiB", msg_send, msg_wait, 16384, 2000},
		{"send 8 B, both asleep", msg_send, asleep_wait, 8, 1000},
	};
	double before = probe(s);

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		double ns = 0, after = before;

		send_bytes = rows[i].bytes;
		/* Only a row between equal probes says anything. Both sides measure, so both decide alike. */
		for (unsigned attempt = 0; attempt < 5; attempt++) {
			uint32_t steady;

			before = after;
			ns = ping_pong(s, rows[i].turns, rows[i].send, rows[i].wait);
			after = probe(s);
			steady = before < 1.15 * after && after < 1.15 * before;
			if (s->a)
				atomic_store(&s->shared->steady, steady);
			in_step(s);
			steady = atomic_load(&s->shared->steady);
			in_step(s);
			if (steady)
				break;
		}
		row(s, rows[i].name, before, ns, after);
		before = after;
	}
}

/* ---- rates ---- */

static void rates(side *s)
{
	double post[ROUNDS_MAX], poll_ns[ROUNDS_MAX], stream[ROUNDS_MAX];
	const unsigned n = 200000;
	uint64_t word = 1;
	tn_event event;

	for (unsigned r = 0; r < rounds; r++) {
		uint64_t from;

		if (s->a) {
			from = tn_now();
			for (unsigned i = 0; i < n; i++)
				put(s, &s->small, 128, &word, 8);
			post[r] = (double)(tn_now() - from) / n;
			from = tn_now();
			for (unsigned i = 0; i < n; i++)
				(void)poll_one(s, &event);
			poll_ns[r] = (double)(tn_now() - from) / n;
		}
		in_step(s);
		from = tn_now();
		for (unsigned i = 0; i < n; i++) {
			if (s->a) {
				send_bytes = 8;
				msg_send(s, i);
			} else {
				msg_wait(s, i);
			}
		}
		in_step(s);
		stream[r] = (double)(tn_now() - from) / n;
	}
	if (!s->a)
		return;
	printf("%-28s %9.1f ns\n", "cost of posting a put of 8 B", median(post, rounds));
	printf("%-28s %9.1f ns\n", "cost of a poll, nothing there", median(poll_ns, rounds));
	printf("%-28s %9.1f ns per message\n", "stream of sends of 8 B", median(stream, rounds));
}

/* ---- bandwidth ---- */

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void nt_copy(void *to, const void *from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += 128) {
		const uint8_t *f = (const uint8_t *)from + i;
		uint8_t *t = (uint8_t *)to + i;
		__m256i a = _mm256_loadu_si256((const void *)f);
		__m256i b = _mm256_loadu_si256((const void *)(f + 32));
		__m256i c = _mm256_loadu_si256((const void *)(f + 64));
		__m256i d = _mm256_loadu_si256((const void *)(f + 96));

		_mm256_stream_si256((void *)t, a);
		_mm256_stream_si256((void *)(t + 32), b);
		_mm256_stream_si256((void *)(t + 64), c);
		_mm256_stream_si256((void *)(t + 96), d);
	}
	_mm_sfence();
}
#else
static void nt_copy(void *to, const void *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}
#endif

/* The limit lines run between the same two mappings as the put: what pages one got makes 5 %. */
static uint8_t *mapping_of_peer(const side *s)
{
	const tn_shm_lane *lane = (const tn_shm_lane *)s->lane;

	return lane->peer->maps[s->big.extent].base + s->big.extent_offset;
}

static void copy_by(side *s, unsigned way, uint8_t *target, uint64_t bytes, uint64_t part)
{
	if (way == 1)
		memcpy(target, s->source, bytes);
	else if (way == 2)
		nt_copy(target, s->source, bytes);
	for (uint64_t o = 0; way == 0 && o < bytes; o += part)
		put(s, &s->big, o, s->source + o, part);
}

static void bandwidth(side *s)
{
	static const uint64_t sizes[] = {4096, 65536, 1 << 20, 4 << 20, 16 << 20, BIG, BIG};
	uint8_t *target = NULL;

	if (!s->a) {
		in_step(s);
		return;
	}
	target = mapping_of_peer(s);
	printf("%10s %10s %10s %10s %10s   GB/s, put of parts of 1 MiB in the last line\n", "bytes", "put",
	       "memcpy", "nt copy", "ratio");
	for (size_t z = 0; z < sizeof(sizes) / sizeof(sizes[0]); z++) {
		uint64_t bytes = sizes[z];
		uint64_t part = z + 1 == sizeof(sizes) / sizeof(sizes[0]) ? 1 << 20 : bytes;
		unsigned again = bytes < 1 << 20 ? 200 : 1;
		double t[3][ROUNDS_MAX];
		double best;

		for (unsigned r = 0; r < rounds; r++) {
			/* In turn: what one leaves in the caches is the next one's start. */
			for (unsigned turn = 0; turn < 3; turn++) {
				unsigned k = (r + turn) % 3;
				uint64_t from = tn_now();

				for (unsigned i = 0; i < again; i++)
					copy_by(s, k, target, bytes, part);
				t[k][r] = (double)bytes * again / (double)(tn_now() - from);
			}
		}
		for (int k = 0; k < 3; k++)
			t[k][0] = median(t[k], rounds);
		best = t[1][0] > t[2][0] ? t[1][0] : t[2][0];
		printf("%10llu %10.2f %10.2f %10.2f %10.2f\n", (unsigned long long)bytes, t[0][0], t[1][0],
		       t[2][0], t[0][0] / best);
	}
	in_step(s);
}

static void run(side *s, int cpu)
{
	(void)tn_os_thread_bind(cpu);
	set_up(s);
	warm_up(s);
	latency(s);
	rates(s);
	bandwidth(s);
	s->dev->ops->lane_close(s->lane);
	in_step(s);
	s->dev->ops->close(s->dev);
	tn_mem_destroy(s->mem);
}

int main(int argc, char **argv)
{
	int socks[2];
	int cpus[2] = {0, 1};
	int status;
	pid_t pid;
	side s = {0};

	if (argc > 1)
		rounds = (unsigned)atoi(argv[1]);
	if (rounds < 1 || rounds > ROUNDS_MAX)
		rounds = 9;
	if (argc > 3) {
		cpus[0] = atoi(argv[2]);
		cpus[1] = atoi(argv[3]);
	}
	s.shared = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s.shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, socks) != 0)
		die("set-up");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	s.a = pid != 0;
	s.sock = socks[s.a ? 0 : 1];
	close(socks[s.a ? 1 : 0]);
	run(&s, cpus[s.a ? 0 : 1]);
	if (pid == 0)
		return 0;
	return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}
