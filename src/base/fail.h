/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a function fails: it returns a tern_status and leaves a text for people in its thread (tern_detail).
 *
 *	return tn_fail(TERN_E_BUDGET, "%" PRIu64 " bytes wanted, %" PRIu64 " left of mem.limit: raise "
 *		       "TERN_MEM_LIMIT", wanted, left);
 *
 * The first function that detects a failure writes the text (cause, limit, remedy); those above it return
 * the status as it is, or add where it happened with tn_detail_prefix.
 *
 * Threads: the text is thread-local, never shared. No allocation. Tests: tests/unit/base/fail_test.c.
 */
#ifndef TN_BASE_FAIL_H
#define TN_BASE_FAIL_H

#include <stddef.h>

#include <tern/status.h>

#include "base/check.h"

#define TN_DETAIL_MAX 512 /* longer texts are cut and end in "..." */

/* Set the detail text and return status. errno is kept. */
TN_COLD tern_status tn_fail(tern_status status, const char *fmt, ...) TN_PRINTF(2, 3);

/*
 * As tn_fail, for a failed system call: "WHAT: No space left on device (ENOSPC): REST", errno as the call
 * left it. fmt may be "" for no rest.
 */
TN_COLD tern_status tn_fail_errno(tern_status status, const char *what, const char *fmt, ...) TN_PRINTF(3, 4);

/* The status that an errno means where nothing better is known (EADDRINUSE -> TERN_E_IN_USE, ...). */
tern_status tn_status_of_errno(int err);

void tn_detail_set(const char *fmt, ...) TN_PRINTF(1, 2);
/* Put "FMT: " in front of the present text; nothing if there is none. */
void tn_detail_prefix(const char *fmt, ...) TN_PRINTF(1, 2);
/* Never NULL; valid until this thread's next tn_detail or tn_fail call. */
const char *tn_detail_get(void);
void tn_detail_clear(void);

/* Return at once if expr is not TERN_OK. */
#define TN_TRY(expr)                                 \
	do {                                         \
		tern_status tn_try_ = (expr);        \
		if (TN_UNLIKELY(tn_try_ != TERN_OK)) \
			return tn_try_;              \
	} while (0)

#endif
