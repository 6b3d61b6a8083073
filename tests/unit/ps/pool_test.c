/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulls whose rows are made from those of the table, over each transport, with one server and with three: sums and means
 * over bags against plain loops, bit by bit; duplicates in bags, empty bags, keys without rows; rows that travel as f32,
 * bf16, f16 and int8 within their documented error; strides, foreign memory, sizes on each side of every limit; maps that
 * change under them; how many bytes travel; no memory.
 *
 * FIELD-BUGS: mxnet#11299 sparse 64 times slower than dense: a batch is one call of the engine, whatever its keys.
 *
 * Argument: the transport.
 */
#include <math.h>

#include "base/fault.h"
#include "ps/table.h"
#include "ps/travel.h"
#include "ps_world.h"
#include "store/rows.h"

#define DIM      13
#define KEYS     700
#define KEYS_MAX 6000
#define BAGS_MAX 3000

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

/* What the table has, and one pull. The last keys have no rows. */
typedef struct model {
	tn_rand rand;
	float row[KEYS + 50][DIM];
	uint64_t key[KEYS + 50];
	uint64_t keys[KEYS_MAX], offsets[BAGS_MAX + 1];
	unsigned which[KEYS_MAX];
	uint64_t count, bags;
	bool turned; /* servers have changed places */
} model;

static model m;

static unsigned owner_of(uint64_t key)
{
	unsigned s = (unsigned)((uint64_t)tn_table_slot(key) * servers / 4096);

	return m.turned ? (s + servers - 1) % servers : s;
}

static tern_table *make_table(void)
{
	tern_table_schema s = counters("pooled", DIM);
	float *rows = world_rows(&w, sizeof(m.row));
	tern_table_push_params push = {.keys = m.key, .count = KEYS, .rows = rows, .mode = TERN_PUSH_ASSIGN};
	tern_table *table;

	memset(&m, 0, sizeof(m));
	m.rand.state = servers;
	for (unsigned k = 0; k < KEYS + 50; k++) {
		m.key[k] = k == 0 ? UINT64_MAX : k * 0x9e3779b97f4a7c15ull;
		for (unsigned i = 0; k < KEYS && i < DIM; i++)
			m.row[k][i] = ((float)tn_rand_below(&m.rand, 2000001) - 1e6f) / 999.0f;
	}
	memcpy(rows, m.row, sizeof(m.row));
	assert_success(tern_table_create(w.ps, &s, &table));
	assert_success(tern_table_push_wait(table, &push, 0));
	tern_mem_free(w.mem, rows);
	return table;
}

static void choose(uint64_t bags, unsigned longest)
{
	m.bags = bags;
	m.count = 0;
	for (uint64_t b = 0; b < bags; b++) {
		uint64_t n = tn_rand_below(&m.rand, longest + 1);

		m.offsets[b] = m.count;
		for (uint64_t i = 0; i < n && m.count < KEYS_MAX; i++, m.count++) {
			bool same = i && tn_rand_below(&m.rand, 5) == 0;

			m.which[m.count] =
				same ? m.which[m.count - 1] : (unsigned)tn_rand_below(&m.rand, KEYS + 50);
			m.keys[m.count] = m.key[m.which[m.count]];
		}
	}
	m.offsets[bags] = m.count;
}

/* What one server has of a bag. */
static unsigned sum_of(uint64_t bag, unsigned server, float *sum)
{
	unsigned n = 0;

	memset(sum, 0, DIM * sizeof(*sum));
	for (uint64_t k = m.offsets[bag]; k < m.offsets[bag + 1]; k++) {
		if (owner_of(m.keys[k]) != server)
			continue;
		n++;
		for (unsigned i = 0; i < DIM; i++)
			sum[i] += m.row[m.which[k]][i];
	}
	return n;
}

static float largest(const float *row)
{
	float most = 0;

	for (unsigned i = 0; i < DIM; i++)
		most = fmaxf(most, fabsf(row[i]));
	return most;
}

/*
 * The row that a pull has to bring, through the way that it travels; *off: by how much an int8 row may differ from
 * it at most.
 */
static void expect(uint64_t bag, tern_pool pool, tern_dtype travel, float *row, float *off)
{
	float n = (float)(m.offsets[bag + 1] - m.offsets[bag]), sum[DIM];
	uint8_t way[DIM * 4];

	*off = 0;
	memset(row, 0, DIM * sizeof(*row));
	for (unsigned s = 0; s < servers; s++) {
		unsigned keys = sum_of(bag, s, sum);

		for (unsigned i = 0; servers == 1 && pool == TERN_POOL_MEAN && n > 0 && i < DIM; i++)
			sum[i] /= n;
		*off += travel == TERN_I8 ? largest(sum) / 254 * 1.0001f : 0;
		if (travel != TERN_I8) {
			tn_ps_travel_pack(way, travel, sum, DIM);
			tn_ps_travel_unpack(sum, way, travel, DIM);
		}
		for (unsigned i = 0; (keys || servers == 1) && i < DIM; i++)
			row[i] = servers == 1 ? sum[i] : row[i] + sum[i];
	}
	for (unsigned i = 0; servers > 1 && pool == TERN_POOL_MEAN && n > 0 && i < DIM; i++)
		row[i] /= n;
	if (servers > 1 && pool == TERN_POOL_MEAN && n > 0)
		*off /= n;
}

static void compare(const uint8_t *rows, uint64_t stride, tern_dtype dtype, tern_pool pool, tern_dtype travel)
{
	uint8_t as[DIM * 4];
	float row[DIM], got[DIM], off;

	for (uint64_t b = 0; b < m.bags; b++) {
		expect(b, pool, travel, row, &off);
		tn_rows_to_f32(got, rows + b * stride, dtype, DIM);
		if (travel != TERN_I8) {
			tn_rows_from_f32(as, dtype, row, DIM);
			assert_memory_equal(as, rows + b * stride, DIM * tern_dtype_bytes(dtype));
			continue;
		}
		for (unsigned i = 0; i < DIM; i++)
			if (fabsf(got[i] - row[i]) >
			    off + (dtype == TERN_F32 ? 0 : fabsf(row[i]) / 100) + 1e-3f)
				fail_msg("bag %llu: %f, expected %f +- %f", (unsigned long long)b,
					 (double)got[i], (double)row[i], (double)off);
	}
}

static void pull_pooled(tern_table *table, uint8_t *memory, tern_dtype dtype, tern_pool pool,
			tern_dtype travel, uint64_t stride)
{
	uint64_t close = DIM * tern_dtype_bytes(dtype), there = 0;
	tern_table_pull_params pull = {.keys = m.keys,
				       .count = m.count,
				       .rows = memory,
				       .stride = stride,
				       .dtype = dtype,
				       .unknown = TERN_UNKNOWN_ZERO,
				       .pool = pool,
				       .offsets = m.offsets,
				       .bags = m.bags,
				       .travel = travel};
	tern_op op;

	for (uint64_t k = 0; k < m.count; k++)
		there += m.which[k] < KEYS;
	tern_op_init(&op, NULL, NULL);
	memset(memory, 0xee, m.bags * (stride ? stride : close) + 1);
	assert_success(tern_table_pull(table, &pull, &op));
	assert_success(tern_op_wait(w.ctx, &op, 0));
	assert_int_equal(op.length, there);
	compare(memory, stride ? stride : close, dtype, pool, travel ? travel : dtype);
	if (!stride)
		assert_int_equal(memory[m.bags * close], 0xee);
}

/* Everything with everything. A bag in pieces travels as it is told, and is of f32 before and after. */
static void against_plain_loops(void **state)
{
	static const tern_dtype types[] = {TERN_F32, TERN_BF16, TERN_F16},
				ways[] = {0, TERN_F32, TERN_BF16, TERN_I8};
	tern_table *table = make_table();
	uint8_t *registered = world_rows(&w, BAGS_MAX * 64 + 64), *foreign = malloc(BAGS_MAX * 64 + 64);

	(void)state;
	for (unsigned round = 0; round < 200; round++) {
		uint64_t bags = round % 11 == 0 ? 0 : tn_rand_below(&m.rand, round % 5 ? 40 : BAGS_MAX);

		choose(bags, round % 3 ? 4 : 30);
		pull_pooled(table, tn_rand_below(&m.rand, 3) ? registered : foreign,
			    types[tn_rand_below(&m.rand, 3)], 1 + tn_rand_below(&m.rand, 2),
			    ways[tn_rand_below(&m.rand, 4)], tn_rand_below(&m.rand, 2) ? 64 : 0);
	}
	tern_table_close(table);
	free(foreign);
	tern_mem_free(w.mem, registered);
}

/* int8 without bags: each number within half a step of its row; NaN and infinity make the row NaN. */
static void rows_of_int8(void **state)
{
	tern_table_schema s = counters("eighth", DIM);
	float *rows = world_rows(&w, KEYS * DIM * 4 + 64);
	uint64_t keys[KEYS + 1];
	uint8_t found[KEYS + 1];
	tern_table_push_params push = {.keys = m.key, .count = KEYS, .rows = rows, .mode = TERN_PUSH_ASSIGN};
	tern_table_pull_params pull = {
		.keys = keys, .rows = rows, .travel = TERN_I8, .found = found, .unknown = TERN_UNKNOWN_ZERO};
	tern_table *table;

	(void)state;
	tern_table_close(make_table());
	assert_success(tern_table_create(w.ps, &s, &table));
	memcpy(rows, m.row, KEYS * sizeof(m.row[0]));
	assert_success(tern_table_push_wait(table, &push, 0));
	for (uint64_t n = 1; n <= KEYS; n = n * 3 + 1) {
		for (uint64_t i = 0; i < n; i++)
			keys[i] = m.key[KEYS - 1 - i];
		keys[n - 1] = 123456789; /* no such row */
		pull.count = n;
		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (uint64_t i = 0; i < n; i++) {
			const float *want = m.row[KEYS - 1 - i], *got = rows + i * DIM;
			float off = largest(want) / 254 * 1.0001f;

			assert_int_equal(found[i], i < n - 1);
			for (unsigned j = 0; j < DIM; j++)
				assert_true(i < n - 1 ? fabsf(got[j] - want[j]) <= off : got[j] == 0);
		}
	}
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

/* Pooled rows alone travel, and int8 rows have a quarter of the bytes and a scale. */
static void fewer_bytes(void **state)
{
	tern_table *table = make_table();
	uint8_t *rows = world_rows(&w, BAGS_MAX * DIM * 4 + 1);
	uint64_t before = 0, after = 0;

	(void)state;
	choose(300, 20);
	for (unsigned i = 0; i < servers; i++)
		before += tern_ctx_counter(w.nodes[i].ctx, "ps.packed_bytes");
	pull_pooled(table, rows, TERN_F32, TERN_POOL_SUM, 0, 0);
	for (unsigned i = 0; i < servers; i++)
		after += tern_ctx_counter(w.nodes[i].ctx, "ps.packed_bytes");
	assert_true(after - before <= 300ull * servers * DIM * 4);
	pull_pooled(table, rows, TERN_F32, TERN_POOL_SUM, TERN_I8, 0);
	before = after;
	after = 0;
	for (unsigned i = 0; i < servers; i++)
		after += tern_ctx_counter(w.nodes[i].ctx, "ps.packed_bytes");
	assert_true(after - before <= 300ull * servers * (DIM + 4));
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

/* Servers change places: who has which key is learned in the middle of it, and bags come in other pieces. */
static void maps_change(void **state)
{
	const char *turned[SERVERS_MAX];
	tern_table *table = make_table();
	uint8_t *rows = world_rows(&w, BAGS_MAX * DIM * 4 + 1);

	(void)state;
	for (unsigned i = 0; i < servers; i++)
		turned[i] = w.addresses[(i + 1) % servers];
	choose(500, 12);
	for (unsigned i = 0; i < servers; i++) {
		tern_ps_server_params params = {.servers = turned,
						.count = servers,
						.index = (i + servers - 1) % servers,
						.map_version = 2};

		assert_success(tern_ps_server_remap(w.nodes[i].server, &params));
	}
	/* rows did not move with the map: nobody has any but where one server has all */
	if (servers > 1)
		memset(m.row, 0, sizeof(m.row));
	{
		tern_table_pull_params pull = {.keys = m.keys,
					       .count = m.count,
					       .rows = rows,
					       .unknown = TERN_UNKNOWN_ZERO,
					       .pool = TERN_POOL_SUM,
					       .offsets = m.offsets,
					       .bags = m.bags};

		assert_success(tern_table_pull_wait(table, &pull, 0));
		compare(rows, DIM * 4, TERN_F32, TERN_POOL_SUM, TERN_F32);
	}
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

static void refused(void **state)
{
	tern_table *table = make_table();
	float *rows = world_rows(&w, 4096);
	uint64_t keys[4] = {1, 2, 3, 4}, offsets[4] = {0, 1, 3, 4};
	uint8_t found[4];
	tern_table_pull_params good = {.keys = keys,
				       .count = 4,
				       .rows = rows,
				       .pool = TERN_POOL_SUM,
				       .offsets = offsets,
				       .bags = 3},
			       pull = good;

	(void)state;
	assert_success(tern_table_pull_wait(table, &pull, 0));
	pull.pool = 3;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	pull = good;
	pull.found = found;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	pull = good;
	pull.offsets = NULL;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	pull = good;
	pull.count = 3; /* the last offset is 4 */
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	pull = good;
	offsets[1] = 4;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	offsets[1] = 1;
	pull.travel = TERN_U8;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_UNSUPPORTED);
	pull = good;
	pull.unknown = TERN_UNKNOWN_ERROR;
	keys[2] = 999999;
	assert_status(tern_table_pull_wait(table, &pull, 0), TERN_E_NOT_FOUND);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
}

/* No memory at any place, at either side: an error or the right rows. */
static void no_memory(void **state)
{
	static const char *const places[] = {"ps.bench.alloc", "ps.part.buffer", "ps.pack.alloc",
					     "ps.part.alloc"};
	uint8_t *rows;

	(void)state;
	for (unsigned p = 0; p < 4; p++) {
		for (unsigned nth = 1; nth <= 4; nth++) {
			tern_table *table;
			tern_status status;
			tern_table_pull_params pull = {.keys = m.keys,
						       .offsets = m.offsets,
						       .unknown = TERN_UNKNOWN_ZERO,
						       .pool = TERN_POOL_MEAN,
						       .travel = nth % 2 ? TERN_I8 : 0};

			teardown(NULL);
			setup(NULL);
			table = make_table();
			rows = world_rows(&w, BAGS_MAX * DIM * 4 + 1);
			choose(900, 6);
			pull.rows = rows;
			pull.count = m.count;
			pull.bags = m.bags;
			assert_ok(tn_fault_set(places[p], nth, 1));
			status = tern_table_pull_wait(table, &pull, 0);
			tn_fault_clear();
			if (status == TERN_OK)
				compare(rows, DIM * 4, TERN_F32, pull.pool,
					pull.travel ? pull.travel : TERN_F32);
			else
				assert_status(status, TERN_E_NOMEM);
			tern_table_close(table);
			tern_mem_free(w.mem, rows);
		}
	}
}

/*
 * mxnet#11299: sparse was slow because it went key by key. Here a pull of any number of keys is one message to each server,
 * and one batch there, and so is a push; and rows of many sparse keys come out of a batch as those of neighbours do.
 */
static void sparse_is_a_batched_path(void **state)
{
	tern_table *table = make_table();
	float *rows = world_rows(&w, KEYS * DIM * 4);
	tern_table_pull_params pull = {.keys = m.key, .count = KEYS, .rows = rows};
	tern_table_push_params push = {.keys = m.key, .count = KEYS, .rows = rows};
	uint64_t before = 0, after = 0, requests = 0;

	(void)state;
	for (unsigned i = 0; i < servers; i++) {
		before += tern_ctx_counter(w.nodes[i].ctx, "ps.batches");
		requests += tern_ctx_counter(w.nodes[i].ctx, "rpc.requests");
	}
	assert_success(tern_table_pull_wait(table, &pull, 0));
	for (unsigned k = 0; k < KEYS; k++)
		assert_memory_equal(rows + k * DIM, m.row[k], sizeof(m.row[k]));
	assert_success(tern_table_push_wait(table, &push, 0));
	for (unsigned i = 0; i < servers; i++) {
		after += tern_ctx_counter(w.nodes[i].ctx, "ps.batches");
		requests = tern_ctx_counter(w.nodes[i].ctx, "rpc.requests") - requests;
	}
	assert_true(after - before <=
		    2ull * 2 * servers); /* twice, if a server learns how to reach the rows */
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
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
			CASE(against_plain_loops),
			CASE(rows_of_int8),
			CASE(fewer_bytes),
			CASE(maps_change),
			CASE(refused),
			CASE(no_memory),
			CASE(sparse_is_a_batched_path),
		};

		servers = counts[i];
		printf("--- %s, %u servers ---\n", transport, servers);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}
