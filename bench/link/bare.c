/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What case mixed asks of the kernel, without tern. shm: two processes that wake each other by eventfd, alone and beside a
 * thread that copies as many bytes as the bulk puts, in pieces as long and at the same share of its own rate. tcp: by a
 * socket, beside a thread that sends as many over another, to the thread that answers: messages first, bulk in pieces of
 * 64 KiB. How long a woken thread waits for a core is the scheduler's; nothing above it can be faster than this.
 *
 * Threads: main asks, one copies; the other process has one.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "bench.h"

#define STOP        2u
#define WORDS       8u /* of a question over a socket: 64 bytes, as a call */
#define PIECE_BYTES (64u << 10)

typedef struct copies {
	uint8_t *from, *to;
	int fd; /* to the other process; -1: a copy */
	uint64_t bytes, done;
	double rate, seconds; /* rate: bytes per second to keep to; 0 = as fast as it goes */
	atomic_bool stop;
	pthread_t thread;
} copies;

static void send_all(int fd, const uint8_t *from, uint64_t bytes)
{
	while (bytes > 0) {
		ssize_t n = send(fd, from, bytes < PIECE_BYTES ? bytes : PIECE_BYTES, MSG_NOSIGNAL);

		if (n < 0)
			must(TERN_E_OS, "send");
		from += n;
		bytes -= (uint64_t)n;
	}
}

static void *copy_on(void *arg)
{
	copies *c = arg;
	uint64_t from = now_ns(), n = 0;

	for (; !atomic_load(&c->stop); n++) {
		uint64_t at = c->rate > 0 ? from + (uint64_t)(1e9 * (double)(n * c->bytes) / c->rate) : 0,
			 now = now_ns();

		if (now < at)
			sleep_ns(at - now);
		if (c->fd < 0)
			memcpy(c->to, c->from, c->bytes);
		else
			send_all(c->fd, c->from, c->bytes);
	}
	c->done = n * c->bytes;
	c->seconds = 1e-9 * (double)(now_ns() - from);
	return NULL;
}

static void copies_start(copies *c, double rate)
{
	c->rate = rate;
	atomic_store(&c->stop, false);
	if (pthread_create(&c->thread, NULL, copy_on, c) != 0)
		must(TERN_E_NOMEM, "a thread");
}

static double copies_end(copies *c)
{
	atomic_store(&c->stop, true);
	pthread_join(c->thread, NULL);
	return (double)c->done / c->seconds;
}

__attribute__((noreturn)) static void answer(int asked, int answered)
{
	uint64_t n = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	ask_for_short_slices(); /* as helpers of tern do */
	while (read(asked, &n, sizeof(n)) == sizeof(n) && n < STOP) {
		n = 1;
		if (write(answered, &n, sizeof(n)) != sizeof(n))
			break;
	}
	_exit(0);
}

__attribute__((noreturn)) static void answer_sockets(int small, int bulk)
{
	struct pollfd fds[2] = {{.fd = small, .events = POLLIN}, {.fd = bulk, .events = POLLIN}};
	static uint8_t room[PIECE_BYTES];
	uint64_t words[WORDS];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	ask_for_short_slices();
	while (poll(fds, 2, -1) > 0) {
		if (fds[0].revents && (recv(small, words, sizeof(words), MSG_WAITALL) != sizeof(words) ||
				       send(small, words, sizeof(words), MSG_NOSIGNAL) != sizeof(words)))
			break;
		if (!fds[0].revents && fds[1].revents && recv(bulk, room, sizeof(room), 0) <= 0)
			break;
	}
	_exit(0);
}

/* A connection of this process with itself, over the loopback. */
static void connection(int fd[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || fd[0] < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) != 0 ||
	    listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&at, &length) != 0 ||
	    connect(fd[0], (struct sockaddr *)&at, sizeof(at)) != 0 ||
	    (fd[1] = accept(listener, NULL, NULL)) < 0)
		must(TERN_E_OS, "a connection");
	for (int i = 0; i < 2; i++)
		setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(listener);
}

static void start_sockets(bare *b)
{
	int small[2], bulk[2];

	connection(small);
	connection(bulk);
	b->pid = fork();
	if (b->pid < 0)
		must(TERN_E_LIMIT, "fork");
	if (b->pid == 0) {
		close(small[0]);
		close(bulk[0]);
		answer_sockets(small[1], bulk[1]);
	}
	close(small[1]);
	close(bulk[1]);
	b->asked = b->answered = small[0];
	b->bulk = bulk[0];
}

void bare_start(const options *o, bare *b)
{
	*b = (bare){.bulk = -1, .bytes = sizeof(uint64_t)};
	if (strcmp(o->transport, "tcp") == 0) {
		b->bytes = WORDS * sizeof(uint64_t);
		start_sockets(b);
		return;
	}
	b->asked = eventfd(0, EFD_CLOEXEC);
	b->answered = eventfd(0, EFD_CLOEXEC);
	if (b->asked < 0 || b->answered < 0)
		must(TERN_E_LIMIT, "eventfd");
	b->pid = fork();
	if (b->pid < 0)
		must(TERN_E_LIMIT, "fork");
	if (b->pid == 0)
		answer(b->asked, b->answered);
}

void bare_stop(bare *b)
{
	uint64_t n = STOP;

	/* The end of its sockets ends the one that has them. */
	if (b->bulk < 0 && write(b->asked, &n, sizeof(n)) != sizeof(n))
		kill(b->pid, SIGKILL);
	close(b->asked);
	close(b->bulk < 0 ? b->answered : b->bulk);
	waitpid(b->pid, NULL, 0);
}

/* P99 of a question and its answer. */
static double ask_for(const bare *b, const options *o, double *us)
{
	uint64_t from = now_ns(), at = from, asked = 0;

	while (at < from + o->ms * 1000000 && asked < CALLS_MAX) {
		uint64_t words[WORDS] = {1}, before = now_ns();

		if (write(b->asked, words, b->bytes) != (ssize_t)b->bytes ||
		    read(b->answered, words, b->bytes) != (ssize_t)b->bytes)
			must(TERN_E_OS, "a question");
		us[asked++] = 1e-3 * (double)(now_ns() - before);
		at = now_ns();
		if (at < before + o->pace_us * 1000) {
			sleep_ns(before + o->pace_us * 1000 - at);
			at = now_ns();
		}
	}
	return percentile(us, asked, 0.99);
}

void bare_measure(const bare *b, const options *o, double *us, double *alone99, double *beside99)
{
	copies c = {.bytes = o->bulk_bytes,
		    .from = malloc(o->bulk_bytes),
		    .to = malloc(o->bulk_bytes),
		    .fd = b->bulk};
	double rate;

	if (!c.from || !c.to)
		must(TERN_E_NOMEM, "memory");
	memset(c.from, 1, c.bytes);
	memset(c.to, 1, c.bytes);
	*alone99 = ask_for(b, o, us);
	copies_start(&c, 0);
	sleep_ns(o->ms * 1000000);
	rate = copies_end(&c);
	copies_start(&c, rate * (double)o->share / 100);
	*beside99 = ask_for(b, o, us);
	copies_end(&c);
	free(c.from);
	free(c.to);
}
