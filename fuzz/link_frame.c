/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the parsers of what a peer sends to a link, frames and control messages alike. The first byte
 * chooses; what a parser accepts must stay within the input and its own bounds.
 */
#include "base/check.h"
#include "link/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
	if (!holds)
		__builtin_trap();
}

static void frame(const uint8_t *data, size_t size)
{
	static tn_frame f;

	if (tn_frame_parse(data, size, &f))
		return;
	must(f.head.type > 0 && f.head.type < TN_FRAME_TYPES);
	if (f.payload)
		must(f.payload >= data && f.payload + f.payload_bytes == data + size);
	switch (f.head.type) {
	case TN_FRAME_DATA:
	case TN_FRAME_FRAG:
		must(f.data.offset <= f.data.total && f.payload_bytes <= f.data.total - f.data.offset);
		must(f.head.type == TN_FRAME_FRAG || f.payload_bytes == f.data.total);
		break;
	case TN_FRAME_OPEN:
		must(strnlen(f.open.service, TN_NAME_MAX) > 0 &&
		     strnlen(f.open.service, TN_NAME_MAX) < TN_NAME_MAX);
		break;
	case TN_FRAME_OPEN_FAIL:
		must(f.fail.status < 0 && strnlen(f.fail.text, TN_NAME_MAX) < TN_NAME_MAX);
		break;
	case TN_FRAME_NOTIFY:
		must(f.notify.value < 1u << TN_LINK_NOTIFY_BITS);
		break;
	case TN_FRAME_CREDIT:
	case TN_FRAME_BYE:
		must(f.lanes.count <= TN_LINK_LANES_MAX);
		break;
	default:
		break;
	}
}

static void control(const uint8_t *data, size_t size, bool first)
{
	static tn_wire_hello hello;
	static tn_wire_setup setup;
	static tn_wire_lane_addr addr;
	static tn_wire_wire wire;
	static tn_wire_end end;
	const uint8_t *payload = data + TN_CTRL_HEAD_BYTES;
	tn_ctrl_type type;
	uint64_t number;
	uint32_t bytes, epoch;

	if (size < TN_CTRL_HEAD_BYTES || tn_wire_ctrl_head(data, first, &type, &bytes))
		return;
	must(bytes <= TN_CTRL_BYTES_MAX);
	size -= TN_CTRL_HEAD_BYTES;
	if (!tn_wire_get_hello(payload, size, &hello))
		must(strnlen(hello.name, TN_NAME_MAX) < TN_NAME_MAX);
	if (!tn_wire_get_setup(payload, size, &setup)) {
		must(setup.provider_count <= TN_LINK_PROVIDERS_MAX);
		for (uint32_t i = 0; i < setup.provider_count; i++)
			must(setup.providers[i].address_bytes <= TN_LINK_BLOB_MAX &&
			     setup.providers[i].send_bytes_max >= TN_FRAME_ROOM_MIN);
	}
	if (!tn_wire_get_lane_addr(payload, size, &addr))
		must(addr.address_bytes <= TN_LINK_BLOB_MAX);
	if (!tn_wire_get_wire(payload, size, &wire))
		must(wire.lanes > 0 && wire.lanes <= TN_LINK_LANES_MAX);
	for (int with_epoch = 0; with_epoch < 2; with_epoch++)
		if (!tn_wire_get_end(payload, size, with_epoch, &end))
			must(end.status < 0 && strnlen(end.text, sizeof(end.text)) < sizeof(end.text));
	(void)tn_wire_get_epoch(payload, size, &epoch);
	(void)tn_wire_get_ping(payload, size, &number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] & 1)
		frame(data + 1, size - 1);
	else
		control(data + 1, size - 1, data[0] & 2);
	return 0;
}
