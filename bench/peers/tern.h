/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two files of bench-peer-tern share. Sees <tern/...> alone. Threads: see tern.c.
 */
#ifndef TERN_BENCH_PEERS_TERN_H
#define TERN_BENCH_PEERS_TERN_H

#include <tern/channel.h>
#include <tern/mem.h>
#include <tern/ps.h>
#include <tern/rpc.h>

#include "harness.h"

#define T_ANSWERS 16u
#define T_LAST    3u /* bytes of the message that ends a stream, and of its answer */

typedef struct t_hello {
	tern_key data, flag;
	char address[128];
} t_hello;

typedef struct t_state {
	h_env *e;
	tern_ctx *ctx;
	tern_link *link;
	tern_channel *channel;
	tern_rpc *rpc;
	uint64_t *flag; /* written by the other side */
	tern_key peer_data, peer_flag;
	t_hello hello;
	volatile uint64_t notified, messages;
	bool passive;
	h_work work; /* under way */
	tern_op answers[T_ANSWERS], ops[H_DEPTH_MAX], ack;
	/* tern_table.c */
	tern_ctx *table_ctx;
	tern_ps *ps;
	tern_table *table;
	tern_ps_server *ps_server;
	float *rows;
} t_state;

void t_must(h_env *e, tern_status status, const char *what);
const char *const *t_options(const h_env *e);
/* Server: while there are fetches and pushes. Client: all of them. */
void t_table_serve(h_env *e);
void t_table_run(h_env *e, const h_work *w);

#endif
