/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern train` for models whose parameters are rows of tables.
 */
#ifndef CLI_MODELS_TRAIN_TABLES_H
#define CLI_MODELS_TRAIN_TABLES_H

#include "../train.h"

/* Make the model, train it with servers and workers on this host (or running servers), print what came out. Returns the
   exit status. */
int train_tables(const train_options *options);

#endif
