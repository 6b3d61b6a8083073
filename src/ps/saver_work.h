/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the thread of a save or restore does: files. See saver.h. Tests: tests/unit/ps/saver_test.c.
 */
#ifndef TN_PS_SAVER_WORK_H
#define TN_PS_SAVER_WORK_H

#include "ps/saver.h"

/* *answer: JSON, the caller's to free. saver->stop ends them with TERN_E_CANCELED. */
tern_status tn_ps_saver_write(tn_ps_saver *saver, char **answer);
tern_status tn_ps_saver_restore(tn_ps_saver *saver, char **answer);
tern_status tn_ps_saver_prepare(tn_ps_saver *saver, char **answer);

/* saver.c: references to all shares into saver->tables. */
tern_status tn_ps_saver_list(tn_ps_saver *saver);

/* Can the table be written as a delta to the checkpoint of that number? Not after slots went to other servers. */
bool tn_ps_saver_follows(tn_ps_saver *saver, tn_table *engine, uint64_t number);

#endif
