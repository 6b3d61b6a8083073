/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a server's tables have their cold rows: DIR/tern-tier.INDEX.N, one directory for each table, emptied when the
 * server begins, since rows there are of no use without the table that was in memory. A lock file says whose DIR is.
 *
 * Threads: any; life by one. Tests: tests/unit/ps/tier_server_test.c.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/os.h"
#include "ps/server.h"
#include "store/file.h"

#define NAME_BYTES 64

static void prefix_of(const tern_ps_server *server, char prefix[NAME_BYTES])
{
	snprintf(prefix, NAME_BYTES, "tern-tier.%" PRIu32 ".", server->tier_index);
}

/* What a server that died left. */
static tern_status empty(const tern_ps_server *server, int dir)
{
	int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = again < 0 ? NULL : fdopendir(again);
	tern_status status = TERN_OK;
	struct dirent *entry;
	char prefix[NAME_BYTES];

	if (!entries) {
		status = tn_fail_errno(TERN_E_IO, "open", "%s", server->tier_dir);
		tn_os_close(&again);
		return status;
	}
	prefix_of(server, prefix);
	while (status == TERN_OK && (entry = readdir(entries)) != NULL)
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && !strstr(entry->d_name, "lock"))
			status = tn_dir_remove(dir, entry->d_name);
	closedir(entries);
	return status;
}

static tern_status lock(tern_ps_server *server, int dir)
{
	char name[NAME_BYTES + 8], prefix[NAME_BYTES];

	prefix_of(server, prefix);
	snprintf(name, sizeof(name), "%slock", prefix);
	server->tier_lock = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (server->tier_lock < 0)
		return tn_fail_errno(TERN_E_IO, "open", "%s/%s", server->tier_dir, name);
	if (flock(server->tier_lock, LOCK_EX | LOCK_NB) == 0)
		return TERN_OK;
	return tn_fail(TERN_E_IN_USE, "%s: another server with index %" PRIu32 " has its cold rows there",
		       server->tier_dir, server->tier_index);
}

tern_status tn_ps_tier_open(tern_ps_server *server, const char *path, uint32_t index)
{
	tern_status status;
	int dir;

	server->tier_lock = -1;
	if (!path)
		return TERN_OK;
	server->tier_index = index;
	server->tier_dir = strdup(path);
	if (!server->tier_dir)
		return tn_fail(TERN_E_NOMEM, "no memory for a parameter server");
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return tn_fail_errno(TERN_E_IO, "open", "%s: the directory of cold rows", path);
	status = lock(server, dir);
	if (status == TERN_OK)
		status = empty(server, dir);
	tn_os_close(&dir);
	return status;
}

void tn_ps_tier_close(tern_ps_server *server)
{
	int dir = server->tier_dir ? open(server->tier_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	if (dir >= 0 && server->tier_lock >= 0)
		(void)empty(server, dir); /* directories that RocksDB leaves behind */
	tn_os_close(&dir);
	tn_os_close(&server->tier_lock);
	free(server->tier_dir);
	server->tier_dir = NULL;
}

tern_status tn_ps_tier_of_table(void *arg, const tern_table_schema *schema, uint64_t image_bytes,
				tn_tier **tier)
{
	tern_ps_server *server = arg;
	tn_tier_params params = {.image_bytes = image_bytes};
	char prefix[NAME_BYTES], path[4096];

	prefix_of(server, prefix);
	if (snprintf(path, sizeof(path), "%s/%s%" PRIu64, server->tier_dir, prefix,
		     atomic_fetch_add(&server->tier_serial, 1)) >= (int)sizeof(path))
		return tn_fail(TERN_E_INVALID, "the path of the cold rows is too long");
	params.dir = path;
	params.cache_bytes = schema->budget_bytes / 8;
	return tn_tier_open_rocksdb(&params, tier);
}
