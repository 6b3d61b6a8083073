/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context is doing: how long its operations take, the latest of them one by one, and who waits for whom. For
 * monitors (<tern/http.h>, `tern top`, `tern trace`, `tern status`) and for programs that show it themselves.
 *
 * Kinds of operations, and what their key is:
 *   rpc.call                    from the call to its answer; the method's number
 *   rpc.serve                   from the request's arrival to the reply; the method's number
 *   ps.pull, ps.push, ps.erase  from the submission to the completion; how many keys
 *   coll.*                      one rank's part of a collective; bytes
 * More may come. All functions may be called from any thread; fn runs in the calling thread, under no lock, strings
 * live during the call (names of kinds as long as the library).
 */
#ifndef TERN_WATCH_H
#define TERN_WATCH_H

#include <tern/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Record how long operations take from now on, and keep the latest `spans` of them (0: 4096; rounded up to a power of
 * two; 48 bytes each). Costs about 50 ns an operation; before this call nothing is recorded, and it costs nothing. It
 * goes on as long as the context; later calls change nothing. TERN_E_INVALID (above 2^20), TERN_E_NOMEM.
 */
tern_status tern_ctx_record(tern_ctx *ctx, uint64_t spans);

#define TERN_LATENCY_BUCKETS 34

typedef struct tern_latency {
	const char *kind; /* "rpc.call" */
	uint64_t count, sum_ns, max_ns;
	uint64_t p50_ns, p99_ns, p999_ns; /* above the exact value by at most an eighth of it */
	/* Operations that took less than 2^(i + 7) ns and not less than the bucket before; the last one has all others. */
	uint64_t buckets[TERN_LATENCY_BUCKETS];
} tern_latency;
/* fn runs for each kind that something was recorded of, in the order in which they came. */
void tern_ctx_latencies(tern_ctx *ctx, void (*fn)(const tern_latency *latency, void *arg), void *arg);

typedef struct tern_span {
	const char *kind;
	uint64_t number;                /* counts from 0 in the order of their ends, about */
	uint64_t start_ns, duration_ns; /* start: the monotonic clock of this host */
	uint64_t key;
	uint32_t thread; /* of the OS: who recorded it */
} tern_span;
/*
 * fn runs for each span from number `since` on that is still kept. Returns the number to go on with: as `since` of the
 * next call nothing comes twice. Numbers that are missing were overwritten before they were read.
 */
uint64_t tern_ctx_spans(tern_ctx *ctx, uint64_t since, void (*fn)(const tern_span *span, void *arg),
			void *arg);

typedef struct tern_wait {
	const char *
		what; /* "calls of method 0x70730010", "step 12 of group train waits for 1 of 4 workers: b" */
	const char *whom;  /* name or address of who is waited for; "" where `what` says it */
	uint64_t since_ns; /* how long the one that has waited longest has */
	uint64_t count;    /* of waits of this kind */
} tern_wait;
/*
 * fn runs for each: calls without an answer by server and method, members of groups that wait at a step or barrier. One
 * that lasts is who holds a job up. Not in it: tensors and messages, which links tell (tern_ctx_links).
 */
void tern_ctx_waits(tern_ctx *ctx, void (*fn)(const tern_wait *wait, void *arg), void *arg);

/*
 * All of that, links with their lanes and counters included, line by line in words: made to be pasted into a report. It
 * holds addresses and names, no data and no secrets.
 */
void tern_ctx_report(tern_ctx *ctx, void (*line)(const char *text, void *arg), void *arg);

#ifdef __cplusplus
}
#endif

#endif
