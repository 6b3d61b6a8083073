/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and parsing of what servers and coordinators say; wire.h has the layouts. Threads: none.
 * Tests: tests/unit/cluster/wire_test.c, fuzz/cluster_wire.c.
 */
#include "cluster/wire.h"

#include "base/check.h"
#include "base/wirebuf.h"

uint64_t tn_cl_msg_encode(uint8_t *out, uint64_t bytes, const tn_cl_msg *msg, const tn_coord_fact *facts,
			  const tn_cl_load *loads)
{
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	tn_put_u8(&w, TN_CL_MSG_VERSION);
	tn_put_u8(&w, (uint8_t)msg->op);
	tn_put_u16(&w, msg->server);
	tn_put_u32(&w, msg->maps);
	tn_put_u64(&w, msg->incarnation);
	tn_put_u64(&w, msg->seen);
	tn_put_u64(&w, msg->version);
	tn_put_u64(&w, msg->wait_ns);
	if (msg->op == TN_CL_JOIN)
		tn_put_str(&w, msg->address);
	if (msg->op != TN_CL_RENEW)
		return w.bad ? 0 : w.at;
	tn_put_u32(&w, msg->fact_count);
	tn_put_u32(&w, msg->load_count);
	for (uint32_t i = 0; i < msg->fact_count; i++) {
		tn_put_u16(&w, facts[i].slot);
		tn_put_u8(&w, facts[i].what);
		tn_put_u32(&w, facts[i].epoch);
	}
	for (uint32_t i = 0; i < msg->load_count; i++) {
		tn_put_u16(&w, loads[i].slot);
		tn_put_u32(&w, loads[i].keys);
	}
	return w.bad ? 0 : w.at;
}

static bool get_lists(tn_reader *r, tn_cl_msg *msg)
{
	msg->fact_count = tn_get_u32(r);
	msg->load_count = tn_get_u32(r);
	if (r->bad || msg->fact_count > TN_CL_SLOTS || msg->load_count > TN_CL_SLOTS)
		return false;
	msg->facts = tn_get_view(r, (uint64_t)msg->fact_count * TN_CL_FACT);
	msg->loads = tn_get_view(r, (uint64_t)msg->load_count * TN_CL_LOAD);
	for (uint32_t i = 0; !r->bad && i < msg->fact_count; i++) {
		tn_coord_fact fact = tn_cl_msg_fact(msg, i);

		if (fact.slot >= TN_CL_SLOTS || fact.what == 0 || fact.what >= TN_REPORTS)
			return false;
	}
	for (uint32_t i = 0; !r->bad && i < msg->load_count; i++)
		if (tn_cl_msg_load(msg, i).slot >= TN_CL_SLOTS)
			return false;
	return true;
}

bool tn_cl_msg_decode(const void *data, uint64_t bytes, tn_cl_msg *msg)
{
	uint8_t version, op;
	tn_reader r;

	memset(msg, 0, sizeof(*msg));
	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	op = tn_get_u8(&r);
	msg->op = (tn_cl_op)op;
	msg->server = tn_get_u16(&r);
	msg->maps = tn_get_u32(&r);
	msg->incarnation = tn_get_u64(&r);
	msg->seen = tn_get_u64(&r);
	msg->version = tn_get_u64(&r);
	msg->wait_ns = tn_get_u64(&r);
	if (r.bad || version != TN_CL_MSG_VERSION || op == 0 || op >= TN_CL_OPS)
		return false;
	if (op == TN_CL_JOIN)
		tn_get_str(&r, msg->address, sizeof(msg->address));
	if (op == TN_CL_RENEW && !get_lists(&r, msg))
		return false;
	return tn_reader_done(&r);
}

tn_coord_fact tn_cl_msg_fact(const tn_cl_msg *msg, uint32_t i)
{
	tn_coord_fact fact;
	tn_reader r;

	tn_reader_init(&r, msg->facts + (uint64_t)i * TN_CL_FACT, TN_CL_FACT);
	fact.slot = tn_get_u16(&r);
	fact.what = tn_get_u8(&r);
	fact.epoch = tn_get_u32(&r);
	return fact;
}

tn_cl_load tn_cl_msg_load(const tn_cl_msg *msg, uint32_t i)
{
	tn_cl_load load;
	tn_reader r;

	tn_reader_init(&r, msg->loads + (uint64_t)i * TN_CL_LOAD, TN_CL_LOAD);
	load.slot = tn_get_u16(&r);
	load.keys = tn_get_u32(&r);
	return load;
}

void tn_cl_answer_encode(uint8_t out[TN_CL_ANSWER_HEAD], const tn_cl_answer *a)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_CL_ANSWER_HEAD);
	tn_put_u8(&w, TN_CL_MSG_VERSION);
	tn_put_u8(&w, 0);
	tn_put_u16(&w, a->server);
	tn_put_u32(&w, (uint32_t)a->status);
	tn_put_u64(&w, a->now);
	tn_put_u64(&w, a->version);
	tn_put_u32(&w, a->map_bytes);
	tn_put_u32(&w, a->load_count);
	TN_ASSERT(!w.bad && w.at == TN_CL_ANSWER_HEAD);
}

bool tn_cl_answer_decode(const void *data, uint64_t bytes, tn_cl_answer *a)
{
	uint8_t version, zero;
	tn_reader r;

	memset(a, 0, sizeof(*a));
	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	zero = tn_get_u8(&r);
	a->server = tn_get_u16(&r);
	a->status = (tern_status)(int32_t)tn_get_u32(&r);
	a->now = tn_get_u64(&r);
	a->version = tn_get_u64(&r);
	a->map_bytes = tn_get_u32(&r);
	a->load_count = tn_get_u32(&r);
	if (r.bad || version != TN_CL_MSG_VERSION || zero || a->load_count > TN_CL_SERVERS_MAX)
		return false;
	if (a->map_bytes)
		a->map = tn_get_view(&r, a->map_bytes);
	if (a->load_count)
		a->loads = tn_get_view(&r, a->load_count * 8ull);
	return tn_reader_done(&r);
}
