/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What case mixed over shm asks of the kernel, without tern: two processes that wake each other by eventfd, alone and
 * beside a thread that copies as many bytes as the bulk puts, in pieces as long and at the same share of its own rate.
 * How long a woken thread waits for a core is the scheduler's; nothing above it can be faster than this.
 *
 * Threads: main asks, one copies; the other process has one.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "bench.h"

#define STOP 2u

typedef struct copies {
	uint8_t *from, *to;
	uint64_t bytes, done;
	double rate, seconds; /* rate: bytes per second to keep to; 0 = as fast as it goes */
	atomic_bool stop;
	pthread_t thread;
} copies;

static void *copy_on(void *arg)
{
	copies *c = arg;
	uint64_t from = now_ns(), n = 0;

	for (; !atomic_load(&c->stop); n++) {
		uint64_t at = c->rate > 0 ? from + (uint64_t)(1e9 * (double)(n * c->bytes) / c->rate) : 0,
			 now = now_ns();

		if (now < at)
			sleep_ns(at - now);
		memcpy(c->to, c->from, c->bytes);
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

void bare_start(bare *b)
{
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

	if (write(b->asked, &n, sizeof(n)) == sizeof(n))
		waitpid(b->pid, NULL, 0);
	close(b->asked);
	close(b->answered);
}

/* P99 of a question and its answer. */
static double ask_for(const bare *b, const options *o, double *us)
{
	uint64_t from = now_ns(), at = from, asked = 0;

	while (at < from + o->ms * 1000000 && asked < CALLS_MAX) {
		uint64_t n = 1, before = now_ns();

		if (write(b->asked, &n, sizeof(n)) != sizeof(n) ||
		    read(b->answered, &n, sizeof(n)) != sizeof(n))
			must(TERN_E_OS, "eventfd");
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
	copies c = {.bytes = o->bulk_bytes, .from = malloc(o->bulk_bytes), .to = malloc(o->bulk_bytes)};
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
