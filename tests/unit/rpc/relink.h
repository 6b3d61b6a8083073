/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client and server whose links die: a server that counts what it executes of each call, so that "at most once" and
 * "nothing is lost" are numbers; and each transport in turn (verbs over a fake NIC).
 *
 * Threads: the tests'; methods run in the server's driver.
 */
#ifndef TERN_TESTS_RPC_RELINK_H
#define TERN_TESTS_RPC_RELINK_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/clock.h"
#include "base/fault.h"
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

/* ---- node b ---- */

static inline uint32_t id_of(const void *args, uint64_t bytes)
{
	uint32_t id = 0;

	if (bytes >= sizeof(id))
		memcpy(&id, args, sizeof(id));
	return id % IDS;
}

static inline void count(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	atomic_fetch_add(&w.executed[id_of(args, bytes)], 1);
	atomic_fetch_add(&w.runs, 1);
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static inline void hold(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
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

static inline void on_filled(tern_op *op, void *arg)
{
	filling *f = arg;

	tern_rpc_reply(f->request, op->status == TERN_OK ? TERN_OK : TERN_E_REMOTE, NULL, 0);
	free(f);
}

static inline void fill(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
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

static inline void placing_put(placing *p)
{
	if (atomic_fetch_sub(&p->left, 1) == 1)
		free(p);
}

static inline void on_placed(tern_op *op, void *arg)
{
	(void)op;
	placing_put(arg);
}

/* As fill, in pieces, and the answer does not wait for them. */
static inline void place(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
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
		status = tn_rpc_request_place(request, 0, at, w.source + at, end - at,
					      (tn_link_placed)(TN_PLACED_APART + (i + bytes) % 3), &p->op[i]);
		if (status != TERN_OK)
			placing_put(p);
	}
	tern_rpc_reply(request, status == TERN_OK ? TERN_OK : TERN_E_REMOTE, NULL, 0);
	placing_put(p);
}

static inline void on_link(tern_link *link, void *arg)
{
	tern_link *old = __atomic_exchange_n(&w.ba, link, __ATOMIC_ACQ_REL);

	(void)arg;
	tern_link_release(old);
}

static inline void create_b(const char *listen, const char *const *options)
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

static inline void start_b(const char *listen, const char *const *options)
{
	create_b(listen, options);
	assert_ok(tern_rpc_serve(w.b, COUNT, count, NULL));
	assert_ok(tern_rpc_serve(w.b, HOLD, hold, NULL));
	assert_ok(tern_rpc_serve(w.b, FILL, fill, NULL));
	assert_ok(tern_rpc_serve(w.b, PLACE, place, NULL));
}

static inline void stop_b(void)
{
	tern_ctx_on_link(w.b, NULL, NULL, NULL);
	tern_link_release(__atomic_exchange_n(&w.ba, NULL, __ATOMIC_ACQ_REL));
	tern_ctx_destroy(w.b);
	w.b = NULL;
}

/* ---- the world ---- */

static const char *const hasty[] = {"link.recover=0", "link.verdict=1ms",
				    NULL}; /* a broken lane ends its link */

static inline void start(const char *const *options_a, const char *const *options_b)
{
	tern_ctx_params params = {.name = "a", .listen = "", .transports = transport, .options = options_a};

	memset(&w, 0, sizeof(w));
	start_b(NULL, options_b);
	assert_ok(tern_ctx_create(&params, &w.a));
	assert_ok(tern_rpc_connect(w.a, tern_ctx_address(w.b), NULL, &w.rpc));
}

static inline void stop(void)
{
	tn_fault_clear();
	tern_rpc_close(w.rpc);
	tern_ctx_destroy(w.a);
	if (w.b)
		stop_b();
}

static inline void nap(void)
{
	tern_ctx_wait(w.a, 1000000);
}

static inline void await_runs(unsigned n)
{
	uint64_t end = tn_now() + WAIT_NS;

	while (atomic_load(&w.runs) < n && tn_now() < end)
		nap();
	assert_int_equal(atomic_load(&w.runs), n);
}

static inline uint64_t counter_of(tern_ctx *ctx, const char *name)
{
	return tern_ctx_counter(ctx, name);
}

static inline void await_counter(tern_ctx *ctx, const char *name, uint64_t at_least)
{
	uint64_t end = tn_now() + WAIT_NS;

	while (counter_of(ctx, name) < at_least && tn_now() < end)
		nap();
	if (counter_of(ctx, name) < at_least)
		fail_msg("%s is %llu", name, (unsigned long long)counter_of(ctx, name));
}

static inline void lose_link(void)
{
	tern_link_close(__atomic_load_n(&w.ba, __ATOMIC_ACQUIRE));
}

typedef struct one {
	tern_op op;
	uint32_t id;
	uint32_t answer;
} one;

static inline tern_status begin(one *o, uint32_t method, uint32_t id, uint32_t flags)
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

static inline tern_status end(one *o)
{
	return tern_op_wait(w.a, &o->op, WAIT_NS);
}

static inline tern_status whole(uint32_t method, uint32_t id, uint32_t flags)
{
	tern_status status;
	one o;

	while ((status = begin(&o, method, id, flags)) == TERN_AGAIN)
		nap();
	return status == TERN_OK ? end(&o) : status;
}

/* ---- each transport ---- */

static const char *const relink_transports[] = {
	"shm",
	"tcp",
	"loop",
#ifdef TN_HAVE_VERBS
	"verbs",
#endif
};

static inline void relink_nic(void)
{
#ifdef TN_HAVE_VERBS
	fake_install_judged();
	fake_reset(NULL, 0);
#endif
}

/* The tests, over each transport or `only`. Returns what failed. */
#define RELINK_RUN(tests, only)                                                    \
	({                                                                         \
		const char *only_ = (only);                                        \
		int failed_ = 0;                                                   \
		relink_nic();                                                      \
		for (unsigned i_ = 0; i_ < TN_COUNT_OF(relink_transports); i_++) { \
			transport = relink_transports[i_];                         \
			if (only_ && strcmp(only_, transport) != 0)                \
				continue;                                          \
			printf("--- %s ---\n", transport);                         \
			failed_ += RUN(tests);                                     \
		}                                                                  \
		failed_;                                                           \
	})

#endif
