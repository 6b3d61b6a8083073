/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options are rows. Each layer owns a table of rows and registers it; a snapshot (tn_options) holds the
 * value of every registered row as it was when the snapshot was loaded: default, then environment, then
 * "layer.name=value" pairs. Readers ask the snapshot at set-up, never on the data path.
 *
 *	static const tn_option_row rows[] = {
 *		{.layer = "link", .name = "window_bytes", .type = TN_OPT_BYTES, .dflt = "16MiB",
 *		 .min = 65536, .max = 1ull << 40, .help = "bytes in flight per link"},
 *		{0},
 *	};
 *	TN_OPTION_TABLE(link, rows)
 *	...
 *	window = tn_opt_u64(options, rows, "window_bytes");
 *
 * The environment name is TERN_<LAYER>_<NAME>; `.env` overrides it. This is the only file of tern that reads
 * the environment. Values: u64 "12", bytes "64KiB|1.5MiB|2GB", durations "250us|10ms|1.5s|2m" (kept as ns),
 * bool "0|1|on|off|yes|no|true|false", enums one of `choices` "a|b|c" (kept as index), strings to 255 bytes.
 *
 * Threads: a snapshot is read-only after load; loading and registering may happen in any thread.
 * Tests: tests/unit/base/options_test.c.
 */
#ifndef TN_BASE_OPTIONS_H
#define TN_BASE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

typedef enum tn_opt_type {
	TN_OPT_U64,
	TN_OPT_BYTES,
	TN_OPT_DURATION,
	TN_OPT_BOOL,
	TN_OPT_STRING,
	TN_OPT_ENUM,
} tn_opt_type;

typedef struct tn_option_row {
	const char *layer;
	const char *name;
	tn_opt_type type;
	const char *dflt;    /* in the syntax of the type; NULL = 0, false, "" or the first choice */
	uint64_t min, max;   /* numbers only; max 0 = no upper bound */
	const char *choices; /* enums: "auto|on|off" */
	const char *env;     /* NULL = TERN_<LAYER>_<NAME> */
	bool secret;         /* shown as "(set)" */
	const char *help;
} tn_option_row;

typedef struct tn_option_table {
	const tn_option_row *rows; /* ends with a row whose name is NULL */
	struct tn_option_table *next;
} tn_option_table;

/* Register a table when the program or library is loaded. `ident` only names the C objects. */
#define TN_OPTION_TABLE(ident, table_rows)                                        \
	static tn_option_table tn_option_table_##ident = {.rows = (table_rows)};  \
	__attribute__((constructor)) static void tn_option_register_##ident(void) \
	{                                                                         \
		tn_option_table_add(&tn_option_table_##ident);                    \
	}
void tn_option_table_add(tn_option_table *table);

typedef enum tn_opt_source { TN_OPT_DEFAULT, TN_OPT_ENV, TN_OPT_SET } tn_opt_source;

typedef struct tn_options tn_options;

/*
 * Take a snapshot. `pairs`: NULL or a NULL-terminated list of "layer.name=value", which win over the
 * environment. TERN_E_OPTION: an unknown pair (with the nearest name) or a bad value of either source;
 * unknown TERN_* variables only warn, once per process. TERN_E_NOMEM.
 */
tern_status tn_options_load(const char *const *pairs, tn_options **options);
void tn_options_free(tn_options *options);

/*
 * Typed getters: `rows` is the caller's own table. With options NULL, or a table that was not registered
 * when the snapshot was taken, they give the row's default. Asking for a name or type that the table does
 * not have is a bug (asserted) and gives 0 or "".
 */
uint64_t tn_opt_u64(const tn_options *options, const tn_option_row *rows,
		    const char *name); /* also ns, bytes */
bool tn_opt_bool(const tn_options *options, const tn_option_row *rows, const char *name);
unsigned tn_opt_enum(const tn_options *options, const tn_option_row *rows, const char *name);
/* Lives as long as the snapshot (or the table). */
const char *tn_opt_string(const tn_options *options, const tn_option_row *rows, const char *name);
/* Where the value comes from: lets a caller tell "not said" from "said and equal to the default". */
tn_opt_source tn_opt_source_of(const tn_options *options, const tn_option_row *rows, const char *name);

/* Iterate: row number i of the snapshot, in order of layer and name; NULL past the last. */
typedef struct tn_option_view {
	const tn_option_row *row;
	tn_opt_source source;
	char name[64];
	char env[72];
	char value[256];
	char dflt[128];
} tn_option_view;
bool tn_options_view(const tn_options *options, unsigned i, tn_option_view *view);
const char *tn_opt_type_name(tn_opt_type type);
const char *tn_opt_source_name(tn_opt_source source);

/* Parsers, for the command line as well. False: not in the syntax, or more than 64 bits. */
bool tn_parse_u64(const char *text, uint64_t *value);
bool tn_parse_bytes(const char *text, uint64_t *value);
bool tn_parse_duration(const char *text, uint64_t *ns);
bool tn_parse_bool(const char *text, bool *value);
/* "16 MiB", "1.5 s" into buf; returns buf. */
char *tn_format_bytes(uint64_t bytes, char *buf, unsigned size);
char *tn_format_duration(uint64_t ns, char *buf, unsigned size);

/*
 * The name nearest to `given` among n names if it is near enough to be a slip (edit distance at most a
 * third of its length), else NULL. name(i, arg) returns candidate i.
 */
const char *tn_nearest(const char *given, unsigned n, const char *(*name)(unsigned i, void *arg), void *arg);

#endif
