/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of loops.h for the plain instruction set of the build: see CMakeLists.txt for the flags. Called only where the CPU has it.
 * Threads: any. Tests: tests/unit/store/optim_test.c, rows_test.c.
 */
#define TN_LOOPS      tn_loops_plain
#define TN_LOOPS_NAME "plain"
#include "store/loops.h"
