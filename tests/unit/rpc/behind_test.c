/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of a call that stay in its caller's memory: they arrive behind those that were built, and the call does not end
 * while they are read, whoever gives it up. Contexts of a single owner: the server reads when the test says so.
 */
#include <string.h>

#include <tern/ctx.h>
#include <tern/rpc.h>

#include "base/check.h"
#include "base/time.h"
#include "cmocka_all.h"
#include "rpc/direct.h"

enum { COMPARE = 1, BUILT = 300, LONG = 8 << 20 /* more than a channel's window */ };

static struct {
	tern_ctx *server, *client;
	tern_link *link;
	tern_rpc *rpc;
	uint64_t want; /* bytes behind */
	unsigned same;
} w;

static uint8_t rows[LONG];

static uint8_t byte_of(uint64_t i)
{
	return (uint8_t)(i * 7 + (i >> 11));
}

static void ok(tern_status status)
{
	assert_int_equal(status, TERN_OK);
}

static void on_compare(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	const uint8_t *got = args;
	bool same = bytes == BUILT + w.want;

	(void)arg;
	for (uint64_t i = 0; same && i < bytes; i++)
		same = got[i] == (i < BUILT ? (uint8_t)i : byte_of(i - BUILT));
	w.same += same;
	tern_rpc_reply(request, TERN_OK, NULL, 0);
}

static tern_ctx *context(const char *listen, const char *transport)
{
	tern_ctx_params params = {.listen = listen,
				  .transports = transport,
				  .flags = TERN_CTX_NO_HELPER | TERN_CTX_SINGLE_OWNER};
	tern_ctx *ctx;

	ok(tern_ctx_create(&params, &ctx));
	return ctx;
}

static void turn(void)
{
	(void)tern_ctx_progress(w.server);
	(void)tern_ctx_progress(w.client);
}

static void begin(const char *transport)
{
	for (uint64_t i = 0; i < LONG; i++)
		rows[i] = byte_of(i);
	w.same = 0;
	w.server = context(NULL, transport);
	w.client = context("", transport);
	ok(tern_rpc_serve(w.server, COMPARE, on_compare, NULL));
	ok(tern_link_connect(w.client, tern_ctx_address(w.server), NULL, &w.link));
	while (tern_link_get_state(w.link) == TERN_LINK_CONNECTING)
		turn();
	ok(tern_link_status(w.link));
	ok(tern_rpc_open(w.link, &w.rpc));
}

static void end(void)
{
	if (w.rpc)
		tern_rpc_close(w.rpc);
	w.rpc = NULL;
	tern_link_release(w.link);
	tern_ctx_destroy(w.client);
	tern_ctx_destroy(w.server);
}

static void call(uint64_t behind, tern_op *op)
{
	tern_rpc_call_params params = {.method = COMPARE, .args_bytes = BUILT};
	uint8_t *built = tn_rpc_args_take(w.rpc, BUILT);

	assert_non_null(built);
	for (unsigned i = 0; i < BUILT; i++)
		built[i] = (uint8_t)i;
	params.args = built;
	w.want = behind;
	tern_op_init(op, NULL, NULL);
	op->timeout_ns = 60 * TN_NS_PER_SEC;
	ok(tn_rpc_call_built(w.rpc, &params, rows, behind, op));
}

static tern_status finish(const tern_op *op)
{
	tern_status status;

	while ((status = tern_op_test(op)) == TERN_AGAIN)
		turn();
	return status;
}

static const char *const transports[] = {"tcp", "shm"};

static void arrive(void **state)
{
	static const uint64_t sizes[] = {1, 5000, 100000, LONG};
	tern_op op;

	(void)state;
	for (unsigned t = 0; t < TN_COUNT_OF(transports); t++) {
		begin(transports[t]);
		for (unsigned i = 0; i < TN_COUNT_OF(sizes); i++) {
			call(sizes[i], &op);
			ok(finish(&op));
		}
		assert_int_equal(w.same, TN_COUNT_OF(sizes));
		end();
	}
}

static void too_long(void **state)
{
	tern_rpc_call_params params = {.method = COMPARE, .args_bytes = BUILT};
	tern_op op;

	(void)state;
	begin("tcp");
	params.args = tn_rpc_args_take(w.rpc, BUILT);
	memset((void *)(uintptr_t)params.args, 0, BUILT);
	tern_op_init(&op, NULL, NULL);
	assert_int_equal(tn_rpc_call_built(w.rpc, &params, rows, TERN_RPC_INLINE_MAX - BUILT + 1ull, &op),
			 TERN_E_TOO_LARGE);
	end();
}

/* The caller's memory is its own again when the call has ended, and not before. */
static void given_up(void **state)
{
	tern_op op;

	(void)state;
	for (unsigned t = 0; t < TN_COUNT_OF(transports); t++) {
		begin(transports[t]);
		call(1, &op);
		ok(finish(&op)); /* there is a channel */
		call(LONG, &op);
		ok(tern_rpc_cancel(w.rpc, &op));
		for (unsigned i = 0; i < 1000; i++) {
			assert_int_equal(tern_op_test(&op), TERN_AGAIN);
			(void)tern_ctx_progress(w.client);
		}
		assert_int_equal(finish(&op), TERN_E_CANCELED);
		memset(rows, 0, sizeof(rows)); /* all of it has left, as it was */
		while (w.same < 2)
			turn();
		end();
	}
}

static void closed(void **state)
{
	tern_op op;

	(void)state;
	for (unsigned t = 0; t < TN_COUNT_OF(transports); t++) {
		begin(transports[t]);
		call(1, &op);
		ok(finish(&op));
		call(LONG, &op);
		tern_rpc_close(w.rpc);
		w.rpc = NULL;
		assert_int_equal(finish(&op), TERN_E_FLUSHED);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arrive),
		cmocka_unit_test(too_long),
		cmocka_unit_test(given_up),
		cmocka_unit_test(closed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
