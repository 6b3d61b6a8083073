/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of saves: encode and parse. See saver.h. Pure. Threads: any. Tests: tests/unit/ps/saver_test.c.
 */
#include "ps/saver.h"

#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"

uint64_t tn_ps_save_encode(uint8_t out[TN_PS_SAVE_MAX], const tn_ps_save_msg *msg)
{
	uint64_t path = strlen(msg->path);
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_SAVE_MAX);
	tn_put_u8(&w, TN_PS_SAVE_VERSION);
	tn_put_u8(&w, (uint8_t)msg->op);
	tn_put_u16(&w, (uint16_t)path);
	tn_put_u32(&w, msg->server);
	tn_put_u64(&w, msg->token);
	tn_put_u64(&w, msg->number);
	tn_put_u64(&w, msg->rate);
	tn_put_bytes(&w, msg->path, path);
	TN_ASSERT(!w.bad);
	return w.at;
}

bool tn_ps_save_decode(const void *data, uint64_t bytes, tn_ps_save_msg *msg)
{
	const char *path;
	uint8_t version;
	uint16_t length;
	tn_reader r;

	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	msg->op = (tn_ps_save_op)tn_get_u8(&r);
	length = tn_get_u16(&r);
	msg->server = tn_get_u32(&r);
	msg->token = tn_get_u64(&r);
	msg->number = tn_get_u64(&r);
	msg->rate = tn_get_u64(&r);
	path = tn_get_view(&r, length);
	if (r.bad || r.at != bytes || version != TN_PS_SAVE_VERSION || msg->op < TN_SAVE_HOLD ||
	    msg->op > TN_SAVE_KEEP || length >= TN_PS_PATH_MAX || (length && memchr(path, 0, length)))
		return false;
	if (length)
		memcpy(msg->path, path, length);
	msg->path[length] = '\0';
	return true;
}
