/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks a struct of counters by its names: the struct holds nothing but counters, in the list's order.
 * Threads: any. Tests: tests/unit/base/counters_test.c.
 */
#include "base/counters.h"

#include <stdio.h>

void tn_counters_each(const char *const *names, const void *counters, const char *prefix,
		      void (*fn)(const char *name, uint64_t value, void *arg), void *arg)
{
	const tn_counter *values = counters;
	char name[96];

	for (unsigned i = 0; names[i]; i++) {
		snprintf(name, sizeof(name), "%s.%s", prefix, names[i]);
		fn(name, tn_counter_read(&values[i]), arg);
	}
}
