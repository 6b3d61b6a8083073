/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is counted: one operation of each hot path. See budget.h.
 */
#include <stdio.h>
#include <string.h>

#include "budget.h"

static void put(pair *p)
{
	tern_op_init(&p->op, NULL, NULL);
	must(tern_put(p->channel, p->out, 8, &p->key, 0, &p->op), "put");
	pair_finish(p, &p->op);
}

static void get(pair *p)
{
	tern_op_init(&p->op, NULL, NULL);
	must(tern_get(p->channel, p->in, 8, &p->key, 0, &p->op), "get");
	pair_finish(p, &p->op);
}

static void flag(pair *p)
{
	tern_op_init(&p->op, NULL, NULL);
	must(tern_put_flag(p->channel, NULL, 0, &p->key, 0, 1, &p->key, 64, &p->op), "put with flag");
	pair_finish(p, &p->op);
}

static void notify(pair *p)
{
	uint64_t want = p->notified + 1;

	tern_op_init(&p->op, NULL, NULL);
	must(tern_put_notify(p->channel, p->out, 8, &p->key, 0, 1, &p->op), "put with notification");
	pair_finish(p, &p->op);
	while (p->notified != want)
		pair_turn(p);
}

static void message(pair *p)
{
	uint64_t want = p->messages + 1;

	tern_op_init(&p->op, NULL, NULL);
	must(tern_send(p->channel, p->out, 64, &p->op), "send");
	pair_finish(p, &p->op);
	while (p->messages != want)
		pair_turn(p);
}

static void call(pair *p)
{
	tern_rpc_call_params params = {
		.method = 1, .args = p->out, .args_bytes = 64, .answer = p->in, .answer_capacity = 64};

	tern_op_init(&p->op, NULL, NULL);
	must(tern_rpc_call(p->rpc, &params, &p->op), "call");
	pair_finish(p, &p->op);
}

static void pull16(pair *p)
{
	pull_once(p, 16);
}

static void pull1024(pair *p)
{
	pull_once(p, 1024);
}

static void push16(pair *p)
{
	push_once(p, 16);
}

static void tensor_begin(pair *p)
{
	tern_tensor_params params = {
		.name = "budget", .dtype = TERN_F32, .shape = {.rank = 1, .dims = {1024}}};

	must(tern_tensor_rx_create(p->server, &params, &p->rx), "tensor");
	pair_pump_begin(p);
	must(tern_tensor_tx_open(p->link, &params, 10000000000ull, &p->tx), "tensor");
	pair_pump_end();
}

static void tensor(pair *p)
{
	const void *data;
	tern_status status;

	tern_op_init(&p->op, NULL, NULL);
	while ((status = tern_tensor_send(p->tx, p->out, &p->op)) == TERN_AGAIN)
		pair_turn(p);
	must(status, "tensor");
	while ((status = tern_tensor_rx_poll(p->rx, &data)) == TERN_AGAIN)
		pair_turn(p);
	must(status, "tensor");
	must(tern_tensor_rx_release(p->rx), "tensor");
	pair_finish(p, &p->op);
}

#define BLOCKS 64u

/* Blocks of 16 to 1,024 bytes, replaced at random. */
static void churn(pair *p)
{
	static void *blocks[BLOCKS];
	static uint64_t x = 1;
	void **at;

	x = x * 6364136223846793005ull + 1442695040888963407ull;
	at = &blocks[x >> 58];
	tern_mem_free(tern_ctx_mem(p->client), *at);
	must(tern_mem_alloc(tern_ctx_mem(p->client), 16 + (x >> 40) % 1009, 0, TERN_ACCESS_READ,
			    TERN_MEM_HOST, at),
	     "memory");
}

const budget_case budget_cases[] = {
	{"put-8-shm", "shm", NULL, put, false},
	{"get-8-shm", "shm", NULL, get, false},
	{"flag-shm", "shm", NULL, flag, false},
	{"put-8-shm-owner", "shm", NULL, put, true},
	{"flag-shm-owner", "shm", NULL, flag, true},
	{"notify-8-shm", "shm", NULL, notify, false},
	{"send-64-shm", "shm", NULL, message, false},
	{"call-64-shm", "shm", NULL, call, false},
	{"call-64-shm-owner", "shm", NULL, call, true},
	{"call-64-tcp", "tcp", NULL, call, false},
	{"call-64-loop", "loop", NULL, call, false},
	{"put-8-tcp", "tcp", NULL, put, false},
	{"pull-16-shm", "shm", tables_begin, pull16, false},
	{"pull-16-tcp", "tcp", tables_begin, pull16, false},
	{"pull-1024-shm", "shm", tables_begin, pull1024, false},
	{"push-16-shm", "shm", tables_begin, push16, false},
	{"tensor-4k-shm", "shm", tensor_begin, tensor, false},
	{"alloc", "shm", NULL, churn, false},
	{0},
};
