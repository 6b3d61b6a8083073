/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts that users and environments give to base: numbers with units, log levels, fault schedules, options.
 * Whatever is accepted formats and parses again; nothing reads past the text.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/json.h"
#include "base/log.h"
#include "base/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void numbers(const char *text)
{
	uint64_t value, again;
	bool truth;
	char buf[32];

	if (tn_parse_u64(text, &value)) {
		snprintf(buf, sizeof(buf), "%llu", (unsigned long long)value);
		TN_ASSERT(tn_parse_u64(buf, &again) && again == value);
		TN_ASSERT(tn_parse_bytes(text, &again) && again == value);
	}
	if (tn_parse_bytes(text, &value))
		TN_ASSERT(tn_parse_bytes(tn_format_bytes(value % (1ull << 50), buf, sizeof(buf)), &again) ||
			  strstr(buf, "PiB"));
	/* What is shown is rounded: near the largest it may be more than 64 bits hold. */
	if (tn_parse_duration(text, &value) && value <= UINT64_MAX / 2)
		TN_ASSERT(tn_parse_duration(tn_format_duration(value, buf, sizeof(buf)), &again));
	tn_parse_bool(text, &truth);
}

static void specs(const char *text)
{
	const char *const pairs[] = {text, NULL};
	tn_options *options;

	tn_log_apply(text);
	tn_fault_apply(text);
	tn_fault_clear();
	if (tn_options_load(pairs, &options) == TERN_OK)
		tn_options_free(options);
	tn_log_apply("none");
}

static void json(const char *text)
{
	tn_str out;
	tn_json writer;
	char *done;

	tn_str_init(&out);
	tn_json_init(&writer, &out, 0);
	tn_json_string(&writer, text);
	done = tn_str_take(&out);
	TN_ASSERT(done && done[0] == '"' && done[strlen(done) - 1] == '"');
	free(done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	if (!text)
		return 0;
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	numbers(text);
	specs(text);
	json(text);
	free(text);
	return 0;
}
