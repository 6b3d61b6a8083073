/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered option tables and snapshots of their values. The only file that reads the environment.
 *
 *   values[i] belongs to rows[i]; rows are sorted by layer and name
 *
 * Threads: registering and loading take a lock; a snapshot is read-only. Tests: tests/unit/base/options_test.c.
 */
#include "base/options.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"

#define ENV_PREFIX "TERN_"
#define STRING_MAX 256

typedef struct opt_value {
	const tn_option_row *row;
	tn_opt_source source;
	uint64_t number; /* also bool and the index of an enum's choice */
	char text[STRING_MAX];
} opt_value;

struct tn_options {
	unsigned count;
	opt_value values[];
};

static pthread_mutex_t tables_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_option_table *tables;
static bool warned_unknown;

static const tn_option_row base_rows[] = {
	{.layer = "log",
	 .name = "level",
	 .type = TN_OPT_STRING,
	 .dflt = "warn",
	 .help = "none|error|warn|info|debug|trace, also per component: \"warn,link=debug\""},
	{.layer = "base",
	 .name = "check",
	 .type = TN_OPT_U64,
	 .dflt = "1",
	 .max = 3,
	 .env = "TERN_CHECK",
	 .help = "checks of invariants: 0 off, 1 cheap, 2 whole objects now and then, 3 always"},
	{.layer = "base",
	 .name = "fault",
	 .type = TN_OPT_STRING,
	 .help = "fault points to fire, for tests: \"name:nth[:count],name:p=0.01[:seed]\""},
	{0},
};
TN_OPTION_TABLE(base, base_rows)

void tn_option_table_add(tn_option_table *table)
{
	pthread_mutex_lock(&tables_lock);
	table->next = tables;
	tables = table;
	pthread_mutex_unlock(&tables_lock);
}

const char *tn_opt_type_name(tn_opt_type type)
{
	static const char *const names[] = {"u64", "bytes", "duration", "bool", "string", "enum"};

	return (unsigned)type < TN_COUNT_OF(names) ? names[type] : "?";
}

const char *tn_opt_source_name(tn_opt_source source)
{
	static const char *const names[] = {"default", "environment", "set"};

	return (unsigned)source < TN_COUNT_OF(names) ? names[source] : "?";
}

static void dotted_name(const tn_option_row *row, char *buf, size_t size)
{
	snprintf(buf, size, "%s.%s", row->layer, row->name);
}

static void env_name(const tn_option_row *row, char *buf, size_t size)
{
	if (row->env) {
		snprintf(buf, size, "%s", row->env);
		return;
	}
	snprintf(buf, size, ENV_PREFIX "%s_%s", row->layer, row->name);
	for (char *p = buf; *p; p++)
		*p = (char)toupper((unsigned char)*p);
}

/* Index of text among "a|b|c", -1 if it is none of them. */
static int choice_index(const char *choices, const char *text)
{
	size_t length = strlen(text);

	for (int i = 0; choices && *choices; i++) {
		size_t n = strcspn(choices, "|");

		if (n == length && strncmp(choices, text, n) == 0)
			return i;
		choices += n + (choices[n] == '|');
	}
	return -1;
}

static tern_status bad_value(const opt_value *value, const char *text, tn_opt_source source, const char *why)
{
	char name[96];

	if (source == TN_OPT_ENV)
		env_name(value->row, name, sizeof(name));
	else
		dotted_name(value->row, name, sizeof(name));
	return tn_fail(TERN_E_OPTION, "%s=%s: %s", name, value->row->secret ? "(secret)" : text, why);
}

static tern_status check_range(const opt_value *value, const char *text, tn_opt_source source,
			       uint64_t number)
{
	const tn_option_row *row = value->row;
	char low[40], high[40], why[128];

	if (number >= row->min && (row->max == 0 || number <= row->max))
		return TERN_OK;
	if (row->type == TN_OPT_BYTES) {
		tn_format_bytes(row->min, low, sizeof(low));
		tn_format_bytes(row->max, high, sizeof(high));
	} else if (row->type == TN_OPT_DURATION) {
		tn_format_duration(row->min, low, sizeof(low));
		tn_format_duration(row->max, high, sizeof(high));
	} else {
		snprintf(low, sizeof(low), "%" PRIu64, row->min);
		snprintf(high, sizeof(high), "%" PRIu64, row->max);
	}
	if (row->max)
		snprintf(why, sizeof(why), "out of range, which is %s to %s", low, high);
	else
		snprintf(why, sizeof(why), "out of range, which is %s or more", low);
	return bad_value(value, text, source, why);
}

/* Parse `text` as the row's type; on error the value is unchanged. */
static tern_status set_value(opt_value *value, const char *text, tn_opt_source source)
{
	const tn_option_row *row = value->row;
	uint64_t number = 0;
	bool truth = false;
	int choice;
	char why[200];

	if (strlen(text) >= STRING_MAX)
		return bad_value(value, "...", source, "longer than 255 bytes");
	switch (row->type) {
	case TN_OPT_U64:
		if (!tn_parse_u64(text, &number))
			return bad_value(value, text, source, "a whole number is expected, like 12");
		break;
	case TN_OPT_BYTES:
		if (!tn_parse_bytes(text, &number))
			return bad_value(value, text, source,
					 "a size is expected, like 65536, 64KiB or 1.5GiB");
		break;
	case TN_OPT_DURATION:
		if (!tn_parse_duration(text, &number))
			return bad_value(value, text, source,
					 "a duration with its unit is expected, like 250us, 10ms or 2s");
		break;
	case TN_OPT_BOOL:
		if (!tn_parse_bool(text, &truth))
			return bad_value(value, text, source,
					 "0, 1, on, off, yes, no, true or false is expected");
		number = truth;
		break;
	case TN_OPT_ENUM:
		choice = choice_index(row->choices, text);
		if (choice < 0) {
			snprintf(why, sizeof(why), "one of %s is expected", row->choices);
			return bad_value(value, text, source, why);
		}
		number = (uint64_t)choice;
		break;
	case TN_OPT_STRING:
		break;
	}
	if (row->type <= TN_OPT_DURATION)
		TN_TRY(check_range(value, text, source, number));
	value->number = number;
	value->source = source;
	snprintf(value->text, sizeof(value->text), "%s", text);
	return TERN_OK;
}

static const char *default_text(const tn_option_row *row)
{
	if (row->dflt)
		return row->dflt;
	return row->type == TN_OPT_STRING || row->type == TN_OPT_ENUM ? "" : "0";
}

/* A row's default; a default that does not parse is a bug in the table. */
static void set_default(opt_value *value, const tn_option_row *row)
{
	tern_status status = TERN_OK;

	*value = (opt_value){.row = row};
	if (row->type != TN_OPT_ENUM || row->dflt)
		status = set_value(value, default_text(row), TN_OPT_DEFAULT);
	else
		snprintf(value->text, sizeof(value->text), "%.*s", (int)strcspn(row->choices, "|"),
			 row->choices);
	TN_ASSERT_MSG(status == TERN_OK, "%s", tn_detail_get());
	(void)status; /* release builds */
}

static int compare_rows(const void *a, const void *b)
{
	const tn_option_row *x = ((const opt_value *)a)->row, *y = ((const opt_value *)b)->row;
	int order = strcmp(x->layer, y->layer);

	return order ? order : strcmp(x->name, y->name);
}

static tn_options *collect(void)
{
	tn_options *options;
	unsigned count = 0;

	pthread_mutex_lock(&tables_lock);
	for (tn_option_table *t = tables; t; t = t->next)
		for (const tn_option_row *row = t->rows; row->name; row++)
			count++;
	TN_ASSERT(count <= TN_OPTIONS_MAX);
	options = TN_FAULT("base.options.alloc") ? NULL
						 : calloc(1, sizeof(*options) + count * sizeof(opt_value));
	for (tn_option_table *t = tables; options && t; t = t->next)
		for (const tn_option_row *row = t->rows; row->name; row++)
			set_default(&options->values[options->count++], row);
	pthread_mutex_unlock(&tables_lock);
	if (options)
		qsort(options->values, options->count, sizeof(opt_value), compare_rows);
	return options;
}

/* For tn_nearest: dotted or environment name number i, in a buffer that the next call overwrites. */
typedef struct name_list {
	const tn_options *options;
	bool env;
	char (*names)[96];
} name_list;

static const char *name_at(unsigned i, void *arg)
{
	name_list *list = arg;

	if (list->env)
		env_name(list->options->values[i].row, list->names[i], sizeof(list->names[i]));
	else
		dotted_name(list->options->values[i].row, list->names[i], sizeof(list->names[i]));
	return list->names[i];
}

/* The nearest name into buf, "" if none is near. */
static void suggest(const tn_options *options, bool env, const char *given, char *buf, size_t size)
{
	name_list list = {
		.options = options, .env = env, .names = calloc(options->count + 1u, sizeof(*list.names))};
	const char *name = list.names ? tn_nearest(given, options->count, name_at, &list) : NULL;

	snprintf(buf, size, "%s%s%s", name ? "; did you mean " : "", name ? name : "", name ? "?" : "");
	free(list.names);
}

static tern_status apply_env(tn_options *options)
{
	char name[96];

	for (unsigned i = 0; i < options->count; i++) {
		const char *text;

		env_name(options->values[i].row, name, sizeof(name));
		text = getenv(name);
		if (text)
			TN_TRY(set_value(&options->values[i], text, TN_OPT_ENV));
	}
	return TERN_OK;
}

static bool env_known(const tn_options *options, const char *entry, size_t length)
{
	char name[96];

	for (unsigned i = 0; i < options->count; i++) {
		env_name(options->values[i].row, name, sizeof(name));
		if (strlen(name) == length && memcmp(name, entry, length) == 0)
			return true;
	}
	/* Of libtern-graph and of the Python package: neither has to be in this process. */
	return length == strlen("TERN_RDMA_OPT") && memcmp(entry, "TERN_RDMA_OPT", length) == 0;
}

/* TERN_* variables that no row has: a slip, or meant for another version. */
static void warn_unknown_env(const tn_options *options)
{
	bool first;

	pthread_mutex_lock(&tables_lock);
	first = !warned_unknown;
	warned_unknown = true;
	pthread_mutex_unlock(&tables_lock);
	for (char **entry = environ; first && entry && *entry; entry++) {
		size_t length = strcspn(*entry, "=");
		char given[96], hint[128];

		if (strncmp(*entry, ENV_PREFIX, sizeof(ENV_PREFIX) - 1) != 0 ||
		    env_known(options, *entry, length))
			continue;
		snprintf(given, sizeof(given), "%.*s", (int)TN_MIN(length, (size_t)90), *entry);
		suggest(options, true, given, hint, sizeof(hint));
		TN_LOG(WARN, BASE, "the environment variable %s is no option of this build%s", given, hint);
	}
}

static tern_status apply_pair(tn_options *options, const char *pair)
{
	size_t length = strcspn(pair, "=");
	char name[96], given[96], hint[128];

	snprintf(given, sizeof(given), "%.*s", (int)TN_MIN(length, (size_t)90), pair);
	if (pair[length] != '=')
		return tn_fail(TERN_E_OPTION, "option '%s': expected layer.name=value", given);
	for (unsigned i = 0; i < options->count; i++) {
		dotted_name(options->values[i].row, name, sizeof(name));
		if (strcmp(name, given) == 0)
			return set_value(&options->values[i], pair + length + 1, TN_OPT_SET);
	}
	suggest(options, false, given, hint, sizeof(hint));
	return tn_fail(TERN_E_OPTION, "option '%s': there is none of that name%s", given, hint);
}

tern_status tn_options_load(const char *const *pairs, tn_options **result)
{
	tn_options *options = collect();
	tern_status status;

	*result = NULL;
	if (!options)
		return tn_fail(TERN_E_NOMEM, "no memory for the options");
	status = apply_env(options);
	for (unsigned i = 0; status == TERN_OK && pairs && pairs[i]; i++)
		status = apply_pair(options, pairs[i]);
	if (status != TERN_OK) {
		tn_options_free(options);
		return status;
	}
	warn_unknown_env(options);
	*result = options;
	return TERN_OK;
}

void tn_options_free(tn_options *options)
{
	for (unsigned i = 0; options && i < options->count; i++)
		if (options->values[i].row->secret)
			tn_crypto_wipe(options->values[i].text, sizeof(options->values[i].text));
	free(options);
}

static const tn_option_row *find_row(const tn_option_row *rows, const char *name)
{
	for (; rows->name; rows++)
		if (strcmp(rows->name, name) == 0)
			return rows;
	return NULL;
}

/* The snapshot's value, or NULL when the row has to give its default. */
static const opt_value *find_value(const tn_options *options, const tn_option_row *row)
{
	for (unsigned i = 0; options && i < options->count; i++)
		if (options->values[i].row == row)
			return &options->values[i];
	return NULL;
}

static uint64_t number_of(const tn_options *options, const tn_option_row *rows, const char *name,
			  unsigned types)
{
	const tn_option_row *row = find_row(rows, name);
	const opt_value *value;
	opt_value dflt;

	TN_ASSERT_MSG(row, "no option '%s'", name);
	if (!row)
		return 0;
	TN_ASSERT_MSG(types & 1u << row->type, "option '%s' is of type %s", name,
		      tn_opt_type_name(row->type));
	value = find_value(options, row);
	if (!value) {
		set_default(&dflt, row);
		value = &dflt;
	}
	return value->number;
}

uint64_t tn_opt_u64(const tn_options *options, const tn_option_row *rows, const char *name)
{
	return number_of(options, rows, name, 1u << TN_OPT_U64 | 1u << TN_OPT_BYTES | 1u << TN_OPT_DURATION);
}

bool tn_opt_bool(const tn_options *options, const tn_option_row *rows, const char *name)
{
	return number_of(options, rows, name, 1u << TN_OPT_BOOL) != 0;
}

unsigned tn_opt_enum(const tn_options *options, const tn_option_row *rows, const char *name)
{
	return (unsigned)number_of(options, rows, name, 1u << TN_OPT_ENUM);
}

const char *tn_opt_string(const tn_options *options, const tn_option_row *rows, const char *name)
{
	const tn_option_row *row = find_row(rows, name);
	const opt_value *value = row ? find_value(options, row) : NULL;

	TN_ASSERT_MSG(row && row->type == TN_OPT_STRING, "no string option '%s'", name);
	if (value)
		return value->text;
	return row ? default_text(row) : "";
}

tn_opt_source tn_opt_source_of(const tn_options *options, const tn_option_row *rows, const char *name)
{
	const tn_option_row *row = find_row(rows, name);
	const opt_value *value = row ? find_value(options, row) : NULL;

	TN_ASSERT_MSG(row, "no option '%s'", name);
	return value ? value->source : TN_OPT_DEFAULT;
}

bool tn_options_view(const tn_options *options, unsigned i, tn_option_view *view)
{
	const opt_value *value;
	bool hide;

	if (i >= options->count)
		return false;
	value = &options->values[i];
	hide = value->row->secret && value->text[0];
	*view = (tn_option_view){.row = value->row, .source = value->source};
	dotted_name(value->row, view->name, sizeof(view->name));
	env_name(value->row, view->env, sizeof(view->env));
	snprintf(view->value, sizeof(view->value), "%s", hide ? "(set)" : value->text);
	snprintf(view->dflt, sizeof(view->dflt), "%s", default_text(value->row));
	if (value->row->type == TN_OPT_ENUM && !value->row->dflt)
		snprintf(view->dflt, sizeof(view->dflt), "%.*s", (int)strcspn(value->row->choices, "|"),
			 value->row->choices);
	return true;
}

static bool said(const tn_options *options, const char *name)
{
	return tn_opt_source_of(options, base_rows, name) != TN_OPT_DEFAULT;
}

tern_status tn_base_apply(const tn_options *options)
{
	tn_options *own = NULL;
	tern_status status = TERN_OK;

	if (!options) {
		TN_TRY(tn_options_load(NULL, &own));
		options = own;
	}
	if (own || said(options, "level"))
		status = tn_log_apply(tn_opt_string(options, base_rows, "level"));
	if (status == TERN_OK && (own || said(options, "fault")))
		status = tn_fault_apply(tn_opt_string(options, base_rows, "fault"));
	if (status == TERN_OK && said(options, "check"))
		tn_check_level = (int)tn_opt_u64(options, base_rows, "check");
	tn_options_free(own);
	return status;
}
