/* SPDX-License-Identifier: Apache-2.0 */
/* Which tables can be: each fault is refused with a text that names the field. */
#include "cmocka_all.h"

#include <math.h>
#include <string.h>

#include <tern/ps.h>

static tern_table_schema usual(void)
{
	tern_table_schema s = {.name = "user/ids.v1", .dim = 64};

	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.05f);
	return s;
}

#define REFUSED(change, status, word)                                             \
	do {                                                                      \
		tern_table_schema s = usual();                                    \
		change;                                                           \
		assert_status(tern_table_schema_check(&s), status);               \
		if (!strstr(tern_detail(), word))                                 \
			fail_msg("\"%s\" does not name %s", tern_detail(), word); \
	} while (0)

static void usual_tables_are_fine(void **state)
{
	(void)state;
	for (int kind = TERN_OPT_NONE; kind <= TERN_OPT_RMSPROP; kind++) {
		tern_table_schema s = usual();

		tern_optimizer_init(&s.optimizer, (tern_row_optimizer)kind, 0.1f);
		assert_ok(tern_table_schema_check(&s));
		s.kind = TERN_TABLE_DENSE;
		s.rows = 10;
		s.dtype = TERN_BF16;
		assert_ok(tern_table_schema_check(&s));
	}
}

/* torchrec#3673: an unsupported width gave zeros silently. */
static void unsupported_widths_are_refused_at_creation(void **state)
{
	(void)state;
	REFUSED(s.dim = 0, TERN_E_INVALID, "dim 0");
	REFUSED(s.dim = TERN_TABLE_DIM_MAX + 1, TERN_E_INVALID, "8192");
	REFUSED(s.dtype = TERN_F64, TERN_E_UNSUPPORTED, "f64");
	REFUSED(s.dtype = TERN_I8, TERN_E_UNSUPPORTED, "i8");
	REFUSED(s.dtype = (tern_dtype)77, TERN_E_UNSUPPORTED, "?");
}

static void each_fault_has_its_text(void **state)
{
	(void)state;
	assert_status(tern_table_schema_check(NULL), TERN_E_INVALID);
	REFUSED(s.name[0] = 0, TERN_E_INVALID, "name");
	REFUSED(memset(s.name, 'a', sizeof(s.name)), TERN_E_INVALID, "name");
	REFUSED(strcpy(s.name, "a b"), TERN_E_INVALID, "0x20");
	REFUSED(s.kind = (tern_table_kind)2, TERN_E_INVALID, "kind");
	REFUSED(s.rows = 5, TERN_E_INVALID, "rows");
	REFUSED(s.kind = TERN_TABLE_DENSE, TERN_E_INVALID, "rows");
	REFUSED((s.kind = TERN_TABLE_DENSE, s.rows = 1ull << 32), TERN_E_INVALID, "rows");
	REFUSED((s.kind = TERN_TABLE_DENSE, s.rows = 4, s.admit_after = 2), TERN_E_INVALID, "admit_after");
	REFUSED(s.flags = 4, TERN_E_INVALID, "flags");
	REFUSED(s.reserved = 1, TERN_E_INVALID, "reserved");
	REFUSED(s.eviction = TERN_EVICT_LRU, TERN_E_INVALID, "budget_bytes");
	REFUSED((s.flags = TERN_TABLE_NO_META, s.ttl_steps = 3), TERN_E_INVALID, "NO_META");
	REFUSED(s.eviction = (tern_eviction)3, TERN_E_INVALID, "eviction");
	REFUSED(s.admit_after = 256, TERN_E_INVALID, "admit_after");
	REFUSED(s.nonfinite = (tern_nonfinite)3, TERN_E_INVALID, "nonfinite");
	REFUSED(s.init.kind = (tern_row_start)4, TERN_E_INVALID, "init.kind");
	REFUSED(s.init.value = NAN, TERN_E_INVALID, "init.value");
	REFUSED((s.init.kind = TERN_ROW_UNIFORM, s.init.value = -1), TERN_E_INVALID, "init.value");
}

static void rates_are_checked(void **state)
{
	(void)state;
	REFUSED(s.optimizer.kind = (tern_row_optimizer)8, TERN_E_INVALID, "optimizer.kind");
	REFUSED(s.optimizer.lr = 0, TERN_E_INVALID, "lr");
	REFUSED(s.optimizer.lr = NAN, TERN_E_INVALID, "lr");
	REFUSED(s.optimizer.epsilon = -1, TERN_E_INVALID, "epsilon");
	REFUSED(s.optimizer.weight_decay = INFINITY, TERN_E_INVALID, "weight_decay");
	REFUSED(s.optimizer.initial_accumulator = -1, TERN_E_INVALID, "initial_accumulator");
	REFUSED((s.optimizer.kind = TERN_OPT_ADAM, s.optimizer.beta1 = 1), TERN_E_INVALID, "beta1");
	REFUSED((s.optimizer.kind = TERN_OPT_ADAMW, s.optimizer.beta2 = -0.1f), TERN_E_INVALID, "beta2");
	REFUSED((s.optimizer.kind = TERN_OPT_RMSPROP, s.optimizer.rho = 2), TERN_E_INVALID, "rho");
	REFUSED((s.optimizer.kind = TERN_OPT_MOMENTUM, s.optimizer.momentum = 1), TERN_E_INVALID, "momentum");
	REFUSED((s.optimizer.kind = TERN_OPT_FTRL, s.optimizer.lr_power = 0), TERN_E_INVALID, "lr_power");
	REFUSED((s.optimizer.kind = TERN_OPT_FTRL, s.optimizer.l1 = -1), TERN_E_INVALID, "l1");
	REFUSED((s.optimizer.kind = TERN_OPT_FTRL, s.optimizer.l2 = -1), TERN_E_INVALID, "l2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(usual_tables_are_fine),
		cmocka_unit_test(unsupported_widths_are_refused_at_creation),
		cmocka_unit_test(each_fault_has_its_text),
		cmocka_unit_test(rates_are_checked),
	};

	return RUN(tests);
}
