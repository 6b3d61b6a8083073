/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded little-endian writer and reader over a caller's buffer. Both go on after an overflow without
 * touching memory (reads give 0) and remember it, so that a codec is straight-line code with one check at
 * its end.
 *
 *   0 <= at <= bytes; once `bad`, always bad
 *
 * Pure. Threads: one per object. Tests: tests/unit/base/wirebuf_test.c.
 */
#ifndef TN_BASE_WIREBUF_H
#define TN_BASE_WIREBUF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct tn_writer {
	uint8_t *buf;
	uint64_t bytes;
	uint64_t at;
	bool bad;
} tn_writer;

typedef struct tn_reader {
	const uint8_t *buf;
	uint64_t bytes;
	uint64_t at;
	bool bad;
} tn_reader;

/* Little endian at places whose bounds are known: a load each, if the compiler sees it. */
static inline uint16_t tn_load_u16(const uint8_t *at)
{
	return (uint16_t)(at[0] | (unsigned)at[1] << 8);
}

static inline uint32_t tn_load_u32(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t tn_load_u64(const uint8_t *at)
{
	return (uint64_t)tn_load_u32(at) | (uint64_t)tn_load_u32(at + 4) << 32;
}

static inline void tn_writer_init(tn_writer *w, void *buf, uint64_t bytes)
{
	*w = (tn_writer){.buf = buf, .bytes = bytes};
}

static inline void tn_reader_init(tn_reader *r, const void *buf, uint64_t bytes)
{
	*r = (tn_reader){.buf = buf, .bytes = bytes};
}

/* The place of the next n bytes, which count as written; NULL and bad if they do not fit. */
static inline void *tn_put_space(tn_writer *w, uint64_t n)
{
	void *place;

	if (w->bad || n > w->bytes - w->at) {
		w->bad = true;
		return NULL;
	}
	place = w->buf + w->at;
	w->at += n;
	return place;
}

/* The next n bytes in place, which count as read; NULL and bad if there are fewer. */
static inline const void *tn_get_view(tn_reader *r, uint64_t n)
{
	const void *place;

	if (r->bad || n > r->bytes - r->at) {
		r->bad = true;
		return NULL;
	}
	place = r->buf + r->at;
	r->at += n;
	return place;
}

static inline void tn_put_bytes(tn_writer *w, const void *src, uint64_t n)
{
	void *place = tn_put_space(w, n);

	if (place && n)
		memcpy(place, src, n);
}

static inline void tn_put_zeros(tn_writer *w, uint64_t n)
{
	void *place = tn_put_space(w, n);

	if (place && n)
		memset(place, 0, n);
}

/* dst is zeroed if there are fewer than n bytes. */
static inline void tn_get_bytes(tn_reader *r, void *dst, uint64_t n)
{
	const void *place = tn_get_view(r, n);

	if (place && n)
		memcpy(dst, place, n);
	else if (n)
		memset(dst, 0, n);
}

static inline uint64_t tn_reader_left(const tn_reader *r)
{
	return r->bytes - r->at;
}

/* True if everything was read and nothing overflowed: the end of a strict decoder. */
static inline bool tn_reader_done(const tn_reader *r)
{
	return !r->bad && r->at == r->bytes;
}

#define TN_WIREBUF_SCALAR(bits)                                               \
	static inline void tn_put_u##bits(tn_writer *w, uint##bits##_t value) \
	{                                                                     \
		uint8_t *place = tn_put_space(w, bits / 8);                   \
                                                                              \
		for (unsigned i = 0; place && i < bits / 8; i++)              \
			place[i] = (uint8_t)((uint64_t)value >> (8 * i));     \
	}                                                                     \
	static inline uint##bits##_t tn_get_u##bits(tn_reader *r)             \
	{                                                                     \
		const uint8_t *place = tn_get_view(r, bits / 8);              \
		uint64_t value = 0;                                           \
                                                                              \
		for (unsigned i = 0; place && i < bits / 8; i++)              \
			value |= (uint64_t)place[i] << (8 * i);               \
		return (uint##bits##_t)value;                                 \
	}
TN_WIREBUF_SCALAR(8)
TN_WIREBUF_SCALAR(16)
TN_WIREBUF_SCALAR(32)
TN_WIREBUF_SCALAR(64)
#undef TN_WIREBUF_SCALAR

/* A string as u16 length and bytes, without NUL. Longer than 65535: bad. */
static inline void tn_put_str(tn_writer *w, const char *text)
{
	size_t n = text ? strlen(text) : 0;

	if (n > UINT16_MAX) {
		w->bad = true;
		return;
	}
	tn_put_u16(w, (uint16_t)n);
	tn_put_bytes(w, text, n);
}

/* Into dst[size] with NUL; bad if it does not fit or contains a NUL. dst is "" then. */
static inline void tn_get_str(tn_reader *r, char *dst, uint64_t size)
{
	uint16_t n = tn_get_u16(r);
	const void *place = tn_get_view(r, n);

	if (size)
		dst[0] = '\0';
	if (!place)
		return;
	if (n >= size || memchr(place, 0, n)) {
		r->bad = true;
		return;
	}
	memcpy(dst, place, n);
	dst[n] = '\0';
}

/* Overwrite a u32 that was written before, at offset `at` (a length known only at the end). */
static inline void tn_patch_u32(tn_writer *w, uint64_t at, uint32_t value)
{
	if (w->bad || at > w->at || w->at - at < 4) {
		w->bad = true;
		return;
	}
	for (unsigned i = 0; i < 4; i++)
		w->buf[at + i] = (uint8_t)(value >> (8 * i));
}

#endif
