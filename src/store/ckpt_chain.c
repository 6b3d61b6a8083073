/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of checkpoints: a delta and what it goes on from. See ckpt.h.
 * Must not: know tables. Threads: one per object. Tests: tests/unit/store/ckpt_test.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "store/ckpt.h"

tern_status tn_ckpt_name_base(tn_ckpt *ckpt, uint64_t id, const tn_ckpt_reader *base)
{
	char own[20], other[20];
	json_t *members;
	int failed;

	TN_ASSERT(id != 0);
	snprintf(own, sizeof(own), "%016" PRIx64, id);
	if (!base) {
		failed = json_object_set_new(ckpt->extra, "id", json_string(own));
		return failed ? tn_fail(TERN_E_NOMEM, "no memory for a manifest") : TERN_OK;
	}
	if (base->id == 0)
		return tn_fail(TERN_E_STATE, "%s has no id: deltas can't go on from it", base->name);
	if (base->deltas == TN_CKPT_DELTAS_MAX)
		return tn_fail(TERN_E_LIMIT, "%s is delta number %" PRIu32 " of its chain: save a base",
			       base->name, base->deltas);
	snprintf(other, sizeof(other), "%016" PRIx64, base->id);
	members = json_pack("{s:s, s:I, s:s, s:I, s:I}", "id", own, "base", (json_int_t)base->sequence,
			    "base_id", other, "base_crc32c", (json_int_t)base->crc, "deltas",
			    (json_int_t)base->deltas + 1);
	failed = !members || json_object_update(ckpt->extra, members) != 0;
	json_decref(members);
	return failed ? tn_fail(TERN_E_NOMEM, "no memory for a manifest") : TERN_OK;
}

/* Is `base` the checkpoint that `delta` was made for? */
static tern_status check_link(const tn_ckpt_reader *base, const tn_ckpt_reader *delta)
{
	if (base->id == delta->base_id && base->crc == delta->base_crc && base->deltas + 1 == delta->deltas)
		return TERN_OK;
	return tn_fail(TERN_E_CORRUPT,
		       "%s is a delta to %s as it was with id %016" PRIx64 " and checksum %08" PRIx32
		       "; the one that is there has %016" PRIx64 " and %08" PRIx32
		       ": it was replaced, and the delta is of no use",
		       delta->name, base->name, delta->base_id, delta->base_crc, base->id, base->crc);
}

static tern_status open_base(tn_ckpt_reader *base, const char *path, const tn_ckpt_reader *delta)
{
	tern_status status = tn_ckpt_open(base, path, delta->base);

	if (status == TERN_E_NOT_FOUND)
		return tn_fail(TERN_E_CORRUPT,
			       "%s is a delta to checkpoint %" PRIu64 ", which is not there any more",
			       delta->name, delta->base);
	TN_TRY(status);
	return check_link(base, delta);
}

tern_status tn_ckpt_chain_open(tn_ckpt_chain *chain, const char *path, uint64_t sequence)
{
	tn_ckpt_reader last;
	tern_status status;

	*chain = (tn_ckpt_chain){0};
	TN_TRY(tn_ckpt_open(&last, path, sequence));
	chain->links = calloc(last.deltas + 1, sizeof(*chain->links));
	if (!chain->links) {
		tn_ckpt_close(&last);
		return tn_fail(TERN_E_NOMEM, "no memory for a chain of %" PRIu32 " checkpoints",
			       last.deltas + 1);
	}
	chain->count = last.deltas + 1;
	for (unsigned i = 0; i < last.deltas; i++)
		chain->links[i].dir = -1;
	chain->links[last.deltas] = last;
	status = TERN_OK;
	for (unsigned i = last.deltas; i-- > 0 && status == TERN_OK;)
		status = open_base(&chain->links[i], path, &chain->links[i + 1]);
	if (status != TERN_OK)
		tn_ckpt_chain_close(chain);
	return status;
}

void tn_ckpt_chain_close(tn_ckpt_chain *chain)
{
	for (unsigned i = 0; i < chain->count; i++)
		tn_ckpt_close(&chain->links[i]);
	free(chain->links);
	*chain = (tn_ckpt_chain){0};
}

tern_status tn_ckpt_chain_verify(const tn_ckpt_chain *chain, tn_file_pace pace, void *pace_arg)
{
	for (unsigned i = 0; i < chain->count; i++)
		TN_TRY(tn_ckpt_verify(&chain->links[i], pace, pace_arg));
	return TERN_OK;
}
