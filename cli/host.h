/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel says of this host in /proc and /sys, as text and numbers. All paths are looked up below a
 * root, "" unless a test set another, so that hosts which nobody here owns can be described by a folder.
 *
 * Threads: main.
 */
#ifndef CLI_HOST_H
#define CLI_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOST_NO_LIMIT UINT64_MAX

void host_set_root(const char *root);
/* True while paths mean this host itself: only then do open(2), getrlimit(2) and sockets speak of it. */
bool host_is_real(void);

/* The first line of a file without the space around it. False: there is none or it cannot be read (text ""). */
__attribute__((format(printf, 3, 4))) bool host_read(char *text, size_t bytes, const char *fmt, ...);
/* The number that it starts with, 0x too. */
__attribute__((format(printf, 2, 3))) bool host_u64(uint64_t *value, const char *fmt, ...);
/* The choice in force: "never" of "always advise [never]". */
__attribute__((format(printf, 3, 4))) bool host_chosen(char *text, size_t bytes, const char *fmt, ...);
__attribute__((format(printf, 1, 2))) bool host_exists(const char *fmt, ...);
/* The last part of where a link points to ("mlx5_core" of .../device/driver). */
__attribute__((format(printf, 3, 4))) bool host_link(char *text, size_t bytes, const char *fmt, ...);
/* Bytes of a small file as they are. Returns how many. */
__attribute__((format(printf, 3, 4))) size_t host_bytes(void *buf, size_t bytes, const char *fmt, ...);
/* The value behind a key in a file of "Key: value" lines. */
bool host_keyed(char *text, size_t bytes, const char *path, const char *key);

typedef struct host_names {
	unsigned count;
	char name[256][64];
} host_names;
/* Names in a folder but those with a dot in front, numbers in their order. False: it is empty or not there. */
__attribute__((format(printf, 2, 3))) bool host_list(host_names *names, const char *fmt, ...);

/* Limit and use of the memory cgroup that this process is in, both versions. False: none is in force. */
bool host_cgroup_memory(uint64_t *limit, uint64_t *used);
/* "1.5 GiB", "64 KiB", "unlimited"; returns text. */
char *host_size(uint64_t bytes, char *text, size_t size);

#endif
