/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's batch call in this process. Threads: one.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static float *rows(line *l, uint64_t bytes)
{
	float *p = aligned_alloc(4096, (bytes + 4095) & ~4095ull);

	(void)l;
	memset(p, 0, bytes);
	return p;
}

static void run(line *l, const request *r)
{
	bench_apply(l->state, r);
}

void line_local(line *l, const char *name, bool small_pages)
{
	*l = (line){.name = name, .rows = rows, .run = run, .state = bench_table(small_pages)};
}
