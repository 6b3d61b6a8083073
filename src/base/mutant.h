/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planted bugs, to see that the simulator's checkers find them. TN_MUTANT(n) is 0 in every build but one with
 * TERN_MUTANTS, where it is true while mutant n is chosen. What each is: sim/mutants.c, and above 100
 * tests/unit/ps/repl_sim/main.c, above 200 tests/unit/cluster/coord_sim/main.c too.
 *
 * Threads: chosen before anything runs. Tests: ./dev mutate.
 */
#ifndef TN_BASE_MUTANT_H
#define TN_BASE_MUTANT_H

#ifdef TN_MUTANTS
extern int tn_mutant;
#define TN_MUTANT(n)  (tn_mutant == (n))
#define TN_ANY_MUTANT (tn_mutant != 0)
#else
#define TN_MUTANT(n)  0
#define TN_ANY_MUTANT 0
#endif

#endif
