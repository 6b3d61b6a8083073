/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients and servers of tables, over each transport, with one server and with three: tables by name; pulls and pushes
 * against a plain array; odd keys, strides, memory; policies for unknown keys; batches that go to a worker; operations
 * in flight, given up, too many; an old map; junk; a server that dies.
 *
 * FIELD-BUGS: ps-lite#185 top keys belong to nobody; bytedance/ps-lite#85 many keys per message; HKV PR#141, mxnet
 * PR#9887 duplicates; torchrec#1008, PR#4443 32-bit counts; xdl#237 reads past a message; HugeCTR#76 unknown keys;
 * torchrec#3673 unsupported widths; TFRA#278 concurrent look-ups share scratch.
 *
 * Argument: the transport.
 */
#include "base/check.h"
#include "ps/wire.h"
#include "ps_world.h"

#define DIM  8
#define KEYS 600

static world w;
static unsigned servers;

static int setup(void **state)
{
	(void)state;
	world_start(&w, servers);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	world_stop(&w);
	return 0;
}

static tern_table *counter_table(uint32_t dim)
{
	tern_table_schema s = counters("counters", dim);
	tern_table *table;

	assert_success(tern_table_create(w.ps, &s, &table));
	return table;
}

/* ---- tables ---- */

static void count_names(const tern_table_schema *schema, void *arg)
{
	unsigned *n = arg;
	char expected[32];

	snprintf(expected, sizeof(expected), "t%03u", (*n)++);
	assert_string_equal(schema->name, expected);
}

static void tables(void **state)
{
	tern_table_schema s = counters("words", 16), other = s, got;
	tern_table *a, *b, *c;
	float *rows = world_rows(&w, 4096);
	uint64_t key = 1;
	tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};
	unsigned n = 0;

	(void)state;
	other.dim = 17;
	assert_status(tern_table_open(w.ps, "words", NULL, &a), TERN_E_NOT_FOUND);
	assert_non_null(strstr(tern_detail(), w.addresses[0])); /* who says so */
	assert_success(tern_table_create(w.ps, &s, &a));
	assert_success(tern_table_create(w.ps, &s, &b)); /* the same again is no fault */
	assert_status(tern_table_create(w.ps, &other, &c), TERN_E_EXISTS);
	assert_status(tern_table_open(w.ps, "words", &other, &c), TERN_E_SHAPE);
	assert_success(tern_table_open(w.ps, "words", &s, &c));
	assert_int_equal(tern_table_get_schema(c)->dim, 16);
	assert_success(tern_table_describe(w.ps, "words", &got));
	assert_int_equal(got.dim, 16);
	assert_success(tern_table_pull_wait(a, &pull, 0));
	assert_success(tern_table_drop(w.ps, "words"));
	assert_status(tern_table_drop(w.ps, "words"), TERN_E_NOT_FOUND);
	assert_status(tern_table_pull_wait(a, &pull, 0), TERN_E_NOT_FOUND);
	tern_table_close(b);
	assert_success(tern_table_create(w.ps, &other, &b));
	assert_status(tern_table_pull_wait(a, &pull, 0), TERN_E_SHAPE); /* an old handle */
	assert_success(tern_table_drop(w.ps, "words"));
	s.dim = TERN_TABLE_DIM_MAX + 1;
	assert_status(tern_table_create(w.ps, &s, &b), TERN_E_INVALID);
	s.dim = 4;
	for (unsigned i = 0; i < 150; i++) { /* more than one answer holds */
		snprintf(s.name, sizeof(s.name), "t%03u", (i * 37) % 150);
		assert_success(tern_table_create(w.ps, &s, &b));
	}
	assert_success(tern_table_list(w.ps, count_names, &n));
	assert_int_equal(n, 150);
	tern_mem_free(w.mem, rows);
}

/* ---- rows ---- */

/* Key number i: 0 and 2^64-1, small ones, random ones. */
static uint64_t key_of(unsigned i)
{
	return i == 0 ? 0 : i == 1 ? UINT64_MAX : i % 2 ? i : i * 0x9e3779b97f4a7c15ull;
}

typedef struct model {
	float row[KEYS][DIM];
	bool there[KEYS];
	tn_rand rand;
	uint64_t keys[4096];
	unsigned which[4096];
	uint8_t found[4096];
} model;

static void choose_keys(model *m, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		m->which[i] = (unsigned)tn_rand_below(&m->rand, KEYS);
		m->keys[i] = key_of(m->which[i]);
	}
}

static void push_some(model *m, tern_table *table, uint8_t *rows, uint64_t n, uint64_t stride)
{
	bool assign = tn_rand_below(&m->rand, 4) == 0;
	tern_table_push_params push = {.keys = m->keys,
				       .count = n,
				       .rows = rows,
				       .stride = stride,
				       .mode = assign ? TERN_PUSH_ASSIGN : TERN_PUSH_GRADIENT};

	choose_keys(m, n);
	for (uint64_t i = 0; i < n; i++) {
		float *g = (float *)(void *)(rows + i * (stride ? stride : DIM * 4));

		for (unsigned j = 0; j < DIM; j++) {
			g[j] = (float)tn_rand_below(&m->rand, 100);
			m->row[m->which[i]][j] = g[j] + (assign ? 0 : m->row[m->which[i]][j]);
		}
		m->there[m->which[i]] = true;
	}
	assert_success(tern_table_push_wait(table, &push, 0));
}

static void pull_some(model *m, tern_table *table, uint8_t *rows, uint64_t n, uint64_t stride)
{
	tern_unknown unknown = tn_rand_below(&m->rand, 2) ? TERN_UNKNOWN_ZERO : TERN_UNKNOWN_DEFAULT;
	tern_table_pull_params pull = {.keys = m->keys,
				       .count = n,
				       .rows = rows,
				       .stride = stride,
				       .unknown = unknown,
				       .found = tn_rand_below(&m->rand, 2) ? m->found : NULL};
	uint64_t there = 0;
	tern_op op;

	choose_keys(m, n);
	memset(m->found, 7, sizeof(m->found));
	tern_op_init(&op, NULL, NULL);
	assert_success(tern_table_pull(table, &pull, &op));
	assert_success(tern_op_wait(w.ctx, &op, 0));
	for (uint64_t i = 0; i < n; i++) {
		const float *r = (const float *)(const void *)(rows + i * (stride ? stride : DIM * 4));

		there += m->there[m->which[i]];
		for (unsigned j = 0; j < DIM; j++)
			if (r[j] != m->row[m->which[i]][j])
				fail_msg("key %u, row %llu: %f, expected %f", m->which[i],
					 (unsigned long long)i, (double)r[j], (double)m->row[m->which[i]][j]);
		if (pull.found)
			assert_int_equal(m->found[i], m->there[m->which[i]]);
	}
	assert_int_equal(op.length, there);
}

/* Random pushes and pulls of the caller's memory, registered or not, close or with a stride. */
static void against_a_model(void **state)
{
	static model m;
	tern_table *table = counter_table(DIM);
	uint8_t *registered = world_rows(&w, 4096 * 48), *foreign = malloc(4096 * 48);

	(void)state;
	memset(&m, 0, sizeof(m));
	m.rand.state = servers;
	for (unsigned round = 0; round < 200; round++) {
		uint64_t n = round % 10 == 0 ? 0 : tn_rand_below(&m.rand, round % 7 == 0 ? 4096 : 100);
		uint64_t stride = tn_rand_below(&m.rand, 2) ? 48 : 0;
		uint8_t *rows = tn_rand_below(&m.rand, 3) ? registered : foreign;

		if (tn_rand_below(&m.rand, 2))
			push_some(&m, table, rows, n, stride);
		else
			pull_some(&m, table, rows, n, stride);
	}
	tern_table_close(table);
	free(foreign);
	tern_mem_free(w.mem, registered);
}

/* Bytes between rows, before the first and after the last stay as they are. */
static void nothing_beside(void **state)
{
	tern_table *table = counter_table(DIM);
	uint8_t *rows = world_rows(&w, 65536);
	uint64_t keys[100];
	tern_table_pull_params pull = {.keys = keys, .count = 100, .rows = rows + 64, .stride = 96};

	(void)state;
	for (unsigned i = 0; i < 100; i++)
		keys[i] = key_of(i);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	for (unsigned i = 0; i < 64 + 100 * 96 + 1000; i++) {
		bool inside = i >= 64 && i < 64 + 100 * 96 && (i - 64) % 96 < DIM * 4;

		assert_int_equal(rows[i], inside ? 0 : 0xee);
	}
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

static void unknown_keys(void **state)
{
	tern_table_schema s = counters("known", 4);
	float *rows = world_rows(&w, 4096);
	uint64_t keys[3] = {5, 6, 7};
	uint8_t found[3];
	tern_table_pull_params pull = {.keys = keys, .count = 3, .rows = rows, .found = found};
	tern_table_stats stats;
	tern_table *table;

	(void)state;
	s.init = (tern_row_init){.kind = TERN_ROW_CONSTANT, .value = 2.5f};
	assert_success(tern_table_create(w.ps, &s, &table));
	pull.unknown = TERN_UNKNOWN_ZERO;
	assert_success(tern_table_pull_wait(table, &pull, 0));
	assert_true(rows[0] == 0 && rows[11] == 0 && found[0] == 0);
	pull.unknown = TERN_UNKNOWN_DEFAULT;
	assert_success(tern_table_pull_wait(table, &pull, 0));
	assert_true(rows[0] == 2.5f && rows[11] == 2.5f && found[2] == 0);
	pull.count = 1;
	pull.unknown = TERN_UNKNOWN_CREATE;
	assert_success(tern_table_pull_wait(table, &pull, 0));
	assert_true(rows[0] == 2.5f);
	pull.count = 3;
	pull.unknown = TERN_UNKNOWN_ERROR;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_NOT_FOUND);
	assert_int_equal(found[0], 1);
	assert_int_equal(found[1], 0);
	assert_true(rows[0] == 2.5f); /* those that are known are there all the same */
	assert_success(tern_table_get_stats(w.ps, "known", &stats));
	assert_int_equal(stats.rows, 1);
	assert_success(tern_table_erase_wait(table, keys, 3, 0));
	assert_success(tern_table_get_stats(w.ps, "known", &stats));
	assert_int_equal(stats.rows, 0);
	pull.unknown = (tern_unknown)9;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

static void refused(void **state)
{
	tern_table *table = counter_table(4);
	float rows[64];
	uint64_t keys[4] = {0};
	tern_table_pull_params pull = {.keys = keys, .count = 1ull << 32, .rows = rows};
	tern_table_push_params push = {.keys = keys, .count = UINT64_MAX, .rows = rows};
	tern_op op = {0};

	(void)state;
	assert_status(tern_table_pull(table, &pull, &op), TERN_E_TOO_LARGE);
	assert_non_null(strstr(tern_detail(), "4294967296"));
	assert_status(tern_table_push(table, &push, &op), TERN_E_TOO_LARGE);
	pull.count = 1;
	pull.stride = 15;
	assert_status(tern_table_pull(table, &pull, &op), TERN_E_SHAPE);
	pull.stride = 18;
	assert_status(tern_table_pull(table, &pull, &op), TERN_E_SHAPE);
	pull.stride = 0;
	pull.dtype = TERN_I64;
	assert_status(tern_table_pull(table, &pull, &op), TERN_E_UNSUPPORTED);
	pull.dtype = 0;
	pull.rows = NULL;
	assert_status(tern_table_pull(table, &pull, &op), TERN_E_INVALID);
	pull.count = 0; /* nothing is ordinary */
	assert_success(tern_table_pull_wait(table, &pull, 0));
	push.count = 0;
	assert_success(tern_table_push_wait(table, &push, 0));
	assert_success(tern_table_erase_wait(table, NULL, 0, 0));
	tern_table_close(table);
}

/* A batch that goes to a worker, with duplicates, into memory that is mapped in pieces. */
static void large(void **state)
{
	enum { N = 60000, D = 32 };
	tern_table *table = counter_table(D);
	float *rows = world_rows(&w, (uint64_t)N * D * 4);
	uint64_t *keys = malloc(N * sizeof(uint64_t)), handed = 0;
	tern_table_push_params push = {.keys = keys, .count = N, .rows = rows};
	tern_table_pull_params pull = {.keys = keys, .count = N, .rows = rows};

	(void)state;
	for (unsigned i = 0; i < N; i++) {
		keys[i] = key_of(i % 50000);
		for (unsigned j = 0; j < D; j++)
			rows[i * D + j] = (float)(i % 50000 + j);
	}
	assert_success(tern_table_push_wait(table, &push, 0));
	memset(rows, 0xff, (uint64_t)N * D * 4);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	for (unsigned i = 0; i < N; i++)
		for (unsigned j = 0; j < D; j++)
			if (rows[i * D + j] != (float)((i % 50000 + j) * (i % 50000 < N - 50000 ? 2 : 1)))
				fail_msg("row %u column %u: %f", i, j, (double)rows[i * D + j]);
	for (unsigned i = 0; i < servers; i++)
		handed += tern_ctx_counter(w.nodes[i].ctx, "ps.handed");
	assert_true(handed > 0);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
	free(keys);
}

/* ---- in flight ---- */

static void many(void **state)
{
	enum { N = 400 };
	static tern_op ops[N];
	static uint64_t keys[N][8];
	tern_table *table = counter_table(DIM);
	float *rows = world_rows(&w, N * 8 * DIM * 4);
	bool full = false;

	(void)state;
	for (unsigned i = 0; i < N * 8 * DIM; i++)
		rows[i] = 1;
	for (unsigned i = 0; i < N; i++) {
		tern_table_push_params push = {.keys = keys[i], .count = 8, .rows = rows + i * 8 * DIM};
		tern_status status;

		for (unsigned j = 0; j < 8; j++)
			keys[i][j] = (i + j) % 16;
		tern_op_init(&ops[i], NULL, NULL);
		while ((status = tern_table_push(table, &push, &ops[i])) == TERN_AGAIN) {
			full = true;
			tern_ctx_wait(w.ctx, 1000000);
		}
		assert_ok(status);
	}
	(void)full;
	for (unsigned i = 0; i < N; i++) {
		assert_success(tern_op_wait(w.ctx, &ops[i], 0));
		assert_int_equal(ops[i].length, 8);
	}
	for (unsigned i = 0; i < 16; i++) {
		uint64_t key = i;
		tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};

		assert_success(tern_table_pull_wait(table, &pull, 0));
		assert_true(rows[0] == N * 8 / 16 && rows[DIM - 1] == N * 8 / 16);
	}
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

static void note_done(tern_op *op, void *arg)
{
	atomic_int *done = arg;

	(void)op;
	atomic_fetch_add(done, 1);
}

/* Given up while they are in flight, and while the client is closed: one completion each, and rows are the caller's. */
static void given_up(void **state)
{
	enum { N = 64 };
	static tern_op ops[N];
	uint64_t keys[256];
	tern_table *table = counter_table(DIM);
	float *rows = world_rows(&w, N * 256 * DIM * 4);
	atomic_int done = 0;

	(void)state;
	for (unsigned i = 0; i < 256; i++)
		keys[i] = key_of(i);
	for (unsigned i = 0; i < N; i++) {
		tern_table_pull_params pull = {.keys = keys, .count = 256, .rows = rows + i * 256 * DIM};

		tern_op_init(&ops[i], note_done, &done);
		assert_ok(tern_table_pull(table, &pull, &ops[i]));
		if (i % 3 == 0)
			(void)tern_table_cancel(table, &ops[i]);
	}
	tern_ps_close(w.ps);
	assert_int_equal(atomic_load(&done), N);
	for (unsigned i = 0; i < N; i++)
		assert_true(ops[i].status == TERN_OK || ops[i].status == TERN_E_CANCELED);
	w.ps = NULL;
	tern_mem_free(w.mem, rows);
}

/* Threads share a client and a table. */
typedef struct sharing {
	pthread_t thread;
	tern_table *table;
	unsigned id;
} sharing;

static void *share(void *arg)
{
	sharing *s = arg;
	float *rows = world_rows(&w, 300 * DIM * 4);
	uint64_t keys[300];

	for (unsigned i = 0; i < 300; i++)
		keys[i] = key_of(i);
	for (unsigned round = 0; round < 30; round++) {
		tern_table_push_params push = {.keys = keys, .count = 300, .rows = rows};
		tern_table_pull_params pull = {.keys = keys, .count = 300, .rows = rows};

		for (unsigned i = 0; i < 300 * DIM; i++)
			rows[i] = 1;
		assert_success(tern_table_push_wait(s->table, &push, 0));
		assert_success(tern_table_pull_wait(s->table, &pull, 0));
		for (unsigned i = 0; i < 300; i++) {
			assert_true(rows[i * DIM] >= (float)round + 1 && rows[i * DIM] <= 4 * 30);
			for (unsigned j = 1; j < DIM; j++) /* no row is torn */
				assert_true(rows[i * DIM + j] == rows[i * DIM]);
		}
	}
	tern_mem_free(w.mem, rows);
	return NULL;
}

static void threads(void **state)
{
	tern_table *table = counter_table(DIM);
	float *rows = world_rows(&w, DIM * 4);
	uint64_t key = key_of(1);
	tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};
	sharing s[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		s[i] = (sharing){.table = table, .id = i};
		assert_int_equal(pthread_create(&s[i].thread, NULL, share, &s[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(s[i].thread, NULL);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	assert_true(rows[0] == 4 * 30);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

/* ---- the map ---- */

/* The servers change places: an old client is told, fetches the map and goes on. */
static void old_map(void **state)
{
	const char *turned[SERVERS_MAX];
	tern_table *table = counter_table(DIM);
	float *rows = world_rows(&w, KEYS * DIM * 4);
	uint64_t keys[KEYS], version, wrong = 0;
	tern_table_pull_params pull = {.keys = keys, .count = KEYS, .rows = rows};
	tern_table_push_params push = {.keys = keys, .count = KEYS, .rows = rows};

	(void)state;
	for (unsigned i = 0; i < servers; i++)
		turned[i] = w.addresses[(i + 1) % servers];
	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	for (unsigned i = 0; i < servers; i++) {
		tern_ps_server_params params = {.servers = turned,
						.count = servers,
						.index = (i + servers - 1) % servers,
						.map_version = 2};

		assert_success(tern_ps_server_remap(w.nodes[i].server, &params));
		assert_status(tern_ps_server_remap(w.nodes[i].server, &params), TERN_E_INVALID);
	}
	for (unsigned i = 0; i < KEYS * DIM; i++)
		rows[i] = 3;
	assert_success(tern_table_push_wait(table, &push, 0));
	memset(rows, 0, KEYS * DIM * 4);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	for (unsigned i = 0; i < KEYS * DIM; i++)
		assert_true(rows[i] == 3);
	for (unsigned i = 0; i < servers; i++)
		wrong += tern_ctx_counter(w.nodes[i].ctx, "ps.wrong_server");
	assert_int_equal(tern_ps_servers(w.ps, &version), servers);
	assert_int_equal(version, servers > 1 ? 2 : 1); /* where one has everything nobody was sent away */
	assert_int_equal(wrong > 0, servers > 1);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

/* ---- junk ---- */

static void send_junk(tern_rpc *rpc, const tern_rpc_sink *sinks, const tn_ps_batch *good)
{
	uint8_t msg[TN_PS_BATCH_BYTES + 400], answer[1000];
	tn_ps_batch head = *good;
	tn_rand rand = {5};

	for (unsigned round = 0; round < 3000; round++) {
		uint64_t bytes = tn_rand_below(&rand, sizeof(msg));
		tern_rpc_call_params call = {.method = TN_PS_MAP + (uint32_t)tn_rand_below(&rand, 12),
					     .args = msg,
					     .args_bytes = bytes,
					     .sinks = sinks,
					     .sink_count = (unsigned)tn_rand_below(&rand, 3),
					     .answer = answer,
					     .answer_capacity = sizeof(answer)};

		if (call.method == TN_PS_DROP)
			continue;
		head.how = (uint8_t)tn_rand_below(&rand, 5);
		head.flags = (uint8_t)tn_rand_below(&rand, 16);
		head.count = tn_rand_below(&rand, 3) ? tn_rand_below(&rand, 30)
						     : UINT64_MAX >> tn_rand_below(&rand, 64);
		head.stride = tn_rand_below(&rand, 3) ? 0 : tn_rand_next(&rand) >> tn_rand_below(&rand, 64);
		head.seq = tn_rand_below(&rand, 10);
		head.client = 77;
		tn_ps_batch_encode(msg, &head);
		for (uint64_t i = TN_PS_BATCH_BYTES; i < sizeof(msg); i++)
			msg[i] = (uint8_t)(tn_rand_below(&rand, 3) ? 0 : tn_rand_next(&rand));
		if (tn_rand_below(&rand, 2) && head.count < 30) /* of a length that might be right */
			call.args_bytes =
				TN_PS_BATCH_BYTES + head.count * (head.flags & TN_PS_PLACES ? 12 : 8);
		if (tn_rand_below(&rand, 4) == 0)
			msg[tn_rand_below(&rand, TN_PS_BATCH_BYTES)] ^= (uint8_t)tn_rand_next(&rand);
		(void)tern_rpc_call_wait(rpc, &call, 0, NULL);
	}
}

/* Batches that lie about themselves, in every way that a byte can: refused in words, and the server goes on. */
static void junk(void **state)
{
	tern_table *table = counter_table(DIM);
	tern_ctx_params params = {.name = "stranger", .listen = "", .transports = transport};
	tern_connect_params connect = {.timeout_ns = 20000000000ull};
	tern_ctx *ctx; /* of its own: two contexts have one link */
	tern_mem *mem;
	tn_ps_batch head = {.dtype = TERN_F32,
			    .table = tn_ps_table_id("counters"),
			    .schema = tn_ps_schema_hash(tern_table_get_schema(table)),
			    .map_version = 1,
			    .count = 10};
	tern_rpc_sink sinks[2] = {0};
	tern_rpc *rpc;
	tern_link *link;
	uint8_t *rows;
	uint64_t key = 9;
	tern_table_pull_params pull = {.keys = &key, .count = 1};
	void *memory;

	(void)state;
	assert_success(tern_ctx_create(&params, &ctx));
	mem = tern_ctx_mem(ctx);
	assert_ok(
		tern_mem_alloc(mem, 65536, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &memory));
	rows = memory;
	memset(rows, 0xee, 65536);
	assert_success(tern_link_connect(ctx, w.addresses[0], &connect, &link));
	assert_success(tern_link_wait(link, 20000000000ull));
	assert_success(tern_rpc_open(link, &rpc));
	assert_success(tern_mem_export(mem, rows, 320, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &sinks[0].key));
	sinks[0].bytes = 320;
	send_junk(rpc, sinks, &head);
	for (unsigned i = 320; i < 65536; i++)
		assert_int_equal(rows[i], 0xee); /* nothing was written past the sink */
	tern_rpc_close(rpc);
	tern_link_release(link);
	tern_ctx_destroy(ctx);
	pull.rows = world_rows(&w, DIM * 4);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	tern_table_close(table);
	tern_mem_free(w.mem, pull.rows);
}

/* ---- the end of a server ---- */

static void server_dies(void **state)
{
	tern_table *table = counter_table(DIM);
	float *rows = world_rows(&w, KEYS * DIM * 4);
	uint64_t keys[KEYS];
	tern_table_pull_params pull = {.keys = keys, .count = KEYS, .rows = rows};
	unsigned victim = servers - 1;
	char address[128];
	tern_status status;

	(void)state;
	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	assert_success(tern_table_pull_wait(table, &pull, 0));
	snprintf(address, sizeof(address), "%s", w.addresses[victim]);
	node_stop(&w, victim);
	status = tern_table_pull_wait(table, &pull, 300000000);
	assert_int_not_equal(status, TERN_OK);
	if (!strstr(tern_detail(), address))
		fail_msg("the text does not name %s: %s", address, tern_detail());
	w.addresses[victim] = address;
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

static void one_per_context(void **state)
{
	tern_ps_server_params params = {.budget_bytes = 1};
	tern_ps_server *second;

	(void)state;
	assert_status(tern_ps_server_open(w.nodes[0].ctx, &params, &second), TERN_E_EXISTS);
	assert_status(tern_ps_server_open(w.ctx, &params, &second), TERN_E_STATE); /* it does not listen */
	params.count = 3;
	assert_status(tern_ps_server_open(w.nodes[0].ctx, &params, &second), TERN_E_INVALID);
}

int main(int argc, char **argv)
{
	static const unsigned counts[] = {1, 3};
	int failed = 0;

	world_transport(argc > 1 ? argv[1] : "shm");
	for (unsigned i = 0; i < 2; i++) {
#define CASE(f)                              \
	{                                    \
#f, f, setup, teardown, NULL \
	}
		const struct CMUnitTest tests[] = {
			CASE(tables),
			CASE(against_a_model),
			CASE(nothing_beside),
			CASE(unknown_keys),
			CASE(refused),
			CASE(large),
			CASE(many),
			CASE(given_up),
			CASE(threads),
			CASE(old_map),
			CASE(junk),
			CASE(server_dies),
			CASE(one_per_context),
		};

		servers = counts[i];
		printf("--- %s, %u servers ---\n", transport, servers);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}
