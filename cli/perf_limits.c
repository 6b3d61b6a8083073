/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit lines of `tern perf`: what this machine can do without tern, measured with plain means by a pair
 * of processes on the same two cores.
 *
 *   cache line   a word in a shared page bounced between two spinning cores; one way = half a round trip
 *   copy         the better of memcpy and a copy with non-temporal stores between two memfd mappings
 *   tcp          ping-pong of plain blocking send/recv, and a stream into one receiver, TCP_NODELAY
 *
 * The helper process is forked before anything of tern exists and ends with its command pipe.
 * Threads: main of either process.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "perf.h"

#define LINE_ROUNDS      20000u
#define TCP_ROUNDS       400u
#define STREAM_BYTES_MIN (64ull << 20)

typedef struct shared {
	_Alignas(128) _Atomic uint64_t ping;
	_Alignas(128) _Atomic uint64_t pong;
} shared;

typedef struct command {
	uint32_t what; /* 'c' line, 't' tcp echo, 's' stream */
	uint32_t spin;
	uint64_t bytes;
	uint64_t rounds;
} command;

struct limits {
	pid_t pid;
	int pipe;   /* commands to the helper */
	int socket; /* TCP to the helper */
	bool spin;
	shared *words;
	uint64_t line; /* last value of ping */
	uint64_t bytes_max;
	uint8_t *from, *to;
	uint8_t *copy_from, *copy_to; /* the mapped segments of the copy limit */
};

static bool send_all(int fd, const uint8_t *buf, uint64_t bytes, bool spin)
{
	while (bytes) {
		ssize_t n = send(fd, buf, bytes < (1u << 20) ? bytes : 1u << 20,
				 MSG_NOSIGNAL | (spin ? MSG_DONTWAIT : 0));

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return false;
		buf += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static bool recv_all(int fd, uint8_t *buf, uint64_t bytes, bool spin)
{
	while (bytes) {
		ssize_t n = recv(fd, buf, bytes < (1u << 20) ? bytes : 1u << 20, spin ? MSG_DONTWAIT : 0);

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return false;
		buf += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

/* ---- the helper process ---- */

static void serve_line(limits *l, const command *c)
{
	for (uint64_t i = 0; i < c->rounds; i++) {
		uint64_t want = ++l->line;

		while (atomic_load_explicit(&l->words->ping, memory_order_acquire) != want)
			;
		atomic_store_explicit(&l->words->pong, want, memory_order_release);
	}
}

static void serve_tcp(limits *l, const command *c)
{
	for (uint64_t i = 0; i < c->rounds; i++)
		if (!recv_all(l->socket, l->to, c->bytes, c->spin) ||
		    !send_all(l->socket, l->to, c->bytes, c->spin))
			_exit(1);
}

static void serve_stream(limits *l, const command *c)
{
	uint8_t ack = 1;

	for (uint64_t i = 0; i < c->rounds; i++)
		if (!recv_all(l->socket, l->to, c->bytes, c->spin))
			_exit(1);
	send_all(l->socket, &ack, 1, false);
}

static void serve(limits *l, int commands)
{
	command c;

	while (read(commands, &c, sizeof(c)) == (ssize_t)sizeof(c)) {
		if (c.what == 'c')
			serve_line(l, &c);
		else if (c.what == 't')
			serve_tcp(l, &c);
		else
			serve_stream(l, &c);
	}
	_exit(0);
}

/* ---- start and stop ---- */

static bool tcp_pair(int out[2])
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	out[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	out[1] = -1;
	if (listener >= 0 && bind(listener, (struct sockaddr *)&addr, n) == 0 && listen(listener, 1) == 0 &&
	    getsockname(listener, (struct sockaddr *)&addr, &n) == 0 &&
	    connect(out[0], (struct sockaddr *)&addr, n) == 0)
		out[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (listener >= 0)
		close(listener);
	for (int i = 0; i < 2 && out[1] >= 0; i++)
		setsockopt(out[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return out[1] >= 0;
}

static uint8_t *map_segment(uint64_t bytes)
{
	int fd = memfd_create("tern-perf", MFD_CLOEXEC);
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (fd >= 0)
		close(fd);
	return p == MAP_FAILED ? NULL : p;
}

limits *limits_start(const perf_options *o, uint64_t bytes_max)
{
	limits *l = calloc(1, sizeof(*l));
	int commands[2], sockets[2];

	if (!l || pipe2(commands, O_CLOEXEC) != 0 || !tcp_pair(sockets)) {
		fprintf(stderr, "tern perf: cannot make the limit lines' sockets: %s\n", strerror(errno));
		exit(1);
	}
	l->bytes_max = bytes_max < 64 ? 64 : bytes_max;
	l->spin = o->spin;
	l->words = (shared *)map_segment(sizeof(shared));
	l->from = map_segment(l->bytes_max);
	l->to = map_segment(l->bytes_max);
	if (!l->words || !l->from || !l->to) {
		fprintf(stderr, "tern perf: no memory for two segments of %llu bytes\n",
			(unsigned long long)l->bytes_max);
		exit(1);
	}
	l->pid = fork();
	if (l->pid < 0) {
		fprintf(stderr, "tern perf: cannot fork: %s\n", strerror(errno));
		exit(1);
	}
	if (l->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may spin for a word that a dead parent never writes */
		close(commands[1]);
		close(sockets[0]);
		l->socket = sockets[1];
		perf_pin(o->cores[1]);
		serve(l, commands[0]);
	}
	close(commands[0]);
	close(sockets[1]);
	l->pipe = commands[1];
	l->socket = sockets[0];
	return l;
}

void limits_use(limits *l, uint8_t *from, uint8_t *to)
{
	l->copy_from = from;
	l->copy_to = to;
}

void limits_stop(limits *l)
{
	close(l->pipe);
	close(l->socket);
	waitpid(l->pid, NULL, 0);
	munmap(l->words, sizeof(shared));
	munmap(l->from, l->bytes_max);
	munmap(l->to, l->bytes_max);
	free(l);
}

static void tell(limits *l, uint32_t what, uint64_t bytes, uint64_t rounds)
{
	command c = {.what = what, .spin = l->spin, .bytes = bytes, .rounds = rounds};

	if (write(l->pipe, &c, sizeof(c)) != (ssize_t)sizeof(c)) {
		fprintf(stderr, "tern perf: the limit lines' helper is gone\n");
		exit(1);
	}
}

/* ---- measuring ---- */

static void bounce(limits *l, uint64_t rounds)
{
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t value = ++l->line;

		atomic_store_explicit(&l->words->ping, value, memory_order_release);
		while (atomic_load_explicit(&l->words->pong, memory_order_acquire) != value)
			;
	}
}

double limit_cache_line_ns(limits *l)
{
	uint64_t t;

	tell(l, 'c', 0, LINE_ROUNDS + 1000);
	bounce(l, 1000); /* the helper is awake now */
	t = perf_now_ns();
	bounce(l, LINE_ROUNDS);
	return (double)(perf_now_ns() - t) / (2.0 * LINE_ROUNDS);
}

#ifdef __SSE2__
/* Stores that go around the caches: what a bulk copy should use when nobody reads it soon. */
static void copy_non_temporal(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t i = 0;

	for (; i + 64 <= bytes; i += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 48));

		_mm_stream_si128((__m128i *)(void *)(to + i), a);
		_mm_stream_si128((__m128i *)(void *)(to + i + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + i + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + i + 48), d);
	}
	_mm_sfence();
	memcpy(to + i, from + i, bytes - i);
}
#else
#define copy_non_temporal(to, from, bytes) memcpy(to, from, bytes)
#endif

static double copy_rate(limits *l, uint64_t bytes, bool non_temporal)
{
	uint64_t rounds = bytes >= (8u << 20) ? 3 : (8u << 20) / (bytes ? bytes : 1) + 1;
	uint64_t t = perf_now_ns();

	for (uint64_t i = 0; i < rounds; i++) {
		if (non_temporal)
			copy_non_temporal(l->copy_to, l->copy_from, bytes);
		else
			memcpy(l->copy_to, l->copy_from, bytes);
		__asm__ volatile("" ::: "memory");
	}
	return (double)bytes * (double)rounds / (double)(perf_now_ns() - t);
}

double limit_copy_rate(limits *l, uint64_t bytes)
{
	double plain = copy_rate(l, bytes, false), direct = copy_rate(l, bytes, true);

	return plain > direct ? plain : direct;
}

static void ping_tcp(limits *l, uint64_t bytes, uint64_t rounds)
{
	for (uint64_t i = 0; i < rounds; i++)
		if (!send_all(l->socket, l->from, bytes, l->spin) ||
		    !recv_all(l->socket, l->from, bytes, l->spin))
			exit(1);
}

double limit_tcp_ns(limits *l, uint64_t bytes)
{
	uint64_t rounds = bytes > 65536 ? 20 : TCP_ROUNDS;
	uint64_t t;

	tell(l, 't', bytes, rounds + 5);
	ping_tcp(l, bytes, 5);
	t = perf_now_ns();
	ping_tcp(l, bytes, rounds);
	return (double)(perf_now_ns() - t) / (2.0 * (double)rounds);
}

double limit_tcp_rate(limits *l, uint64_t bytes)
{
	uint64_t rounds = STREAM_BYTES_MIN / bytes + 1;
	uint8_t ack;
	uint64_t t;

	if (rounds > 20000)
		rounds = 20000;
	tell(l, 's', bytes, rounds);
	t = perf_now_ns();
	for (uint64_t i = 0; i < rounds; i++)
		if (!send_all(l->socket, l->from, bytes, l->spin))
			exit(1);
	if (!recv_all(l->socket, &ack, 1, l->spin))
		exit(1);
	return (double)bytes * (double)rounds / (double)(perf_now_ns() - t);
}
