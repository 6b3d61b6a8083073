/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs of wire.h.
 *
 * Pure. Threads: any. Tests: tests/unit/coll/reduce_test.c.
 */
#include "coll/wire.h"

#include <string.h>

#include "base/wirebuf.h"

void tn_coll_head_write(uint8_t out[TN_COLL_HEAD], const tn_coll_head *head)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_COLL_HEAD);
	tn_put_u8(&w, TN_COLL_VERSION);
	tn_put_u8(&w, head->operation);
	tn_put_u8(&w, head->dtype);
	tn_put_u8(&w, head->reduce);
	tn_put_u32(&w, head->rank);
	tn_put_u64(&w, head->number);
	tn_put_u64(&w, head->flow);
	tn_put_u64(&w, head->total);
	tn_put_u64(&w, head->bytes);
	tn_put_u32(&w, head->step);
	tn_put_u32(&w, head->chunk);
	tn_put_zeros(&w, TN_COLL_HEAD - w.at);
}

bool tn_coll_head_read(const uint8_t in[TN_COLL_HEAD], tn_coll_head *head)
{
	tn_reader r;

	tn_reader_init(&r, in, TN_COLL_HEAD);
	head->version = tn_get_u8(&r);
	head->operation = tn_get_u8(&r);
	head->dtype = tn_get_u8(&r);
	head->reduce = tn_get_u8(&r);
	head->rank = tn_get_u32(&r);
	head->number = tn_get_u64(&r);
	head->flow = tn_get_u64(&r);
	head->total = tn_get_u64(&r);
	head->bytes = tn_get_u64(&r);
	head->step = tn_get_u32(&r);
	head->chunk = tn_get_u32(&r);
	while (tn_reader_left(&r))
		if (tn_get_u8(&r))
			return false;
	return head->version == TN_COLL_VERSION;
}

uint32_t tn_coll_hello_write(uint8_t out[TN_COLL_HELLO_MAX], const tn_coll_hello *hello)
{
	tn_writer w;
	uint16_t length = (uint16_t)strlen(hello->name);

	tn_writer_init(&w, out, TN_COLL_HELLO_MAX);
	tn_put_u8(&w, TN_COLL_VERSION);
	tn_put_zeros(&w, 3);
	tn_put_u32(&w, hello->rank);
	tn_put_u32(&w, hello->size);
	tn_put_u16(&w, length);
	tn_put_bytes(&w, hello->name, length);
	return (uint32_t)w.at;
}

bool tn_coll_hello_read(const void *in, uint64_t bytes, tn_coll_hello *hello)
{
	tn_reader r;
	uint8_t version;
	uint16_t length;

	tn_reader_init(&r, in, bytes);
	version = tn_get_u8(&r);
	tn_get_view(&r, 3);
	hello->rank = tn_get_u32(&r);
	hello->size = tn_get_u32(&r);
	length = tn_get_u16(&r);
	memset(hello->name, 0, sizeof(hello->name));
	if (r.bad || version != TN_COLL_VERSION || length == 0 || length >= sizeof(hello->name))
		return false;
	tn_get_bytes(&r, hello->name, length);
	return !r.bad && tn_reader_left(&r) == 0 && strlen(hello->name) == length &&
	       hello->rank < hello->size;
}

const char *tn_coll_operation_name(uint8_t operation)
{
	static const char *const names[] = {"?",         "all-reduce", "reduce-scatter",
					    "reduce",    "all-gather", "all-to-all",
					    "broadcast", "barrier",    "message"};

	return names[operation < sizeof(names) / sizeof(*names) ? operation : 0];
}

const char *tn_coll_operation_kind(uint8_t operation)
{
	static const char *const kinds[] = {"coll.other",     "coll.all_reduce", "coll.reduce_scatter",
					    "coll.reduce",    "coll.all_gather", "coll.all_to_all",
					    "coll.broadcast", "coll.barrier",    "coll.message"};

	return kinds[operation < sizeof(kinds) / sizeof(*kinds) ? operation : 0];
}
