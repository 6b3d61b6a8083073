/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of loops.h for AVX-512 (F, BW, VL, DQ): see CMakeLists.txt for the flags. Called only where the CPU has it.
 * Threads: any. Tests: tests/unit/store/optim_test.c, rows_test.c.
 */
#define TN_LOOPS      tn_loops_avx512
#define TN_LOOPS_NAME "avx512"
#include "store/loops.h"
