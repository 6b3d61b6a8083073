/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls between contexts of a single owner, whose server reads no clock for a call that its handler answers: what it keeps and
 * says of time all the same, and that answered calls leave the window.
 */
#include <string.h>

#include <tern/ctx.h>
#include <tern/rpc.h>

#include "base/clock.h"
#include "base/time.h"
#include "cmocka_all.h"
#include "rpc/server.h"

enum { ECHO = 1, LATER, LEFT };

#define TIMEOUT_NS (60 * TN_NS_PER_SEC)

static struct {
	tern_ctx *server, *client;
	tern_link *link;
	tern_rpc *rpc;
	tern_rpc_request *held;
	uint64_t left_ns;
} w;

static void ok(tern_status status)
{
	assert_int_equal(status, TERN_OK);
}

static void on_echo(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static void on_later(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	w.held = request;
}

static void on_left(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	w.left_ns = tern_rpc_request_time_left(request);
	tern_rpc_reply(request, TERN_OK, NULL, 0);
}

static void turn(void)
{
	(void)tern_ctx_progress(w.server);
	(void)tern_ctx_progress(w.client);
}

static tern_ctx *context(const char *listen)
{
	tern_ctx_params params = {
		.listen = listen, .transports = "shm", .flags = TERN_CTX_NO_HELPER | TERN_CTX_SINGLE_OWNER};
	tern_ctx *ctx;

	ok(tern_ctx_create(&params, &ctx));
	return ctx;
}

static int begin(void **state)
{
	(void)state;
	w.server = context(NULL);
	w.client = context("");
	ok(tern_rpc_serve(w.server, ECHO, on_echo, NULL));
	ok(tern_rpc_serve(w.server, LATER, on_later, NULL));
	ok(tern_rpc_serve(w.server, LEFT, on_left, NULL));
	ok(tern_link_connect(w.client, tern_ctx_address(w.server), NULL, &w.link));
	while (tern_link_get_state(w.link) == TERN_LINK_CONNECTING)
		turn();
	ok(tern_link_status(w.link));
	ok(tern_rpc_open(w.link, &w.rpc));
	return 0;
}

static int end(void **state)
{
	(void)state;
	tern_rpc_close(w.rpc);
	tern_link_release(w.link);
	tern_ctx_destroy(w.client);
	tern_ctx_destroy(w.server);
	return 0;
}

static void call(uint32_t method, uint64_t timeout_ns, tern_op *op)
{
	static uint8_t word[8] = {1}, answer[8];
	tern_rpc_call_params params = {.method = method,
				       .args = word,
				       .args_bytes = sizeof(word),
				       .answer = answer,
				       .answer_capacity = sizeof(answer)};

	tern_op_init(op, NULL, NULL);
	op->timeout_ns = timeout_ns;
	ok(tern_rpc_call(w.rpc, &params, op));
}

static tern_status finish(const tern_op *op)
{
	tern_status status;

	while ((status = tern_op_test(op)) == TERN_AGAIN)
		turn();
	return status;
}

/* A call that its handler keeps: its time runs from then on, not from the first question. */
static void test_kept_call(void **state)
{
	tern_op op, other;

	(void)state;
	call(LATER, TIMEOUT_NS, &op);
	while (!w.held)
		turn();
	tn_sleep_ns(100 * TN_NS_PER_MS); /* tn_ctx_soon is up to TN_SOON_NS ahead */
	assert_true(tern_rpc_request_time_left(w.held) < TIMEOUT_NS);
	for (unsigned i = 0; i < TN_RPC_WINDOW / 2; i++) {
		call(ECHO, TIMEOUT_NS, &other);
		ok(finish(&other));
	}
	tern_rpc_reply(w.held, TERN_OK, NULL, 0);
	w.held = NULL;
	ok(finish(&op));
}

static void test_time_left_in_handler(void **state)
{
	static const uint64_t timeouts[] = {TN_NS_PER_SEC / 2, TIMEOUT_NS};
	tern_op op;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		call(LEFT, timeouts[i], &op);
		ok(finish(&op));
		assert_true(w.left_ns > 0 && w.left_ns <= timeouts[i] + TN_SOON_NS);
	}
}

/* The client's own clock, read behind the post: nobody answers, and the call ends. */
static void test_deadline(void **state)
{
	tern_op op;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		uint64_t begin_ns = tn_now();

		call(LATER, i == 0 ? 20 * TN_NS_PER_MS : 1100 * TN_NS_PER_MS, &op);
		assert_int_equal(finish(&op), TERN_E_DEADLINE);
		assert_true(tn_now() - begin_ns >= (i == 0 ? 20 : 1100) * TN_NS_PER_MS);
		while (!w.held)
			turn();
		tern_rpc_reply(w.held, TERN_OK, NULL, 0);
		w.held = NULL;
	}
}

/* Arguments and answers that lie beside their messages leave without an operation too, up to a size. */
static void test_long_ones(void **state)
{
	static const uint64_t sizes[] = {TN_RPC_INLINE_BYTES, TN_RPC_INLINE_BYTES + 1, TN_RPC_NOW_BYTES,
					 TN_RPC_NOW_BYTES + 1, 40000};
	static uint8_t args[40000], answer[40000];

	(void)state;
	for (unsigned i = 0; i < 5 * 20; i++) {
		uint64_t bytes = sizes[i % 5];
		tern_rpc_call_params params = {.method = ECHO,
					       .args = args,
					       .args_bytes = bytes,
					       .answer = answer,
					       .answer_capacity = bytes};
		tern_op op;

		memset(args, (int)i + 1, bytes);
		tern_op_init(&op, NULL, NULL);
		ok(tern_rpc_call(w.rpc, &params, &op));
		memset(args, 0, bytes);
		ok(finish(&op));
		assert_int_equal(op.length, bytes);
		memset(args, (int)i + 1, bytes);
		assert_memory_equal(answer, args, bytes);
	}
}

/* The mark that a request carries is heeded, though only when its handler has run. */
static void test_window_moves(void **state)
{
	tn_rpc_server *server = tn_rpc_server_get(w.server);
	rpc_record *record;
	unsigned kept = 0;
	tern_op op;

	(void)state;
	for (unsigned i = 0; i < 3 * TN_RPC_WINDOW; i++) {
		call(ECHO, TIMEOUT_NS, &op);
		ok(finish(&op));
	}
	record = TN_LIST_FIRST(&server->records, rpc_record, node);
	for (unsigned i = 0; i < TN_RPC_WINDOW; i++)
		kept += record->window[i] != NULL;
	assert_int_equal(kept, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kept_call),    cmocka_unit_test(test_time_left_in_handler),
		cmocka_unit_test(test_deadline),     cmocka_unit_test(test_long_ones),
		cmocka_unit_test(test_window_moves),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
