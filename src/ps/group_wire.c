/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of groups: encode and parse. See group.h. Pure. Threads: any. Tests: tests/unit/ps/group_test.c.
 */
#include "ps/group.h"

#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"

_Static_assert(TN_BARRIER_NAME_MAX == TERN_PS_NAME_MAX && TN_CLOCK_NAME_MAX == TERN_PS_NAME_MAX,
	       "names that come over the wire fit");

uint64_t tn_ps_group_encode(uint8_t out[TN_PS_GROUP_MAX], const tn_ps_group_msg *msg)
{
	uint64_t name = strlen(msg->name), text = strlen(msg->text);
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_GROUP_MAX);
	tn_put_u8(&w, TN_PS_GROUP_VERSION);
	tn_put_u8(&w, (uint8_t)msg->op);
	tn_put_u8(&w, (uint8_t)name);
	tn_put_u8(&w, (uint8_t)text);
	tn_put_u32(&w, msg->flags);
	tn_put_u64(&w, msg->member);
	tn_put_u64(&w, msg->value);
	tn_put_u64(&w, msg->timeout_ns);
	tn_put_bytes(&w, msg->name, name);
	tn_put_bytes(&w, msg->text, text);
	TN_ASSERT(!w.bad);
	return w.at;
}

/* A name of people: no NUL inside. */
static bool take_name(tn_reader *r, char *name, uint64_t bytes)
{
	const char *from = tn_get_view(r, bytes);

	if (r->bad || bytes >= TERN_PS_NAME_MAX || (bytes && memchr(from, 0, bytes)))
		return false;
	if (bytes)
		memcpy(name, from, bytes);
	name[bytes] = '\0';
	return true;
}

bool tn_ps_group_decode(const void *data, uint64_t bytes, tn_ps_group_msg *msg)
{
	uint8_t version, op, name, text;
	tn_reader r;

	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	op = tn_get_u8(&r);
	name = tn_get_u8(&r);
	text = tn_get_u8(&r);
	msg->flags = tn_get_u32(&r);
	if (msg->flags & ~TERN_PS_GROUP_SUM || version != TN_PS_GROUP_VERSION || op < TN_GROUP_JOIN ||
	    op > TN_GROUP_CLOSE || name == 0)
		return false;
	msg->op = (tn_ps_group_op)op;
	msg->member = tn_get_u64(&r);
	msg->value = tn_get_u64(&r);
	msg->timeout_ns = tn_get_u64(&r);
	return take_name(&r, msg->name, name) && take_name(&r, msg->text, text) && r.at == bytes;
}
