/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare line: two processes, a page each way, one word that says that a request is there and one for its answer. The keys
 * lie behind the first word; the server's engine reads gradients and writes rows where the client has them. No protocol, no
 * check, no copy, one client: what nothing that asks another process can beat, in time or in CPU time. Spinning, both poll
 * their word; else they sleep on it.
 *
 * Threads: one on each side.
 */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench.h"

typedef struct bare {
	struct {
		_Alignas(64) _Atomic uint32_t rung;
		uint32_t count;
		uint64_t rows; /* from `memory` on */
		uint64_t keys[KEYS_MAX];
	} ask;
	struct {
		_Alignas(64) _Atomic uint32_t rung;
	} answer;
	_Alignas(4096) uint8_t memory[];
} bare;

static uint64_t memory_used;

static uint64_t memory_bytes(void)
{
	return 2 * KEYS_MAX * opt.dim * sizeof(float);
}

static void ring(_Atomic uint32_t *word)
{
	atomic_store_explicit(word, 1, opt.spin ? memory_order_release : memory_order_seq_cst);
	if (!opt.spin)
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await(_Atomic uint32_t *word)
{
	while (!atomic_load_explicit(word, memory_order_acquire))
		if (opt.spin)
			tn_cpu_relax();
		else
			syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
	atomic_store_explicit(word, 0, memory_order_relaxed);
}

static void serve(bare *b)
{
	struct tn_table *table = bench_table(false);

	for (;;) {
		request r;

		await(&b->ask.rung);
		r = (request){.keys = b->ask.keys,
			      .count = b->ask.count,
			      .rows = (float *)(void *)(b->memory + b->ask.rows)};
		bench_apply(table, &r);
		ring(&b->answer.rung);
	}
}

static float *rows(line *l, uint64_t bytes)
{
	bare *b = l->state;
	uint8_t *at = b->memory + memory_used;

	memory_used += (bytes + 4095) & ~4095ull;
	if (memory_used > memory_bytes())
		bench_die(l->name, "rows of so many sizes do not fit");
	memset(at, 0, bytes);
	return (float *)(void *)at;
}

static void run(line *l, const request *r)
{
	bare *b = l->state;

	b->ask.count = r->count;
	b->ask.rows = (uint64_t)((uint8_t *)r->rows - b->memory);
	memcpy(b->ask.keys, r->keys, r->count * sizeof(r->keys[0]));
	ring(&b->ask.rung);
	await(&b->answer.rung);
}

void line_bare(line *l)
{
	bare *b = mmap(NULL, sizeof(*b) + memory_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);

	*l = (line){.name = "bare", .rows = rows, .run = run, .state = b};
	if (b == MAP_FAILED)
		bench_die(l->name, strerror(errno));
	l->server = fork();
	if (l->server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		bench_pin(1);
		serve(b);
	}
	{ /* until its table is filled */
		uint64_t key = bench_key(0);
		request r = {.keys = &key, .count = 1, .rows = (float *)(void *)b->memory};

		run(l, &r);
	}
	kill(l->server, SIGSTOP);
}
