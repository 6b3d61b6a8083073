/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding, opening and checking checkpoints. See ckpt.h.
 * Must not: know tables, change anything. Threads: one per object. Tests: tests/unit/store/ckpt_test.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/fail.h"
#include "base/os.h"
#include "store/ckpt.h"
#include "store/ckpt_dir.h"

#define DIGITS 20
#define FOOTER 10 /* "\n%08x\n" */

void tn_ckpt_name(char *buf, unsigned size, uint64_t sequence)
{
	snprintf(buf, size, "ckpt-%0*" PRIu64, DIGITS, sequence);
}

tern_status tn_ckpt_open_dir(int parent, const char *path, int *fd)
{
	*fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*fd < 0)
		return tn_fail_errno(errno == ENOENT ? TERN_E_NOT_FOUND : TERN_E_IO, "open", "directory %s",
				     path);
	return TERN_OK;
}

tern_status tn_ckpt_entries(int dir, DIR **entries)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	*entries = fd < 0 ? NULL : fdopendir(fd);
	if (!*entries) {
		tern_status status = tn_fail_errno(TERN_E_IO, "open", "a directory of checkpoints");

		tn_os_close(&fd);
		return status;
	}
	return TERN_OK;
}

/* ---- which are there ---- */

static bool parse_name(const char *name, uint64_t *sequence)
{
	char again[40];

	if (strncmp(name, "ckpt-", 5) != 0 || strlen(name) != 5 + DIGITS)
		return false;
	*sequence = strtoull(name + 5, NULL, 10);
	tn_ckpt_name(again, sizeof(again), *sequence);
	return strcmp(name, again) == 0;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static tern_status collect(DIR *entries, uint64_t **sequences, unsigned *count)
{
	unsigned capacity = 0;
	struct dirent *entry;
	uint64_t sequence;

	while ((entry = readdir(entries)) != NULL) {
		if (!parse_name(entry->d_name, &sequence))
			continue;
		if (*count == capacity) {
			uint64_t *more;

			capacity = capacity ? capacity * 2 : 16;
			more = realloc(*sequences, capacity * sizeof(*more));
			if (!more)
				return tn_fail(TERN_E_NOMEM, "no memory to list %u checkpoints", capacity);
			*sequences = more;
		}
		(*sequences)[(*count)++] = sequence;
	}
	return TERN_OK;
}

tern_status tn_ckpt_list(const char *path, uint64_t **sequences, unsigned *count)
{
	tern_status status;
	DIR *entries;
	int dir;

	*sequences = NULL;
	*count = 0;
	TN_TRY(tn_ckpt_open_dir(AT_FDCWD, path, &dir));
	status = tn_ckpt_entries(dir, &entries);
	tn_os_close(&dir);
	if (status != TERN_OK)
		return status;
	status = collect(entries, sequences, count);
	closedir(entries);
	if (status != TERN_OK) {
		free(*sequences);
		*sequences = NULL;
		*count = 0;
		return status;
	}
	if (*count)
		qsort(*sequences, *count, sizeof(**sequences), by_value);
	return TERN_OK;
}

/* ---- one of them ---- */

static tern_status bad_manifest(const tn_ckpt_reader *reader, const char *what)
{
	return tn_fail(TERN_E_CORRUPT, "%s/" TN_CKPT_MANIFEST ": %s", reader->name, what);
}

static bool good_file(const json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "name"));

	return name && name[0] && !strchr(name, '/') && strcmp(name, "..") != 0 &&
	       json_integer_value(json_object_get(row, "bytes")) >= 0 &&
	       json_is_integer(json_object_get(row, "bytes")) &&
	       json_is_integer(json_object_get(row, "crc32c"));
}

/* 16 hexadecimal digits; 0 is none. */
static bool read_id(const json_t *text, uint64_t *id)
{
	const char *digits = json_string_value(text);

	*id = 0;
	if (!digits || strlen(digits) != 16 || strspn(digits, "0123456789abcdef") != 16)
		return false;
	*id = strtoull(digits, NULL, 16);
	return *id != 0;
}

static bool read_base(tn_ckpt_reader *reader)
{
	const json_t *m = reader->manifest, *base = json_object_get(m, "base");
	const json_t *crc = json_object_get(m, "base_crc32c"), *deltas = json_object_get(m, "deltas");

	reader->saved_ns = (uint64_t)json_integer_value(json_object_get(m, "saved_ns"));
	reader->step = (uint64_t)json_integer_value(json_object_get(m, "step"));
	if (json_object_get(m, "id") && !read_id(json_object_get(m, "id"), &reader->id))
		return false;
	if (!base)
		return true;
	reader->base = (uint64_t)json_integer_value(base);
	reader->base_crc = (uint32_t)json_integer_value(crc);
	reader->deltas = (uint32_t)json_integer_value(deltas);
	return json_is_integer(base) && json_is_integer(crc) && json_is_integer(deltas) &&
	       json_integer_value(deltas) >= 1 && json_integer_value(deltas) <= TN_CKPT_DELTAS_MAX &&
	       reader->base < reader->sequence && read_id(json_object_get(m, "base_id"), &reader->base_id);
}

static tern_status check_manifest(tn_ckpt_reader *reader)
{
	const char *format = json_string_value(json_object_get(reader->manifest, "format"));
	const json_t *files = json_object_get(reader->manifest, "files");
	size_t i;
	json_t *row;

	if (!format || strncmp(format, "tern.checkpoint/", 16) != 0)
		return bad_manifest(reader, "it is no manifest of tern's");
	if (strcmp(format, TN_CKPT_FORMAT) != 0)
		return tn_fail(TERN_E_VERSION, "%s has format %s, this version reads " TN_CKPT_FORMAT,
			       reader->name, format);
	if ((uint64_t)json_integer_value(json_object_get(reader->manifest, "sequence")) != reader->sequence)
		return bad_manifest(reader, "it belongs to another checkpoint (sequence)");
	if (!json_is_array(files))
		return bad_manifest(reader, "it lists no files");
	json_array_foreach(files, i, row) if (!good_file(row)) return bad_manifest(
		reader, "a row of its files is wrong");
	return read_base(reader) ? TERN_OK : bad_manifest(reader, "what it is based on can't be read");
}

static tern_status parse_manifest(tn_ckpt_reader *reader, const char *text, uint64_t bytes)
{
	char footer[FOOTER + 1];
	uint64_t body = bytes - FOOTER;

	if (bytes < FOOTER)
		return bad_manifest(reader, "it is cut short");
	reader->crc = tn_crc32c(0, text, body);
	snprintf(footer, sizeof(footer), "\n%08" PRIx32 "\n", reader->crc);
	if (memcmp(footer, text + body, FOOTER) != 0)
		return bad_manifest(reader, "it is cut short, or its checksum is wrong");
	reader->manifest = json_loadb(text, body, JSON_REJECT_DUPLICATES, NULL);
	if (!json_is_object(reader->manifest))
		return bad_manifest(reader, "it is no JSON object");
	return check_manifest(reader);
}

static tern_status read_manifest(tn_ckpt_reader *reader)
{
	int fd = openat(reader->dir, TN_CKPT_MANIFEST, O_RDONLY | O_CLOEXEC);
	char *text = NULL;
	tern_status status;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0) {
		status = tn_fail_errno(TERN_E_CORRUPT, "open", "%s/" TN_CKPT_MANIFEST, reader->name);
	} else if (st.st_size > TN_CKPT_MANIFEST_MAX) {
		status = bad_manifest(reader, "it is longer than 256 MiB");
	} else if ((text = malloc((size_t)st.st_size + 1)) == NULL) {
		status = tn_fail(TERN_E_NOMEM, "no memory for the manifest of %s", reader->name);
	} else {
		status = tn_file_read_at(fd, TN_CKPT_MANIFEST, 0, text, (uint64_t)st.st_size);
		if (status == TERN_OK)
			status = parse_manifest(reader, text, (uint64_t)st.st_size);
	}
	free(text);
	tn_os_close(&fd);
	return status;
}

static tern_status last_of(const char *path, uint64_t *sequence)
{
	uint64_t *sequences;
	unsigned count;

	TN_TRY(tn_ckpt_list(path, &sequences, &count));
	if (count)
		*sequence = sequences[count - 1];
	free(sequences);
	return count ? TERN_OK : tn_fail(TERN_E_NOT_FOUND, "%s holds no checkpoint", path);
}

tern_status tn_ckpt_open(tn_ckpt_reader *reader, const char *path, uint64_t sequence)
{
	tern_status status;
	int root;

	*reader = (tn_ckpt_reader){.dir = -1};
	if (sequence == UINT64_MAX)
		TN_TRY(last_of(path, &sequence));
	reader->sequence = sequence;
	tn_ckpt_name(reader->name, sizeof(reader->name), sequence);
	TN_TRY(tn_ckpt_open_dir(AT_FDCWD, path, &root));
	status = tn_ckpt_open_dir(root, reader->name, &reader->dir);
	tn_os_close(&root);
	if (status == TERN_OK)
		status = read_manifest(reader);
	if (status != TERN_OK)
		tn_ckpt_close(reader);
	return status;
}

void tn_ckpt_close(tn_ckpt_reader *reader)
{
	tn_os_close(&reader->dir);
	json_decref(reader->manifest);
	reader->manifest = NULL;
}

unsigned tn_ckpt_files(const tn_ckpt_reader *reader)
{
	return (unsigned)json_array_size(json_object_get(reader->manifest, "files"));
}

const json_t *tn_ckpt_file(const tn_ckpt_reader *reader, unsigned i)
{
	return json_array_get(json_object_get(reader->manifest, "files"), i);
}

static tern_status verify_file(const tn_ckpt_reader *reader, const json_t *row, tn_file_pace pace,
			       void *pace_arg)
{
	const char *name = json_string_value(json_object_get(row, "name"));
	uint64_t wanted = (uint64_t)json_integer_value(json_object_get(row, "bytes")), bytes;
	uint32_t sum = (uint32_t)json_integer_value(json_object_get(row, "crc32c")), crc;
	tern_status status = tn_file_sum(reader->dir, name, pace, pace_arg, &bytes, &crc);

	if (status == TERN_E_NOT_FOUND)
		return tn_fail(TERN_E_CORRUPT, "%s: %s is missing", reader->name, name);
	if (status != TERN_OK)
		return status;
	if (bytes != wanted)
		return tn_fail(TERN_E_CORRUPT, "%s: %s has %" PRIu64 " bytes, the manifest says %" PRIu64,
			       reader->name, name, bytes, wanted);
	if (crc != sum)
		return tn_fail(TERN_E_CORRUPT,
			       "%s: %s has checksum %08" PRIx32 ", the manifest says %08" PRIx32,
			       reader->name, name, crc, sum);
	return TERN_OK;
}

tern_status tn_ckpt_verify(const tn_ckpt_reader *reader, tn_file_pace pace, void *pace_arg)
{
	for (unsigned i = 0; i < tn_ckpt_files(reader); i++)
		TN_TRY(verify_file(reader, tn_ckpt_file(reader, i), pace, pace_arg));
	return TERN_OK;
}
