/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients with links of their own: calls outlive the links that they were sent over. Links die by lanes that break
 * and are not rebuilt, and by the server closing them; servers restart, and forget. The server counts what it
 * executes for each call, so that "at most once" and "nothing is lost" are numbers.
 *
 * FIELD-BUGS: Mooncake PR#3188 and PR#3755, a restarted peer is refused by the old endpoint; eRPC#41, a session that
 * is made again crashes; Mooncake#3299, a local error starts an endless storm of reconnects; mercury#267 and #308, a
 * call completes twice or never; TF#14489 and #45088, the deadline does not cover connecting; NCCL#1557, a failover
 * must not duplicate.
 *
 * Many calls at once while links die at random: relink_storm_test.c.
 * The program's argument: one transport instead of all.
 */
#include "unit/rpc/relink.h"

/* ---- one call ---- */

static void calls_wait_for_the_link(void **state)
{
	(void)state;
	start(NULL, NULL);
	for (uint32_t id = 1; id <= 100; id++) {
		assert_ok(whole(COUNT, id, 0));
		assert_int_equal(w.executed[id], 1);
	}
	assert_int_equal(counter_of(w.a, "rpc.dials"), 1);
	stop();
}

/* Answered while there was no link: the kept answer comes over the next one. */
static void kept_answer(void **state)
{
	uint32_t word = 4711;
	one o;

	(void)state;
	start(NULL, NULL);
	assert_ok(begin(&o, HOLD, 7, 0));
	await_runs(1);
	lose_link();
	tern_rpc_reply(w.held, TERN_OK, &word, sizeof(word));
	assert_ok(end(&o));
	assert_int_equal(o.answer, 4711);
	assert_int_equal(w.executed[7], 1);
	assert_int_equal(counter_of(w.a, "rpc.replays"), 1);
	stop();
}

/* Still running when it is asked for again: joined, answered once it is done. */
static void running_is_joined(void **state)
{
	uint32_t word = 1234;
	one o;

	(void)state;
	start(NULL, NULL);
	assert_ok(begin(&o, HOLD, 9, 0));
	await_runs(1);
	for (unsigned round = 1; round <= 3; round++) {
		lose_link();
		await_counter(w.b, "rpc.duplicates", round);
	}
	tern_rpc_reply(w.held, TERN_OK, &word, sizeof(word));
	assert_ok(end(&o));
	assert_int_equal(o.answer, 1234);
	assert_int_equal(w.executed[9], 1);
	assert_true(counter_of(w.a, "rpc.dials") >= 4);
	stop();
}

/* The sinks of a running call are reached over the new link, and it is its caller's when it ends. */
static void sinks_move_to_the_new_link(void **state)
{
	tern_rpc_sink sink = {.bytes = SINK};
	tern_rpc_call_params call = {.method = HOLD, .sinks = &sink, .sink_count = 1};
	tern_link *before;
	uint8_t *memory;
	tern_op op, put;
	void *p;

	(void)state;
	start(NULL, NULL);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.a), SINK, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memory = p;
	memset(memory, 0, SINK);
	assert_ok(tern_mem_export(tern_ctx_mem(w.a), p, SINK, TERN_ACCESS_WRITE, &sink.key));
	tern_op_init(&op, NULL, NULL);
	assert_ok(tern_rpc_call(w.rpc, &call, &op));
	await_runs(1);
	before = tern_rpc_request_link(w.held);
	lose_link();
	await_counter(w.b, "rpc.duplicates", 1);
	for (int i = 0; i < 30000 && tern_rpc_request_link(w.held) == before; i++)
		nap();
	tern_op_init(&put, NULL, NULL);
	assert_ok(tern_rpc_request_put(w.held, 0, 0, w.source, SINK, &put));
	assert_ok(tern_op_wait(w.b, &put, WAIT_NS));
	tern_rpc_reply(w.held, TERN_OK, NULL, 0);
	assert_ok(tern_op_wait(w.a, &op, WAIT_NS));
	for (unsigned i = 0; i < SINK; i += 97)
		assert_int_equal(memory[i], 0x3c);
	stop();
}

/* ---- forgotten, restarted ---- */

static void forgotten(const char *const *options_b, uint32_t flags, tern_status want, unsigned times)
{
	static const char *const slow[] = {"rpc.redial=300ms", NULL};
	static const uint8_t large[4096];
	one o;

	start(slow, options_b);
	assert_ok(begin(&o, HOLD, 5, flags));
	await_runs(1);
	lose_link();
	tern_rpc_reply(w.held, TERN_OK, large, sizeof(large));
	await_counter(w.b, "rpc.evicted", 1);
	if (times == 2) { /* it comes again */
		await_runs(2);
		tern_rpc_reply(w.held, TERN_OK, &o.id, sizeof(o.id));
	}
	assert_status(end(&o), want);
	assert_int_equal(w.executed[5], times);
	assert_ok(whole(COUNT, 6, 0)); /* new calls are not touched */
	stop();
}

static void too_old_is_indeterminate(void **state)
{
	static const char *const briefly[] = {"rpc.keep=1ms", NULL};

	(void)state;
	forgotten(briefly, 0, TERN_E_INDETERMINATE, 1);
	forgotten(briefly, TERN_RPC_IDEMPOTENT, TERN_OK, 2);
}

static void too_large_is_indeterminate(void **state)
{
	static const char *const little[] = {"rpc.keep_bytes=2KiB", NULL};

	(void)state;
	forgotten(little, 0, TERN_E_INDETERMINATE, 1);
}

/* The server dies with calls in hand and comes back: nothing is executed twice but what may be. */
static void server_restarts(void **state)
{
	char address[64];
	one plain, idem;

	(void)state;
	start(NULL, NULL);
	snprintf(address, sizeof(address), "%s", tern_ctx_address(w.b));
	for (unsigned round = 0; round < 5; round++) {
		tern_rpc_request *first;
		uint32_t id = 10 * round + 1;

		assert_ok(begin(&plain, HOLD, id, 0));
		await_runs(1);
		first = w.held;
		assert_ok(begin(&idem, HOLD, id + 1, TERN_RPC_IDEMPOTENT));
		await_runs(2);
		tern_link_close(w.ba);
		await_counter(w.a, "link.down", round + 1); /* no answer reaches the old link */
		tern_rpc_reply(first, TERN_E_REMOTE, NULL, 0);
		tern_rpc_reply(w.held, TERN_E_REMOTE, NULL, 0);
		stop_b();
		atomic_store(&w.runs, 0);
		start_b(address, NULL);
		await_runs(1); /* the idempotent one */
		assert_int_equal(w.executed[id + 1], 2);
		tern_rpc_reply(w.held, TERN_OK, &idem.id, sizeof(idem.id));
		assert_ok(end(&idem));
		assert_status(end(&plain), TERN_E_INDETERMINATE);
		assert_int_equal(w.executed[id], 1);
		assert_ok(whole(COUNT, id + 2, 0));
		assert_int_equal(w.executed[id + 2], 1);
		atomic_store(&w.runs, 0);
	}
	stop();
}

/*
 * A server that comes again is there before its methods are: what it is asked for again, and what is new, waits for
 * them, and nothing else does.
 */
static void methods_come_late(void **state)
{
	char address[64];
	one idem, fresh;

	(void)state;
	start(NULL, NULL);
	snprintf(address, sizeof(address), "%s", tern_ctx_address(w.b));
	for (unsigned round = 0; round < 3; round++) {
		uint32_t id = 10 * round + 1;

		assert_ok(begin(&idem, HOLD, id, TERN_RPC_IDEMPOTENT));
		await_runs(1);
		tern_link_close(w.ba);
		await_counter(w.a, "link.down", round + 1);
		tern_rpc_reply(w.held, TERN_E_REMOTE, NULL, 0);
		stop_b();
		atomic_store(&w.runs, 0);
		create_b(address, NULL);
		assert_ok(begin(&fresh, COUNT, id + 1, 0));
		await_counter(w.b, "link.up", 1);
		if (round)
			await_counter(w.b, "rpc.early", 2);
		assert_ok(tern_rpc_serve(w.b, FILL, fill, NULL));
		await_counter(w.b, "rpc.early", 2);
		assert_ok(tern_rpc_serve(w.b, COUNT, count, NULL));
		assert_ok(end(&fresh));
		assert_ok(tern_rpc_serve(w.b, HOLD, hold, NULL));
		await_runs(2);
		tern_rpc_reply(w.held, TERN_OK, &idem.id, sizeof(idem.id));
		assert_ok(end(&idem));
		assert_int_equal(w.executed[id], 2);
		assert_int_equal(w.executed[id + 1], 1);
		atomic_store(&w.runs, 0);
	}
	stop();
}

/* The time of grace ends: what is not served then is not served. */
static void methods_never_come(void **state)
{
	static const char *const brief[] = {"rpc.serve_grace=20ms", NULL};
	tern_rpc_call_params params = {.method = 99};
	char address[64];

	(void)state;
	start(brief, brief);
	assert_status(tern_rpc_call_wait(w.rpc, &params, WAIT_NS, NULL), TERN_E_NO_METHOD);
	tern_rpc_unserve(w.b, FILL);
	params.method = FILL;
	assert_status(tern_rpc_call_wait(w.rpc, &params, WAIT_NS, NULL), TERN_E_NO_METHOD);
	snprintf(address, sizeof(address), "%s", tern_ctx_address(w.b));
	stop_b();
	await_counter(w.a, "link.down", 1); /* what is sent over the old link may have run */
	create_b(address, NULL);            /* it is new, and what it withdrew is forgotten */
	assert_status(tern_rpc_call_wait(w.rpc, &params, WAIT_NS, NULL), TERN_E_NO_METHOD);
	assert_int_equal(counter_of(w.b, "rpc.early"), 1);
	assert_int_equal(counter_of(w.a, "rpc.replays"), 0);
	assert_int_equal(counter_of(w.a, "rpc.indeterminate"), 0);
	stop();
}

/* Without a token left no copy may be executed a second time. */
static void budget_is_spent(void **state)
{
	static const char *const poor[] = {"rpc.retry_budget=0", "rpc.redial=300ms", NULL};
	static const char *const briefly[] = {"rpc.keep=1ms", NULL};
	one o;

	(void)state;
	start(poor, briefly);
	assert_ok(begin(&o, HOLD, 5, TERN_RPC_IDEMPOTENT));
	await_runs(1);
	lose_link();
	tern_rpc_reply(w.held, TERN_OK, NULL, 0);
	assert_status(end(&o), TERN_E_INDETERMINATE);
	assert_int_equal(w.executed[5], 1);
	stop();
}

/* ---- no server ---- */

static void deadline_covers_connecting(void **state)
{
	char address[64];
	one o;

	(void)state;
	start(NULL, NULL);
	assert_ok(whole(COUNT, 1, 0));
	snprintf(address, sizeof(address), "%s", tern_ctx_address(w.b));
	stop_b();
	await_counter(w.a, "link.down", 1); /* what follows has no link, and no server had it */
	tern_op_init(&o.op, NULL, NULL);
	{
		tern_rpc_call_params call = {.method = COUNT, .args = &o.id, .args_bytes = 4};

		o.op.timeout_ns = 30000000;
		assert_ok(tern_rpc_call(w.rpc, &call, &o.op));
		assert_status(end(&o), TERN_E_DEADLINE);
	}
	assert_ok(begin(&o, COUNT, 2, 0));
	start_b(address, NULL);
	assert_ok(end(&o)); /* it waited for the server */
	assert_int_equal(w.executed[2], 1);
	stop();
}

/* A dead server gets a bounded number of tries, calls learn it at once, and one try after the pause succeeds. */
static void breaker_opens_and_closes(void **state)
{
	static const char *const options[] = {"rpc.breaker=4", "rpc.breaker_time=200ms", "rpc.redial=1ms",
					      "rpc.redial_max=4ms", NULL};
	char address[64];
	tern_status status;
	one o;

	(void)state;
	start(options, NULL);
	assert_ok(whole(COUNT, 1, 0));
	snprintf(address, sizeof(address), "%s", tern_ctx_address(w.b));
	stop_b();
	assert_ok(begin(&o, COUNT, 2, 0));
	status = end(&o);
	assert_int_not_equal(status, TERN_OK);
	assert_int_not_equal(status, TERN_E_DEADLINE);
	assert_int_equal(counter_of(w.a, "rpc.breaks"), 1);
	assert_true(counter_of(w.a, "rpc.dials") <= 5);
	for (unsigned i = 0; i < 100; i++) /* while it is open: no dial for any of them */
		begin(&o, COUNT, 3, 0);
	assert_true(counter_of(w.a, "rpc.dials") <= 6);
	start_b(address, NULL);
	while ((status = whole(COUNT, 4, 0)) != TERN_OK)
		nap();
	assert_int_equal(w.executed[4], 1);
	assert_int_equal(w.executed[2], 0);
	stop();
}

static void closing_without_a_link(void **state)
{
	tern_rpc_sink sink = {.bytes = 64};
	tern_rpc_call_params call = {.method = HOLD, .sinks = &sink, .sink_count = 1};
	static const char *const slow[] = {"rpc.redial=1s", NULL};
	tern_op op;
	void *p;
	one o;

	(void)state;
	start(slow, NULL);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.a), 64, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	assert_ok(tern_mem_export(tern_ctx_mem(w.a), p, 64, TERN_ACCESS_WRITE, &sink.key));
	tern_op_init(&op, NULL, NULL);
	assert_ok(tern_rpc_call(w.rpc, &call, &op));
	assert_ok(begin(&o, COUNT, 1, 0));
	await_runs(2);
	lose_link();
	await_counter(w.a, "link.down", 1);
	tern_rpc_close(w.rpc);
	assert_status(tern_op_test(&op), TERN_E_FLUSHED); /* no link: no server can write */
	w.rpc = NULL;
	tern_rpc_reply(w.held, TERN_OK, NULL, 0);
	stop();
}

/* The context ends while calls wait for a link that does not come. */
static void context_ends_first(void **state)
{
	static const char *const slow[] = {"rpc.redial=1s", NULL};
	one o[3];

	(void)state;
	start(slow, NULL);
	assert_ok(whole(COUNT, 1, 0));
	stop_b();
	for (unsigned i = 0; i < 3; i++)
		assert_ok(begin(&o[i], COUNT, i, 0));
	tern_ctx_destroy(w.a);
	for (unsigned i = 0; i < 3; i++)
		assert_status(tern_op_test(&o[i].op), TERN_E_FLUSHED);
	tern_rpc_close(w.rpc);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls_wait_for_the_link),
		cmocka_unit_test(kept_answer),
		cmocka_unit_test(running_is_joined),
		cmocka_unit_test(sinks_move_to_the_new_link),
		cmocka_unit_test(too_old_is_indeterminate),
		cmocka_unit_test(too_large_is_indeterminate),
		cmocka_unit_test(server_restarts),
		cmocka_unit_test(methods_come_late),
		cmocka_unit_test(methods_never_come),
		cmocka_unit_test(budget_is_spent),
		cmocka_unit_test(deadline_covers_connecting),
		cmocka_unit_test(breaker_opens_and_closes),
		cmocka_unit_test(closing_without_a_link),
		cmocka_unit_test(context_ends_first),
	};

	return RELINK_RUN(tests, argc > 1 ? argv[1] : NULL);
}
