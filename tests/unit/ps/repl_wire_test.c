/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames to backups: golden bytes, everything there and back, and that no byte less is taken for the whole.
 */
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "ps/repl_wire.h"

static tn_table *table_of(uint32_t dim, tern_dtype dtype, tern_row_optimizer kind)
{
	tern_table_schema s = {.name = "t", .dim = dim, .dtype = dtype};
	tn_table *t;

	tern_optimizer_init(&s.optimizer, kind, 0.5f);
	assert_int_equal(tn_table_create(&s, NULL, &t), TERN_OK);
	return t;
}

static void golden(void **state)
{
	static const uint8_t expected[] = {
		/* head */
		1, 0, 3, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0,
		0, 0,
		/* a push of one key: entry */
		5, 0, 0, 0, 1, 0, 0, 0, 0xa1, 0, 0, 0, 0, 0, 0, 0, 0xa2, 0, 0, 0, 0, 0, 0, 0, 0xc1, 0, 0, 0,
		0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0,
		/* its record: key 5, last step 4, frequency 3, there; 1.0 in bf16, padded; state 2.0 */
		5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0x80, 0x3f, 0, 0, 0,
		0, 0, 0x40,
		/* BEGIN of slot 4095 at epoch 8 */
		3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0xff, 0x0f, 0, 0,
		8, 0, 0, 0};
	const tn_repl_head head = {.from = 3, .stream = 0x11, .seq = 2, .map_version = 9};
	const uint16_t one = 0x3f80;
	const float two = 2;
	tn_table *t = table_of(1, TERN_BF16, TERN_OPT_ADAGRAD);
	tn_record record = {.key = 5, .last_step = 4, .frequency = 3, .value = &one, .state = &two};
	tn_repl_entry push = {.kind = TN_REPL_PUSH,
			      .table = 0xa1,
			      .schema = 0xa2,
			      .client = 0xc1,
			      .seq = 7,
			      .low = 6,
			      .item_bytes = tn_repl_record_bytes(t)};
	tn_repl_entry begin = {.kind = TN_REPL_BEGIN, .item_bytes = 8};
	tn_repl_buf b = {0};

	(void)state;
	assert_true(tn_repl_buf_start(&b));
	assert_true(tn_repl_buf_empty(&b));
	tn_repl_head_encode(b.at, &head);
	assert_true(tn_repl_entry_open(&b, &push));
	tn_repl_record_encode(tn_repl_item(&b), t, &record);
	tn_repl_entry_close(&b);
	assert_true(tn_repl_entry_open(&b, &begin));
	tn_repl_slot_encode(tn_repl_item(&b), 4095, 8);
	tn_repl_entry_close(&b);
	assert_int_equal(b.used, sizeof(expected));
	assert_memory_equal(b.at, expected, sizeof(expected));
	tn_repl_buf_free(&b);
	tn_table_destroy(t);
}

static void there_and_back(void **state)
{
	static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F16};

	(void)state;
	for (unsigned d = 0; d < 3; d++)
		for (uint32_t dim = 1; dim < 6; dim++) {
			tn_table *t = table_of(dim, dtypes[d], dim % 2 ? TERN_OPT_ADAM : TERN_OPT_SGD);
			uint8_t value[64], moments[128], *item;
			tn_repl_entry e = {.kind = TN_REPL_ROWS, .item_bytes = tn_repl_record_bytes(t)}, back;
			uint64_t at = TN_REPL_HEAD;
			tn_repl_buf b = {0};
			tn_record r = {.key = ~0ull, .last_step = 1, .value = value, .state = moments};
			bool there;

			memset(value, 0x5a, sizeof(value));
			memset(moments, 0xa5, sizeof(moments));
			assert_true(tn_repl_buf_start(&b) && tn_repl_entry_open(&b, &e));
			tn_repl_record_encode(tn_repl_item(&b), t, &r);
			r.value = NULL;
			item = tn_repl_item(&b);
			tn_repl_record_encode(item, t, &r);
			tn_repl_entry_close(&b);
			assert_int_equal(b.used % 8, 0);
			for (uint64_t less = TN_REPL_HEAD; less < b.used; less++) {
				at = TN_REPL_HEAD;
				assert_false(tn_repl_entry_next(b.at, less, &at, &back));
			}
			at = TN_REPL_HEAD;
			assert_true(tn_repl_entry_next(b.at, b.used, &at, &back));
			assert_int_equal(at, b.used);
			assert_int_equal(back.count, 2);
			tn_repl_record_decode(back.items, t, &r, &there);
			assert_true(there && r.key == ~0ull && r.last_step == 1);
			assert_memory_equal(r.value, value, tn_table_value_bytes(t));
			if (tn_table_state_bytes(t))
				assert_memory_equal(r.state, moments, tn_table_state_bytes(t));
			tn_repl_record_decode(back.items + back.item_bytes, t, &r, &there);
			assert_false(there);
			tn_repl_buf_free(&b);
			tn_table_destroy(t);
		}
}

/* One entry of the given shape: is it taken? */
static bool taken(tn_repl_entry e, const void *item, unsigned items)
{
	tn_repl_buf b = {0};
	uint64_t at = TN_REPL_HEAD;
	tn_repl_entry back;
	bool ok;

	assert_true(tn_repl_buf_start(&b) && tn_repl_entry_open(&b, &e));
	for (unsigned i = 0; i < items; i++)
		memcpy(tn_repl_item(&b), item, e.item_bytes);
	tn_repl_entry_close(&b);
	ok = tn_repl_entry_next(b.at, b.used, &at, &back);
	tn_repl_buf_free(&b);
	return ok;
}

static void refused(void **state)
{
	const uint8_t slot[8] = {0, 16}, fine[8] = {255, 15}, junk[8] = {1, 0, 1}, record[64] = {0};

	(void)state;
	assert_true(taken((tn_repl_entry){.kind = TN_REPL_BEGIN, .item_bytes = 8}, fine, 2));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_BEGIN, .item_bytes = 8}, slot, 1)); /* slot 4096 */
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_SYNCED, .item_bytes = 8}, junk, 1));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_BEGIN, .item_bytes = 2}, fine, 1));
	assert_true(taken((tn_repl_entry){.kind = TN_REPL_FACT, .item_bytes = 2, .seq = 1}, fine, 3));
	assert_false(
		taken((tn_repl_entry){.kind = TN_REPL_FACT, .item_bytes = 2, .low = 2, .seq = 1}, fine, 3));
	assert_false(
		taken((tn_repl_entry){.kind = TN_REPL_FACT, .item_bytes = 2, .seq = TN_PS_NO_SEQ}, fine, 1));
	assert_true(taken((tn_repl_entry){.kind = TN_REPL_PUSH, .item_bytes = 64}, record, 1));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_PUSH, .item_bytes = 64, .low = 1}, record, 1));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_ROWS, .item_bytes = 20}, record, 1));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_DROP, .item_bytes = 8}, fine, 1));
	assert_true(taken((tn_repl_entry){.kind = TN_REPL_STAGE, .item_bytes = 64}, record, 1));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_STAGE, .item_bytes = 64}, record, 2));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_STAGE, .item_bytes = 63}, record, 1));
	assert_true(taken((tn_repl_entry){.kind = TN_REPL_CLOSED, .item_bytes = 2, .seq = 1}, fine, 3));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_CLOSED, .item_bytes = 2, .seq = 1}, slot, 1));
	assert_false(taken((tn_repl_entry){.kind = TN_REPL_CLOSED, .item_bytes = 2}, fine, 1));
	assert_false(taken((tn_repl_entry){.kind = (tn_repl_kind)12}, fine, 0));
}

static void answers(void **state)
{
	tn_repl_answer a = {.verdict = TN_REPL_PARTIAL, .map_version = 12}, b;
	uint8_t out[TN_REPL_ANSWER_MAX];
	uint64_t n;

	(void)state;
	tn_ps_slots_add(&a.refused, 4095);
	n = tn_repl_answer_encode(out, &a);
	assert_int_equal(n, TN_REPL_ANSWER_MAX);
	assert_true(tn_repl_answer_decode(out, n, &b));
	assert_int_equal(b.verdict, TN_REPL_PARTIAL);
	assert_int_equal(b.map_version, 12);
	assert_memory_equal(&a.refused, &b.refused, sizeof(a.refused));
	assert_false(tn_repl_answer_decode(out, n - 1, &b));
	a.verdict = TN_REPL_LATER;
	n = tn_repl_answer_encode(out, &a);
	assert_int_equal(n, TN_REPL_ANSWER);
	assert_true(tn_repl_answer_decode(out, n, &b));
	out[1] = 5;
	assert_false(tn_repl_answer_decode(out, n, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(golden), cmocka_unit_test(there_and_back),
					   cmocka_unit_test(refused), cmocka_unit_test(answers)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
