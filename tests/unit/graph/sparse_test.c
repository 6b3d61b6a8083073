/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse variables: which ones become tables, what the plan says of them, and PullRows and PushRows over a store of this
 * test that applies SGD in a thread of its own, late.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "cmocka_all.h"
#include "graph/exec.h"

enum { BATCH = 3, TIME = 4, STEPS = 4, SHARDS = 3 };
static const float rate = 0.5f;

/* ---- plans ---- */

static tern_graph *model(const char *name)
{
	tern_graph *g;

	assert_ok(tern_graph_model(name, &(tern_model_params){.seed = 3, .steps = TIME}, &g));
	return g;
}

static tern_value tensor(const tern_graph *g, const char *name)
{
	uint32_t node = tn_graph_find(g, name);

	assert_true(node != TN_NONE);
	return g->nodes[node].out[0];
}

static tern_plan *plan_of(const tern_graph *g, uint32_t servers, uint64_t sparse_bytes)
{
	tern_plan_params params = {.servers = servers,
				   .workers = servers ? 2 : 1,
				   .sync = 1,
				   .sparse_bytes = sparse_bytes,
				   .dims = {{.name = "batch", .size = BATCH}},
				   .optimizer = {.lr = rate}};
	tern_plan *p;

	assert_ok(tern_plan_create(g, &params, &p));
	return p;
}

static uint32_t count_ops(const tern_plan *p, tn_op op)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < p->n_devices; d++)
		for (uint32_t i = 0; i < p->devices[d].graph->n_nodes; i++)
			n += p->devices[d].graph->nodes[i].op == op;
	return n;
}

static void by_size(void **state)
{
	/* bytes: of charlm's embedding, 256 rows of 64 */
	static const struct {
		const char *model;
		uint32_t servers, tables;
		uint64_t bytes;
	} cases[] = {{"charlm", 2, 0, 0},        {"charlm", 2, 1, 65536}, {"charlm", 2, 0, 65537},
		     {"charlm", 0, 0, 1},        {"seq2seq", 1, 2, 1},    {"mlp", 2, 0, 1},
		     {"convnet_small", 2, 0, 1}, {"transformer", 2, 1, 1}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tern_graph *g = model(cases[i].model);
		tern_plan *p = plan_of(g, cases[i].servers, cases[i].bytes);
		uint32_t workers = cases[i].servers ? 2 : 1;

		assert_int_equal(tn_plan_tables(p), cases[i].tables);
		assert_int_equal(count_ops(p, TN_OP_PULL_ROWS), cases[i].tables * workers);
		assert_int_equal(count_ops(p, TN_OP_PUSH_ROWS), cases[i].tables * workers);
		for (uint32_t e = 0; e < p->n_edges && cases[i].tables; e++)
			assert_null(strstr(p->edges[e].name, "embedding"));
		for (uint32_t t = 0; t < cases[i].tables; t++) {
			assert_int_equal(tn_plan_rows(p, &p->devices[cases[i].servers], t), BATCH * TIME);
			assert_int_equal(tn_plan_rows(p, &p->devices[0], t), 0);
		}
		tern_plan_destroy(p);
		tern_graph_destroy(g);
	}
}

static void said_in_the_plan(void **state)
{
	tern_graph *g = model("charlm");
	tern_plan *p = plan_of(g, 2, 1);
	char *text = tern_plan_text(p), *json = tern_plan_json(p);

	(void)state;
	assert_non_null(strstr(text, "0 embedding/table: 256 rows of 64 f32, row r at server r mod 2"));
	assert_non_null(
		strstr(text, "worker1: at most 12 rows pulled and pushed, 3168 bytes each way per step"));
	assert_non_null(strstr(json, "\"tables\""));
	assert_non_null(strstr(json, "\"bytes_pulled\": 3168"));
	tern_graph_text_free(text);
	tern_graph_text_free(json);
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

static void refuses(const tern_graph *g, const tern_plan_params *params, const char *why)
{
	tern_plan *p;

	assert_int_equal(tern_plan_create(g, params, &p), TERN_E_INVALID);
	if (!strstr(tern_detail(), why))
		fail_msg("'%s' does not say '%s'", tern_detail(), why);
}

static void marked(void **state)
{
	tern_plan_params params = {.servers = 1, .workers = 1, .optimizer = {.lr = rate}};
	tern_graph *g = model("charlm");
	tern_plan *p;

	(void)state;
	assert_int_equal(tern_graph_sparse(g, g->n_tensors), TERN_E_NOT_FOUND);
	assert_int_equal(tern_graph_sparse(g, tensor(g, "tokens")), TERN_E_INVALID);
	assert_ok(tern_graph_sparse(g, tensor(g, "embedding/table")));
	assert_ok(tern_graph_sparse(g, tensor(g, "embedding/table"))); /* twice is once */
	p = plan_of(g, 1, 0);
	assert_int_equal(tn_plan_tables(p), 1);
	tern_plan_destroy(p);
	p = plan_of(g, 0, 0); /* in one place anyway */
	assert_int_equal(tn_plan_tables(p), 0);
	tern_plan_destroy(p);
	params.optimizer.clip_norm = 1;
	refuses(g, &params, "gradients are clipped");
	params.optimizer.clip_norm = 0;
	assert_ok(tern_graph_sparse(g, tensor(g, "fc/w")));
	refuses(g, &params, "'fc/w' cannot be sparse: something else than one Gather");
	tern_graph_destroy(g);
}

/* An embedding that two Gathers read stays what it was, unless it is marked. */
static void two_readers(void **state)
{
	tern_plan_params params = {.servers = 1, .workers = 1, .sparse_bytes = 1, .optimizer = {.lr = rate}};
	tern_graph *g;
	tern_value t, a, b, v[2], w, loss;
	tern_shape rows = {.rank = 1, .dims = {4}}, table = {.rank = 2, .dims = {6, 2}};
	tern_plan *p;

	(void)state;
	assert_ok(tern_graph_create("two", &g));
	assert_ok(tern_graph_placeholder(g, "a", TERN_I32, &rows, &a));
	assert_ok(tern_graph_placeholder(g, "b", TERN_I32, &rows, &b));
	assert_ok(tern_graph_variable(g, "t", TERN_F32, &table,
				      &(tern_init){.kind = TERN_INIT_UNIFORM, .value = 1}, &t));
	assert_ok(tern_graph_variable(g, "w", TERN_F32, &(tern_shape){.rank = 1, .dims = {2}},
				      &(tern_init){.kind = TERN_INIT_CONSTANT, .value = 1}, &w));
	assert_ok(tern_graph_node(g, "Gather", "x", (tern_value[]){t, a}, 2, NULL, 0, &v[0], 1));
	assert_ok(tern_graph_node(g, "Gather", "y", (tern_value[]){t, b}, 2, NULL, 0, &v[1], 1));
	assert_ok(tern_graph_node(g, "Add", "sum", v, 2, NULL, 0, &v[0], 1));
	assert_ok(tern_graph_node(g, "Mul", "scaled", (tern_value[]){v[0], w}, 2, NULL, 0, &v[0], 1));
	assert_ok(tern_graph_node(g, "ReduceMean", "loss", v, 1, NULL, 0, &loss, 1));
	assert_ok(tern_graph_output(g, "loss", loss));
	assert_ok(tern_plan_create(g, &params, &p));
	assert_int_equal(tn_plan_tables(p), 0);
	tern_plan_destroy(p);
	assert_ok(tern_graph_sparse(g, t));
	refuses(g, &params, "something else than one Gather");
	tern_graph_destroy(g);
}

/* ---- a store: one worker's, late ---- */

typedef struct store {
	tn_store base;
	float *rows; /* of table 0 */
	uint64_t dim, pulled, pushed;
	uint32_t pushes, lasts;
	tn_xfer *xfer;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	tn_store_op *op;
	bool stop, fails;
} store;

static tern_status store_alloc(tn_store *s, uint64_t bytes, void **ptr)
{
	(void)s;
	*ptr = calloc(bytes, 1);
	return *ptr ? TERN_OK : TERN_E_NOMEM;
}

static void store_free(tn_store *s, void *ptr)
{
	(void)s;
	free(ptr);
}

/* Keys come by shard, then in order, each once. */
static void check_order(const store *s, const tn_store_op *op)
{
	for (uint64_t i = 1; i < op->n; i++) {
		uint64_t a = op->keys[i - 1], b = op->keys[i];

		if (a % s->base.shards > b % s->base.shards ||
		    (a % s->base.shards == b % s->base.shards && a >= b))
			fail_msg("keys %u and %u", (unsigned)a, (unsigned)b);
	}
}

static void store_do(store *s, tn_store_op *op)
{
	check_order(s, op);
	for (uint64_t i = 0; i < op->n; i++) {
		float *row = s->rows + op->keys[i] * s->dim, *theirs = op->rows + i * s->dim;

		for (uint64_t k = 0; k < s->dim; k++) {
			if (op->is_push)
				row[k] -= rate * op->lr_scale * theirs[k];
			else
				theirs[k] = row[k];
		}
	}
	*(op->is_push ? &s->pushed : &s->pulled) += op->n;
	s->pushes += op->is_push;
	s->lasts += op->last;
}

static void *store_main(void *arg)
{
	store *s = arg;

	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		tn_store_op *op = s->op;

		if (!op) {
			pthread_cond_wait(&s->more, &s->lock);
			continue;
		}
		s->op = NULL;
		tn_sleep_ns(300 * TN_NS_PER_US);
		store_do(s, op);
		if (s->fails)
			snprintf(op->detail, sizeof(op->detail), "the disk is full");
		atomic_store(&op->status, s->fails ? TERN_E_IO : TERN_OK);
		s->xfer->ops->wake(s->xfer);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void store_start(tn_store *base, tn_store_op *op)
{
	store *s = (store *)base;

	pthread_mutex_lock(&s->lock);
	assert_null(s->op); /* one table: its pull and push follow each other */
	s->op = op;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
}

static void store_counters(tn_store *s, tn_store_counters *c)
{
	(void)s;
	*c = (tn_store_counters){0};
}

static void store_open(store *s, const tern_plan *p, tn_xfer *xfer)
{
	static const tn_store_ops ops = {"test", store_alloc, store_free, store_start, store_counters, NULL};
	const tern_shape *shape = &p->tables->tensors[0].shape;

	*s = (store){.base = {&ops, SHARDS}, .dim = shape->dims[1], .xfer = xfer};
	s->rows = calloc(shape->dims[0] * shape->dims[1], sizeof(float));
	tn_variable_rows(&p->tables->nodes[0], shape, 0, 10, s->rows); /* in two goes */
	tn_variable_rows(&p->tables->nodes[0], shape, 10, shape->dims[0] - 10, s->rows + 10 * s->dim);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->more, NULL);
	assert_int_equal(pthread_create(&s->thread, NULL, store_main, s), 0);
}

static void store_end(store *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->more);
	free(s->rows);
}

/* ---- training ---- */

typedef struct device {
	tn_xfer *xfer;
	tn_exec *exec;
	tern_status status;
	char detail[512];
} device;

static void *serve(void *arg)
{
	device *d = arg;

	d->status = tn_exec_start(d->exec, TN_TIME_NEVER);
	if (d->status == TERN_OK)
		d->status = tn_exec_run(d->exec, STEPS, TN_TIME_NEVER);
	if (d->status == TERN_OK)
		d->status = tn_exec_drain(d->exec, TN_TIME_NEVER);
	snprintf(d->detail, sizeof(d->detail), "%s", tern_detail());
	return NULL;
}

static tern_plan *one_worker(tern_graph *g, uint64_t sparse_bytes)
{
	tern_plan_params params = {.servers = 1,
				   .workers = 1,
				   .sync = 1,
				   .sparse_bytes = sparse_bytes,
				   .dims = {{.name = "batch", .size = BATCH}},
				   .optimizer = {.lr = rate, .lr_end = 0.1f, .lr_steps = STEPS}};
	tern_plan *p;

	assert_ok(tern_plan_create(g, &params, &p));
	return p;
}

static void feed(tn_exec *e, int32_t (*tokens)[TIME], int32_t (*targets)[TIME])
{
	assert_ok(tn_exec_feed(e, TN_PROG_TRAIN, "tokens", tokens, sizeof(int32_t) * BATCH * TIME));
	assert_ok(tn_exec_feed(e, TN_PROG_TRAIN, "targets", targets, sizeof(int32_t) * BATCH * TIME));
}

static void train(bool sparse, float *loss)
{
	static int32_t tokens[BATCH][TIME] = {{7, 3, 7, 250}, {0, 255, 7, 3}, {9, 8, 7, -6}}; /* -6: 250 */
	static int32_t targets[BATCH][TIME] = {{3, 7, 250, 1}, {255, 7, 3, 2}, {8, 7, 250, 3}};
	tern_graph *g = model("charlm");
	tern_plan *p = one_worker(g, sparse);
	device d[2] = {{0}};
	tn_local_hub *hub;
	pthread_t server;
	tn_fetched f;
	store s;

	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = 2}, &hub));
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(tn_local_open(hub, i, &d[i].xfer));
	if (sparse)
		store_open(&s, p, d[1].xfer);
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(tn_exec_create(
			p, i, d[i].xfer,
			&(tn_exec_params){.batch = BATCH, .store = sparse && i ? &s.base : NULL},
			&d[i].exec));
	assert_int_equal(pthread_create(&server, NULL, serve, &d[0]), 0);
	assert_ok(tn_exec_start(d[1].exec, TN_TIME_NEVER));
	feed(d[1].exec, tokens, targets);
	for (uint32_t i = 0; i < STEPS; i++) {
		assert_ok(tn_exec_step(d[1].exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		assert_ok(tn_exec_fetch(d[1].exec, TN_PROG_TRAIN, "loss", &f));
		memcpy(&loss[i], f.data, sizeof(float));
	}
	assert_ok(tn_exec_drain(d[1].exec, TN_TIME_NEVER));
	pthread_join(server, NULL);
	if (d[0].status != TERN_OK)
		fail_msg("%s", d[0].detail);
	if (sparse)
		store_end(&s); /* it wakes the transfer */
	for (uint32_t i = 0; i < 2; i++) {
		tn_exec_destroy(d[i].exec);
		d[i].xfer->ops->close(d[i].xfer);
	}
	if (sparse) {
		assert_int_equal(s.pulled, STEPS * 7); /* 0 3 7 8 9 250 255 */
		assert_int_equal(s.pushed, STEPS * 7);
		assert_int_equal(s.pushes, STEPS);
		assert_int_equal(s.lasts, STEPS);
	}
	tn_local_hub_destroy(hub);
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

/* Without a group and with one worker even the bits are those of the dense way. */
static void as_dense(void **state)
{
	float dense[STEPS], sparse[STEPS];

	(void)state;
	train(false, dense);
	train(true, sparse);
	assert_true(sparse[STEPS - 1] < sparse[0]);
	assert_memory_equal(dense, sparse, sizeof(dense));
}

/* What a worker alone says of the store, over a transfer that has no peer. */
static void alone(tern_status want, const char *why, int32_t token, bool fails, bool without)
{
	int32_t tokens[BATCH][TIME] = {{token}}, targets[BATCH][TIME] = {{0}};
	tern_graph *g = model("charlm");
	tern_plan *p = one_worker(g, 1);
	tn_exec *e = NULL;
	tn_xfer *xfer;
	tern_status status;
	store s;

	assert_ok(tn_stub_open(NULL, NULL, &xfer));
	store_open(&s, p, xfer);
	s.fails = fails;
	status = tn_exec_create(p, 1, xfer,
				&(tn_exec_params){.batch = BATCH, .store = without ? NULL : &s.base}, &e);
	if (status == TERN_OK) {
		assert_ok(tn_exec_start(e, TN_TIME_NEVER));
		feed(e, tokens, targets);
		status = tn_exec_step(e, TN_PROG_TRAIN, TN_TIME_NEVER);
	}
	assert_int_equal(status, want);
	if (!strstr(tern_detail(), why))
		fail_msg("'%s' does not say '%s'", tern_detail(), why);
	store_end(&s);
	tn_exec_destroy(e);
	xfer->ops->close(xfer);
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

static void failures(void **state)
{
	(void)state;
	alone(TERN_E_INVALID, "index 256 is out of range for a table of 256 rows", 256, false, false);
	alone(TERN_E_INVALID, "index -257 is out of range", -257, false, false);
	alone(TERN_E_IO, "rows of 'embedding/table': the disk is full", 5, true, false);
	alone(TERN_E_INVALID, "needs a store", 5, false, true);
}

static void none_keeps_nothing(void **state)
{
	tn_store_op op = {.n = 0};
	tn_store_counters c;
	tn_store *s;
	void *memory;

	(void)state;
	assert_ok(tn_store_none(&s));
	assert_ok(s->ops->alloc(s, 0, &memory));
	atomic_store(&op.status, TERN_AGAIN);
	assert_int_equal(tn_store_test(&op), TERN_AGAIN);
	s->ops->start(s, &op);
	assert_ok(tn_store_test(&op));
	s->ops->counters(s, &c);
	assert_int_equal(c.bytes_sent, 0);
	s->ops->free(s, memory);
	s->ops->close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_size),
		cmocka_unit_test(said_in_the_plan),
		cmocka_unit_test(marked),
		cmocka_unit_test(two_readers),
		cmocka_unit_test(as_dense),
		cmocka_unit_test(failures),
		cmocka_unit_test(none_keeps_nothing),
	};

	return RUN(tests);
}
