/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experiments as words: KEY=VALUE to a configuration, a result to a line.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#ifndef TERN_SIM_SCALE_WORDS_H
#define TERN_SIM_SCALE_WORDS_H

#include "sim/scale.h"

void scale_words_start(scale_config *config);
/* False: no such key, or no such value. */
bool scale_words_set(scale_config *config, const char *word);
/* What follows from the others: the switch's buffer where it was not given. */
void scale_words_end(scale_config *config);
void scale_words_help(FILE *out);

void scale_print_header(FILE *out);
void scale_print(FILE *out, const scale_config *config, const scale_result *result);

#endif
