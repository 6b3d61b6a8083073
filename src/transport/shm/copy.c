/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the copy loops and the choice among them.
 *
 * Measured on Zen 5 (two cores, mapped memfd, 4 KiB pages; GB/s cold | same buffers again):
 *
 *              memcpy      rep movsb     non-temporal 256 bit
 *    64 KiB   17 | 107     15 | 106      21 |  52
 *     1 MiB   20 |  58     25 |  75      27 |  44
 *    16 MiB   19 |  36     23 |  46      28 |  34
 *    64 MiB   20 |  22     29 |  29      29 |  29
 *
 * so there `rep movsb` takes the middle from where both sides no longer fit into the first cache, and non-temporal stores
 * pay when neither side will find the data in a cache anyway (512-bit ones came out equal, 0.98-1.01). Below, a loop of plain 512-bit stores is first (ns, the same
 * buffers again | cold):
 *
 *              memcpy       rep movsb    512 bit
 *     1 KiB     5.2 | 134   12 |  122     4.2 |  109
 *     4 KiB      30 | 381   30 |  410      16 |  413
 *    16 KiB     101 | 1275 102 | 1236      63 | 1420
 *    32 KiB     197 | 2100 198 | 2093     238 | 2450
 *
 * On Zen 4 that loop takes all of the middle (us, best of 7, the same buffers again; +1, +16: the destination's place in its
 * page less the source's). The C library's memcpy is `rep movsb` there up to the size of the second cache, which a
 * destination that lies up to 63 bytes behind its source, in the page, costs up to 40 times:
 *
 *              memcpy    rep movsb   rep movsq   512 bit        memcpy +1, +16   512 bit +1, +16
 *     4 KiB     0.042     0.041       0.041       0.035          1.66, 0.10       0.050, 0.050
 *    64 KiB      1.13      1.13        1.13        1.12          18.6, 1.17       1.15, 1.24
 *     1 MiB      22.1      22.0        21.0        21.4          22.1, 21.9       22.0, 22.0
 *     4 MiB       108        88          84          86            89, 89           88, 88
 *
 * On older processors (Zen 3: memcpy 11.6 ms, non-temporal 7.0-8.7 ms for 64 MiB) memcpy keeps all of the middle.
 *
 * Must not: dispatch per call. Threads: any. Tests: tests/unit/transport/test_shm_copy.c.
 */
#include "transport/shm/copy.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define REP_BYTES_MIN    4096ull
#define LOOP_BYTES_MIN   1024ull
#define LOOP_BYTES_END   (16384ull + 1)
#define NT_BYTES_DEFAULT (16ull << 20)

static void copy_memcpy(void *to, const void *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

#if defined(__x86_64__)

static void copy_rep(void *to, const void *from, uint64_t bytes)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

/* Bring `to` to a 64-byte boundary; returns the bytes done. */
static uint64_t align_head(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t head = -(uintptr_t)to & 63;

	head = TN_MIN(head, bytes);
	memcpy(to, from, head);
	return head;
}

static void copy_nt_sse2(void *to_arg, const void *from_arg, uint64_t bytes)
{
	uint8_t *to = to_arg;
	const uint8_t *from = from_arg;
	uint64_t i = align_head(to, from, bytes);

	for (; i + 64 <= bytes; i += 64) {
		__m128i a = _mm_loadu_si128((const void *)(from + i));
		__m128i b = _mm_loadu_si128((const void *)(from + i + 16));
		__m128i c = _mm_loadu_si128((const void *)(from + i + 32));
		__m128i d = _mm_loadu_si128((const void *)(from + i + 48));

		_mm_stream_si128((void *)(to + i), a);
		_mm_stream_si128((void *)(to + i + 16), b);
		_mm_stream_si128((void *)(to + i + 32), c);
		_mm_stream_si128((void *)(to + i + 48), d);
	}
	memcpy(to + i, from + i, bytes - i);
	_mm_sfence();
}

__attribute__((target("avx2"))) static void copy_nt_avx2(void *to_arg, const void *from_arg, uint64_t bytes)
{
	uint8_t *to = to_arg;
	const uint8_t *from = from_arg;
	uint64_t i = align_head(to, from, bytes);

	for (; i + 128 <= bytes; i += 128) {
		__m256i a = _mm256_loadu_si256((const void *)(from + i));
		__m256i b = _mm256_loadu_si256((const void *)(from + i + 32));
		__m256i c = _mm256_loadu_si256((const void *)(from + i + 64));
		__m256i d = _mm256_loadu_si256((const void *)(from + i + 96));

		_mm256_stream_si256((void *)(to + i), a);
		_mm256_stream_si256((void *)(to + i + 32), b);
		_mm256_stream_si256((void *)(to + i + 64), c);
		_mm256_stream_si256((void *)(to + i + 96), d);
	}
	memcpy(to + i, from + i, bytes - i);
	_mm_sfence();
}

/* 0: not by AMD. */
static unsigned amd_family(void)
{
	unsigned a, b, c, d;

	if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d))
		return 0;
	return (a >> 8 & 0xf) + (a >> 20 & 0xff);
}

/* AMD from family 1Ah (Zen 5) on: `rep movsb` is at least as fast as any loop from a page upwards. */
static bool rep_is_fast(void)
{
	unsigned a, b, c, d;

	return amd_family() >= 0x1a && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
	       (d >> 4 & 1) != 0; /* FSRM */
}

/* From TN_SHM_LOOP_MIN on; stores to whole lines but for the first and the last ones, which overlap others. */
__attribute__((target("avx512f"))) static void copy_avx512(void *to_arg, const void *from_arg, uint64_t bytes)
{
	uint8_t *to = to_arg;
	const uint8_t *from = from_arg;
	uint64_t last = bytes - TN_SHM_LOOP_MIN, i = TN_MIN(-(uintptr_t)to & 63, last);

	TN_ASSERT(bytes >= TN_SHM_LOOP_MIN);
	_mm512_storeu_si512(to, _mm512_loadu_si512(from));
	for (;;) {
		__m512i a = _mm512_loadu_si512(from + i);
		__m512i b = _mm512_loadu_si512(from + i + 64);
		__m512i c = _mm512_loadu_si512(from + i + 128);
		__m512i d = _mm512_loadu_si512(from + i + 192);

		_mm512_storeu_si512(to + i, a);
		_mm512_storeu_si512(to + i + 64, b);
		_mm512_storeu_si512(to + i + 128, c);
		_mm512_storeu_si512(to + i + 192, d);
		if (i == last)
			return;
		i = TN_MIN(i + TN_SHM_LOOP_MIN, last);
	}
}

static void choose(tn_shm_copier *copier)
{
	if (rep_is_fast()) {
		copier->middle = copy_rep;
		copier->middle_name = "rep movsb";
	}
	if (amd_family() >= 0x19 && __builtin_cpu_supports("avx512f")) {
		copier->loop = copy_avx512;
		copier->loop_bytes = LOOP_BYTES_MIN;
		copier->rep_bytes = LOOP_BYTES_END;
		if (!rep_is_fast()) {
			copier->middle = copy_avx512;
			copier->middle_name = "avx512";
		}
	}
	if (__builtin_cpu_supports("avx2")) {
		copier->large = copy_nt_avx2;
		copier->large_name = "avx2 nt";
	} else {
		copier->large = copy_nt_sse2;
		copier->large_name = "sse2 nt";
	}
}

#else

static void choose(tn_shm_copier *copier)
{
	(void)copier;
}

#endif

void tn_shm_copier_init(tn_shm_copier *copier, uint64_t nt_bytes)
{
	*copier = (tn_shm_copier){
		.loop_bytes = REP_BYTES_MIN,
		.rep_bytes = REP_BYTES_MIN,
		.nt_bytes = NT_BYTES_DEFAULT,
		.loop = copy_memcpy,
		.middle = copy_memcpy,
		.large = copy_memcpy,
		.middle_name = "memcpy",
		.large_name = "memcpy",
	};
	choose(copier);
	if (nt_bytes != 0)
		copier->nt_bytes = nt_bytes;
}

void tn_shm_copy_far(const tn_shm_copier *copier, void *to, const void *from, uint64_t bytes, uint64_t run)
{
	/* Everything stored before stays before, on machines that reorder stores too. */
	tn_shm_fence_release();
	if (bytes < copier->rep_bytes) {
		if (bytes < copier->loop_bytes)
			memcpy(to, from, bytes);
		else
			copier->loop(to, from, bytes);
	} else if (bytes < copier->nt_bytes && run < copier->nt_bytes / TN_SHM_RUN_SHARE) {
		copier->middle(to, from, bytes);
	} else {
		copier->large(to, from, bytes);
	}
}
