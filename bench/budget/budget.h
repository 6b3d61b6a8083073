/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-budget CASE COUNT: so many operations of one kind, in one process and, while they are measured, in one thread that
 * drives both ends by turns, so that the same build executes the same instructions each time. tools/budget.py runs it
 * under callgrind, which counts inside of budget_measured() alone, and compares with bench/budget.txt.
 *
 *   pair     two contexts that do nothing by themselves, joined by a link; set-up that waits has a thread that drives the
 *            server's end meanwhile
 *   case     set-up and one operation, from submission until both ends have nothing left to do
 *
 * Threads: main; one more during set-up.
 */
#ifndef TERN_BENCH_BUDGET_H
#define TERN_BENCH_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/channel.h>
#include <tern/mem.h>
#include <tern/ps.h>
#include <tern/rpc.h>
#include <tern/tensor.h>

#define BUDGET_BYTES 65536u
#define BUDGET_KEYS  1024u

typedef struct pair {
	const char *transport;
	bool owner;
	tern_ctx *server, *client;
	tern_link *link;
	tern_channel *channel, *accepted;
	tern_rpc *rpc;
	uint8_t *out, *in; /* the client's */
	uint8_t *data;     /* the server's */
	tern_key key;      /* of data */
	uint64_t notified, messages;
	tern_op op;
	/* tables.c */
	tern_ps_server *ps_server;
	tern_ps *ps;
	tern_table *table;
	float *rows;
	uint64_t *keys;
	uint64_t turn;
	/* a tensor */
	tern_tensor_rx *rx;
	tern_tensor_tx *tx;
} pair;

typedef struct budget_case {
	const char *name, *transport;
	void (*begin)(pair *p); /* NULL: nothing but the pair */
	void (*once)(pair *p);
	bool owner; /* both contexts have a single owner: no locks */
} budget_case;

extern const budget_case budget_cases[];

/* Ends the process with a message: a bench has nobody to tell. */
void must(tern_status status, const char *what);
void pair_begin(pair *p, const char *transport, bool owner);
/* Both ends by turns until the operation is complete. */
void pair_finish(pair *p, tern_op *op);
void pair_turn(pair *p);
/* What waits in the client needs somebody who drives the server. */
void pair_pump_begin(pair *p);
void pair_pump_end(void);

void tables_begin(pair *p);
void pull_once(pair *p, uint64_t keys);
void push_once(pair *p, uint64_t keys);

#endif
