/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that have not proved who they are, and how they share the backlog.
 *
 *   stranger   an incoming link whose hello is not over and which has not proved the secret
 *   origin     a number of its address (IPv6: of its /64, for one host has that many), under a seed of ours
 *
 *   hello_count <= backlog; who waits for room stays in the kernel's queue
 *
 * Threads: the driver. Tests: tests/unit/channel/test_strangers.c.
 */
#ifndef TN_CHANNEL_STRANGERS_H
#define TN_CHANNEL_STRANGERS_H

#include "channel/shell.h"

typedef struct tn_strangers_limits {
	uint64_t backlog;     /* ctx.backlog */
	uint64_t per_address; /* ctx.backlog_per_address; 0 = none */
	uint64_t grace_ns;    /* ctx.hello_grace */
} tn_strangers_limits;

void tn_strangers_load(const tern_ctx *ctx, tn_strangers_limits *limits);
/* A link was made for a connection from that address. */
void tn_strangers_note(tern_link *link, const tn_addr *peer, uint64_t now_ns);
/*
 * Is there room for one more? evict: a stranger who had his time makes room if there is none. False: no;
 * *again_ns is when to look again if no hello is over before.
 */
bool tn_strangers_room(tern_ctx *ctx, const tn_strangers_limits *limits, bool evict, uint64_t *again_ns);
/* May one more come in from this address? */
bool tn_strangers_welcome(tern_ctx *ctx, const tn_strangers_limits *limits, const tn_addr *peer);

#endif
