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
 * The program's arguments: so many kills in the storm (30 without one); one transport instead of all (verbs is over a
 * fake NIC).
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/fault.h"
#include "base/rand.h"
#include "channel/ctx_slots.h"
#include "cmocka_all.h"
#include "rpc/direct.h"
#include "rpc/rpc.h"
#ifdef TN_HAVE_VERBS
#include "fake_ibverbs/fake.h"
#endif

#define WAIT_NS  30000000000ull
#define IDS      65536
#define SINK     65536ull
#define ONCE_MAX 64

enum { COUNT = 1, HOLD = 2, FILL = 3, PLACE = 4 };

typedef struct world {
	tern_ctx *a, *b;
	tern_link *ba; /* the latest of b's ends */
	tern_rpc *rpc;
	_Atomic(tern_rpc_request *) held; /* the latest of HOLD */
	uint8_t *source;
	_Atomic unsigned executed[IDS]; /* by id of the call */
	_Atomic unsigned runs;
} world;

static world w;
static const char *transport;
static unsigned kills = 30;

/* ---- node b ---- */

static uint32_t id_of(const void *args, uint64_t bytes)
{
	uint32_t id = 0;

	if (bytes >= sizeof(id))
		memcpy(&id, args, sizeof(id));
	return id % IDS;
}

static void count(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	atomic_fetch_add(&w.executed[id_of(args, bytes)], 1);
	atomic_fetch_add(&w.runs, 1);
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static void hold(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	atomic_fetch_add(&w.executed[id_of(args, bytes)], 1);
	atomic_store(&w.held, request);
	atomic_fetch_add(&w.runs, 1);
}

typedef struct filling {
	tern_op op;
	tern_rpc_request *request;
} filling;

static void on_filled(tern_op *op, void *arg)
{
	filling *f = arg;

	tern_rpc_reply(f->request, op->status == TERN_OK ? TERN_OK : TERN_E_REMOTE, NULL, 0);
	free(f);
}

static void fill(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	filling *f = malloc(sizeof(*f));
	tern_status status;

	(void)arg;
	atomic_fetch_add(&w.executed[id_of(args, bytes)], 1);
	f->request = request;
	tern_op_init(&f->op, on_filled, f);
	status = tern_rpc_request_put(request, 0, 0, w.source, tern_rpc_request_sink(request, 0)->bytes,
				      &f->op);
	if (status == TERN_OK)
		return;
	tern_rpc_reply(request, TERN_E_REMOTE, NULL, 0);
	free(f);
}

enum { PIECES = 3 };

typedef struct placing {
	tern_op op[PIECES];
	_Atomic unsigned left;
} placing;

static void placing_put(placing *p)
{
	if (atomic_fetch_sub(&p->left, 1) == 1)
		free(p);
}

static void on_placed(tern_op *op, void *arg)
{
	(void)op;
	placing_put(arg);
}

/* As fill, in pieces, and the answer does not wait for them. */
static void place(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	placing *p = calloc(1, sizeof(*p));
	tern_status status = TERN_OK;

	(void)arg;
	atomic_fetch_add(&w.executed[id_of(args, bytes)], 1);
	atomic_init(&p->left, 1);
	for (unsigned i = 0; i < PIECES && status == TERN_OK; i++) {
		uint64_t at = i * SINK / PIECES, end = (i + 1) * SINK / PIECES;

		tern_op_init(&p->op[i], on_placed, p);
		atomic_fetch_add(&p->left, 1);
		/* each way that they go, beside each other */
		status =
			tn_rpc_request_place(request, 0, at, w.source + at, end - at,
					     (tn_op_placed)(TN_OP_PLACED_APART + (i + bytes) % 3), &p->op[i]);
		if (status != TERN_OK)
			placing_put(p);
	}
	tern_rpc_reply(request, status == TERN_OK ? TERN_OK : TERN_E_REMOTE, NULL, 0);
	placing_put(p);
}

static void on_link(tern_link *link, void *arg)
{
	tern_link *old = __atomic_exchange_n(&w.ba, link, __ATOMIC_ACQ_REL);

	(void)arg;
	tern_link_release(old);
}

static void create_b(const char *listen, const char *const *options)
{
	tern_ctx_params params = {.name = "b", .listen = listen, .transports = transport, .options = options};
	void *p;

	if (tern_ctx_create(&params, &w.b) != TERN_OK)
		fail_msg("b: %s", tern_detail());
	tern_ctx_on_link(w.b, on_link, NULL, NULL);
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.b), SINK, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &p));
	w.source = p;
	memset(p, 0x3c, SINK);
}

static void start_b(const char *listen, const char *const *options)
{
	create_b(listen, options);
	assert_ok(tern_rpc_serve(w.b, COUNT, count, NULL));
	assert_ok(tern_rpc_serve(w.b, HOLD, hold, NULL));
	assert_ok(tern_rpc_serve(w.b, FILL, fill, NULL));
	assert_ok(tern_rpc_serve(w.b, PLACE, place, NULL));
}

static void stop_b(void)
{
	tern_ctx_on_link(w.b, NULL, NULL, NULL);
	tern_link_release(__atomic_exchange_n(&w.ba, NULL, __ATOMIC_ACQ_REL));
	tern_ctx_destroy(w.b);
	w.b = NULL;
}

/* ---- the world ---- */

static const char *const hasty[] = {"link.recover=0", "link.verdict=1ms",
				    NULL}; /* a broken lane ends its link */

static void start(const char *const *options_a, const char *const *options_b)
{
	tern_ctx_params params = {.name = "a", .listen = "", .transports = transport, .options = options_a};

	memset(&w, 0, sizeof(w));
	start_b(NULL, options_b);
	assert_ok(tern_ctx_create(&params, &w.a));
	assert_ok(tern_rpc_connect(w.a, tern_ctx_address(w.b), NULL, &w.rpc));
}

static void stop(void)
{
	tn_fault_clear();
	tern_rpc_close(w.rpc);
	tern_ctx_destroy(w.a);
	if (w.b)
		stop_b();
}

static void nap(void)
{
	tern_ctx_wait(w.a, 1000000);
}

static void await_runs(unsigned n)
{
	for (int i = 0; i < 30000 && atomic_load(&w.runs) < n; i++)
		nap();
	assert_int_equal(atomic_load(&w.runs), n);
}

static uint64_t counter_of(tern_ctx *ctx, const char *name)
{
	return tern_ctx_counter(ctx, name);
}

static void await_counter(tern_ctx *ctx, const char *name, uint64_t at_least)
{
	for (int i = 0; i < 30000 && counter_of(ctx, name) < at_least; i++)
		nap();
	if (counter_of(ctx, name) < at_least)
		fail_msg("%s is %llu", name, (unsigned long long)counter_of(ctx, name));
}

static void lose_link(void)
{
	tern_link_close(__atomic_load_n(&w.ba, __ATOMIC_ACQUIRE));
}

typedef struct one {
	tern_op op;
	uint32_t id;
	uint32_t answer;
} one;

static tern_status begin(one *o, uint32_t method, uint32_t id, uint32_t flags)
{
	tern_rpc_call_params call = {.method = method,
				     .args = &o->id,
				     .args_bytes = sizeof(o->id),
				     .answer = &o->answer,
				     .answer_capacity = sizeof(o->answer),
				     .flags = flags};

	o->id = id;
	o->answer = 0;
	tern_op_init(&o->op, NULL, NULL);
	return tern_rpc_call(w.rpc, &call, &o->op);
}

static tern_status end(one *o)
{
	return tern_op_wait(w.a, &o->op, WAIT_NS);
}

static tern_status whole(uint32_t method, uint32_t id, uint32_t flags)
{
	tern_status status;
	one o;

	while ((status = begin(&o, method, id, flags)) == TERN_AGAIN)
		nap();
	return status == TERN_OK ? end(&o) : status;
}

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
	create_b(address, NULL); /* it is new, and what it withdrew is forgotten */
	assert_status(tern_rpc_call_wait(w.rpc, &params, WAIT_NS, NULL), TERN_E_NO_METHOD);
	assert_int_equal(counter_of(w.b, "rpc.early"), 1);
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

/* ---- the storm ---- */

typedef struct stream {
	one o;
	bool flying;
	bool sinks, placed;
	uint8_t *memory;
	tern_rpc_sink sink;
} stream;

static tern_status begin_any(stream *s, uint32_t id, unsigned k)
{
	tern_rpc_call_params call = {.method = s->placed  ? PLACE
					       : s->sinks ? FILL
							  : COUNT,
				     .args = &s->o.id,
				     .args_bytes = sizeof(s->o.id),
				     .answer = &s->o.answer,
				     .answer_capacity = sizeof(s->o.answer),
				     .sinks = &s->sink,
				     .sink_count = s->sinks,
				     .service_class = (tern_rpc_class)(k % 3)};

	s->o.id = id;
	s->o.answer = 0;
	tern_op_init(&s->o.op, NULL, NULL);
	if (s->sinks)
		memset(s->memory, 0, SINK);
	return tern_rpc_call(w.rpc, &call, &s->o.op);
}

static void judge(stream *s)
{
	tern_status status = tern_op_test(&s->o.op);

	/* A put met a dead link: the call was executed, and said so. */
	if ((status == TERN_E_REMOTE && s->sinks) || (status != TERN_OK && s->placed)) {
		assert_int_equal(w.executed[s->o.id], 1);
		memset(s->memory, 0x11, SINK); /* ours again: nothing may come later */
		s->flying = false;
		return;
	}
	if (status != TERN_OK)
		fail_msg("call %u: %s", s->o.id, tern_status_name(status));
	assert_int_equal(w.executed[s->o.id], 1);
	if (!s->sinks)
		assert_int_equal(s->o.answer, s->o.id);
	for (unsigned i = 0; s->sinks && i < SINK; i += 113)
		assert_int_equal(s->memory[i], 0x3c);
	s->flying = false;
}

static void open_sinks(stream *streams, unsigned n)
{
	for (unsigned k = 0; k < n; k++) {
		void *p;

		streams[k].sinks = k % 4 == 3;
		streams[k].placed = k % 8 == 7;
		streams[k].sink.bytes = SINK;
		assert_ok(tern_mem_alloc(tern_ctx_mem(w.a), SINK, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
		streams[k].memory = p;
		assert_ok(
			tern_mem_export(tern_ctx_mem(w.a), p, SINK, TERN_ACCESS_WRITE, &streams[k].sink.key));
	}
}

/* Streams of calls, in all classes, with and without sinks; links die at random moments in several ways. */
static void storm(void **state)
{
	enum { STREAMS = 24 };
	static stream streams[STREAMS];
	tn_rand rng = {.state = 20260101};
	uint64_t done = 0, next_kill = 20;
	uint32_t id = 0;

	(void)state;
	memset(streams, 0, sizeof(streams));
	start(hasty, hasty);
	open_sinks(streams, STREAMS);
	for (unsigned killed = 0; killed < kills || done < next_kill;) {
		bool flying = false;

		for (unsigned k = 0; k < STREAMS; k++) {
			stream *s = &streams[k];

			if (s->flying && tern_op_test(&s->o.op) != TERN_AGAIN) {
				judge(s);
				done++;
			}
			if (!s->flying) {
				tern_status status = begin_any(s, (id + 1) % IDS, k);

				if (status == TERN_AGAIN)
					continue;
				assert_ok(status);
				id = (id + 1) % IDS;
				s->flying = true;
			}
			flying |= s->flying;
		}
		if (flying)
			tern_ctx_wait(w.a, 1000000);
		if (done < next_kill || killed == kills)
			continue;
		killed++;
		next_kill = done + 10 + tn_rand_below(&rng, 90);
		if (id > IDS / 2) { /* ids are used once */
			for (unsigned i = 0; i < IDS; i++)
				if (i < id - 1000)
					atomic_store(&w.executed[i], 0);
		}
		if (tn_rand_below(&rng, 4) == 0)
			lose_link();
		else
			assert_ok(tn_fault_set("channel.lane.break", 1 + tn_rand_below(&rng, 40), 1));
	}
	tn_fault_clear();
	for (unsigned k = 0; k < STREAMS; k++) {
		if (!streams[k].flying)
			continue;
		tern_op_wait(w.a, &streams[k].o.op, WAIT_NS);
		judge(&streams[k]);
	}
	printf("%s: %u kills, %u calls, %llu dials, %llu replays, %llu duplicates\n", transport, kills, id,
	       (unsigned long long)counter_of(w.a, "rpc.dials"),
	       (unsigned long long)counter_of(w.a, "rpc.replays"),
	       (unsigned long long)counter_of(w.b, "rpc.duplicates"));
	assert_int_equal(counter_of(w.b, "rpc.unknown"), 0);
	assert_true(counter_of(w.a, "rpc.dials") > kills / 2);
	stop();
}

int main(int argc, char **argv)
{
	static const char *const transports[] = {
		"shm",
		"tcp",
		"loop",
#ifdef TN_HAVE_VERBS
		"verbs",
#endif
	};
	int failed = 0;

	if (argc > 1)
		kills = (unsigned)atoi(argv[1]);
#ifdef TN_HAVE_VERBS
	fake_install_judged();
	fake_reset(NULL, 0);
#endif
	for (unsigned i = 0; i < TN_COUNT_OF(transports); i++) {
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
			cmocka_unit_test(storm),
		};

		transport = transports[i];
		if (argc > 2 && strcmp(argv[2], transport) != 0)
			continue;
		printf("--- %s ---\n", transport);
		failed += RUN(tests);
	}
	return failed;
}
