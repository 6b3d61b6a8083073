/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that must be whole or not there: written once, checksummed on the way, on disk when tn_file_finish() returns.
 * All names are relative to a directory's descriptor, so that moving the directory away changes nothing.
 *
 * Must not: know what is in them. Blocks. Threads: one per object. Tests: tests/unit/store/ckpt_test.c.
 */
#ifndef TN_STORE_FILE_H
#define TN_STORE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

/* Called before each piece of at most 1 MiB is written: a rate limit waits in it, a cancel fails in it. May be NULL. */
typedef tern_status (*tn_file_pace)(uint64_t bytes, void *arg);

typedef struct tn_file {
	int fd;
	int dir;
	char name[128];
	uint64_t bytes;
	uint32_t crc; /* CRC-32C of all bytes so far */
	tn_file_pace pace;
	void *pace_arg;
} tn_file;

/* A new file; TERN_E_EXISTS if there is one. dir must stay open. */
tern_status tn_file_create(tn_file *file, int dir, const char *name, tn_file_pace pace, void *pace_arg);
/* Append. After a failure the file can only be given up. TERN_E_IO (no space: with how much there is). */
tern_status tn_file_write(tn_file *file, const void *data, uint64_t bytes);
/* Everything is on disk. The file is closed either way, and removed on failure. */
tern_status tn_file_finish(tn_file *file);
/* Close and remove; harmless after finish. */
void tn_file_give_up(tn_file *file);

/* Read exactly bytes at offset. TERN_E_CORRUPT: the file ends before. `name` for the text. */
tern_status tn_file_read_at(int fd, const char *name, uint64_t offset, void *data, uint64_t bytes);
/* Length and CRC-32C of a file, read once through. pace as above. */
tern_status tn_file_sum(int dir, const char *name, tn_file_pace pace, void *pace_arg, uint64_t *bytes,
			uint32_t *crc);

/* The entries of a directory are on disk. */
tern_status tn_dir_sync(int dir, const char *path);
/* Remove a directory with the files in it (no directories below); harmless if there is none. */
tern_status tn_dir_remove(int parent, const char *name);

#endif
