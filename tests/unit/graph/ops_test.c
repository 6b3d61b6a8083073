/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The op table: rows that make sense by themselves and together; every op that computes has a kernel family.
 */
#include <string.h>

#include "cmocka_all.h"
#include "graph/infer.h"
#include "graph/kern.h"

static void rows_make_sense(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < TN_OP_COUNT; i++) {
		const tn_op_info *op = &tn_op_table[i];

		assert_non_null(op->name);
		assert_true(op->in_min <= op->in_max);
		assert_true(op->outs <= TN_OUTS_MAX);
		assert_true((op->required & ~op->attrs) == 0);
		assert_true(op->attrs >> TN_ATTR_COUNT == 0);
		for (uint32_t k = 0; k < i; k++)
			assert_string_not_equal(op->name, tn_op_table[k].name);
	}
}

static void attributes_have_names_and_users(void **state)
{
	tn_attr_mask used = 0;

	(void)state;
	for (uint32_t i = 0; i < TN_OP_COUNT; i++)
		used |= tn_op_table[i].attrs;
	for (uint32_t i = 0; i < TN_ATTR_COUNT; i++) {
		assert_non_null(tn_attr_names[i]);
		if (!(used >> i & 1))
			fail_msg("no op has the attribute '%s'", tn_attr_names[i]);
		for (uint32_t k = 0; k < i; k++)
			assert_string_not_equal(tn_attr_names[i], tn_attr_names[k]);
	}
}

typedef tern_status (*rule_fn)(tn_infer *x);
typedef tern_status (*maker_fn)(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made);

static void tables_have_no_hole(void **state)
{
	static const rule_fn rules[TN_OP_COUNT] = {
#define ENTRY(op, name, lo, hi, outs, flags, attrs, required, rule, kern) [TN_OP_##op] = tn_infer_##rule,
		TN_OP_MAP(ENTRY)
#undef ENTRY
	};
	static const maker_fn makers[TN_OP_COUNT] = {
#define ENTRY(op, name, lo, hi, outs, flags, attrs, required, rule, kern) \
	[TN_OP_##op] = tn_kern_##kern##_create,
		TN_OP_MAP(ENTRY)
#undef ENTRY
	};

	(void)state;
	for (uint32_t i = 0; i < TN_OP_COUNT; i++) {
		bool idle = (tn_op_table[i].flags & (TN_OPF_SOURCE | TN_OPF_VIEW | TN_OPF_SEND | TN_OPF_RECV |
						     TN_OPF_JOIN | TN_OPF_STORE)) != 0;

		assert_non_null(rules[i]);
		if ((makers[i] == tn_kern_none_create) != idle)
			fail_msg("%s %s", tn_op_table[i].name,
				 idle ? "cannot have a kernel" : "has no kernel");
	}
}

/* Ops that write their inputs say how many, and have that many at least and a gradient. */
static void updates_have_slots(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < TN_OP_COUNT; i++) {
		bool writes = (tn_op_table[i].flags & TN_OPF_INPLACE) != 0;
		tn_node node = {.op = (tn_op)i};

		assert_int_equal(tn_apply_slots(&node) > 0, writes);
		if (writes)
			assert_int_equal(tn_op_table[i].in_min, tn_apply_slots(&node) + 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_make_sense),
		cmocka_unit_test(attributes_have_names_and_users),
		cmocka_unit_test(tables_have_no_hole),
		cmocka_unit_test(updates_have_slots),
	};

	return RUN(tests);
}
