/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of messages, from the memory of one program to the receive buffer of the other: CRC-32C over the
 * body and the payload of DATA and FRAG, with the word of the sum as zero. The head is left out: it is made anew
 * when a frame goes again, and what it says is bounded by the ledgers.
 *
 * One-sided transfers have none here: their target is written by a device, and a link sees no memory.
 * Threads: none. Tests: tests/unit/link/sums_test.c.
 */
#include "base/crc32c.h"
#include "link/internal.h"

#define BOUNCE_BYTES 2048u

/* Of memory that an op names, which may be a GPU's. */
static uint32_t sum_of(tn_link *link, uint32_t crc, const void *base, uint64_t bytes)
{
	uint8_t bounce[BOUNCE_BYTES];

	if (!link->config->copy)
		return tn_crc32c(crc, base, bytes);
	for (uint64_t at = 0; at < bytes;) {
		uint64_t n = TN_MIN(bytes - at, (uint64_t)BOUNCE_BYTES);

		if (link->config->copy(bounce, (const uint8_t *)base + at, n, link->config->copy_arg) !=
		    TERN_OK)
			return ~crc; /* what was not read is not vouched for */
		crc = tn_crc32c(crc, bounce, n);
		at += n;
	}
	return crc;
}

void tn_lk_sum_fill(tn_link *link, tn_link_post *post)
{
	uint8_t *header = link->wrs[(uint32_t)post->cookie].header;
	tn_frame_data *data = (tn_frame_data *)(void *)header;
	uint32_t crc;

	TN_ASSERT(post->iov[0].base == header && data->sum == 0);
	crc = tn_crc32c(0, header + sizeof(tn_frame_head), post->iov[0].bytes - sizeof(tn_frame_head));
	for (uint32_t i = 1; i < post->iov_count; i++)
		crc = sum_of(link, crc, post->iov[i].base, post->iov[i].bytes);
	data->sum = crc;
}

bool tn_lk_sum_holds(const void *bytes, uint64_t n, const tn_frame *frame)
{
	tn_frame_frag header;
	uint64_t body;

	if (frame->head.type != TN_FRAME_DATA && frame->head.type != TN_FRAME_FRAG)
		return true;
	body = n - frame->payload_bytes;
	TN_ASSERT(body >= sizeof(tn_frame_data) && body <= sizeof(header));
	memcpy(&header, bytes, body);
	header.data.sum = 0;
	return tn_crc32c(tn_crc32c(0, (const uint8_t *)&header + sizeof(tn_frame_head),
				   body - sizeof(tn_frame_head)),
			 frame->payload, frame->payload_bytes) == frame->data.sum;
}
