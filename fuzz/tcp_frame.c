/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers of the tcp provider over arbitrary bytes: frame headers, trailers, handshake messages and address
 * blobs. Whatever is accepted encodes back to the same bytes, and stays in its bounds.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "transport/tcp/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void header(const uint8_t *data, size_t size)
{
	uint8_t in[TN_TCP_HDR_BYTES] = {0}, out[TN_TCP_HDR_BYTES];
	tn_tcp_hdr hdr;

	memcpy(in, data, TN_MIN(size, sizeof(in)));
	if (tn_tcp_hdr_decode(in, 70000, &hdr))
		return;
	TN_ASSERT(tn_tcp_hdr_payload(&hdr) <= TN_TCP_BYTES_MAX);
	TN_ASSERT(hdr.offset + hdr.bytes >= hdr.offset);
	TN_ASSERT(hdr.type != TN_TCP_SEND || hdr.bytes <= 70000);
	tn_tcp_hdr_encode(&hdr, out);
	TN_ASSERT(memcmp(in, out, sizeof(in)) == 0);
}

static void trailer(const uint8_t *data, size_t size)
{
	uint8_t in[TN_TCP_TRAILER_BYTES] = {0}, out[TN_TCP_TRAILER_BYTES];
	tern_status status;

	memcpy(in, data, TN_MIN(size, sizeof(in)));
	if (tn_tcp_trailer_decode(in, &status))
		return;
	tn_tcp_trailer_encode(status, out);
	TN_ASSERT(memcmp(in, out, sizeof(in)) == 0);
}

static void hello(const uint8_t *data, size_t size)
{
	uint8_t in[TN_TCP_HELLO_BYTES] = {0}, out[TN_TCP_HELLO_BYTES];
	tn_tcp_hello msg;

	memcpy(in, data, TN_MIN(size, sizeof(in)));
	if (tn_tcp_hello_decode(in, &msg))
		return;
	TN_ASSERT(tn_tcp_version_choose(msg.version, msg.version_min) <= TN_TCP_WIRE_VERSION);
	tn_tcp_hello_encode(&msg, out);
	TN_ASSERT(memcmp(in, out, sizeof(in)) == 0);
}

static void blobs(const uint8_t *data, size_t size)
{
	tn_blob in = {.length = (uint16_t)size}, out;
	tn_tcp_dev_blob dev;
	uint64_t lane;

	if (size > TN_BLOB_MAX)
		return;
	memcpy(in.bytes, data, size);
	if (!tn_tcp_dev_blob_decode(&in, &dev)) {
		TN_ASSERT(dev.count > 0 && dev.count <= TN_TCP_ADDRS_MAX);
		tn_tcp_dev_blob_encode(&dev, &out);
		TN_ASSERT(in.length == out.length && memcmp(in.bytes, out.bytes, in.length) == 0);
	}
	if (!tn_tcp_lane_blob_decode(&in, &lane)) {
		tn_tcp_lane_blob_encode(lane, &out);
		TN_ASSERT(in.length == out.length && memcmp(in.bytes, out.bytes, in.length) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	/* the first byte chooses, so that a mutated input stays with its parser */
	switch (data[0] % 4) {
	case 0:
		header(data + 1, size - 1);
		break;
	case 1:
		trailer(data + 1, size - 1);
		break;
	case 2:
		hello(data + 1, size - 1);
		break;
	default:
		blobs(data + 1, size - 1);
	}
	return 0;
}
