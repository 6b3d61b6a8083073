/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder of checkpoints for each case of a test: setup and teardown. Whatever a case leaves in it that is no checkpoint and
 * no acknowledgement fails it, since the folder can't be removed then.
 *
 * Threads: main.
 */
#ifndef TESTS_PS_FOLDER_H
#define TESTS_PS_FOLDER_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fault.h"
#include "ps/save.h"
#include "store/ckpt.h"
#include "store/file.h"

static char dir[64];

static int make_dir(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/tern-test-ps-XXXXXX");
	return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
	uint64_t *sequences;
	unsigned count;
	char name[128];

	(void)state;
	tn_fault_clear();
	snprintf(name, sizeof(name), "%s/" TN_CKPT_FOLLOWERS, dir);
	if (tn_dir_remove(AT_FDCWD, name) != TERN_OK || tn_ckpt_prune(dir, 0) != TERN_OK ||
	    tn_ckpt_list(dir, &sequences, &count) != TERN_OK)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s/ckpt-%020d", dir, (int)sequences[i]);
		if (tn_dir_remove(AT_FDCWD, name) != TERN_OK)
			return -1;
	}
	free(sequences);
	return rmdir(dir);
}

#endif
