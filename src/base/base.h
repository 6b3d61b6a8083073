/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applies base's own options to the process: TERN_LOG_LEVEL, TERN_CHECK, TERN_BASE_FAULT.
 * Threads: call from the composition root before other threads use tern; later calls are harmless.
 * Tests: tests/unit/base/options_test.c.
 */
#ifndef TN_BASE_BASE_H
#define TN_BASE_BASE_H

#include "base/options.h"

/* NULL = environment and defaults. TERN_E_OPTION as tn_options_load. */
tern_status tn_base_apply(const tn_options *options);

#endif
