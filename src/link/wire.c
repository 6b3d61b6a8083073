/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages of the link: encode and parse. See wire.h. Pure. Tests: tests/unit/link/wire_test.c.
 */
#include "link/wire.h"

#include "base/check.h"

_Static_assert(TN_FRAME_BYTES_MAX <= TN_FRAME_ROOM_MIN, "every header fits a receive slot");
_Static_assert(sizeof(tn_frame_open) + TN_NAME_MAX <= TN_FRAME_ROOM_MIN, "OPEN fits");
_Static_assert(TN_CTRL_HELLO_BYTES >= 96 + 2 + TN_NAME_MAX, "HELLO fits");
_Static_assert(TN_CTRL_BYTES_MAX >=
		       8 + TN_LINK_PROVIDERS_MAX * (2 + TN_LINK_PROVIDER_NAME + 22 + TN_LINK_BLOB_MAX),
	       "SETUP fits");

tern_status tn_wire_status(int32_t number, tern_status other)
{
	tern_status status = (tern_status)number;

	if (number >= 0 || tern_status_radius(status) == TERN_RADIUS_NONE)
		return other;
	/* Unknown numbers have radius CALLER and the name of none. */
	if (!strcmp(tern_status_name(status), "TERN_E_?"))
		return other;
	return status;
}

/* ---- encode ---- */

static uint64_t begin(tn_writer *w, tn_ctrl_type type)
{
	uint64_t at = w->at;

	tn_put_u32(w, 0);
	tn_put_u16(w, (uint16_t)type);
	tn_put_u16(w, 0);
	return at;
}

static void end(tn_writer *w, uint64_t at)
{
	if (!w->bad)
		tn_patch_u32(w, at, (uint32_t)(w->at - at - TN_CTRL_HEAD_BYTES));
}

void tn_wire_put_hello(tn_writer *w, const tn_wire_hello *hello)
{
	uint64_t at = begin(w, TN_CTRL_HELLO);

	tn_put_u32(w, TN_WIRE_MAGIC);
	tn_put_u16(w, hello->version);
	tn_put_u16(w, hello->version_min);
	tn_put_u64(w, hello->features);
	tn_put_u32(w, hello->flags);
	tn_put_bytes(w, hello->job, sizeof(hello->job));
	tn_put_bytes(w, hello->node, sizeof(hello->node));
	tn_put_bytes(w, hello->incarnation, sizeof(hello->incarnation));
	tn_put_bytes(w, hello->nonce, sizeof(hello->nonce));
	tn_put_str(w, hello->name);
	for (int i = 0; i < TN_WIRE_HELLO_MORE; i++)
		tn_put_u8(w, 0xa5);
	end(w, at);
}

void tn_wire_put_auth(tn_writer *w, const uint8_t (*macs)[32], uint32_t count)
{
	uint64_t at = begin(w, TN_CTRL_AUTH);

	tn_put_bytes(w, macs, 32ull * count);
	end(w, at);
}

void tn_wire_put_setup(tn_writer *w, uint32_t channels_max, const tn_link_provider *providers, uint32_t count,
		       uint32_t hidden)
{
	uint64_t at = begin(w, TN_CTRL_SETUP);

	tn_put_u32(w, channels_max);
	tn_put_u32(w, count);
	for (uint32_t i = 0; i < count; i++) {
		const tn_link_provider *p = &providers[i];

		tn_put_str(w, p->name);
		tn_put_u32(w, p->caps & ~hidden);
		tn_put_u64(w, p->write_bytes_max);
		tn_put_u64(w, p->send_bytes_max);
		tn_put_u16(w, p->address_bytes);
		tn_put_bytes(w, p->address, p->address_bytes);
	}
	end(w, at);
}

void tn_wire_put_wire(tn_writer *w, uint32_t epoch, const char *provider, uint32_t lanes)
{
	uint64_t at = begin(w, TN_CTRL_WIRE);

	tn_put_u32(w, epoch);
	tn_put_u32(w, lanes);
	tn_put_str(w, provider);
	end(w, at);
}

void tn_wire_put_lane_addr(tn_writer *w, uint32_t epoch, uint32_t lane, uint32_t grant,
			   const uint8_t *address, uint16_t address_bytes)
{
	uint64_t at = begin(w, TN_CTRL_LANE_ADDR);

	tn_put_u32(w, epoch);
	tn_put_u32(w, lane);
	tn_put_u32(w, grant);
	tn_put_u16(w, address_bytes);
	tn_put_bytes(w, address, address_bytes);
	end(w, at);
}

void tn_wire_put_epoch(tn_writer *w, tn_ctrl_type type, uint32_t epoch)
{
	uint64_t at = begin(w, type);

	tn_put_u32(w, epoch);
	end(w, at);
}

void tn_wire_put_resume(tn_writer *w, tn_ctrl_type type, const tn_wire_resume *resume)
{
	uint64_t at = begin(w, type);

	tn_put_u32(w, resume->epoch);
	tn_put_u32(w, resume->lanes);
	for (uint32_t i = 0; i < resume->lanes; i++)
		tn_put_u32(w, resume->received[i]);
	end(w, at);
}

static void put_words(tn_writer *w, tern_status status, const char *text)
{
	size_t n = text ? strnlen(text, TN_LINK_TEXT_MAX - 1) : 0;

	tn_put_u32(w, (uint32_t)status);
	tn_put_u16(w, (uint16_t)n);
	tn_put_bytes(w, text, n);
}

void tn_wire_put_unwire(tn_writer *w, uint32_t epoch, tern_status status, const char *text)
{
	uint64_t at = begin(w, TN_CTRL_UNWIRE);

	tn_put_u32(w, epoch);
	put_words(w, status, text);
	end(w, at);
}

void tn_wire_put_refuse(tn_writer *w, tern_status status, const char *text)
{
	uint64_t at = begin(w, TN_CTRL_REFUSE);

	put_words(w, status, text);
	end(w, at);
}

void tn_wire_put_ping(tn_writer *w, tn_ctrl_type type, uint64_t number)
{
	uint64_t at = begin(w, type);

	tn_put_u64(w, number);
	end(w, at);
}

void tn_wire_put_rejoin(tn_writer *w, tn_ctrl_type type, const tn_wire_rejoin *rejoin)
{
	uint64_t at = begin(w, type);

	tn_put_bytes(w, rejoin->session, sizeof(rejoin->session));
	tn_put_u32(w, rejoin->number);
	tn_put_u64(w, rejoin->received);
	tn_put_bytes(w, rejoin->mac, sizeof(rejoin->mac));
	end(w, at);
}

/* ---- parse ---- */

const char *tn_wire_ctrl_head(const uint8_t head[TN_CTRL_HEAD_BYTES], bool first, tn_ctrl_type *type,
			      uint32_t *bytes)
{
	tn_reader r;
	uint32_t n, kind, zero;

	tn_reader_init(&r, head, TN_CTRL_HEAD_BYTES);
	n = tn_get_u32(&r);
	kind = tn_get_u16(&r);
	zero = tn_get_u16(&r);
	if (first && kind != TN_CTRL_HELLO && kind != TN_CTRL_REFUSE && kind != TN_CTRL_REJOIN)
		return "what connected does not speak tern (no HELLO)";
	if (kind == 0 || kind >= TN_CTRL_TYPES || zero != 0)
		return "unknown control message";
	if (n > TN_CTRL_BYTES_MAX || (kind == TN_CTRL_HELLO && n > TN_CTRL_HELLO_BYTES))
		return "control message too long";
	*type = (tn_ctrl_type)kind;
	*bytes = n;
	return NULL;
}

const char *tn_wire_get_hello(const uint8_t *payload, uint64_t bytes, tn_wire_hello *hello)
{
	tn_reader r;

	memset(hello, 0, sizeof(*hello));
	tn_reader_init(&r, payload, bytes);
	if (tn_get_u32(&r) != TN_WIRE_MAGIC || r.bad)
		return "what connected does not speak tern (wrong magic)";
	hello->version = tn_get_u16(&r);
	hello->version_min = tn_get_u16(&r);
	if (r.bad || hello->version == 0 || hello->version_min > hello->version)
		return "HELLO without a version";
	/* Of a version that can't be spoken only these are read. */
	if (hello->version_min > TN_WIRE_VERSION || hello->version < TN_WIRE_VERSION_MIN)
		return NULL;
	hello->features = tn_get_u64(&r);
	hello->flags = tn_get_u32(&r);
	tn_get_bytes(&r, hello->job, sizeof(hello->job));
	tn_get_bytes(&r, hello->node, sizeof(hello->node));
	tn_get_bytes(&r, hello->incarnation, sizeof(hello->incarnation));
	tn_get_bytes(&r, hello->nonce, sizeof(hello->nonce));
	tn_get_str(&r, hello->name, sizeof(hello->name));
	/* A newer version may append; ours is exact. */
	if (r.bad || (hello->version <= TN_WIRE_VERSION && !tn_reader_done(&r)))
		return "malformed HELLO";
	return NULL;
}

static void get_blob(tn_reader *r, uint16_t *n, uint8_t blob[TN_LINK_BLOB_MAX])
{
	*n = tn_get_u16(r);
	if (*n > TN_LINK_BLOB_MAX)
		r->bad = true;
	else
		tn_get_bytes(r, blob, *n);
}

const char *tn_wire_get_setup(const uint8_t *payload, uint64_t bytes, tn_wire_setup *setup)
{
	tn_reader r;

	memset(setup, 0, sizeof(*setup));
	tn_reader_init(&r, payload, bytes);
	setup->channels_max = tn_get_u32(&r);
	setup->provider_count = tn_get_u32(&r);
	if (r.bad || setup->provider_count > TN_LINK_PROVIDERS_MAX)
		return "SETUP with too many providers";
	for (uint32_t i = 0; i < setup->provider_count; i++) {
		tn_wire_provider *p = &setup->providers[i];

		tn_get_str(&r, p->name, sizeof(p->name));
		p->caps = tn_get_u32(&r);
		p->write_bytes_max = tn_get_u64(&r);
		p->send_bytes_max = tn_get_u64(&r);
		get_blob(&r, &p->address_bytes, p->address);
		if (!r.bad && (p->send_bytes_max < TN_FRAME_ROOM_MIN || p->write_bytes_max == 0))
			return "SETUP with a provider whose limits are too small";
	}
	return tn_reader_done(&r) && setup->channels_max > 0 ? NULL : "malformed SETUP";
}

const char *tn_wire_get_wire(const uint8_t *payload, uint64_t bytes, tn_wire_wire *wire)
{
	tn_reader r;

	tn_reader_init(&r, payload, bytes);
	wire->epoch = tn_get_u32(&r);
	wire->lanes = tn_get_u32(&r);
	tn_get_str(&r, wire->provider, sizeof(wire->provider));
	if (!tn_reader_done(&r))
		return "malformed WIRE";
	if (wire->lanes == 0 || wire->lanes > TN_LINK_LANES_MAX)
		return "WIRE with a number of lanes out of range";
	return NULL;
}

const char *tn_wire_get_lane_addr(const uint8_t *payload, uint64_t bytes, tn_wire_lane_addr *addr)
{
	tn_reader r;

	memset(addr, 0, sizeof(*addr));
	tn_reader_init(&r, payload, bytes);
	addr->epoch = tn_get_u32(&r);
	addr->lane = tn_get_u32(&r);
	addr->grant = tn_get_u32(&r);
	get_blob(&r, &addr->address_bytes, addr->address);
	if (!tn_reader_done(&r))
		return "malformed LANE_ADDR";
	return NULL;
}

const char *tn_wire_get_end(const uint8_t *payload, uint64_t bytes, bool with_epoch, tn_wire_end *out)
{
	tn_reader r;

	memset(out, 0, sizeof(*out));
	tn_reader_init(&r, payload, bytes);
	if (with_epoch)
		out->epoch = tn_get_u32(&r);
	out->status = tn_wire_status((int32_t)tn_get_u32(&r), TERN_E_REMOTE);
	tn_get_str(&r, out->text, sizeof(out->text));
	return tn_reader_done(&r) ? NULL : "malformed UNWIRE or REFUSE";
}

const char *tn_wire_get_rejoin(const uint8_t *payload, uint64_t bytes, tn_wire_rejoin *rejoin)
{
	tn_reader r;

	tn_reader_init(&r, payload, bytes);
	tn_get_bytes(&r, rejoin->session, sizeof(rejoin->session));
	rejoin->number = tn_get_u32(&r);
	rejoin->received = tn_get_u64(&r);
	tn_get_bytes(&r, rejoin->mac, sizeof(rejoin->mac));
	return r.bad || r.at != bytes ? "malformed REJOIN" : NULL;
}

const char *tn_wire_get_epoch(const uint8_t *payload, uint64_t bytes, uint32_t *epoch)
{
	tn_reader r;

	tn_reader_init(&r, payload, bytes);
	*epoch = tn_get_u32(&r);
	return tn_reader_done(&r) ? NULL : "malformed WIRED or CLOSED";
}

const char *tn_wire_get_resume(const uint8_t *payload, uint64_t bytes, tn_wire_resume *resume)
{
	tn_reader r;

	tn_reader_init(&r, payload, bytes);
	resume->epoch = tn_get_u32(&r);
	resume->lanes = tn_get_u32(&r);
	if (resume->lanes == 0 || resume->lanes > TN_LINK_LANES_MAX)
		return "malformed RESUME or SENT";
	for (uint32_t i = 0; i < resume->lanes; i++)
		resume->received[i] = tn_get_u32(&r);
	return tn_reader_done(&r) ? NULL : "malformed RESUME or SENT";
}

const char *tn_wire_get_ping(const uint8_t *payload, uint64_t bytes, uint64_t *number)
{
	tn_reader r;

	tn_reader_init(&r, payload, bytes);
	*number = tn_get_u64(&r);
	return tn_reader_done(&r) ? NULL : "malformed PING or PONG";
}
