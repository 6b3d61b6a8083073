/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls between two nodes of one process, over every transport that works there: answers, errors, sinks,
 * deadlines, late answers, at-most-once under duplicated requests, the peer's death.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <tern/rpc.h>

#include "base/clock.h"
#include "rpc/direct.h"
#include "rpc/rpc.h"
#include "support/nodes.h"

enum { ECHO = 1, FAIL = 2, NEVER = 3, FILL = 4, COUNT = 5, HASTY = 6, PILE = 7, MAPPED = 8, PLACE = 9 };

typedef struct world {
	nodes n;
	tern_rpc *rpc;
	_Atomic unsigned executed;
	_Atomic unsigned started, ended; /* puts of HASTY */
	tern_rpc_request *held;          /* by NEVER */
	tern_op put_op;
	uint8_t *source; /* registered, of node b */
	tern_rpc_request *pile[TN_RPC_WINDOW + 1];
	_Atomic unsigned piled; /* so many of them are there */
} world;

static world w;
static const char *transport;

/* ---- handlers on node b ---- */

static void echo(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static void failing(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	tern_rpc_reply(request, TERN_E_REMOTE, "out of cheese", 13);
}

static void hold(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	__atomic_store_n(&w.held, request, __ATOMIC_RELEASE);
}

static void count(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	unsigned n = atomic_fetch_add(&w.executed, 1) + 1;

	(void)args, (void)bytes, (void)arg;
	tern_rpc_reply(request, TERN_OK, &n, sizeof(n));
}

/* Keeps them all. */
static void pile(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	w.pile[atomic_load(&w.piled)] = request;
	atomic_fetch_add(&w.piled, 1);
}

static void on_hasty_put(tern_op *op, void *arg)
{
	(void)op, (void)arg;
	atomic_fetch_add(&w.ended, 1);
}

/*
 * Answers while its put is in flight: the answer has to wait for the data. started and ended order the two
 * threads for the thread sanitizer, which does not see an order that comes through mapped memory.
 */
static void fill_hasty(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	const tern_rpc_sink *sink = tern_rpc_request_sink(request, 0);
	tern_status status;

	(void)args, (void)bytes, (void)arg;
	(void)atomic_load(&w.started);
	tern_op_init(&w.put_op, on_hasty_put, NULL);
	status = tern_rpc_request_put(request, 0, 0, w.source, sink->bytes, &w.put_op);
	tern_rpc_reply(request, status, NULL, 0);
}

enum { PLACES = 5 };

/* Puts in PLACES pieces and answers at once; args: one that is past the sink's end, or 255. */
static void fill_placed(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	static tern_op ops[PLACES]; /* one call at a time */
	const tern_rpc_sink *sink = tern_rpc_request_sink(request, 0);
	uint64_t piece = sink->bytes / PLACES;
	const uint8_t *bad = args;

	(void)arg;
	assert_int_equal(bytes, 1);
	(void)atomic_load(&w.started);
	for (unsigned i = 0; i < PLACES; i++) {
		uint64_t at = i * piece;

		tern_op_init(&ops[i], on_hasty_put, NULL);
		/* the key says more than the sink: only its owner can tell that this piece is revoked */
		assert_ok(tn_rpc_request_place(request, i == *bad ? 1 : 0, at, w.source + at, piece,
					       i + 1 == PLACES ? TN_PLACED_LAST : TN_PLACED_BESIDE, &ops[i]));
	}
	tern_rpc_reply(request, TERN_OK, "placed", 6);
}

typedef struct filling {
	tern_op op;
	tern_rpc_request *request;
} filling;

static void on_filled(tern_op *op, void *arg)
{
	filling *f = arg;

	tern_rpc_reply(f->request, op->status, NULL, 0);
	free(f);
}

static void fill(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	const tern_rpc_sink *sink = tern_rpc_request_sink(request, 0);
	filling *f = malloc(sizeof(*f));
	tern_status status;

	(void)args, (void)bytes, (void)arg;
	f->request = request;
	tern_op_init(&f->op, on_filled, f);
	status = tern_rpc_request_put(request, 0, 0, w.source, sink ? sink->bytes : 0, &f->op);
	if (status == TERN_OK)
		return;
	tern_rpc_reply(request, status, NULL, 0);
	free(f);
}

/* Writes into its sink in place where that is possible, else puts; args say what: value, then whether it answers
   before it unmaps. */
static void fill_mapped(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	const tern_rpc_sink *sink = tern_rpc_request_sink(request, 0);
	const uint8_t *what = args;
	tern_status status;
	tn_rpc_map map;

	(void)arg;
	assert_int_equal(bytes, 2);
	status = tn_rpc_request_map(request, 0, 0, sink->bytes, false, &map);
	if (status == TERN_OK) {
		assert_status(tn_rpc_request_map(request, 1, 0, 1, false, &map), TERN_E_INVALID);
		memset(map.at, what[0], sink->bytes);
		if (!what[1])
			tn_rpc_request_unmap(&map);
		tern_rpc_reply(request, TERN_OK, "mapped", 6);
		if (what[1])
			tn_rpc_request_unmap(&map); /* the answer has waited for this */
		return;
	}
	tern_rpc_reply(request, status == TERN_AGAIN || status == TERN_E_UNSUPPORTED ? TERN_OK : status, "no",
		       2);
}

/* ---- set-up ---- */

static int setup(void **state)
{
	void *p;

	(void)state;
	memset(&w, 0, sizeof(w));
	nodes_start(&w.n, transport);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.n.b), 65536, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &p));
	w.source = p;
	memset(p, 0x3c, 65536);
	assert_ok(tern_rpc_serve(w.n.b, ECHO, echo, NULL));
	assert_ok(tern_rpc_serve(w.n.b, FAIL, failing, NULL));
	assert_ok(tern_rpc_serve(w.n.b, NEVER, hold, NULL));
	assert_ok(tern_rpc_serve(w.n.b, FILL, fill, NULL));
	assert_ok(tern_rpc_serve(w.n.b, COUNT, count, NULL));
	assert_ok(tern_rpc_serve(w.n.b, HASTY, fill_hasty, NULL));
	assert_ok(tern_rpc_serve(w.n.b, PLACE, fill_placed, NULL));
	assert_ok(tern_rpc_serve(w.n.b, PILE, pile, NULL));
	assert_ok(tern_rpc_serve(w.n.b, MAPPED, fill_mapped, NULL));
	assert_ok(tern_rpc_open(w.n.ab, &w.rpc));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tern_rpc_close(w.rpc);
	nodes_stop(&w.n);
	return 0;
}

static tern_rpc_request *await_held(void)
{
	tern_rpc_request *request = NULL;

	for (int i = 0; i < 2000 && !request; i++) {
		tern_ctx_wait(w.n.b, 10000000);
		request = __atomic_exchange_n(&w.held, NULL, __ATOMIC_ACQ_REL);
	}
	assert_non_null(request);
	return request;
}

/* ---- cases ---- */

static void answers(void **state)
{
	static const uint64_t sizes[] = {0, 1, 8, 191, 192, 193, 4096, 65536, 1 << 20, 20 << 20};
	uint8_t *args = malloc(20 << 20), *answer = malloc(20 << 20);

	(void)state;
	for (uint64_t i = 0; i < 20 << 20; i++)
		args[i] = (uint8_t)(i * 7 + i / 251);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		tern_rpc_call_params call = {.method = ECHO,
					     .args = args,
					     .args_bytes = sizes[i],
					     .answer = answer,
					     .answer_capacity = 20 << 20};
		uint64_t n = 99;

		memset(answer, 0, sizes[i]);
		assert_ok(tern_rpc_call_wait(w.rpc, &call, 0, &n));
		assert_int_equal(n, sizes[i]);
		assert_memory_equal(args, answer, sizes[i]);
	}
	free(args);
	free(answer);
}

static void errors(void **state)
{
	uint8_t args[64] = {0}, answer[16];
	tern_rpc_call_params call = {.method = 77};

	(void)state;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_NO_METHOD);
	assert_non_null(strstr(tern_detail(), "77"));
	call.method = FAIL;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_REMOTE);
	assert_string_equal(tern_detail(), "out of cheese");
	call = (tern_rpc_call_params){
		.method = ECHO, .args = args, .args_bytes = 64, .answer = answer, .answer_capacity = 16};
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_TRUNCATED);
	call.method = 0;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_INVALID);
	assert_status(tern_rpc_serve(w.n.b, ECHO, echo, NULL), TERN_E_EXISTS);
	tern_rpc_unserve(w.n.b, FAIL);
	call.method = FAIL;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_NO_METHOD);
	assert_ok(tern_rpc_serve(w.n.b, FAIL, failing, NULL));
}

static void sinks(void **state)
{
	tern_mem *mem = tern_ctx_mem(w.n.a);
	tern_rpc_sink sink = {.bytes = 65536};
	tern_rpc_call_params call = {.method = FILL, .sinks = &sink, .sink_count = 1};
	uint8_t *memory;
	void *p;

	(void)state;
	assert_ok(tern_mem_alloc(mem, 65536 + 64, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memory = p;
	memset(memory, 0, 65536 + 64);
	assert_ok(tern_mem_export(mem, memory, 65536, TERN_ACCESS_WRITE, &sink.key));
	assert_ok(tern_rpc_call_wait(w.rpc, &call, 0, NULL));
	for (unsigned i = 0; i < 65536; i++)
		assert_int_equal(memory[i], 0x3c);
	assert_int_equal(memory[65536], 0);
	/* a sink that lies about its length is held to its key */
	sink.bytes = 65537;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_BOUNDS);
	tern_mem_revoke(mem, &sink.key);
	sink.bytes = 100;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_STALE_KEY);
	tern_mem_free(mem, memory);
}

static void answer_waits_for_puts(void **state)
{
	enum { BYTES = 8 << 20 };
	tern_mem *mem = tern_ctx_mem(w.n.a);
	tern_rpc_sink sink = {.bytes = BYTES};
	tern_rpc_call_params call = {.method = HASTY, .sinks = &sink, .sink_count = 1};
	uint8_t *memory;
	void *p;

	(void)state;
	tern_mem_free(tern_ctx_mem(w.n.b), w.source);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.n.b), BYTES, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &p));
	w.source = p;
	assert_ok(tern_mem_alloc(mem, BYTES, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memory = p;
	assert_ok(tern_mem_export(mem, memory, BYTES, TERN_ACCESS_WRITE, &sink.key));
	for (unsigned round = 1; round <= 20; round++) {
		memset(w.source, (int)round, BYTES);
		atomic_store(&w.started, round);
		assert_ok(tern_rpc_call_wait(w.rpc, &call, 0, NULL));
		assert_int_equal(memory[BYTES - 1], round);
		assert_memory_equal(memory, memory + 1, BYTES - 1);
		while (atomic_load(&w.ended) < round)
			tern_ctx_wait(w.n.b, 1000000);
	}
	tern_mem_free(mem, memory);
}

/* Answers that overtake the puts into their sinks: nobody sees them before the rows, nor without them. */
static void answer_overtakes_puts(void **state)
{
	enum { BYTES = PLACES * (200 << 10) };
	tern_mem *mem = tern_ctx_mem(w.n.a);
	tern_rpc_sink sinks[2] = {{.bytes = BYTES}, {.bytes = BYTES}};
	uint8_t bad, answer[6], *memory;
	tern_rpc_call_params call = {.method = PLACE,
				     .args = &bad,
				     .args_bytes = 1,
				     .sinks = sinks,
				     .sink_count = 2,
				     .answer = answer,
				     .answer_capacity = sizeof(answer)};
	uint64_t n;
	void *p;

	(void)state;
	tern_mem_free(tern_ctx_mem(w.n.b), w.source);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.n.b), BYTES, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &p));
	w.source = p;
	assert_ok(tern_mem_alloc(mem, BYTES, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memory = p;
	assert_ok(tern_mem_export(mem, memory, BYTES, TERN_ACCESS_WRITE, &sinks[0].key));
	assert_ok(tern_mem_export(mem, memory, BYTES, TERN_ACCESS_WRITE, &sinks[1].key));
	tern_mem_revoke(mem, &sinks[1].key);
	for (unsigned round = 1; round <= 60; round++) {
		bool fails = round % 5 == 0;

		bad = fails ? (uint8_t)(round % PLACES) : 255;
		bad = fails && round % 2 ? PLACES - 1 : bad;
		memset(w.source, (int)round, BYTES);
		atomic_store(&w.started, round);
		atomic_store(&w.ended, 0);
		assert_status(tern_rpc_call_wait(w.rpc, &call, 0, &n), fails ? TERN_E_STALE_KEY : TERN_OK);
		if (!fails) {
			assert_int_equal(n, 6);
			assert_memory_equal(answer, "placed", 6);
			assert_int_equal(memory[0], round);
			assert_memory_equal(memory, memory + 1, BYTES - 1);
		}
		while (atomic_load(&w.ended) < PLACES)
			tern_ctx_wait(w.n.b, 1000000);
	}
	tern_mem_free(mem, memory);
}

/* Handlers that work in the caller's memory. */
static void mapped_sinks(void **state)
{
	tern_mem *mem = tern_ctx_mem(w.n.a);
	tern_rpc_sink sink = {.bytes = 65536};
	uint8_t what[2], answer[6], *memory;
	bool shm = strcmp(transport, "shm") == 0;
	uint64_t end = tn_now() + 20 * TN_NS_PER_SEC;
	unsigned mapped = 0;
	void *p;

	(void)state;
	assert_ok(tern_mem_alloc(mem, 65536, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memory = p;
	assert_ok(tern_mem_export(mem, memory, 65536, TERN_ACCESS_WRITE, &sink.key));
	/* The memory is mapped some time after it was asked for. */
	for (unsigned round = 0; round < 50 || (shm && mapped == 0 && tn_now() < end); round++) {
		tern_rpc_call_params call = {.method = MAPPED,
					     .args = what,
					     .args_bytes = 2,
					     .sinks = &sink,
					     .sink_count = 1,
					     .answer = answer,
					     .answer_capacity = sizeof(answer)};
		uint64_t n;

		what[0] = (uint8_t)(round + 1);
		what[1] = round % 2;
		assert_ok(tern_rpc_call_wait(w.rpc, &call, 0, &n));
		if (n == 2)
			continue;
		mapped++;
		assert_int_equal(memory[0], what[0]);
		assert_memory_equal(memory, memory + 1, 65535);
	}
	assert_int_equal(mapped > 0, shm);
	sink.bytes = 65537;
	what[1] = 0;
	if (mapped) {
		tern_rpc_call_params call = {
			.method = MAPPED, .args = what, .args_bytes = 2, .sinks = &sink, .sink_count = 1};

		assert_status(tern_rpc_call_wait(w.rpc, &call, 0, NULL), TERN_E_BOUNDS);
	}
	tern_mem_free(mem, memory);
}

static void deadline(void **state)
{
	tern_rpc_call_params call = {.method = NEVER};
	tern_rpc_request *request;

	(void)state;
	assert_status(tern_rpc_call_wait(w.rpc, &call, 20000000, NULL), TERN_E_DEADLINE);
	request = await_held();
	assert_true(tern_rpc_request_time_left(request) < 20000000); /* counted from its arrival */
	tern_rpc_reply(request, TERN_OK, "late", 4);                 /* must harm nobody */
	call.method = ECHO;
	for (unsigned i = 0; i < 2 * TN_RPC_WINDOW; i++)
		assert_ok(tern_rpc_call_wait(w.rpc, &call, 0, NULL));
}

/* A call with sinks ends at its deadline only after the server let go of them; later puts are refused. */
static void deadline_with_sinks(void **state)
{
	tern_mem *mem = tern_ctx_mem(w.n.a);
	tern_rpc_sink sink = {.bytes = 4096};
	tern_rpc_call_params call = {.method = NEVER, .sinks = &sink, .sink_count = 1};
	tern_rpc_request *request;
	tern_op op, put;
	void *memory;

	(void)state;
	assert_ok(tern_mem_alloc(mem, 4096, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &memory));
	assert_ok(tern_mem_export(mem, memory, 4096, TERN_ACCESS_WRITE, &sink.key));
	tern_op_init(&op, NULL, NULL);
	op.timeout_ns = 20000000;
	assert_ok(tern_rpc_call(w.rpc, &call, &op));
	request = await_held();
	assert_status(tern_op_wait(w.n.a, &op, 10000000000ull), TERN_E_DEADLINE);
	tern_op_init(&put, NULL, NULL);
	assert_status(tern_rpc_request_put(request, 0, 0, w.source, 4096, &put), TERN_E_DEADLINE);
	tern_rpc_reply(request, TERN_OK, NULL, 0);
	tern_mem_free(mem, memory);
}

static void many_in_flight(void **state)
{
	enum { N = 2000 };
	static tern_op ops[N];
	static uint64_t answers_[N], values[N];

	(void)state;
	for (unsigned i = 0; i < N; i++) {
		tern_rpc_call_params call = {.method = ECHO,
					     .args = &values[i],
					     .args_bytes = 8,
					     .answer = &answers_[i],
					     .answer_capacity = 8};
		tern_status status;

		values[i] = i * 1234567ull;
		tern_op_init(&ops[i], NULL, NULL);
		while ((status = tern_rpc_call(w.rpc, &call, &ops[i])) == TERN_AGAIN)
			tern_ctx_wait(w.n.a, 1000000);
		assert_ok(status);
	}
	for (unsigned i = 0; i < N; i++) {
		assert_ok(tern_op_wait(w.n.a, &ops[i], NODES_WAIT_NS));
		assert_int_equal(answers_[i], values[i]);
	}
}

static void await_pile(unsigned count)
{
	for (int i = 0; i < 20000 && atomic_load(&w.piled) < count; i++)
		tern_ctx_wait(w.n.b, 1000000);
	assert_int_equal(atomic_load(&w.piled), count);
}

/* As many calls as the window has, not one more until the oldest is over: back-pressure is a status. */
static void window_is_full(void **state)
{
	static tern_op ops[TN_RPC_WINDOW + 1];
	tern_rpc_call_params call = {.method = PILE};
	tern_status status = TERN_AGAIN;

	(void)state;
	for (unsigned i = 0; i < TN_RPC_WINDOW; i++) {
		tern_op_init(&ops[i], NULL, NULL);
		while ((status = tern_rpc_call(w.rpc, &call, &ops[i])) == TERN_AGAIN)
			tern_ctx_wait(w.n.a, 1000000); /* no room in the channel */
		assert_ok(status);
	}
	await_pile(TN_RPC_WINDOW); /* the channel has room */
	tern_op_init(&ops[TN_RPC_WINDOW], NULL, NULL);
	tern_rpc_reply(w.pile[1], TERN_OK, NULL, 0); /* not the oldest: the mark stays */
	assert_ok(tern_op_wait(w.n.a, &ops[1], NODES_WAIT_NS));
	for (unsigned i = 0; i < 20; i++) {
		assert_status(tern_rpc_call(w.rpc, &call, &ops[TN_RPC_WINDOW]), TERN_AGAIN);
		tern_ctx_wait(w.n.a, 1000000);
	}
	tern_rpc_reply(w.pile[0], TERN_OK, NULL, 0);
	assert_ok(tern_op_wait(w.n.a, &ops[0], NODES_WAIT_NS));
	while ((status = tern_rpc_call(w.rpc, &call, &ops[TN_RPC_WINDOW])) == TERN_AGAIN)
		tern_ctx_wait(w.n.a, 1000000); /* its request or another's is on its way out still */
	assert_ok(status);
	await_pile(TN_RPC_WINDOW + 1);
	for (unsigned i = 2; i <= TN_RPC_WINDOW; i++) {
		tern_rpc_reply(w.pile[i], TERN_OK, NULL, 0);
		assert_ok(tern_op_wait(w.n.a, &ops[i], NODES_WAIT_NS));
	}
}

/* The same request twice on the wire: executed once, answered twice with the same answer. */
typedef struct raw_client {
	_Atomic unsigned answers;
	uint32_t values[8];
} raw_client;

static void on_raw_answer(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	raw_client *raw = arg;
	tn_rpc_reply_head head;
	const void *data;

	(void)channel;
	if (tn_rpc_reply_decode(msg, bytes, &head, &data) && head.bytes == 4 && raw->answers < 8) {
		memcpy(&raw->values[raw->answers], data, 4);
		atomic_fetch_add(&raw->answers, 1);
	}
}

static void at_most_once(void **state)
{
	tn_rpc_request_head head = {.method = COUNT, .seq = 3, .client.bytes = {1, 2, 3}};
	raw_client raw = {0};
	tern_channel_params params = {.on_message = on_raw_answer, .arg = &raw};
	uint8_t msg[TN_RPC_REQUEST_BYTES_MAX];
	tern_channel *channel;
	uint64_t n = tn_rpc_request_encode(msg, &head, NULL);

	(void)state;
	for (unsigned session = 0; session < 2;
	     session++) { /* over a second channel of the same client too */
		assert_ok(tern_channel_open(w.n.ab, TN_RPC_SERVICE, &params, &channel));
		for (unsigned i = 0; i < 3; i++) {
			tern_op op;

			tern_op_init(&op, NULL, NULL);
			assert_ok(tern_send(channel, msg, n, &op));
			assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
			for (int k = 0; k < 2000 && raw.answers < session * 3 + i + 1; k++)
				tern_ctx_wait(w.n.a, 10000000);
		}
		tern_channel_close(channel);
	}
	assert_int_equal(raw.answers, 6);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(raw.values[i], 1);
	assert_int_equal(w.executed, 1);
	assert_int_equal(tern_ctx_counter(w.n.b, "rpc.duplicates"), 5);
}

static void junk(void **state)
{
	raw_client raw = {0};
	tern_channel_params params = {.on_message = on_raw_answer, .arg = &raw};
	tern_rpc_call_params call = {.method = ECHO};
	tern_channel *channel;
	uint8_t msg[200];
	uint64_t x = 88172645463325252ull;

	(void)state;
	assert_ok(tern_channel_open(w.n.ab, TN_RPC_SERVICE, &params, &channel));
	for (unsigned i = 0; i < 500; i++) {
		tern_op op;

		for (unsigned k = 0; k < sizeof(msg); k++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			msg[k] = (uint8_t)x;
		}
		msg[0] = (uint8_t)(i % 6);
		msg[1] = TN_RPC_VERSION;
		tern_op_init(&op, NULL, NULL);
		assert_ok(tern_send(channel, msg, i % sizeof(msg), &op));
		assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
	}
	assert_ok(tern_rpc_call_wait(w.rpc, &call, 0, NULL)); /* others are unharmed */
	tern_channel_close(channel);
}

static void close_with_calls_in_flight(void **state)
{
	tern_rpc_call_params call = {.method = NEVER};
	tern_rpc *rpc;
	tern_op op;

	(void)state;
	assert_ok(tern_rpc_open(w.n.ab, &rpc));
	tern_op_init(&op, NULL, NULL);
	assert_ok(tern_rpc_call(rpc, &call, &op));
	tern_rpc_reply(await_held(), TERN_OK, NULL, 0); /* races with the close */
	tern_rpc_close(rpc);
	{
		tern_status ended = tern_op_wait(w.n.a, &op, NODES_WAIT_NS);

		assert_true(ended == TERN_OK || ended == TERN_E_FLUSHED);
	}
	tern_op_init(&op, NULL, NULL);
	assert_ok(tern_rpc_open(w.n.ab, &rpc));
	assert_ok(tern_rpc_call(rpc, &call, &op));
	tern_rpc_close(rpc);
	assert_status(tern_op_wait(w.n.a, &op, NODES_WAIT_NS), TERN_E_FLUSHED);
	/* the server may or may not have got the second one */
	for (int i = 0; i < 20 && !__atomic_load_n(&w.held, __ATOMIC_ACQUIRE); i++)
		tern_ctx_wait(w.n.b, 1000000);
	if (w.held)
		tern_rpc_reply(w.held, TERN_OK, NULL, 0);
}

/* Closes at any moment of a call whose sink is being written: after the end nothing writes into it. */
static void close_races_with_sinks(void **state)
{
	tern_mem *mem = tern_ctx_mem(w.n.a);
	tern_rpc_sink sink = {.bytes = 65536};
	tern_rpc_call_params call = {.method = FILL, .sinks = &sink, .sink_count = 1};
	unsigned outcomes[2] = {0, 0};
	uint8_t *memory;
	void *p;

	(void)state;
	assert_ok(tern_mem_alloc(mem, 65536, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memory = p;
	assert_ok(tern_mem_export(mem, memory, 65536, TERN_ACCESS_WRITE, &sink.key));
	for (unsigned round = 0; round < 200; round++) {
		tern_status status;
		tern_rpc *rpc;
		tern_op op;

		assert_ok(tern_rpc_open(w.n.ab, &rpc));
		tern_op_init(&op, NULL, NULL);
		assert_ok(tern_rpc_call(rpc, &call, &op));
		for (unsigned spin = 0; spin < round % 10 * 3; spin++)
			tern_ctx_progress(w.n.a);
		tern_rpc_close(rpc);
		status = tern_op_wait(w.n.a, &op, NODES_WAIT_NS);
		assert_true(status == TERN_OK || status == TERN_E_FLUSHED);
		outcomes[status == TERN_OK]++;
		memset(memory, 0x11, 65536); /* ours again */
		tern_ctx_wait(w.n.b, 100000);
		for (unsigned i = 0; i < 65536; i += 4096)
			assert_int_equal(memory[i], 0x11);
	}
	assert_true(outcomes[0] > 0);
	tern_mem_free(mem, memory);
}

static void peer_goes_away(void **state)
{
	tern_rpc_call_params call = {.method = NEVER};
	tern_rpc_request *request;
	tern_op op;

	(void)state;
	tern_op_init(&op, NULL, NULL);
	assert_ok(tern_rpc_call(w.rpc, &call, &op));
	request = await_held();
	tern_link_close(w.n.ba);
	assert_status(tern_op_wait(w.n.a, &op, NODES_WAIT_NS), TERN_E_PEER_CLOSED);
	tern_rpc_reply(request, TERN_OK, NULL, 0);
	tern_op_init(&op, NULL, NULL);
	assert_int_not_equal(tern_rpc_call(w.rpc, &call, &op), TERN_OK);
}

int main(void)
{
	static const char *const transports[] = {"shm", "tcp", "loop"};
	int failed = 0;

	for (unsigned i = 0; i < 3; i++) {
#define CASE(f)                              \
	{                                    \
#f, f, setup, teardown, NULL \
	}
		const struct CMUnitTest tests[] = {
			CASE(answers),
			CASE(errors),
			CASE(sinks),
			CASE(answer_waits_for_puts),
			CASE(answer_overtakes_puts),
			CASE(mapped_sinks),
			CASE(deadline),
			CASE(deadline_with_sinks),
			CASE(many_in_flight),
			CASE(window_is_full),
			CASE(at_most_once),
			CASE(junk),
			CASE(close_with_calls_in_flight),
			CASE(close_races_with_sinks),
			CASE(peer_goes_away),
		};

		transport = transports[i];
		printf("--- %s ---\n", transport);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}
