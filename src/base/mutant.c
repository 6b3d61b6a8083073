/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which planted bug is chosen. See mutant.h; empty but in a build with TERN_MUTANTS.
 * Threads: none. Tests: ./dev mutate.
 */
#include "base/mutant.h"

#ifdef TN_MUTANTS
int tn_mutant;
#else
typedef int tn_mutants_are_off; /* a file must not be empty */
#endif
