/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are whole or not there. See file.h.
 * Must not: know what is in them. Threads: one per object. Tests: tests/unit/store/ckpt_test.c.
 */
#include "store/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/os.h"

#define PIECE       (128u << 10) /* read or written at a time */
#define PACED_PIECE (32u << 10)  /* written at a time, where there is a pace: some 20 us of a core */

tern_status tn_file_create(tn_file *file, int dir, const char *name, tn_file_pace pace, void *pace_arg)
{
	*file = (tn_file){.fd = -1, .dir = dir, .pace = pace, .pace_arg = pace_arg};
	if (strlen(name) >= sizeof(file->name))
		return tn_fail(TERN_E_INVALID, "a file's name has at most %zu bytes: %s",
			       sizeof(file->name) - 1, name);
	strcpy(file->name, name);
	file->fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (file->fd < 0)
		return tn_fail_errno(errno == EEXIST ? TERN_E_EXISTS : TERN_E_IO, "open", "%s", name);
	return TERN_OK;
}

static tern_status write_failed(const tn_file *file)
{
	struct statvfs fs;
	int err = errno;

	if (err == ENOSPC && fstatvfs(file->fd, &fs) == 0) {
		errno = err;
		return tn_fail_errno(TERN_E_IO, "write",
				     "%s after %" PRIu64 " bytes; %" PRIu64
				     " bytes are free: make room, or write somewhere else",
				     file->name, file->bytes, (uint64_t)fs.f_bavail * fs.f_frsize);
	}
	errno = err;
	return tn_fail_errno(TERN_E_IO, "write",
			     err == EDQUOT || err == EFBIG
				     ? "%s after %" PRIu64
				       " bytes: raise the quota or limit (quota, ulimit -f)"
				     : "%s after %" PRIu64 " bytes",
			     file->name, file->bytes);
}

static tern_status write_piece(tn_file *file, const uint8_t *data, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = TN_FAULT("store.file.write") ? (errno = ENOSPC, -1)
							 : write(file->fd, data + at, bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return write_failed(file);
		at += (uint64_t)n;
	}
	file->crc = tn_crc32c(file->crc, data, bytes);
	file->bytes += bytes;
	return TERN_OK;
}

/* A paced file goes to the disk at its pace as well, not all at once when it is finished: its last whole piece. */
static void send_piece(const tn_file *file, uint64_t before)
{
	uint64_t end = file->bytes / PIECE * PIECE;

	if (before < end)
		(void)sync_file_range(file->fd, (off_t)(end - PIECE), PIECE, SYNC_FILE_RANGE_WRITE);
}

tern_status tn_file_write(tn_file *file, const void *data, uint64_t bytes)
{
	const uint8_t *from = data;

	while (bytes) {
		uint64_t n = TN_MIN(bytes, file->pace ? PACED_PIECE : PIECE), before = file->bytes;

		if (file->pace)
			TN_TRY(file->pace(n, file->pace_arg));
		TN_TRY(write_piece(file, from, n));
		if (file->pace)
			send_piece(file, before);
		from += n;
		bytes -= n;
	}
	return TERN_OK;
}

tern_status tn_file_finish(tn_file *file)
{
	tern_status status = TERN_OK;

	if (TN_FAULT("store.file.sync"))
		errno = EIO, status = TERN_E_IO;
	else if (fsync(file->fd) != 0)
		status = TERN_E_IO;
	if (status != TERN_OK) {
		status = tn_fail_errno(status, "fsync", "%s", file->name);
		tn_file_give_up(file);
		return status;
	}
	tn_os_close(&file->fd);
	return TERN_OK;
}

void tn_file_give_up(tn_file *file)
{
	if (file->fd < 0)
		return;
	tn_os_close(&file->fd);
	unlinkat(file->dir, file->name, 0);
}

tern_status tn_file_read_at(int fd, const char *name, uint64_t offset, void *data, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = pread(fd, (uint8_t *)data + at, bytes - at, (off_t)(offset + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tn_fail_errno(TERN_E_IO, "read", "%s", name);
		if (n == 0)
			return tn_fail(TERN_E_CORRUPT,
				       "%s ends at byte %" PRIu64 ", %" PRIu64 " were to be read", name,
				       offset + at, bytes - at);
		at += (uint64_t)n;
	}
	return TERN_OK;
}

static tern_status sum_all(int fd, const char *name, uint8_t *buf, tn_file_pace pace, void *pace_arg,
			   uint64_t *bytes, uint32_t *crc)
{
	for (;;) {
		ssize_t n = read(fd, buf, PIECE);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tn_fail_errno(TERN_E_IO, "read", "%s", name);
		if (n == 0)
			return TERN_OK;
		if (pace)
			TN_TRY(pace((uint64_t)n, pace_arg));
		*crc = tn_crc32c(*crc, buf, (uint64_t)n);
		*bytes += (uint64_t)n;
	}
}

tern_status tn_file_sum(int dir, const char *name, tn_file_pace pace, void *pace_arg, uint64_t *bytes,
			uint32_t *crc)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	tern_status status;
	uint8_t *buf;

	*bytes = 0;
	*crc = 0;
	if (fd < 0)
		return tn_fail_errno(errno == ENOENT ? TERN_E_NOT_FOUND : TERN_E_IO, "open", "%s", name);
	buf = malloc(PIECE);
	status = buf ? sum_all(fd, name, buf, pace, pace_arg, bytes, crc)
		     : tn_fail(TERN_E_NOMEM, "no memory to read %s", name);
	free(buf);
	tn_os_close(&fd);
	return status;
}

tern_status tn_dir_sync(int dir, const char *path)
{
	if (fsync(dir) != 0)
		return tn_fail_errno(TERN_E_IO, "fsync", "directory %s", path);
	return TERN_OK;
}

static tern_status remove_files(DIR *entries, const char *name)
{
	struct dirent *entry;

	while ((entry = readdir(entries)) != NULL) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (unlinkat(dirfd(entries), entry->d_name, 0) != 0 && errno != ENOENT)
			return tn_fail_errno(TERN_E_IO, "unlink", "%s/%s", name, entry->d_name);
	}
	return TERN_OK;
}

tern_status tn_dir_remove(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	tern_status status;
	DIR *entries;

	if (fd < 0 && errno == ENOENT)
		return TERN_OK;
	entries = fd < 0 ? NULL : fdopendir(fd);
	if (!entries) {
		status = tn_fail_errno(TERN_E_IO, "open", "directory %s", name);
		tn_os_close(&fd);
		return status;
	}
	status = remove_files(entries, name);
	closedir(entries);
	if (status == TERN_OK && unlinkat(parent, name, AT_REMOVEDIR) != 0)
		status = tn_fail_errno(TERN_E_IO, "rmdir", "%s", name);
	return status;
}
