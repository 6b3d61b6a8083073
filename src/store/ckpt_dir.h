/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in a directory of checkpoints, for ckpt.c and ckpt_read.c.
 * Threads: any. Tests: tests/unit/store/ckpt_test.c.
 */
#ifndef TN_STORE_CKPT_DIR_H
#define TN_STORE_CKPT_DIR_H

#include <dirent.h>
#include <stdint.h>

#include <tern/status.h>

#define TN_CKPT_TEMP ".tmp-"

/* "ckpt-" and 20 digits, so that names sort as numbers do. */
void tn_ckpt_name(char *buf, unsigned size, uint64_t sequence);
/* fd is -1 on failure. */
tern_status tn_ckpt_open_dir(int parent, const char *path, int *fd);
/* To read the entries of an open directory. */
tern_status tn_ckpt_entries(int dir, DIR **entries);

#endif
