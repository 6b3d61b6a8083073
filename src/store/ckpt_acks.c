/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What followers of a chain of checkpoints say of themselves: one small file each, replaced whole. See ckpt.h.
 * Must not: know tables. Threads: one per follower's name. Tests: tests/unit/store/ckpt_test.c.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/os.h"
#include "store/ckpt.h"
#include "store/ckpt_dir.h"

#define ACK_BYTES 512

static bool good_name(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n > 0 && name[n] == '\0' && name[0] != '.' && n < sizeof(((tn_ckpt_ack *)NULL)->name);
}

static tern_status open_followers(const char *path, bool make, int *dir)
{
	tern_status status;
	int root;

	TN_TRY(tn_ckpt_open_dir(AT_FDCWD, path, &root));
	if (make && mkdirat(root, TN_CKPT_FOLLOWERS, 0755) != 0 && errno != EEXIST)
		status = tn_fail_errno(TERN_E_IO, "mkdir", "%s/" TN_CKPT_FOLLOWERS, path);
	else
		status = tn_ckpt_open_dir(root, TN_CKPT_FOLLOWERS, dir);
	tn_os_close(&root);
	return status;
}

static tern_status write_ack(int dir, const char *temp, const tn_ckpt_ack *ack)
{
	char text[ACK_BYTES];
	tern_status status;
	tn_file file;
	int n;

	n = snprintf(text, sizeof(text), "%" PRIu64 " %016" PRIx64 " %" PRIu64 "\n", ack->sequence, ack->id,
		     ack->at_ns);
	(void)unlinkat(dir, temp, 0); /* of one that died */
	TN_TRY(tn_file_create(&file, dir, temp, NULL, NULL));
	status = tn_file_write(&file, text, (uint64_t)n);
	if (status == TERN_OK)
		return tn_file_finish(&file);
	tn_file_give_up(&file);
	return status;
}

tern_status tn_ckpt_acknowledge(const char *path, const tn_ckpt_ack *ack)
{
	char temp[80];
	tern_status status;
	int dir;

	if (!good_name(ack->name))
		return tn_fail(
			TERN_E_INVALID,
			"a follower's name has 1 to 63 letters, digits and \"._-\", and begins with no "
			"dot: %s",
			ack->name);
	snprintf(temp, sizeof(temp), TN_CKPT_TEMP "%s", ack->name);
	TN_TRY(open_followers(path, true, &dir));
	status = write_ack(dir, temp, ack);
	if (status == TERN_OK && renameat(dir, temp, dir, ack->name) != 0)
		status = tn_fail_errno(TERN_E_IO, "rename", "%s to %s", temp, ack->name);
	tn_os_close(&dir);
	return status;
}

static bool read_ack(int dir, const char *name, tn_ckpt_ack *ack)
{
	char text[ACK_BYTES] = "";
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC), end = 0;
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	tn_os_close(&fd);
	memcpy(ack->name, name, strlen(name) + 1); /* good_name: it fits */
	return n > 0 &&
	       sscanf(text, "%20" SCNu64 " %16" SCNx64 " %20" SCNu64 "\n%n", &ack->sequence, &ack->id,
		      &ack->at_ns, &end) == 3 &&
	       end == n;
}

tern_status tn_ckpt_acks(const char *path, int (*fn)(const tn_ckpt_ack *ack, void *arg), void *arg)
{
	struct dirent *entry;
	tern_status status;
	tn_ckpt_ack ack;
	DIR *entries;
	int dir;

	status = open_followers(path, false, &dir);
	if (status == TERN_E_NOT_FOUND)
		return TERN_OK;
	TN_TRY(status);
	status = tn_ckpt_entries(dir, &entries);
	while (status == TERN_OK && (entry = readdir(entries)) != NULL)
		if (good_name(entry->d_name) && read_ack(dir, entry->d_name, &ack) && fn(&ack, arg))
			break;
	if (status == TERN_OK)
		closedir(entries);
	tn_os_close(&dir);
	return status;
}
