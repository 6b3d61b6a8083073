/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON writer to a stdio stream: one object per call chain, correct escapes, no trailing commas.
 * Threads: one per stream.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json {
	FILE *out;
	bool comma; /* the next member needs one before it */
} json;

static inline void json_init(json *j, FILE *out)
{
	*j = (json){.out = out};
}

/* key NULL inside of arrays and at the top. */
void json_object(json *j, const char *key);
void json_object_end(json *j);
void json_array(json *j, const char *key);
void json_array_end(json *j);
void json_string(json *j, const char *key, const char *value);
void json_u64(json *j, const char *key, uint64_t value);
void json_bool(json *j, const char *key, bool value);
/* NaN and infinities become null: JSON has none. */
void json_real(json *j, const char *key, double value);
void json_null(json *j, const char *key);

#endif
