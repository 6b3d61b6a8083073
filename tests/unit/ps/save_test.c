/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of ps/save.h and <tern/checkpoint.h>: a cut goes to disk while the table changes and comes back bit for bit on
 * any number of servers. DeepRec#1023: weights and moments of different instants; DeepRec#999: a restored table differs
 * from the live one; pytorch#79016, torchrec#2534: another number of shards can't restore; HugeCTR#395: counts differ.
 */
#include "ps/save.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <tern/checkpoint.h>
#include <unistd.h>

#include "base/map.h"
#include "base/os.h"
#include "base/rand.h"
#include "cmocka_all.h"

#define KEYS 3000
#define DIM  6

static char path[64];

static int make_dir(void **state)
{
	(void)state;
	snprintf(path, sizeof(path), "/tmp/tern-test-save-XXXXXX");
	return mkdtemp(path) == NULL;
}

static int drop_dir(void **state)
{
	char name[96];

	(void)state;
	for (uint64_t s = 1; s < 4; s++) {
		snprintf(name, sizeof(name), "%s/ckpt-%020d", path, (int)s);
		if (tn_dir_remove(AT_FDCWD, name) != TERN_OK)
			return -1;
	}
	return rmdir(path);
}

static tern_table_schema schema_of(tern_row_optimizer optimizer, tern_dtype dtype, uint32_t flags)
{
	tern_table_schema schema = {.name = "items/ads.v1", .dim = DIM, .dtype = dtype, .flags = flags};

	tern_optimizer_init(&schema.optimizer, optimizer, 0.05f);
	schema.init = (tern_row_init){.kind = 2 /* uniform */, .value = 0.5f, .seed = UINT64_MAX};
	return schema;
}

static void push_some(tn_table *table, tn_rand *rand, unsigned batches, uint64_t step)
{
	for (unsigned b = 0; b < batches; b++) {
		uint64_t keys[50];
		float grads[50 * DIM];
		tn_push how = {.step = step};

		for (unsigned i = 0; i < 50; i++)
			keys[i] = tn_rand_below(rand, 8) ? tn_rand_below(rand, KEYS) * 0x9e3779b97f4a7c15ull
							 : UINT64_MAX;
		for (unsigned i = 0; i < 50 * DIM; i++)
			grads[i] = (float)tn_rand_double(rand) - 0.5f;
		assert_ok(tn_table_push(table, keys, grads, 50, &how, NULL));
	}
}

/* ---- images of tables, to compare ---- */

typedef struct image {
	tn_map rows; /* key -> checksum of the whole record */
	uint64_t value_bytes, state_bytes;
} image;

static uint64_t mix(uint64_t sum, const void *data, uint64_t bytes)
{
	const uint8_t *at = data;

	for (uint64_t i = 0; i < bytes; i++)
		sum = tn_hash_u64(sum ^ at[i], i);
	return sum;
}

static tern_status add_to_image(const tn_record *record, void *arg)
{
	image *im = arg;
	uint64_t sum = mix(1, record->value, im->value_bytes);

	if (im->state_bytes)
		sum = mix(sum, record->state, im->state_bytes);
	sum = mix(sum, &record->last_step, sizeof(record->last_step));
	sum = mix(sum, &record->frequency, sizeof(record->frequency));
	assert_null(tn_map_find(&im->rows, record->key));
	return tn_map_put(&im->rows, record->key, sum);
}

static void image_init(image *im, tn_table *table)
{
	im->value_bytes = tn_table_value_bytes(table);
	im->state_bytes = tn_table_state_bytes(table);
	assert_ok(tn_map_init(&im->rows, KEYS, false, 1));
}

static void image_add(image *im, tn_table *table)
{
	uint64_t cursor = 0;

	while (cursor != TN_SCAN_END)
		assert_ok(tn_table_scan(table, 0, TERN_TABLE_SLOTS - 1, &cursor, 100, add_to_image, im));
}

static void assert_same_image(const image *a, const image *b)
{
	uint64_t cursor = 0;
	tn_map_entry entry;

	assert_int_equal(a->rows.count, b->rows.count);
	while (tn_map_next(&a->rows, &cursor, &entry)) {
		const uint64_t *other = tn_map_find(&b->rows, entry.key);

		assert_non_null(other);
		assert_int_equal(*other, entry.value);
	}
}

/* ---- saving ---- */

typedef struct disturb {
	tn_table *table;
	tn_rand rand;
	unsigned calls;
} disturb;

/* The table goes on changing while its cut is written. */
static tern_status push_meanwhile(uint64_t bytes, void *arg)
{
	disturb *d = arg;

	(void)bytes;
	push_some(d->table, &d->rand, 3, 1000 + d->calls++);
	return TERN_OK;
}

static void save(tn_table *table, uint64_t sequence, uint64_t part_bytes, image *as_of_cut)
{
	disturb d = {.table = table, .rand = {77}};
	json_t *tables = json_array();
	tn_save how = {0};
	uint64_t rows;
	tn_ckpt ckpt;
	tn_cut *cut;

	assert_ok(tn_ckpt_begin(&ckpt, path, sequence));
	how = (tn_save){.ckpt = &ckpt, .part_bytes = part_bytes, .pace = push_meanwhile, .pace_arg = &d};
	image_init(as_of_cut, table);
	image_add(as_of_cut, table);
	assert_ok(tn_table_cut(table, &cut));
	push_some(table, &d.rand, 20, 999);
	assert_ok(tn_save_table(&how, table, cut, &rows));
	tn_cut_end(cut);
	assert_int_equal(rows, as_of_cut->rows.count);
	assert_true(d.calls > 0);
	json_array_append_new(tables, tn_save_row(tn_table_schema(table), rows));
	json_object_set_new(ckpt.extra, "tables", tables);
	assert_ok(tn_ckpt_commit(&ckpt));
}

typedef struct shard {
	uint32_t index, count;
} shard;

static bool owns(uint64_t key, void *arg)
{
	const shard *s = arg;

	return tn_table_slot(key) % s->count == s->index;
}

static void restore_equals(const image *wanted, uint64_t sequence, uint32_t servers)
{
	tern_table_schema schema;
	tn_ckpt_reader reader;
	uint64_t sum = 0, rows;
	tn_table *table;
	image got;

	assert_ok(tn_ckpt_open(&reader, path, sequence));
	assert_ok(tn_restore_schema(&reader, "items/ads.v1", &schema));
	for (uint32_t i = 0; i < servers; i++) {
		shard s = {i, servers};

		assert_ok(tn_table_create(&schema, NULL, &table));
		if (i == 0)
			image_init(&got, table);
		assert_ok(tn_restore_table(&reader, table, owns, &s, &rows));
		sum += rows;
		image_add(&got, table);
		tn_table_destroy(table);
	}
	assert_int_equal(sum, wanted->rows.count);
	assert_same_image(wanted, &got);
	tn_map_fini(&got.rows);
	tn_ckpt_close(&reader);
}

static void check_config(tern_row_optimizer optimizer, tern_dtype dtype, uint32_t flags, uint64_t part_bytes)
{
	tern_table_schema schema = schema_of(optimizer, dtype, flags);
	tern_checkpoint *checkpoint;
	tn_rand rand = {optimizer};
	tn_table *table;
	image cut;

	assert_ok(tn_table_create(&schema, NULL, &table));
	push_some(table, &rand, 200, 5);
	save(table, 1, part_bytes, &cut);
	tn_table_destroy(table);
	assert_ok(tern_checkpoint_open(path, TERN_CHECKPOINT_LAST, &checkpoint));
	assert_ok(tern_checkpoint_verify(checkpoint, NULL, NULL));
	tern_checkpoint_close(checkpoint);
	restore_equals(&cut, 1, 1);
	restore_equals(&cut, 1, 3);
	restore_equals(&cut, 1, 7);
	tn_map_fini(&cut.rows);
}

static void a_cut_comes_back_bit_for_bit_on_any_number_of_servers(void **state)
{
	(void)state;
	for (int optimizer = TERN_OPT_NONE; optimizer <= TERN_OPT_RMSPROP; optimizer++) {
		assert_int_equal(make_dir(NULL), 0);
		check_config((tern_row_optimizer)optimizer, optimizer % 2 ? TERN_F32 : TERN_BF16,
			     optimizer % 3 ? 0 : TERN_TABLE_NO_META, optimizer % 2 ? 0 : 20000);
		assert_int_equal(drop_dir(NULL), 0);
	}
}

static void schemas_survive_json(void **state)
{
	tern_table_schema schema = schema_of(TERN_OPT_FTRL, TERN_F16, 0), again;
	json_t *json;

	(void)state;
	schema.optimizer.l1 = 0.1f;
	schema.optimizer.lr = 1e-30f;
	schema.budget_bytes = UINT64_MAX - 5;
	schema.ttl_steps = 12;
	schema.admit_after = 3;
	schema.eviction = TERN_EVICT_LFU;
	schema.nonfinite = TERN_NONFINITE_CLIP;
	json = tn_schema_json(&schema);
	assert_non_null(json);
	assert_ok(tn_schema_parse(json, &again));
	assert_memory_equal(&schema, &again, sizeof(schema));
	json_object_set_new(json, "eviction", json_string("often"));
	assert_status(tn_schema_parse(json, &again), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "eviction"));
	json_object_set_new(json, "eviction", json_string("lru"));
	json_object_set_new(json, "dim", json_integer(9000));
	assert_status(tn_schema_parse(json, &again), TERN_E_CORRUPT);
	json_object_del(json, "dim");
	assert_status(tn_schema_parse(json, &again), TERN_E_CORRUPT);
	assert_status(tn_schema_parse(NULL, &again), TERN_E_CORRUPT);
	json_decref(json);
}

static int count_up(uint64_t sequence, void *arg)
{
	*(uint64_t *)arg += sequence;
	return 0;
}

static int stop_at_once(uint64_t bytes, uint64_t total, void *arg)
{
	(void)arg;
	assert_true(bytes <= total);
	return 1;
}

static void checkpoints_tell_what_is_in_them(void **state)
{
	tern_table_schema schema = schema_of(TERN_OPT_ADAM, TERN_F32, 0);
	tern_checkpoint_table_info table_info;
	tern_checkpoint *checkpoint;
	tern_checkpoint_info info;
	tn_rand rand = {3};
	uint64_t sum = 0;
	tn_table *table;
	image cut;

	(void)state;
	assert_ok(tn_table_create(&schema, NULL, &table));
	push_some(table, &rand, 100, 5);
	save(table, 1, 10000, &cut);
	tn_map_fini(&cut.rows);
	save(table, 3, 10000, &cut);
	assert_ok(tern_checkpoint_list(path, count_up, &sum));
	assert_int_equal(sum, 4);
	assert_ok(tern_checkpoint_open(path, TERN_CHECKPOINT_LAST, &checkpoint));
	tern_checkpoint_get(checkpoint, &info);
	assert_int_equal(info.sequence, 3);
	assert_int_equal(info.tables, 1);
	assert_true(info.files > 0);
	assert_true(info.base == TERN_CHECKPOINT_LAST);
	assert_ok(tern_checkpoint_table(checkpoint, 0, &table_info));
	assert_int_equal(table_info.rows, cut.rows.count);
	assert_int_equal(table_info.files, info.files);
	assert_int_equal(table_info.bytes, info.bytes);
	assert_memory_equal(&table_info.schema, &schema, sizeof(schema));
	assert_status(tern_checkpoint_table(checkpoint, 1, &table_info), TERN_E_NOT_FOUND);
	assert_status(tern_checkpoint_verify(checkpoint, stop_at_once, NULL), TERN_E_CANCELED);
	tern_checkpoint_close(checkpoint);
	assert_status(tern_checkpoint_open(path, 2, &checkpoint), TERN_E_NOT_FOUND);
	tern_checkpoint_close(NULL);
	tn_map_fini(&cut.rows);
	tn_table_destroy(table);
}

static void another_table_is_refused(void **state)
{
	tern_table_schema schema = schema_of(TERN_OPT_ADAGRAD, TERN_F32, 0);
	tn_ckpt_reader reader;
	tn_rand rand = {3};
	tn_table *table;
	image cut;

	(void)state;
	assert_ok(tn_table_create(&schema, NULL, &table));
	push_some(table, &rand, 20, 5);
	save(table, 1, 0, &cut);
	tn_map_fini(&cut.rows);
	tn_table_destroy(table);
	assert_ok(tn_ckpt_open(&reader, path, 1));
	schema.optimizer.kind = TERN_OPT_SGD;
	assert_ok(tn_table_create(&schema, NULL, &table));
	assert_status(tn_restore_table(&reader, table, NULL, NULL, NULL), TERN_E_SHAPE);
	tn_table_destroy(table);
	strcpy(schema.name, "other");
	assert_ok(tn_table_create(&schema, NULL, &table));
	assert_status(tn_restore_table(&reader, table, NULL, NULL, NULL), TERN_E_NOT_FOUND);
	tn_table_destroy(table);
	tn_ckpt_close(&reader);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_cut_comes_back_bit_for_bit_on_any_number_of_servers),
		cmocka_unit_test(schemas_survive_json),
		cmocka_unit_test_setup_teardown(checkpoints_tell_what_is_in_them, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(another_table_is_refused, make_dir, drop_dir),
	};

	return RUN(tests);
}
