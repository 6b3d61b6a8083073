/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applies base's own options to the process: TERN_LOG_LEVEL, TERN_CHECK, TERN_BASE_FAULT.
 * Threads: each new context calls it; levels, checks and fault points are the process's, and the last one wins.
 * Tests: tests/unit/base/options_test.c.
 */
#ifndef TN_BASE_BASE_H
#define TN_BASE_BASE_H

#include "base/options.h"

/* NULL = environment and defaults; of a snapshot only what was said, the rest stays. TERN_E_OPTION as
   tn_options_load. */
tern_status tn_base_apply(const tn_options *options);

#endif
