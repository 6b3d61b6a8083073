/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that hold secrets: who may read them is checked on the open descriptor, so that what is checked is what
 * is read. Threads: any. Tests: tests/unit/channel/test_secret.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/os.h"

static tn_os_stamp stamp_from(const struct stat *st)
{
	return (tn_os_stamp){
		.device = st->st_dev,
		.inode = st->st_ino,
		.bytes = (uint64_t)st->st_size,
		.seconds = st->st_ctim.tv_sec,
		.nanoseconds = st->st_ctim.tv_nsec,
	};
}

bool tn_os_stamp_of(const char *path, tn_os_stamp *stamp)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return false;
	*stamp = stamp_from(&st);
	return true;
}

static tern_status check_private(const char *path, const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return tn_fail(TERN_E_IO, "%s is not a plain file", path);
	if (st->st_uid != geteuid() && st->st_uid != 0)
		return tn_fail(TERN_E_INSECURE,
			       "%s belongs to user %u, who may change it: it must be this user's (%u) or "
			       "root's: chown it",
			       path, st->st_uid, geteuid());
	if (st->st_mode & (S_IWGRP | S_IRWXO))
		return tn_fail(
			TERN_E_INSECURE,
			"%s has mode %04o, so that others can read or change it: 'chmod 600 %s' (0640 is "
			"allowed too)",
			path, (unsigned)(st->st_mode & 07777), path);
	return TERN_OK;
}

static tern_status read_all(int fd, const char *path, void *buf, uint64_t max, uint64_t *bytes)
{
	uint64_t at = 0;

	while (at < max) {
		ssize_t n = read(fd, (uint8_t *)buf + at, max - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tn_fail_errno(TERN_E_IO, "read", "%s", path);
		if (n == 0) {
			*bytes = at;
			return TERN_OK;
		}
		at += (uint64_t)n;
	}
	return tn_fail(TERN_E_TOO_LARGE, "%s has %llu bytes or more: is it the right file?", path,
		       (unsigned long long)max);
}

tern_status tn_os_read_private(const char *path, void *buf, uint64_t max, uint64_t *bytes, tn_os_stamp *stamp)
{
	/* NONBLOCK: a pipe is refused, not waited for. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	tern_status status;
	struct stat st;

	*bytes = 0;
	if (fd < 0)
		return tn_fail_errno(TERN_E_IO, "open", "%s", path);
	if (fstat(fd, &st) != 0)
		status = tn_fail_errno(TERN_E_IO, "fstat", "%s", path);
	else {
		*stamp = stamp_from(&st);
		status = check_private(path, &st);
	}
	if (status == TERN_OK)
		status = read_all(fd, path, buf, max, bytes);
	tn_os_close(&fd);
	return status;
}
