/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "host:port" and socket addresses. IPv6 in brackets, with a scope if there is one: "[fe80::1%eth0]:7000";
 * the whole sockaddr is kept, so that no scope gets lost.
 *
 * Threads: any. tn_addr_resolve asks the resolver for names (may block for DNS), never for numbers and
 * "localhost". Tests: tests/unit/channel/test_addr.c.
 */
#ifndef TN_CHANNEL_ADDR_H
#define TN_CHANNEL_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include <tern/status.h>

typedef struct tn_addr {
	struct sockaddr_storage sa;
	socklen_t bytes;
} tn_addr;

/* passive: for bind (an empty host or "*" is every interface). TERN_E_INVALID, TERN_E_UNREACHABLE. */
tern_status tn_addr_resolve(const char *text, bool passive, tn_addr *addr);
bool tn_addr_is_loopback(const tn_addr *addr);
/* "127.0.0.1:4001" into buf; returns buf. */
const char *tn_addr_format(const tn_addr *addr, char *buf, size_t size);
/* The host part alone, numeric. */
const char *tn_addr_host(const tn_addr *addr, char *buf, size_t size);

#endif
