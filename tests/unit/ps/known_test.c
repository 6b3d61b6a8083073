/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What servers tell of writes that others may not know of yet: a read of rows whose backup has nothing, a push that comes
 * again in other pieces. Over each transport.
 *
 * FIELD-BUGS: BytePS S, acknowledged before applied.
 */
#include "replicas_world.h"

#define KEYS 512

/* Two keys of server 0: the first one's backup is server 1, the second one's is to be server 2. */
static void two_keys(uint64_t keys[2])
{
	unsigned n = 0;

	for (unsigned i = 0; i < KEYS && n < 2; i++) {
		tn_cl_slot *s = &c.map.slot[tn_table_slot(key_of(i))];

		if (s->primary != 0 || (n && tn_table_slot(keys[0]) == tn_table_slot(key_of(i))))
			continue;
		if (n) {
			s->backup = 2;
			s->epoch++;
		}
		keys[n++] = key_of(i);
	}
	assert_int_equal(n, 2);
}

static bool under_way(uint16_t from, uint16_t to)
{
	ps_replicas *r = w.nodes[from].server->replicas;
	bool flying;

	pthread_mutex_lock(&r->streams[to]->lock);
	flying = r->repl.out[to]->flying || r->repl.out[to]->open_waits.count;
	pthread_mutex_unlock(&r->streams[to]->lock);
	return flying;
}

/*
 * A pull that makes one row and reads another, which a push that nobody was told of has written: it waits for that one's
 * backup, though another has the row that it made.
 */
static void what_is_read_is_replicated(void **state)
{
	tern_table_schema s = {.name = "rows", .dim = DIM, .init = {TERN_ROW_UNIFORM, 1, 7}};
	uint64_t keys[2];
	float *rows;
	tern_table *table;
	tern_op pushed, pulled;

	(void)state;
	tern_optimizer_init(&s.optimizer, TERN_OPT_SGD, 1);
	cluster_start(3);
	two_keys(keys);
	assert_success(tern_table_create(w.ps, &s, &table));
	settle(true);
	rows = world_rows(&w, 4 * DIM * 4);
	pthread_mutex_lock(&w.nodes[1].server->replicas->in_lock); /* it takes no frames */
	{
		tern_table_push_params push = {.keys = keys, .count = 1, .rows = rows};
		tern_table_pull_params pull = {.keys = keys, .count = 2, .rows = rows + 2 * DIM};

		tern_op_init(&pushed, NULL, NULL);
		tern_op_init(&pulled, NULL, NULL);
		assert_success(tern_table_push(table, &push, &pushed));
		while (!image_at(0, "rows", keys[0]).there)
			pause_ms(1);
		assert_success(tern_table_pull(table, &pull, &pulled));
		while (!image_at(2, "rows", keys[1]).there || under_way(0, 2))
			pause_ms(1);
		pause_ms(20);
		assert_status(tern_op_test(&pushed), TERN_AGAIN);
		assert_status(tern_op_test(&pulled), TERN_AGAIN);
	}
	pthread_mutex_unlock(&w.nodes[1].server->replicas->in_lock);
	assert_success(tern_op_wait(w.ctx, &pushed, 0));
	assert_success(tern_op_wait(w.ctx, &pulled, 0));
	assert_true(image_at(1, "rows", keys[0]).there);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
	world_stop(&w);
}

/* A piece of push 1 of some client, as tern_table_push would send it. */
typedef struct piece {
	tern_op op;
	uint8_t args[TN_PS_BATCH_BYTES + 2 * 8 + 2 * DIM * 4];
	uint8_t answer[TN_PS_ANSWER_BYTES];
} piece;

static void push_piece(tern_rpc *rpc, piece *p, const uint64_t *keys, uint64_t n)
{
	ps_share *share = tn_ps_share_get(w.nodes[0].server, tn_ps_table_id("rows"));
	float grads[2 * DIM] = {1, 1, 1, 1, 1, 1, 1, 1};
	tn_ps_batch b = {.how = TERN_PUSH_ADD,
			 .flags = TN_PS_INLINE,
			 .dtype = TERN_F32,
			 .table = share->id,
			 .schema = share->hash,
			 .map_version = c.map.version,
			 .count = n,
			 .client = 4711,
			 .seq = 1,
			 .low_water = 1};
	tern_rpc_call_params call = {.method = TN_PS_PUSH,
				     .args = p->args,
				     .args_bytes = TN_PS_BATCH_BYTES + n * (8 + DIM * 4),
				     .answer = p->answer,
				     .answer_capacity = sizeof(p->answer)};

	tn_ps_share_put(share);
	tn_ps_batch_encode(p->args, &b);
	memcpy(p->args + TN_PS_BATCH_BYTES, keys, n * 8);
	memcpy(p->args + TN_PS_BATCH_BYTES + n * 8, grads, n * DIM * 4);
	tern_op_init(&p->op, NULL, NULL);
	assert_success(tern_rpc_call(rpc, &call, &p->op));
}

static tn_ps_answer piece_ends(piece *p, uint8_t flags)
{
	tn_ps_answer a;

	assert_success(tern_op_wait(w.ctx, &p->op, 0));
	assert_true(tn_ps_answer_decode(p->answer, p->op.length, 0, 0, false, &a));
	assert_int_equal(a.flags & (TN_PS_DUPLICATE | TN_PS_RUNNING | TN_PS_WRONG_SERVER), flags);
	return a;
}

/*
 * A key is pushed alone, and nobody is told of it; then, the map having changed, with another one that has a different
 * backup: the second piece tells of both, and the first backup has nothing yet.
 */
static void what_was_known_is_replicated(void **state)
{
	tern_table_schema s = counters("rows", DIM);
	uint64_t keys[2];
	piece alone, both;
	tern_table *table;
	tern_rpc *rpc;

	(void)state;
	cluster_start(3);
	two_keys(keys);
	assert_success(tern_table_create(w.ps, &s, &table));
	settle(true);
	assert_ok(tern_rpc_connect(w.ctx, w.addresses[0], NULL, &rpc));
	pthread_mutex_lock(&w.nodes[1].server->replicas->in_lock); /* it takes no frames */
	push_piece(rpc, &alone, keys, 1);
	while (!image_at(0, "rows", keys[0]).there)
		pause_ms(1);
	push_piece(rpc, &both, keys, 2);
	while (!image_at(2, "rows", keys[1]).there || under_way(0, 2))
		pause_ms(1);
	pause_ms(20);
	assert_status(tern_op_test(&both.op), TERN_AGAIN);
	assert_false(image_at(1, "rows", keys[0]).there);
	pthread_mutex_unlock(&w.nodes[1].server->replicas->in_lock);
	piece_ends(&alone, 0);
	piece_ends(&both, TN_PS_DUPLICATE);
	assert_true(image_at(1, "rows", keys[0]).there);
	tern_rpc_close(rpc);
	tern_table_close(table);
	world_stop(&w);
}

/* A piece is told of a row that is not there; when the push comes again, with more, that is not forgotten. */
static void what_was_refused_is_told_again(void **state)
{
	tern_table_schema s = counters("rows", DIM);
	uint64_t keys[2] = {1000, 0};
	piece alone, both;
	tern_table *table;
	tn_ps_answer a;
	tern_rpc *rpc;

	(void)state;
	s.kind = TERN_TABLE_DENSE;
	s.rows = 16;
	cluster_start(1);
	while (tn_table_slot(keys[1]) == tn_table_slot(keys[0]))
		keys[1]++;
	assert_success(tern_table_create(w.ps, &s, &table));
	assert_ok(tern_rpc_connect(w.ctx, w.addresses[0], NULL, &rpc));
	push_piece(rpc, &alone, keys, 1);
	a = piece_ends(&alone, 0);
	assert_int_equal(a.status, TERN_E_INVALID);
	assert_int_equal(a.applied, 0);
	for (unsigned again = 0; again < 2; again++) { /* in part, as a whole */
		push_piece(rpc, &both, keys, 2);
		a = piece_ends(&both, TN_PS_DUPLICATE);
		assert_int_equal(a.status, TERN_E_INVALID);
		assert_int_equal(a.applied, again ? 0 : 1);
	}
	tern_rpc_close(rpc);
	tern_table_close(table);
	world_stop(&w);
}

int main(int argc, char **argv)
{
	static const char *const options[] = {"ps.replica_patience=20s",
					      NULL}; /* what is held up is not lost */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_read_is_replicated),
		cmocka_unit_test(what_was_known_is_replicated),
		cmocka_unit_test(what_was_refused_is_told_again),
	};

	server_options = options;
	world_transport(argc > 1 ? argv[1] : "shm");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
