/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of failures, between the moment when an operation ends and the moment when somebody reads why. A
 * ring of the latest texts per context: nothing is allocated and nothing leaks; a text that was overwritten
 * meanwhile is replaced by its status's own. Many operations that end for one reason share one text.
 *
 * Threads: any. Tests: tests/unit/channel/test_xfer.c.
 */
#include <stdio.h>

#include "base/fail.h"
#include "channel/ctx_impl.h"
#include "channel/shell.h"

/* Is `text`, as far as there is room for it, what stands there? */
static bool same_text(const char stored[TN_DETAIL_BYTES], const char *text)
{
	uint64_t bytes = strnlen(text, TN_DETAIL_BYTES - 1);

	return memcmp(stored, text, bytes) == 0 && stored[bytes] == 0;
}

uint64_t tn_details_put(tern_ctx *ctx, const char *text)
{
	tn_details *d = &ctx->details;
	uint64_t id;

	if (!text || !text[0])
		return 0;
	tn_lock_take(&d->lock);
	if (d->last == 0 || !same_text(d->text[d->last % TN_DETAILS], text)) {
		d->last++;
		snprintf(d->text[d->last % TN_DETAILS], TN_DETAIL_BYTES, "%s", text);
	}
	id = d->last;
	tn_lock_drop(&d->lock);
	return id;
}

void tn_details_use(tern_ctx *ctx, uint64_t id, tern_status status)
{
	tn_details *d = &ctx->details;
	char text[TN_DETAIL_BYTES] = "";

	if (status == TERN_OK) {
		tn_detail_clear();
		return;
	}
	tn_lock_take(&d->lock);
	if (id && id <= d->last && d->last - id < TN_DETAILS)
		memcpy(text, d->text[id % TN_DETAILS], TN_DETAIL_BYTES);
	tn_lock_drop(&d->lock);
	tn_detail_set("%s", text[0] ? text : tern_status_text(status));
}
