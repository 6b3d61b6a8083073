/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that nobody waits for any more: closed clients and deadlines while the server is busy, short of memory or
 * gone. Node b has no helper, so that the test says when it looks at its messages.
 */
#include <stdio.h>

#include <tern/rpc.h>

#include "base/fault.h"
#include "rpc/rpc.h"
#include "support/nodes.h"

enum { HOLD = 1, BYTES = 1 << 20 };

typedef struct world {
	nodes n;
	tern_rpc *rpc;
	tern_rpc_request *held;
	uint8_t *sink_memory, *source;
	tern_rpc_sink sink;
	tern_op op;
} world;

static world w;
static const char *transport;

static void hold(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	if (tern_rpc_request_sink(request, 0))
		w.held = request;
	else
		tern_rpc_reply(request, TERN_OK, NULL, 0);
}

static int setup(void **state)
{
	void *p;

	(void)state;
	memset(&w, 0, sizeof(w));
	nodes_start_passive(&w.n, transport);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.n.b), BYTES, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &p));
	w.source = p;
	memset(w.source, 0x5a, BYTES);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.n.a), BYTES, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	w.sink_memory = p;
	memset(w.sink_memory, 0, BYTES);
	w.sink.bytes = BYTES;
	assert_ok(tern_mem_export(tern_ctx_mem(w.n.a), p, BYTES, TERN_ACCESS_WRITE, &w.sink.key));
	assert_ok(tern_rpc_serve(w.n.b, HOLD, hold, NULL));
	assert_ok(tern_rpc_open(w.n.ab, &w.rpc));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tn_fault_clear();
	tern_rpc_close(w.rpc);
	if (w.held)
		tern_rpc_reply(w.held, TERN_OK, NULL, 0);
	if (w.n.ab)
		tern_link_release(w.n.ab);
	tern_link_release(w.n.ba);
	tern_ctx_destroy(w.n.b); /* it drives itself to its end, a's helper answers */
	if (w.n.a)
		tern_ctx_destroy(w.n.a);
	return 0;
}

static void call_with_sink(uint64_t timeout_ns)
{
	tern_rpc_call_params call = {.method = HOLD, .sinks = &w.sink, .sink_count = 1};

	tern_op_init(&w.op, NULL, NULL);
	w.op.timeout_ns = timeout_ns;
	assert_ok(tern_rpc_call(w.rpc, &call, &w.op));
}

static void await_held(void)
{
	for (int i = 0; i < 20000 && !w.held; i++)
		tern_ctx_wait(w.n.b, 1000000);
	assert_non_null(w.held);
}

/* Drive b until the call has ended. */
static tern_status await_end(void)
{
	for (int i = 0; i < 20000 && tern_op_test(&w.op) == TERN_AGAIN; i++)
		tern_ctx_wait(w.n.b, 1000000);
	assert_int_not_equal(tern_op_test(&w.op), TERN_AGAIN);
	return tern_op_wait(w.n.a, &w.op, NODES_WAIT_NS);
}

static void close_client(void)
{
	tern_rpc_close(w.rpc);
	w.rpc = NULL;
}

/* a's messages may go out, but b does not look at them. */
static void give_a_time(void)
{
	for (int i = 0; i < 20; i++)
		tern_ctx_wait(w.n.a, 1000000);
}

static void sinks_are_the_servers_until_it_lets_go(void **state)
{
	tern_rpc_call_params plain = {.method = HOLD};
	tern_op plain_op, put;

	(void)state;
	call_with_sink(0);
	await_held();
	tern_op_init(&plain_op, NULL, NULL);
	assert_ok(tern_rpc_call(w.rpc, &plain, &plain_op));
	close_client();
	assert_status(tern_op_test(&plain_op), TERN_E_FLUSHED); /* without sinks: at once */
	give_a_time();
	assert_status(tern_op_test(&w.op), TERN_AGAIN);
	/* The server does not know yet: what it begins now still reaches memory that is its to write. */
	tern_op_init(&put, NULL, NULL);
	assert_ok(tern_rpc_request_put(w.held, 0, 0, w.source, BYTES, &put));
	assert_status(await_end(), TERN_E_FLUSHED);
	assert_non_null(strstr(tern_detail(), "let go of its sinks"));
	assert_ok(tern_op_test(&put));
	assert_memory_equal(w.sink_memory, w.source, BYTES);
	tern_op_init(&put, NULL, NULL);
	assert_status(tern_rpc_request_put(w.held, 0, 0, w.source, BYTES, &put), TERN_E_DEADLINE);
}

/* An answer that was on its way when the client was closed ends the call too. */
static void late_answer_ends_a_closed_call(void **state)
{
	(void)state;
	call_with_sink(0);
	await_held();
	close_client();
	tern_rpc_reply(w.held, TERN_OK, "done", 4);
	w.held = NULL;
	assert_status(await_end(), TERN_E_FLUSHED);
}

static void link_ends_a_closed_client(void **state)
{
	(void)state;
	call_with_sink(0);
	await_held();
	close_client();
	tern_link_close(w.n.ab);
	assert_status(tern_op_wait(w.n.a, &w.op, NODES_WAIT_NS), TERN_E_FLUSHED);
}

static void context_ends_a_closed_client(void **state)
{
	(void)state;
	call_with_sink(0);
	await_held();
	close_client();
	tern_link_release(w.n.ab);
	w.n.ab = NULL;
	tern_ctx_destroy(w.n.a);
	w.n.a = NULL;
	assert_status(tern_op_test(&w.op), TERN_E_FLUSHED);
}

static void deadline_passed_before_the_close(void **state)
{
	(void)state;
	call_with_sink(10000000);
	await_held();
	while (tern_ctx_counter(w.n.a, "rpc.deadlines") == 0)
		tern_ctx_wait(w.n.a, 1000000);
	close_client();
	assert_status(await_end(), TERN_E_DEADLINE);
}

/* b had no memory for the request: its CANCEL is answered all the same, also when there was none for the answer. */
static void dropped_request(void **state)
{
	(void)state;
	assert_ok(tn_fault_set("rpc.request.alloc", 1, 1));
	assert_ok(tn_fault_set("rpc.ack.alloc", 1, 1));
	call_with_sink(10000000);
	assert_status(await_end(), TERN_E_DEADLINE);
	assert_int_equal(tn_fault_fired("rpc.request.alloc"), 1);
	assert_int_equal(tn_fault_fired("rpc.ack.alloc"), 1);
	assert_null(w.held);
}

/* The first message that b gets is not a request: nobody has been bound to the channel. */
static void cancel_from_a_stranger(void **state)
{
	tn_rpc_reply_head head = {.type = TN_RPC_CANCEL, .seq = 7};
	uint8_t cancel[TN_RPC_REPLY_BYTES], answer[TN_RPC_REPLY_BYTES];
	tern_channel_params params = {0};
	tern_channel *channel;
	const void *data;
	tern_op recv;

	(void)state;
	tn_rpc_reply_encode(cancel, &head);
	assert_ok(tern_channel_open(w.n.ab, TN_RPC_SERVICE, &params, &channel));
	tern_op_init(&recv, NULL, NULL);
	assert_ok(tern_recv(channel, answer, sizeof(answer), &recv));
	tern_op_init(&w.op, NULL, NULL);
	assert_ok(tern_send(channel, cancel, sizeof(cancel), &w.op));
	assert_ok(await_end());
	for (int i = 0; i < 20000 && tern_op_test(&recv) == TERN_AGAIN; i++)
		tern_ctx_wait(w.n.b, 1000000);
	assert_ok(tern_op_wait(w.n.a, &recv, NODES_WAIT_NS));
	assert_true(tn_rpc_reply_decode(answer, sizeof(answer), &head, &data));
	assert_int_equal(head.type, TN_RPC_CANCEL_ACK);
	assert_int_equal(head.seq, 7);
	tern_channel_close(channel);
}

/* The deadline passes while the request is still being sent: CANCEL follows it. */
static void deadline_while_sending(void **state)
{
	enum { ARGS = 8 << 20 };
	static uint8_t args[ARGS];
	tern_rpc_call_params call = {
		.method = HOLD, .args = args, .args_bytes = ARGS, .sinks = &w.sink, .sink_count = 1};

	(void)state;
	tern_op_init(&w.op, NULL, NULL);
	w.op.timeout_ns = 10000000;
	assert_ok(tern_rpc_call(w.rpc, &call, &w.op));
	while (tern_ctx_counter(w.n.a, "rpc.deadlines") == 0)
		tern_ctx_wait(w.n.a, 1000000);
	assert_status(tern_op_test(&w.op), TERN_AGAIN);
	assert_status(await_end(), TERN_E_DEADLINE);
	assert_non_null(w.held); /* the whole request came before its end */
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
			CASE(sinks_are_the_servers_until_it_lets_go),
			CASE(late_answer_ends_a_closed_call),
			CASE(link_ends_a_closed_client),
			CASE(context_ends_a_closed_client),
			CASE(deadline_passed_before_the_close),
			CASE(dropped_request),
			CASE(cancel_from_a_stranger),
			CASE(deadline_while_sending),
		};

		transport = transports[i];
		printf("--- %s ---\n", transport);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}
