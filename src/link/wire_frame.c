/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the link: the bounded parser. Encoding is filling the structs of wire.h in place. Pure.
 * Tests: tests/unit/link/wire_test.c, fuzz/link_frame.c.
 */
#include "base/check.h"
#include "link/share.h"
#include "link/wire.h"

static const char *const type_names[TN_FRAME_TYPES] = {
	[TN_FRAME_DATA] = "DATA",       [TN_FRAME_FRAG] = "FRAG",
	[TN_FRAME_ABORT] = "ABORT",     [TN_FRAME_OPEN] = "OPEN",
	[TN_FRAME_OPEN_OK] = "OPEN_OK", [TN_FRAME_OPEN_FAIL] = "OPEN_FAIL",
	[TN_FRAME_CLOSE] = "CLOSE",     [TN_FRAME_WINDOW] = "WINDOW",
	[TN_FRAME_NOTIFY] = "NOTIFY",   [TN_FRAME_CREDIT] = "CREDIT",
	[TN_FRAME_SYNC] = "SYNC",       [TN_FRAME_BYE] = "BYE",
	[TN_FRAME_GRANT] = "GRANT",     [TN_FRAME_DEMAND] = "DEMAND",
	[TN_FRAME_SLOTS] = "SLOTS",     [TN_FRAME_RELINQUISHED] = "RELINQUISHED",
};

const char *tn_frame_type_name(unsigned type)
{
	return type < TN_FRAME_TYPES && type_names[type] ? type_names[type] : "?";
}

static const char *parse_data(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_data data;

	if (n < sizeof(data))
		return "short frame";
	memcpy(&data, bytes, sizeof(data));
	frame->channel = data.channel;
	frame->data.seq = data.seq;
	frame->data.sum = data.sum;
	frame->data.offset = 0;
	frame->data.total = n - sizeof(data);
	frame->payload = bytes + sizeof(data);
	frame->payload_bytes = n - sizeof(data);
	if (frame->head.type == TN_FRAME_ABORT && (n != sizeof(data) || data.sum != 0))
		return "ABORT with a payload or a checksum";
	return NULL;
}

static const char *parse_frag(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_frag frag;

	if (n < sizeof(frag))
		return "short frame";
	memcpy(&frag, bytes, sizeof(frag));
	frame->channel = frag.data.channel;
	frame->data.seq = frag.data.seq;
	frame->data.sum = frag.data.sum;
	frame->data.offset = frag.offset;
	frame->data.total = frag.total;
	frame->payload = bytes + sizeof(frag);
	frame->payload_bytes = n - sizeof(frag);
	if (frame->payload_bytes == 0 || frag.total > TN_TRANSFER_BYTES_MAX || frag.offset >= frag.total ||
	    frame->payload_bytes > frag.total - frag.offset)
		return "fragment out of range";
	return NULL;
}

/* A name or words of at most max - 1 bytes without NUL at the end of a frame. */
static const char *parse_text(const uint8_t *bytes, uint64_t n, char *dst, uint64_t max)
{
	if (n >= max || memchr(bytes, 0, n))
		return "text too long or with a NUL";
	memcpy(dst, bytes, n);
	dst[n] = '\0';
	return NULL;
}

static const char *parse_open(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_open open;

	if (n < sizeof(open))
		return "short frame";
	memcpy(&open, bytes, sizeof(open));
	frame->channel = open.channel;
	frame->open.mine = open.mine;
	frame->open.window = open.window;
	frame->open.message_max = open.message_max;
	if (open.window < TN_WINDOW_MIN)
		return "channel window too small";
	if (frame->head.type == TN_FRAME_OPEN_OK)
		return n == sizeof(open) ? NULL : "OPEN_OK with a payload";
	if (open.mine != 0 || n == sizeof(open))
		return "malformed OPEN";
	return parse_text(bytes + sizeof(open), n - sizeof(open), frame->open.service, TN_NAME_MAX);
}

static const char *parse_fail(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_fail fail;

	if (n < sizeof(fail))
		return "short frame";
	memcpy(&fail, bytes, sizeof(fail));
	frame->channel = fail.channel;
	frame->fail.status = tn_wire_status(fail.status, TERN_E_REMOTE);
	return parse_text(bytes + sizeof(fail), n - sizeof(fail), frame->fail.text, TN_NAME_MAX);
}

static const char *parse_close(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_close close;

	if (n != sizeof(close))
		return "CLOSE of a wrong length";
	memcpy(&close, bytes, sizeof(close));
	frame->channel = close.channel;
	frame->close.messages = close.messages;
	frame->close.notifies = close.notifies;
	return close.zero == 0 ? NULL : "reserved field is not zero";
}

static const char *parse_window(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_window window;

	if (n != sizeof(window))
		return "WINDOW of a wrong length";
	memcpy(&window, bytes, sizeof(window));
	frame->channel = window.channel;
	frame->window = window.total;
	return window.zero == 0 ? NULL : "reserved field is not zero";
}

static const char *parse_notify(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_notify notify;

	if (n != sizeof(notify))
		return "NOTIFY of a wrong length";
	memcpy(&notify, bytes, sizeof(notify));
	frame->channel = notify.channel;
	frame->notify.value = notify.value;
	frame->notify.bytes = notify.bytes;
	if (notify.value >> TN_LINK_NOTIFY_BITS)
		return "NOTIFY with a value out of range";
	return NULL;
}

static const char *parse_lanes(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_lanes lanes;

	if (n < TN_FRAME_LANES_BYTES(0) || n > sizeof(lanes))
		return "CREDIT or BYE of a wrong length";
	memset(&lanes, 0, sizeof(lanes));
	memcpy(&lanes, bytes, n);
	if (lanes.zero != 0 || lanes.count > TN_LINK_LANES_MAX || n != TN_FRAME_LANES_BYTES(lanes.count))
		return "CREDIT or BYE of a wrong length";
	frame->lanes.count = lanes.count;
	for (uint32_t i = 0; i < lanes.count; i++) {
		frame->lanes.rows[i] = lanes.rows[i];
		if (lanes.rows[i].lane >= TN_LINK_LANES_MAX)
			return "CREDIT or BYE for a lane that can't be";
	}
	return NULL;
}

static const char *parse_grant(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_grant grant;

	if (n != sizeof(grant))
		return "GRANT of a wrong length";
	memcpy(&grant, bytes, sizeof(grant));
	frame->grant.share = grant.share;
	frame->grant.total = grant.total;
	frame->grant.unit = grant.unit;
	if (grant.zero != 0)
		return "reserved field is not zero";
	return grant.unit >= TN_GRANT_UNIT_MIN ? NULL : "GRANT in pieces that are too small";
}

static const char *parse_demand(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_demand demand;

	if (n != sizeof(demand))
		return "DEMAND of a wrong length";
	memcpy(&demand, bytes, sizeof(demand));
	frame->demand.wanted = demand.wanted;
	frame->demand.done = demand.done;
	frame->demand.back = demand.back;
	return NULL;
}

static const char *parse_slots(const uint8_t *bytes, uint64_t n, tn_frame *frame)
{
	tn_frame_slots slots;

	if (n != sizeof(slots))
		return "SLOTS or RELINQUISHED of a wrong length";
	memcpy(&slots, bytes, sizeof(slots));
	frame->slots.added = slots.added;
	frame->slots.asked = slots.asked;
	return frame->head.type == TN_FRAME_SLOTS || slots.asked == 0 ? NULL
								      : "RELINQUISHED: reserved bits are set";
}

const char *tn_frame_parse(const void *bytes, uint64_t n, tn_frame *frame)
{
	const uint8_t *at = bytes;

	if (n < sizeof(frame->head))
		return "short frame";
	memcpy(&frame->head, at, sizeof(frame->head));
	frame->channel = 0;
	frame->payload = NULL;
	frame->payload_bytes = 0;
	if (frame->head.flags & ~(TN_FRAME_ACK | TN_FRAME_SHORT))
		return "reserved field is not zero";
	switch (frame->head.type) {
	case TN_FRAME_DATA:
	case TN_FRAME_ABORT:
		return parse_data(at, n, frame);
	case TN_FRAME_FRAG:
		return parse_frag(at, n, frame);
	case TN_FRAME_OPEN:
	case TN_FRAME_OPEN_OK:
		return parse_open(at, n, frame);
	case TN_FRAME_OPEN_FAIL:
		return parse_fail(at, n, frame);
	case TN_FRAME_CLOSE:
		return parse_close(at, n, frame);
	case TN_FRAME_WINDOW:
		return parse_window(at, n, frame);
	case TN_FRAME_NOTIFY:
		return parse_notify(at, n, frame);
	case TN_FRAME_CREDIT:
	case TN_FRAME_BYE:
		return parse_lanes(at, n, frame);
	case TN_FRAME_GRANT:
		return parse_grant(at, n, frame);
	case TN_FRAME_DEMAND:
		return parse_demand(at, n, frame);
	case TN_FRAME_SLOTS:
	case TN_FRAME_RELINQUISHED:
		return parse_slots(at, n, frame);
	case TN_FRAME_SYNC:
		return n == sizeof(frame->head) ? NULL : "SYNC with a payload";
	default:
		return "unknown frame";
	}
}
