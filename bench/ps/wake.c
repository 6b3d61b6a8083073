/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes that do nothing but sleep and wake each other, once each way for a request (--spin: a word each way, which
 * the other waits for): what no transport can beat, in time or in CPU time. The engine's part is added in this process, so
 * that it compares with the others.
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

typedef struct bell {
	_Alignas(64) _Atomic uint32_t rung;
} bell;

typedef struct wake {
	bell *bells; /* the server's, the client's */
	struct tn_table *table;
} wake;

static void ring(bell *b)
{
	atomic_store(&b->rung, 1);
	if (!opt.spin)
		syscall(SYS_futex, &b->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await(bell *b)
{
	while (!atomic_load(&b->rung))
		if (opt.spin)
			tn_cpu_relax();
		else
			syscall(SYS_futex, &b->rung, FUTEX_WAIT, 0, NULL, NULL, 0);
	atomic_store(&b->rung, 0);
}

static float *rows(line *l, uint64_t bytes)
{
	float *p = aligned_alloc(4096, (bytes + 4095) & ~4095ull);

	(void)l;
	memset(p, 0, bytes);
	return p;
}

static void run(line *l, const request *r)
{
	wake *k = l->state;

	ring(&k->bells[0]);
	await(&k->bells[1]);
	bench_apply(k->table, r); /* after: nobody works while the other wakes */
}

void line_wake(line *l)
{
	wake *k = calloc(1, sizeof(*k));

	*l = (line){.name = "wake only", .rows = rows, .run = run, .state = k};
	k->bells = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (k->bells == MAP_FAILED)
		bench_die(l->name, strerror(errno));
	l->server = fork();
	if (l->server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		bench_pin(1);
		for (;;) {
			await(&k->bells[0]);
			ring(&k->bells[1]);
		}
	}
	kill(l->server, SIGSTOP);
}

void line_wake_table(line *l, struct tn_table *table)
{
	((wake *)l->state)->table = table;
}
