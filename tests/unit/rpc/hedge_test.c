/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hedged calls: two servers of which one is slow, or both; the first answer counts, the other copy is cancelled, and
 * the loser's sinks are the caller's only when its server has let go.
 *
 * FIELD-BUGS: pegaflow#403 and ydb-platform/nbs#5729, a buffer is reused and late data corrupts it; mercury#267, an
 * operation completes twice.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/clock.h"
#include "cmocka_all.h"

#define WAIT_NS 20000000000ull
#define BYTES   4096ull

enum { WHO = 1, FAIL = 2 };

typedef struct node {
	tern_ctx *ctx;
	uint32_t number;
	_Atomic bool slow;                /* keeps its calls */
	_Atomic(tern_rpc_request *) kept; /* the latest */
	_Atomic unsigned keeping, ran;
	uint8_t *source;
} node;

static tern_ctx *a;
static node b[2];
static tern_rpc *rpc[2];
static const char *transport;

static void who(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	node *n = arg;

	(void)args, (void)bytes;
	atomic_fetch_add(&n->ran, 1);
	if (atomic_load(&n->slow)) {
		n->kept = request;
		atomic_fetch_add(&n->keeping, 1);
		return;
	}
	tern_rpc_reply(request, TERN_OK, &n->number, sizeof(n->number));
}

static void failing(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	tern_rpc_reply(request, TERN_E_REMOTE, "no", 2);
}

/*
 * Both links are up, so that a copy is at its server once its call was made: without a link it waits, and is
 * cancelled there when the other one wins.
 */
static void warm_up(void)
{
	for (unsigned i = 0; i < 2; i++) {
		tern_rpc_call_params params = {.method = FAIL};

		assert_status(tern_rpc_call_wait(rpc[i], &params, WAIT_NS, NULL), TERN_E_REMOTE);
	}
}

static void start(const char *const *options)
{
	tern_ctx_params pa = {.name = "a", .listen = "", .transports = transport, .options = options};

	memset(b, 0, sizeof(b));
	assert_ok(tern_ctx_create(&pa, &a));
	for (unsigned i = 0; i < 2; i++) {
		tern_ctx_params pb = {.name = i ? "b1" : "b0", .transports = transport};
		void *p;

		b[i].number = 100 + i;
		assert_ok(tern_ctx_create(&pb, &b[i].ctx));
		assert_ok(tern_mem_alloc(tern_ctx_mem(b[i].ctx), BYTES, 0, TERN_ACCESS_NONE, TERN_MEM_HOST,
					 &p));
		memset(p, (int)(0x60 + i), BYTES);
		b[i].source = p;
		assert_ok(tern_rpc_serve(b[i].ctx, WHO, who, &b[i]));
		assert_ok(tern_rpc_serve(b[i].ctx, FAIL, failing, NULL));
		assert_ok(tern_rpc_connect(a, tern_ctx_address(b[i].ctx), NULL, &rpc[i]));
	}
	warm_up();
}

static void stop(void)
{
	for (unsigned i = 0; i < 2; i++)
		tern_rpc_close(rpc[i]);
	tern_ctx_destroy(a);
	for (unsigned i = 0; i < 2; i++)
		tern_ctx_destroy(b[i].ctx);
}

static void await(const _Atomic unsigned *what, unsigned n)
{
	/* By time, not by turns: a wait may end at once. */
	uint64_t end = tn_now() + WAIT_NS;

	while (atomic_load(what) < n && tn_now() < end)
		tern_ctx_wait(a, 1000000);
	assert_int_equal(atomic_load(what), n);
}

static void await_counter(tern_ctx *ctx, const char *name, uint64_t n)
{
	for (int i = 0; i < 20000 && tern_ctx_counter(ctx, name) < n; i++)
		tern_ctx_wait(a, 1000000);
	assert_int_equal(tern_ctx_counter(ctx, name), n);
}

typedef struct hedged {
	tern_op op;
	uint32_t answer;
	int won;
} hedged;

static tern_rpc_call_params params_of(hedged *h, uint32_t method, uint64_t after_ns)
{
	return (tern_rpc_call_params){.method = method,
				      .args = "?",
				      .args_bytes = 1,
				      .answer = &h->answer,
				      .answer_capacity = sizeof(h->answer),
				      .flags = TERN_RPC_IDEMPOTENT,
				      .hedge_ns = after_ns,
				      .hedge_to = rpc[1],
				      .hedge_won = &h->won};
}

static void make(hedged *h, uint32_t method, uint64_t after_ns)
{
	tern_rpc_call_params params = params_of(h, method, after_ns);
	tern_status status;

	memset(h, 0, sizeof(*h));
	tern_op_init(&h->op, NULL, NULL);
	while ((status = tern_rpc_call(rpc[0], &params, &h->op)) == TERN_AGAIN)
		tern_ctx_wait(a, 1000000);
	assert_ok(status);
}

static tern_status outcome(hedged *h)
{
	return tern_op_wait(a, &h->op, WAIT_NS);
}

/* ---- tests ---- */

static void fast_calls_have_one_copy(void **state)
{
	hedged h;

	(void)state;
	start(NULL);
	for (unsigned i = 0; i < 50; i++) {
		make(&h, WHO, 20000000000ull);
		assert_ok(outcome(&h));
		assert_int_equal(h.answer, 100);
		assert_int_equal(h.won, 0);
	}
	make(&h, FAIL, 20000000000ull); /* an error that a handler gives is an answer */
	assert_status(outcome(&h), TERN_E_REMOTE);
	assert_int_equal(tern_ctx_counter(a, "rpc.hedges"), 0);
	assert_int_equal(b[1].ran, 0);
	stop();
}

static void second_copy_wins(void **state)
{
	hedged h;

	(void)state;
	start(NULL);
	b[0].slow = true;
	make(&h, WHO, 1000000);
	assert_ok(outcome(&h));
	assert_int_equal(h.answer, 101);
	assert_int_equal(h.won, 1);
	await(&b[0].keeping, 1);
	await_counter(b[0].ctx, "rpc.cancels", 1); /* the loser is told */
	assert_int_equal(tern_rpc_request_canceled(b[0].kept), 1);
	tern_rpc_reply(b[0].kept, TERN_OK, "late", 4);
	assert_int_equal(h.answer, 101);
	assert_int_equal(tern_ctx_counter(a, "rpc.hedge_wins"), 1);
	stop();
}

static void first_copy_wins_late(void **state)
{
	hedged h;

	(void)state;
	start(NULL);
	b[0].slow = b[1].slow = true;
	make(&h, WHO, 1000000);
	await(&b[0].keeping, 1);
	await(&b[1].keeping, 1);
	assert_status(tern_op_test(&h.op), TERN_AGAIN);
	tern_rpc_reply(b[0].kept, TERN_OK, &b[0].number, 4);
	assert_ok(outcome(&h));
	assert_int_equal(h.answer, 100);
	assert_int_equal(h.won, 0);
	await_counter(b[1].ctx, "rpc.cancels", 1);
	tern_rpc_reply(b[1].kept, TERN_OK, &b[1].number, 4);
	assert_int_equal(h.answer, 100);
	stop();
}

/* The winner's data is there, but the call ends only when the loser can write no more into its sink. */
static void loser_keeps_its_sink(void **state)
{
	tern_rpc_sink sinks[2] = {{.bytes = BYTES}, {.bytes = BYTES}};
	tern_rpc_call_params params;
	uint8_t *memory[2];
	tern_op put;
	hedged h = {.answer = 0};

	(void)state;
	start(NULL);
	for (unsigned i = 0; i < 2; i++) {
		void *p;

		assert_ok(tern_mem_alloc(tern_ctx_mem(a), BYTES, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
		memset(p, 0, BYTES);
		memory[i] = p;
		assert_ok(tern_mem_export(tern_ctx_mem(a), p, BYTES, TERN_ACCESS_WRITE, &sinks[i].key));
	}
	b[0].slow = b[1].slow = true;
	params = params_of(&h, WHO, 1000000);
	params.sinks = &sinks[0];
	params.sink_count = 1;
	params.hedge_sinks = &sinks[1];
	tern_op_init(&h.op, NULL, NULL);
	assert_ok(tern_rpc_call(rpc[0], &params, &h.op));
	await(&b[0].keeping, 1);
	await(&b[1].keeping, 1);
	tern_op_init(&put, NULL, NULL);
	assert_ok(tern_rpc_request_put(b[1].kept, 0, 0, b[1].source, BYTES, &put));
	assert_ok(tern_op_wait(b[1].ctx, &put, WAIT_NS));
	tern_rpc_reply(b[1].kept, TERN_OK, &b[1].number, 4);
	assert_ok(outcome(&h));
	assert_int_equal(h.won, 1);
	for (unsigned i = 0; i < BYTES; i++)
		assert_int_equal(memory[1][i], 0x61);
	/* it has let go: a put that comes later is refused, and what is ours stays */
	assert_int_equal(tern_ctx_counter(b[0].ctx, "rpc.cancels"), 1);
	tern_op_init(&put, NULL, NULL);
	assert_status(tern_rpc_request_put(b[0].kept, 0, 0, b[0].source, BYTES, &put), TERN_E_DEADLINE);
	tern_rpc_reply(b[0].kept, TERN_OK, NULL, 0);
	assert_int_equal(memory[0][0], 0);
	stop();
}

static void deadline_and_cancel_end_both(void **state)
{
	hedged h;
	tern_rpc_call_params params;

	(void)state;
	start(NULL);
	b[0].slow = b[1].slow = true;
	params = params_of(&h, WHO, 1000000);
	memset(&h, 0, sizeof(h));
	tern_op_init(&h.op, NULL, NULL);
	h.op.timeout_ns = 40000000;
	assert_ok(tern_rpc_call(rpc[0], &params, &h.op));
	assert_status(outcome(&h), TERN_E_DEADLINE);
	await(&b[0].keeping, 1);
	tern_rpc_reply(b[0].kept, TERN_OK, NULL, 0);
	if (tern_ctx_counter(a, "rpc.hedges")) {
		await(&b[1].keeping, 1);
		tern_rpc_reply(b[1].kept, TERN_OK, NULL, 0);
	}
	b[0].keeping = b[1].keeping = 0;
	make(&h, WHO, 1000000);
	await(&b[0].keeping, 1);
	await(&b[1].keeping, 1);
	assert_ok(tern_rpc_cancel(rpc[0], &h.op));
	assert_status(outcome(&h), TERN_E_CANCELED);
	for (unsigned i = 0; i < 2; i++)
		tern_rpc_reply(b[i].kept, TERN_OK, NULL, 0);
	stop();
}

/* A copy that waits for its link ends with the call, and is not sent when the link comes. */
static void second_copy_wins_before_a_link(void **state)
{
	char address[128];
	tern_ctx_params pb = {.name = "b0", .transports = transport, .listen = address};
	hedged h;

	(void)state;
	start(NULL);
	snprintf(address, sizeof(address), "%s", tern_ctx_address(b[0].ctx));
	tern_ctx_destroy(b[0].ctx);
	make(&h, WHO, 1000000);
	assert_ok(outcome(&h));
	assert_int_equal(h.answer, 101);
	assert_int_equal(h.won, 1);
	assert_ok(tern_ctx_create(&pb, &b[0].ctx));
	assert_ok(tern_rpc_serve(b[0].ctx, WHO, who, &b[0]));
	make(&h, WHO, 20000000000ull);
	assert_ok(outcome(&h));
	assert_int_equal(h.answer, 100);
	assert_int_equal(tern_ctx_counter(b[0].ctx, "rpc.requests"), 1);
	stop();
}

/* No token: no second copy, however slow the first one is. */
static void budget_bounds_copies(void **state)
{
	static const char *const options[] = {"rpc.retry_budget=2", NULL};
	enum { N = 10 };
	static hedged h[N];
	tern_rpc_request *kept[N];

	(void)state;
	start(options);
	b[0].slow = true;
	for (unsigned i = 0; i < N; i++) {
		make(&h[i], WHO, 50000000);
		await(&b[0].keeping, i + 1);
		kept[i] = b[0].kept;
		if (i < 2)
			assert_ok(outcome(&h[i]));
	}
	tn_sleep_ns(60 * TN_NS_PER_MS);
	for (unsigned i = 0; i < N; i++)
		tern_rpc_reply(kept[i], TERN_OK, &b[0].number, 4);
	for (unsigned i = 2; i < N; i++) {
		assert_ok(outcome(&h[i]));
		assert_int_equal(h[i].answer, 100);
	}
	assert_int_equal(tern_ctx_counter(a, "rpc.hedges"), 2);
	stop();
}

/* Answers, timers and cancels at once: each call ends once, with the answer of a server. */
static void races(void **state)
{
	enum { N = 32, ROUNDS = 60 };
	static const char *const options[] = {"rpc.retry_budget=100000", NULL};
	static hedged h[N];

	(void)state;
	start(options);
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned i = 0; i < N; i++)
			make(&h[i], WHO, i % 4 == 3 ? TERN_RPC_HEDGE_AUTO : 1 + 20000 * (round % 8));
		for (unsigned i = 0; i < N; i++) {
			tern_status status;

			if (i % 8 == 5)
				tern_rpc_cancel(rpc[0], &h[i].op);
			status = outcome(&h[i]);
			assert_true(status == TERN_OK || (i % 8 == 5 && status == TERN_E_CANCELED));
			if (status == TERN_OK)
				assert_int_equal(h[i].answer, h[i].won ? 101 : 100);
		}
	}
	printf("%s: %llu second copies, %llu of them first\n", transport,
	       (unsigned long long)tern_ctx_counter(a, "rpc.hedges"),
	       (unsigned long long)tern_ctx_counter(a, "rpc.hedge_wins"));
	stop();
}

static void misuse(void **state)
{
	tern_rpc_call_params params;
	hedged h;

	(void)state;
	start(NULL);
	params = params_of(&h, WHO, 1);
	params.flags = 0;
	tern_op_init(&h.op, NULL, NULL);
	assert_status(tern_rpc_call(rpc[0], &params, &h.op), TERN_E_INVALID);
	stop();
}

int main(void)
{
	static const char *const transports[] = {"shm", "tcp", "loop"};
	int failed = 0;

	for (unsigned i = 0; i < 3; i++) {
		const struct CMUnitTest tests[] = {
			cmocka_unit_test(fast_calls_have_one_copy),
			cmocka_unit_test(second_copy_wins),
			cmocka_unit_test(first_copy_wins_late),
			cmocka_unit_test(loser_keeps_its_sink),
			cmocka_unit_test(deadline_and_cancel_end_both),
			cmocka_unit_test(second_copy_wins_before_a_link),
			cmocka_unit_test(budget_bounds_copies),
			cmocka_unit_test(races),
			cmocka_unit_test(misuse),
		};

		transport = transports[i];
		printf("--- %s ---\n", transport);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}
