/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing checkpoints, and removing old ones. See ckpt.h.
 * Must not: know tables. Threads: one per object. Tests: tests/unit/store/ckpt_test.c.
 */
#include "store/ckpt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"
#include "store/ckpt_dir.h"

static tern_status open_root(const char *path, int *root)
{
	if (mkdir(path, 0755) != 0 && errno != EEXIST)
		return tn_fail_errno(TERN_E_IO, "mkdir", "%s: its parent must exist and be writable", path);
	return tn_ckpt_open_dir(AT_FDCWD, path, root);
}

tern_status tn_ckpt_begin(tn_ckpt *ckpt, const char *path, uint64_t sequence)
{
	tern_status status;

	*ckpt = (tn_ckpt){.root = -1, .dir = -1, .sequence = sequence, .files = NULL, .extra = NULL};
	tn_ckpt_name(ckpt->name, sizeof(ckpt->name), sequence);
	snprintf(ckpt->temp, sizeof(ckpt->temp), TN_CKPT_TEMP "%s", ckpt->name);
	TN_TRY(open_root(path, &ckpt->root));
	if (faccessat(ckpt->root, ckpt->name, F_OK, 0) == 0)
		status = tn_fail(TERN_E_EXISTS, "%s/%s is there already", path, ckpt->name);
	else
		status = tn_dir_remove(ckpt->root, ckpt->temp); /* of a writer that died */
	if (status == TERN_OK && mkdirat(ckpt->root, ckpt->temp, 0755) != 0)
		status = tn_fail_errno(TERN_E_IO, "mkdir", "%s/%s", path, ckpt->temp);
	if (status == TERN_OK)
		status = tn_ckpt_open_dir(ckpt->root, ckpt->temp, &ckpt->dir);
	ckpt->files = json_array();
	ckpt->extra = json_object();
	if (status == TERN_OK && (!ckpt->files || !ckpt->extra))
		status = tn_fail(TERN_E_NOMEM, "no memory for a checkpoint");
	if (status != TERN_OK)
		tn_ckpt_abort(ckpt);
	return status;
}

tern_status tn_ckpt_add(tn_ckpt *ckpt, const tn_file *file, json_t *extra)
{
	json_t *row = json_pack("{s:s, s:I, s:I}", "name", file->name, "bytes", (json_int_t)file->bytes,
				"crc32c", (json_int_t)file->crc);
	bool added = row && (!extra || json_object_update(row, extra) == 0);

	json_decref(extra);
	if (added && json_array_append(ckpt->files, row) != 0)
		added = false;
	json_decref(row);
	return added ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a checkpoint's manifest");
}

static char *manifest_text(const tn_ckpt *ckpt)
{
	json_t *root = json_pack("{s:s, s:I, s:I}", "format", TN_CKPT_FORMAT, "sequence",
				 (json_int_t)ckpt->sequence, "saved_ns", (json_int_t)tn_wall());
	char *text = NULL;

	if (root && json_object_update(root, ckpt->extra) == 0 &&
	    json_object_set(root, "files", ckpt->files) == 0)
		text = json_dumps(root, JSON_INDENT(1));
	json_decref(root);
	return text;
}

static tern_status write_manifest(tn_ckpt *ckpt, const char *text)
{
	char footer[24];
	tern_status status;
	tn_file file;

	TN_TRY(tn_file_create(&file, ckpt->dir, TN_CKPT_MANIFEST, NULL, NULL));
	status = tn_file_write(&file, text, strlen(text));
	snprintf(footer, sizeof(footer), "\n%08" PRIx32 "\n", file.crc);
	if (status == TERN_OK)
		status = tn_file_write(&file, footer, strlen(footer));
	if (status == TERN_OK)
		return tn_file_finish(&file);
	tn_file_give_up(&file);
	return status;
}

static tern_status publish(tn_ckpt *ckpt)
{
	TN_TRY(tn_dir_sync(ckpt->dir, ckpt->temp));
	if (renameat(ckpt->root, ckpt->temp, ckpt->root, ckpt->name) != 0)
		return tn_fail_errno(errno == EEXIST || errno == ENOTEMPTY ? TERN_E_EXISTS : TERN_E_IO,
				     "rename", "%s to %s", ckpt->temp, ckpt->name);
	ckpt->temp[0] = '\0';
	return tn_dir_sync(ckpt->root, "of checkpoints");
}

tern_status tn_ckpt_commit(tn_ckpt *ckpt)
{
	char *text = manifest_text(ckpt);
	tern_status status;

	if (!text)
		status = tn_fail(TERN_E_NOMEM, "no memory for a checkpoint's manifest");
	else
		status = write_manifest(ckpt, text);
	free(text);
	if (status == TERN_OK)
		status = publish(ckpt);
	tn_ckpt_abort(ckpt); /* removes what is still temporary, and nothing after the rename */
	return status;
}

void tn_ckpt_abort(tn_ckpt *ckpt)
{
	char detail[TN_DETAIL_MAX];

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	tn_os_close(&ckpt->dir);
	if (ckpt->root >= 0 && ckpt->temp[0])
		(void)tn_dir_remove(ckpt->root, ckpt->temp);
	tn_os_close(&ckpt->root);
	json_decref(ckpt->files);
	json_decref(ckpt->extra);
	ckpt->files = ckpt->extra = NULL;
	ckpt->temp[0] = '\0';
	tn_detail_set("%s", detail);
}

/* ---- removing ---- */

static int least_of(const tn_ckpt_ack *ack, void *arg)
{
	uint64_t *least = arg, now = tn_wall();

	if (now < ack->at_ns + TN_CKPT_FOLLOWER_NS)
		*least = TN_MIN(*least, ack->sequence);
	return 0;
}

/* Sequence numbers that must stay: the last `keep`, what followers have not got, and what these are based on. */
static tern_status mark_needed(const char *path, const uint64_t *sequences, unsigned count, unsigned keep,
			       bool *needed)
{
	uint64_t least = UINT64_MAX;

	TN_TRY(tn_ckpt_acks(path, least_of, &least));
	for (unsigned i = count; i-- > 0;) {
		tn_ckpt_reader reader;

		needed[i] = needed[i] || count - i <= keep || sequences[i] >= least;
		if (!needed[i])
			continue;
		TN_TRY(tn_ckpt_open(&reader, path, sequences[i]));
		for (unsigned k = 0; reader.deltas && k < i; k++)
			needed[k] = needed[k] || sequences[k] == reader.base;
		tn_ckpt_close(&reader);
	}
	return TERN_OK;
}

/* First renamed, so that a half removed one is never taken for a checkpoint. */
static tern_status remove_one(int root, uint64_t sequence)
{
	char name[40], temp[64];

	tn_ckpt_name(name, sizeof(name), sequence);
	snprintf(temp, sizeof(temp), TN_CKPT_TEMP "%s.old", name);
	if (renameat(root, name, root, temp) != 0)
		return tn_fail_errno(TERN_E_IO, "rename", "%s to %s", name, temp);
	return tn_dir_remove(root, temp);
}

/* What writers that died left. */
static tern_status remove_temporary(int root)
{
	DIR *entries;
	struct dirent *entry;
	tern_status status = TERN_OK;

	TN_TRY(tn_ckpt_entries(root, &entries));
	while (status == TERN_OK && (entry = readdir(entries)) != NULL)
		if (strncmp(entry->d_name, TN_CKPT_TEMP, strlen(TN_CKPT_TEMP)) == 0)
			status = tn_dir_remove(root, entry->d_name);
	closedir(entries);
	return status;
}

static tern_status prune(const char *path, int root, const uint64_t *sequences, unsigned count, unsigned keep)
{
	bool *needed = calloc(count + 1, sizeof(*needed));
	tern_status status;

	if (!needed)
		return tn_fail(TERN_E_NOMEM, "no memory to look through %u checkpoints", count);
	status = mark_needed(path, sequences, count, keep, needed);
	for (unsigned i = 0; i < count && status == TERN_OK; i++)
		if (!needed[i])
			status = remove_one(root, sequences[i]);
	free(needed);
	return status;
}

tern_status tn_ckpt_prune(const char *path, unsigned keep)
{
	uint64_t *sequences;
	tern_status status;
	unsigned count;
	int root;

	TN_TRY(tn_ckpt_list(path, &sequences, &count));
	status = tn_ckpt_open_dir(AT_FDCWD, path, &root);
	if (status == TERN_OK && keep > 0)
		status = prune(path, root, sequences, count, keep);
	if (status == TERN_OK)
		status = remove_temporary(root);
	tn_os_close(&root);
	free(sequences);
	return status;
}
