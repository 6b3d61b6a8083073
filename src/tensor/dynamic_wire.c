/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and parsing of metadata blocks. Pure. See dynamic_wire.h; docs/protocol/tensor.md has the layout.
 */
#include "tensor/dynamic_wire.h"

#include "base/check.h"
#include "base/wirebuf.h"

void tn_meta_encode(uint8_t out[TN_META_BYTES], const tn_meta *meta)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_META_BYTES);
	tn_put_u8(&w, TN_META_VERSION);
	tn_put_u8(&w, (uint8_t)meta->shape.rank);
	tn_put_u16(&w, 0);
	tn_put_u32(&w, (uint32_t)meta->dtype);
	tn_put_u64(&w, meta->generation);
	tn_put_u64(&w, meta->bytes);
	for (unsigned i = 0; i < TERN_RANK_MAX; i++)
		tn_put_u64(&w, i < meta->shape.rank ? meta->shape.dims[i] : 0);
	tn_put_bytes(&w, meta->key.bytes, sizeof(meta->key.bytes));
	tn_put_zeros(&w, TN_META_BYTES - w.at);
	TN_ASSERT(!w.bad);
}

/* False: it does not fit 64 bits. */
static bool bytes_of(const tn_meta *meta, uint64_t *bytes)
{
	bool empty = false;

	*bytes = tern_dtype_bytes(meta->dtype);
	if (*bytes == 0)
		return false;
	for (unsigned i = 0; i < meta->shape.rank; i++)
		empty |= meta->shape.dims[i] == 0;
	for (unsigned i = 0; i < meta->shape.rank && !empty; i++)
		if (__builtin_mul_overflow(*bytes, meta->shape.dims[i], bytes))
			return false;
	*bytes = empty ? 0 : *bytes;
	return true;
}

bool tn_meta_decode(const uint8_t in[TN_META_BYTES], tn_meta *meta)
{
	uint64_t bytes;
	uint8_t version;
	tn_reader r;

	*meta = (tn_meta){0};
	tn_reader_init(&r, in, TN_META_BYTES);
	version = tn_get_u8(&r);
	meta->shape.rank = tn_get_u8(&r);
	tn_get_u16(&r);
	meta->dtype = (tern_dtype)tn_get_u32(&r);
	meta->generation = tn_get_u64(&r);
	meta->bytes = tn_get_u64(&r);
	if (r.bad || version != TN_META_VERSION || meta->shape.rank > TERN_RANK_MAX)
		return false;
	for (unsigned i = 0; i < TERN_RANK_MAX; i++) {
		uint64_t dim = tn_get_u64(&r);

		if (i < meta->shape.rank)
			meta->shape.dims[i] = dim;
	}
	tn_get_bytes(&r, meta->key.bytes, sizeof(meta->key.bytes));
	return !r.bad && bytes_of(meta, &bytes) && bytes == meta->bytes;
}
