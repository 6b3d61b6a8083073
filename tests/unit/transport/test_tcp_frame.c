/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of the tcp provider: golden layouts, and that the strict parsers refuse what no encoder makes.
 */
#include <string.h>

#include "cmocka_all.h"
#include "transport/tcp/frame.h"

static const uint8_t golden_write_imm[TN_TCP_HDR_BYTES] = {
	0x7e, 0x02, 0x01, 0x00, 0x44, 0x33, 0x22, 0x11, /* magic, WRITE_IMM, ACK, imm */
	0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, /* seq */
	0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* ack */
	0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, /* bytes: 1 MiB */
	0x40, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, /* offset: 4 GiB + 64 */
	0x21, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x80, /* key index, generation */
	0xef, 0xbe, 0xad, 0xde, 0x00, 0x00, 0x00, 0x00, /* node tag, zero */
};

static tn_tcp_hdr write_imm(void)
{
	return (tn_tcp_hdr){.type = TN_TCP_WRITE_IMM,
			    .flags = TN_TCP_F_ACK,
			    .imm = 0x11223344,
			    .seq = 0x0102030405060708,
			    .ack = 0x1112131415161718,
			    .bytes = 1 << 20,
			    .offset = (1ull << 32) + 64,
			    .key_index = 0x21,
			    .key_generation = 0x80000003,
			    .key_tag = 0xdeadbeef};
}

static void header_is_golden(void **state)
{
	tn_tcp_hdr hdr = write_imm(), back;
	uint8_t bytes[TN_TCP_HDR_BYTES];

	(void)state;
	tn_tcp_hdr_encode(&hdr, bytes);
	assert_memory_equal(bytes, golden_write_imm, sizeof(bytes));
	assert_null(tn_tcp_hdr_decode(bytes, 1024, &back));
	assert_int_equal(back.type, hdr.type);
	assert_int_equal(back.flags, hdr.flags);
	assert_int_equal(back.imm, hdr.imm);
	assert_int_equal(back.seq, hdr.seq);
	assert_int_equal(back.ack, hdr.ack);
	assert_int_equal(back.bytes, hdr.bytes);
	assert_int_equal(back.offset, hdr.offset);
	assert_int_equal(back.key_index, hdr.key_index);
	assert_int_equal(back.key_generation, hdr.key_generation);
	assert_int_equal(back.key_tag, hdr.key_tag);
}

static void nak_and_trailer_are_golden(void **state)
{
	static const uint8_t nak[8] = {0x7e, 0x07, 0x00, 0x00, 0xfb, 0xff, 0xff, 0xff};
	static const uint8_t trailer[TN_TCP_TRAILER_BYTES] = {0xfb, 0xff, 0xff, 0xff};
	tn_tcp_hdr hdr = {.type = TN_TCP_NAK, .seq = 3, .ack = 3, .status = TERN_E_STALE_KEY}, back;
	uint8_t bytes[TN_TCP_HDR_BYTES];
	tern_status status = TERN_OK;

	(void)state;
	tn_tcp_hdr_encode(&hdr, bytes);
	assert_memory_equal(bytes, nak, sizeof(nak));
	assert_null(tn_tcp_hdr_decode(bytes, 0, &back));
	assert_int_equal(back.status, TERN_E_STALE_KEY);
	assert_int_equal(back.imm, 0);
	tn_tcp_trailer_encode(TERN_E_STALE_KEY, bytes);
	assert_memory_equal(bytes, trailer, sizeof(trailer));
	assert_null(tn_tcp_trailer_decode(bytes, &status));
	assert_int_equal(status, TERN_E_STALE_KEY);
	bytes[7] = 1;
	assert_non_null(tn_tcp_trailer_decode(bytes, &status));
	tn_tcp_trailer_encode(TERN_E_NOMEM, bytes);
	assert_non_null(tn_tcp_trailer_decode(bytes, &status));
}

/* One byte of a good header changed at a time; each of these is refused. */
static void bad_headers_are_refused(void **state)
{
	static const struct {
		unsigned at;
		uint8_t value;
	} bad[] = {
		{0, 0x7f}, {1, 0},  {1, 8},     {1, 255}, {2, 2},     {2, 3},
		{3, 1},    {29, 2}, {31, 0x80}, {52, 1},  {55, 0x80},
	};
	uint8_t bytes[TN_TCP_HDR_BYTES];
	tn_tcp_hdr hdr;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memcpy(bytes, golden_write_imm, sizeof(bytes));
		bytes[bad[i].at] = bad[i].value;
		if (!tn_tcp_hdr_decode(bytes, 1 << 20, &hdr))
			fail_msg("byte %u = %02x was accepted", bad[i].at, bad[i].value);
	}
}

static const char *decoded(const tn_tcp_hdr *hdr, uint64_t send_bytes_max)
{
	uint8_t bytes[TN_TCP_HDR_BYTES];
	tn_tcp_hdr back;

	tn_tcp_hdr_encode(hdr, bytes);
	return tn_tcp_hdr_decode(bytes, send_bytes_max, &back);
}

static void fields_belong_to_types(void **state)
{
	tn_tcp_hdr hdr = write_imm();

	(void)state;
	hdr.type = TN_TCP_WRITE; /* an immediate in a plain write */
	assert_non_null(decoded(&hdr, 1024));
	hdr.imm = 0;
	assert_null(decoded(&hdr, 1024));
	hdr.type = TN_TCP_READ_REQ; /* wants no acknowledgement */
	assert_non_null(decoded(&hdr, 1024));
	hdr.flags = 0;
	assert_null(decoded(&hdr, 1024));
	hdr.type = TN_TCP_SEND; /* has no key */
	assert_non_null(decoded(&hdr, 1 << 20));
	hdr.key_index = hdr.key_generation = hdr.key_tag = 0;
	hdr.offset = 0;
	assert_null(decoded(&hdr, 1 << 20));
	assert_non_null(decoded(&hdr, (1 << 20) - 1)); /* longer than a slot */
	hdr.type = TN_TCP_ACK;                         /* has no payload and no number */
	assert_non_null(decoded(&hdr, 1024));
	hdr.bytes = 0;
	assert_non_null(decoded(&hdr, 1024));
	hdr.seq = 0;
	assert_null(decoded(&hdr, 1024));
	hdr.type = TN_TCP_NAK; /* only of a key's error */
	hdr.status = TERN_OK;
	assert_non_null(decoded(&hdr, 1024));
	hdr.status = TERN_E_ACCESS;
	assert_null(decoded(&hdr, 1024));
	hdr = write_imm();
	hdr.bytes = TN_TCP_BYTES_MAX;
	assert_null(decoded(&hdr, 1024));
	hdr.bytes++;
	assert_non_null(decoded(&hdr, 1024));
	hdr = write_imm();
	hdr.offset = UINT64_MAX - 10; /* offset + bytes would wrap */
	assert_non_null(decoded(&hdr, 1024));
}

static void hello_is_golden(void **state)
{
	static const uint8_t head[40] = {
		0x31, 0x54, 0x43, 0x54, 0x50, 0x4c, 0x4e, 0x31, /* magic */
		0x01, 0x00, 0x01, 0x00, 0x02, 0x00, 0x00, 0x00, /* versions, CHALLENGE */
		0xc1, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, /* TERN_E_VERSION */
		0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, /* to */
		0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* from */
	};
	tn_tcp_hello hello = {.type = TN_TCP_CHALLENGE,
			      .version = 1,
			      .version_min = 1,
			      .status = TERN_E_VERSION,
			      .lane_to = 0x0100000000000002,
			      .lane_from = 3},
		     back;
	uint8_t bytes[TN_TCP_HELLO_BYTES];

	(void)state;
	memset(hello.nonce, 0xaa, sizeof(hello.nonce));
	memset(hello.proof, 0xbb, sizeof(hello.proof));
	tn_tcp_hello_encode(&hello, bytes);
	assert_memory_equal(bytes, head, sizeof(head));
	assert_int_equal(bytes[40], 0xaa);
	assert_int_equal(bytes[71], 0xaa);
	assert_int_equal(bytes[72], 0xbb);
	assert_int_equal(bytes[103], 0xbb);
	assert_null(tn_tcp_hello_decode(bytes, &back));
	assert_int_equal(back.lane_to, hello.lane_to);
	assert_int_equal(back.status, TERN_E_VERSION);
	assert_memory_equal(back.proof, hello.proof, sizeof(back.proof));

	for (unsigned at = 0; at < 24; at++) {
		uint8_t bad[TN_TCP_HELLO_BYTES];

		/* versions may be anything: that is what they are for */
		if (at == 8 || at == 9)
			continue;
		memcpy(bad, bytes, sizeof(bad));
		bad[at] = (uint8_t)(bad[at] ^ 0x58);
		if (!tn_tcp_hello_decode(bad, &back))
			fail_msg("byte %u was accepted", at);
	}
	memset(bytes + 8, 0, 2); /* newest < oldest */
	assert_non_null(tn_tcp_hello_decode(bytes, &back));
}

static void versions_are_negotiated(void **state)
{
	(void)state;
	assert_int_equal(tn_tcp_version_choose(TN_TCP_WIRE_VERSION, TN_TCP_WIRE_VERSION),
			 TN_TCP_WIRE_VERSION);
	assert_int_equal(tn_tcp_version_choose(TN_TCP_WIRE_VERSION + 5, TN_TCP_WIRE_VERSION),
			 TN_TCP_WIRE_VERSION);
	assert_int_equal(tn_tcp_version_choose(TN_TCP_WIRE_VERSION + 5, TN_TCP_WIRE_VERSION + 1), 0);
	assert_int_equal(tn_tcp_version_choose(TN_TCP_WIRE_VERSION_MIN - 1, 0), 0);
}

/* The two roles, the lanes and the nonces all change what is signed. */
static void transcripts_differ(void **state)
{
	uint8_t a[TN_TCP_TRANSCRIPT_BYTES], b[TN_TCP_TRANSCRIPT_BYTES], one[32] = {1}, two[32] = {2};

	(void)state;
	tn_tcp_transcript(true, 1, 10, 20, one, two, a);
	tn_tcp_transcript(false, 1, 10, 20, one, two, b);
	assert_memory_not_equal(a, b, sizeof(a));
	tn_tcp_transcript(true, 1, 20, 10, one, two, b);
	assert_memory_not_equal(a, b, sizeof(a));
	tn_tcp_transcript(true, 1, 10, 20, two, one, b);
	assert_memory_not_equal(a, b, sizeof(a));
	tn_tcp_transcript(true, 2, 10, 20, one, two, b);
	assert_memory_not_equal(a, b, sizeof(a));
	assert_memory_equal(a, "tern tcp dialler", 16);
}

static void device_blobs(void **state)
{
	tn_tcp_dev_blob dev = {.send_bytes = 4096, .host = 7, .netns = 8, .count = 2}, back;
	tn_blob blob, bad;

	(void)state;
	dev.addrs[0] = (tn_tcp_addr){.family = 4, .port = 0x1234, .ip = {127, 0, 0, 1}};
	dev.addrs[1] = (tn_tcp_addr){.family = 6, .port = 1, .scope = 3, .ip = {0xfe, 0x80, [15] = 1}};
	tn_tcp_dev_blob_encode(&dev, &blob);
	assert_int_equal(blob.length, 24 + 2 * 24);
	assert_int_equal(blob.bytes[1], 2);
	assert_int_equal(blob.bytes[24], 4);
	assert_int_equal(blob.bytes[26], 0x34);
	assert_int_equal(blob.bytes[27], 0x12);
	assert_null(tn_tcp_dev_blob_decode(&blob, &back));
	assert_int_equal(back.send_bytes, 4096);
	assert_int_equal(back.addrs[1].scope, 3);
	assert_memory_equal(back.addrs[1].ip, dev.addrs[1].ip, 16);

	for (uint16_t n = 0; n < blob.length; n++) {
		bad = blob;
		bad.length = n;
		assert_non_null(tn_tcp_dev_blob_decode(&bad, &back));
	}
	bad = blob;
	bad.length++;
	assert_non_null(tn_tcp_dev_blob_decode(&bad, &back));
	bad = blob;
	bad.bytes[1] = 200;
	assert_non_null(tn_tcp_dev_blob_decode(&bad, &back));
	bad = blob;
	bad.bytes[26] = bad.bytes[27] = 0; /* port 0 */
	assert_non_null(tn_tcp_dev_blob_decode(&bad, &back));
}

static void lane_blobs(void **state)
{
	tn_blob blob;
	uint64_t id = 0;

	(void)state;
	tn_tcp_lane_blob_encode(0x1122334455667788, &blob);
	assert_int_equal(blob.length, 16);
	assert_int_equal(blob.bytes[8], 0x88);
	assert_null(tn_tcp_lane_blob_decode(&blob, &id));
	assert_int_equal(id, 0x1122334455667788);
	blob.bytes[3] = 1;
	assert_non_null(tn_tcp_lane_blob_decode(&blob, &id));
	tn_tcp_lane_blob_encode(0, &blob);
	assert_non_null(tn_tcp_lane_blob_decode(&blob, &id));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_is_golden),
		cmocka_unit_test(nak_and_trailer_are_golden),
		cmocka_unit_test(bad_headers_are_refused),
		cmocka_unit_test(fields_belong_to_types),
		cmocka_unit_test(hello_is_golden),
		cmocka_unit_test(versions_are_negotiated),
		cmocka_unit_test(transcripts_differ),
		cmocka_unit_test(device_blobs),
		cmocka_unit_test(lane_blobs),
	};

	return RUN(tests);
}
