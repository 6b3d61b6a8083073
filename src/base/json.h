/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growable string and a JSON writer on it, for dumps and plans of the library. (The command may include
 * only <tern/...> and has a writer of its own.)
 *
 * Running out of memory is sticky: later calls do nothing and the take function returns NULL. Not for the
 * data path: it allocates. Threads: one per object. Tests: tests/unit/base/json_test.c.
 */
#ifndef TN_BASE_JSON_H
#define TN_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"

typedef struct tn_str {
	char *text; /* NUL-terminated; NULL while empty */
	size_t length, capacity;
	bool failed;
} tn_str;

void tn_str_init(tn_str *str);
void tn_str_fini(tn_str *str);
void tn_str_add(tn_str *str, const char *text);
void tn_str_addn(tn_str *str, const char *text, size_t n);
void tn_str_addf(tn_str *str, const char *fmt, ...) TN_PRINTF(2, 3);
/* The text, owned by the caller now (free()), "" if nothing was added; NULL if memory ran out. */
char *tn_str_take(tn_str *str);

#define TN_JSON_DEPTH_MAX 32

/* Writes one value: objects and arrays nest, commas and indentation come by themselves. */
typedef struct tn_json {
	tn_str *out;
	int indent; /* spaces per level; 0 = one line */
	int depth;
	bool has_items[TN_JSON_DEPTH_MAX + 1];
	bool after_key;
} tn_json;

void tn_json_init(tn_json *json, tn_str *out, int indent);
void tn_json_object(tn_json *json);
void tn_json_array(tn_json *json);
/* Ends the innermost object or array. */
void tn_json_end_object(tn_json *json);
void tn_json_end_array(tn_json *json);
void tn_json_key(tn_json *json, const char *key);
void tn_json_string(tn_json *json, const char *text); /* NULL gives null; bad UTF-8 becomes U+FFFD */
void tn_json_u64(tn_json *json, uint64_t value);
void tn_json_i64(tn_json *json, int64_t value);
void tn_json_double(tn_json *json, double value); /* NaN and infinities give null */
void tn_json_bool(tn_json *json, bool value);
void tn_json_null(tn_json *json);

#endif
