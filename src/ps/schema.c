/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tables can be: each field with its limit, in words, before anything is created. An unsupported width or
 * dtype is refused here and never gives zeros later.
 *
 * Pure. Threads: any. Tests: tests/unit/ps/schema_test.c.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <tern/ps.h>

#include "base/fail.h"

#define ROWS_MAX ((1ull << 32) - 2) /* of one server's share: record ids are 32 bits */

void tern_optimizer_init(tern_optimizer_params *params, tern_row_optimizer kind, float lr)
{
	bool accumulates = kind == TERN_OPT_ADAGRAD || kind == TERN_OPT_FTRL;

	*params = (tern_optimizer_params){
		.kind = kind,
		.lr = lr,
		.momentum = kind == TERN_OPT_RMSPROP ? 0 : 0.9f,
		.beta1 = 0.9f,
		.beta2 = 0.999f,
		.rho = 0.9f,
		.epsilon = kind == TERN_OPT_ADAGRAD ? 1e-10f : 1e-8f,
		.lr_power = -0.5f,
		.initial_accumulator = accumulates ? 0.1f : 0,
	};
}

static tern_status check_name(const tern_table_schema *s)
{
	size_t n = strnlen(s->name, sizeof(s->name));

	if (n == 0 || n == sizeof(s->name))
		return tn_fail(TERN_E_INVALID, "table name: 1 to %d characters, and a NUL",
			       TERN_TABLE_NAME_MAX - 1);
	for (size_t i = 0; i < n; i++) {
		char c = s->name[i];
		bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

		if (!letter && !strchr("._-/", c))
			return tn_fail(
				TERN_E_INVALID,
				"table name: byte 0x%02x at %zu; letters, digits and \"._-/\" may be in it",
				(unsigned)(unsigned char)c, i);
	}
	return TERN_OK;
}

static tern_status check_shape(const tern_table_schema *s)
{
	if (s->kind != TERN_TABLE_SPARSE && s->kind != TERN_TABLE_DENSE)
		return tn_fail(TERN_E_INVALID, "table \"%s\": kind %d is neither sparse (0) nor dense (1)",
			       s->name, (int)s->kind);
	if (s->dim == 0 || s->dim > TERN_TABLE_DIM_MAX)
		return tn_fail(TERN_E_INVALID, "table \"%s\": dim %" PRIu32 "; rows have 1 to %d elements",
			       s->name, s->dim, TERN_TABLE_DIM_MAX);
	if ((int)s->dtype != 0 && s->dtype != TERN_F32 && s->dtype != TERN_BF16 && s->dtype != TERN_F16)
		return tn_fail(TERN_E_UNSUPPORTED, "table \"%s\": rows of %s; rows are f32, bf16 or f16",
			       s->name, tern_dtype_name(s->dtype));
	if (s->kind == TERN_TABLE_DENSE && (s->rows == 0 || s->rows > ROWS_MAX))
		return tn_fail(TERN_E_INVALID, "dense table \"%s\": %" PRIu64 " rows; it has 1 to %" PRIu64,
			       s->name, s->rows, (uint64_t)ROWS_MAX);
	if (s->kind == TERN_TABLE_SPARSE && s->rows != 0)
		return tn_fail(TERN_E_INVALID,
			       "sparse table \"%s\": %" PRIu64
			       " rows; it has no fixed number: leave rows 0 and bound "
			       "it with budget_bytes",
			       s->name, s->rows);
	if ((s->flags & ~(TERN_TABLE_NO_META | TERN_TABLE_ONE_SIDED)) || s->reserved)
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": unknown flags 0x%x or reserved field %u: zero it first",
			       s->name, s->flags, s->reserved);
	return TERN_OK;
}

/* 0 <= x < 1, and no NaN */
static bool is_decay(float x)
{
	return x >= 0 && x < 1;
}

static bool is_amount(float x)
{
	return x >= 0 && isfinite(x);
}

static tern_status bad_rate(const tern_table_schema *s, const char *field, float value, const char *range)
{
	return tn_fail(TERN_E_INVALID, "table \"%s\": optimizer.%s is %g; it is %s", s->name, field,
		       (double)value, range);
}

static tern_status check_optimizer(const tern_table_schema *s)
{
	const tern_optimizer_params *o = &s->optimizer;
	bool adam = o->kind == TERN_OPT_ADAM || o->kind == TERN_OPT_ADAMW;

	if ((int)o->kind < 0 || o->kind > TERN_OPT_RMSPROP)
		return tn_fail(TERN_E_INVALID, "table \"%s\": optimizer.kind %d; there are 0 (none) to %d",
			       s->name, (int)o->kind, TERN_OPT_RMSPROP);
	if (o->kind == TERN_OPT_NONE)
		return TERN_OK;
	if (!(o->lr > 0 && isfinite(o->lr)))
		return bad_rate(s, "lr", o->lr, "above 0");
	if ((o->kind == TERN_OPT_MOMENTUM || o->kind == TERN_OPT_RMSPROP) && !is_decay(o->momentum))
		return bad_rate(s, "momentum", o->momentum, "0 to below 1");
	if (adam && !is_decay(o->beta1))
		return bad_rate(s, "beta1", o->beta1, "0 to below 1");
	if (adam && !is_decay(o->beta2))
		return bad_rate(s, "beta2", o->beta2, "0 to below 1");
	if (o->kind == TERN_OPT_RMSPROP && !is_decay(o->rho))
		return bad_rate(s, "rho", o->rho, "0 to below 1");
	if (!is_amount(o->epsilon))
		return bad_rate(s, "epsilon", o->epsilon, "0 or more");
	if (!is_amount(o->weight_decay))
		return bad_rate(s, "weight_decay", o->weight_decay, "0 or more");
	if (o->kind == TERN_OPT_FTRL && !is_amount(o->l1))
		return bad_rate(s, "l1", o->l1, "0 or more");
	if (o->kind == TERN_OPT_FTRL && !is_amount(o->l2))
		return bad_rate(s, "l2", o->l2, "0 or more");
	if (o->kind == TERN_OPT_FTRL && !(o->lr_power >= -1 && o->lr_power < 0))
		return bad_rate(s, "lr_power", o->lr_power, "-1 to below 0 (the paper's is -0.5)");
	if (!is_amount(o->initial_accumulator))
		return bad_rate(s, "initial_accumulator", o->initial_accumulator, "0 or more");
	return TERN_OK;
}

static tern_status check_memory(const tern_table_schema *s)
{
	bool meta = !(s->flags & TERN_TABLE_NO_META);

	if (s->eviction != TERN_EVICT_NONE && s->eviction != TERN_EVICT_LRU && s->eviction != TERN_EVICT_LFU)
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": eviction %d is none of none (0), lru (1), lfu (2)", s->name,
			       (int)s->eviction);
	if (s->eviction != TERN_EVICT_NONE && s->budget_bytes == 0)
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": eviction without budget_bytes never happens: set both",
			       s->name);
	if (!meta && (s->eviction != TERN_EVICT_NONE || s->ttl_steps))
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": eviction and ttl_steps need the metadata that "
			       "TERN_TABLE_NO_META leaves "
			       "out",
			       s->name);
	if (s->kind == TERN_TABLE_DENSE && (s->eviction != TERN_EVICT_NONE || s->ttl_steps || s->admit_after))
		return tn_fail(
			TERN_E_INVALID,
			"dense table \"%s\": all its rows stay; eviction, ttl_steps and admit_after are for "
			"sparse ones",
			s->name);
	if (s->admit_after > 255)
		return tn_fail(TERN_E_INVALID, "table \"%s\": admit_after %u; counters go to 255", s->name,
			       s->admit_after);
	return TERN_OK;
}

static tern_status check_values(const tern_table_schema *s)
{
	if (s->init.kind != TERN_ROW_ZEROS && s->init.kind != TERN_ROW_CONSTANT &&
	    s->init.kind != TERN_ROW_UNIFORM && s->init.kind != TERN_ROW_NORMAL)
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": init.kind %d is none of zeros (0), constant (1), uniform (2), "
			       "normal (3)",
			       s->name, (int)s->init.kind);
	if (!isfinite(s->init.value) || (s->init.kind > TERN_ROW_CONSTANT && s->init.value < 0))
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": init.value is %g; a finite number, and a width not below 0",
			       s->name, (double)s->init.value);
	if (s->nonfinite != TERN_NONFINITE_DROP && s->nonfinite != TERN_NONFINITE_CLIP &&
	    s->nonfinite != TERN_NONFINITE_FAIL)
		return tn_fail(TERN_E_INVALID,
			       "table \"%s\": nonfinite %d is none of drop (0), clip (1), fail (2)", s->name,
			       (int)s->nonfinite);
	return TERN_OK;
}

tern_status tern_table_schema_check(const tern_table_schema *schema)
{
	if (!schema)
		return tn_fail(TERN_E_INVALID, "no schema");
	TN_TRY(check_name(schema));
	TN_TRY(check_shape(schema));
	TN_TRY(check_optimizer(schema));
	TN_TRY(check_memory(schema));
	return check_values(schema);
}
