/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds of the whole project, each with its reason. Bounds of one layer alone stand in that layer's header.
 * Threads: none. Tests: the compiler.
 */
#ifndef TN_BASE_LIMITS_H
#define TN_BASE_LIMITS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* Lengths are u64 on the wire and size_t in memcpy: one must hold the other. */
_Static_assert(sizeof(size_t) == 8, "tern needs a 64-bit address space");
_Static_assert(CHAR_BIT == 8, "bytes have 8 bits");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire structs are little endian in place");

/* Cache line: destructive interference on x86 and aarch64 servers; also the least alignment of payload. */
#define TN_CACHE_LINE 64

/* Nodes of a job: dense ids, u32 on the wire; tables are sized by configuration, this only bounds them. */
#define TN_NODES_MAX 4096

/* Links of one context: one per peer node. */
#define TN_LINKS_MAX TN_NODES_MAX

/* Node, job, service and tensor names, with NUL: they travel in control frames, which are small. */
#define TN_NAME_MAX 128

/* "host:port" with an IPv6 scope or a DNS name (253), with NUL. */
#define TN_ADDRESS_MAX 288
_Static_assert(TN_ADDRESS_MAX >= 253 + 1 + 5 + 1, "a DNS name, a colon and a port must fit");

/* Option rows of all layers together: a table of pointers in each snapshot. */
#define TN_OPTIONS_MAX 256

/* One transfer: the user half of a 47-bit address space. Larger lengths are an attack or a bug. */
#define TN_TRANSFER_BYTES_MAX (1ull << 47)

#endif
