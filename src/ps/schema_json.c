/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schemas as JSON: names instead of numbers, so that people and other programs can read them. u64 members are
 * strings, since readers of JSON keep 53 or 63 bits. See save.h.
 * Pure but for memory. Threads: any. Tests: tests/unit/ps/save_test.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "ps/save.h"

static const char *const KINDS[] = {"sparse", "dense"};
static const char *const OPTIMIZERS[] = {"none", "sgd",   "momentum", "adagrad",
					 "adam", "adamw", "ftrl",     "rmsprop"};
static const char *const INITS[] = {"zeros", "constant", "uniform", "normal"};
static const char *const NONFINITES[] = {"drop", "clip", "fail"};
static const char *const EVICTIONS[] = {"none", "lru", "lfu"};

typedef struct enum_names {
	const char *const *names;
	unsigned count;
} enum_names;
#define NAMES(table) ((enum_names){(table), TN_COUNT_OF(table)})

/* Numbers of the optimiser, as they are called there. */
#define FLOAT_FIELDS(X) \
	X(lr)           \
	X(momentum)     \
	X(beta1) X(beta2) X(rho) X(epsilon) X(weight_decay) X(l1) X(l2) X(lr_power) X(initial_accumulator)

static json_t *u64_json(uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	return json_string(text);
}

static json_t *optimizer_json(const tern_optimizer_params *p)
{
	json_t *json = json_pack("{s:s}", "kind", OPTIMIZERS[p->kind]);
	int failed = !json;

#define PUT(name) failed |= json_object_set_new(json, #name, json_real((double)p->name));
	FLOAT_FIELDS(PUT)
#undef PUT
	if (failed) {
		json_decref(json);
		return NULL;
	}
	return json;
}

json_t *tn_schema_json(const tern_table_schema *s)
{
	return json_pack(
		"{s:s, s:s, s:s, s:I, s:I, s:o, s:o, s:{s:s, s:f, s:o}, s:s, s:s, s:o, s:o, s:I}", "name",
		s->name, "kind", KINDS[s->kind], "dtype", tern_dtype_name(s->dtype ? s->dtype : TERN_F32),
		"dim", (json_int_t)s->dim, "flags", (json_int_t)s->flags, "rows", u64_json(s->rows),
		"optimizer", optimizer_json(&s->optimizer), "init", "kind", INITS[s->init.kind], "value",
		(double)s->init.value, "seed", u64_json(s->init.seed), "nonfinite", NONFINITES[s->nonfinite],
		"eviction", EVICTIONS[s->eviction], "budget_bytes", u64_json(s->budget_bytes), "ttl_steps",
		u64_json(s->ttl_steps), "admit_after", (json_int_t)s->admit_after);
}

/* ---- parsing ---- */

typedef struct parser {
	const char *bad; /* the first member that is missing or wrong */
} parser;

static const json_t *member(parser *p, const json_t *object, const char *name, bool good_type(const json_t *))
{
	const json_t *value = json_object_get(object, name);

	if (!p->bad && (!value || !good_type(value)))
		p->bad = name;
	return value;
}

static bool is_string(const json_t *value)
{
	return json_is_string(value);
}

static bool is_number(const json_t *value)
{
	return json_is_number(value);
}

static bool is_small(const json_t *value)
{
	return json_is_integer(value) && json_integer_value(value) >= 0 &&
	       json_integer_value(value) <= UINT32_MAX;
}

static unsigned parse_enum(parser *p, const json_t *object, const char *name, enum_names names)
{
	const char *text = json_string_value(member(p, object, name, is_string));

	for (unsigned i = 0; text && i < names.count; i++)
		if (strcmp(text, names.names[i]) == 0)
			return i;
	if (!p->bad)
		p->bad = name;
	return 0;
}

static uint32_t parse_u32(parser *p, const json_t *object, const char *name)
{
	return (uint32_t)json_integer_value(member(p, object, name, is_small));
}

static float parse_float(parser *p, const json_t *object, const char *name)
{
	return (float)json_number_value(member(p, object, name, is_number));
}

static uint64_t parse_u64(parser *p, const json_t *object, const char *name)
{
	const char *text = json_string_value(member(p, object, name, is_string));
	char *end = NULL;
	uint64_t value = 0;

	if (p->bad)
		return 0;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || text[0] < '0' || text[0] > '9')
		p->bad = name;
	return value;
}

static tern_dtype parse_dtype(parser *p, const json_t *object)
{
	const char *text = json_string_value(member(p, object, "dtype", is_string));

	for (int i = TERN_F32; text && i <= TERN_U64; i++)
		if (strcmp(text, tern_dtype_name((tern_dtype)i)) == 0)
			return (tern_dtype)i;
	if (!p->bad)
		p->bad = "dtype";
	return TERN_F32;
}

static void parse_optimizer(parser *p, const json_t *object, tern_optimizer_params *o)
{
	o->kind = (tern_row_optimizer)parse_enum(p, object, "kind", NAMES(OPTIMIZERS));
#define GET(name) o->name = parse_float(p, object, #name);
	FLOAT_FIELDS(GET)
#undef GET
}

tern_status tn_schema_parse(const json_t *json, tern_table_schema *s)
{
	parser p = {0};
	const char *name = json_string_value(member(&p, json, "name", is_string));
	const json_t *init = json_object_get(json, "init");

	memset(s, 0, sizeof(*s));
	if (!name || strlen(name) >= sizeof(s->name))
		p.bad = "name";
	else
		strcpy(s->name, name);
	s->kind = (tern_table_kind)parse_enum(&p, json, "kind", NAMES(KINDS));
	s->dtype = parse_dtype(&p, json);
	s->dim = parse_u32(&p, json, "dim");
	s->flags = parse_u32(&p, json, "flags");
	s->rows = parse_u64(&p, json, "rows");
	parse_optimizer(&p, json_object_get(json, "optimizer"), &s->optimizer);
	s->init.kind = (tern_row_start)parse_enum(&p, init, "kind", NAMES(INITS));
	s->init.value = parse_float(&p, init, "value");
	s->init.seed = parse_u64(&p, init, "seed");
	s->nonfinite = (tern_nonfinite)parse_enum(&p, json, "nonfinite", NAMES(NONFINITES));
	s->eviction = (tern_eviction)parse_enum(&p, json, "eviction", NAMES(EVICTIONS));
	s->budget_bytes = parse_u64(&p, json, "budget_bytes");
	s->ttl_steps = parse_u64(&p, json, "ttl_steps");
	s->admit_after = parse_u32(&p, json, "admit_after");
	if (p.bad)
		return tn_fail(TERN_E_CORRUPT, "a table's schema: member %s is missing or wrong", p.bad);
	if (tern_table_schema_check(s) != TERN_OK) {
		tn_detail_prefix("a schema that was saved");
		return TERN_E_CORRUPT;
	}
	return TERN_OK;
}
