/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of names for people in a text of bounded size: "worker 3 (step 17), worker 5 and 2 more".
 * Threads: none of its own. Tests: tests/unit/store/clock_test.c, barrier_test.c.
 */
#ifndef TN_STORE_NAMES_H
#define TN_STORE_NAMES_H

#include "base/check.h"

typedef struct tn_names {
	char *text;
	unsigned size, at;
	unsigned count; /* added */
	unsigned shown; /* of those in the text */
} tn_names;

/* size: at least 40. The text is terminated at all times. */
void tn_names_start(tn_names *names, char *text, unsigned size);
void tn_names_add(tn_names *names, const char *fmt, ...) TN_PRINTF(2, 3);
/* Says how many did not fit; `what` they are is named if none fits. Returns how many were added. */
unsigned tn_names_end(tn_names *names, const char *what);

#endif
