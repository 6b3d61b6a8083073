/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much bulk may be in flight: the link's window, fixed or adaptive, and the device's budget (share.h).
 *
 *   bulk       a piece of a transfer of more than small_bytes; what is shorter, and messages, are not counted
 *   in_flight  sum of the bytes of bulk wrs, up at the post, down once at the completion, whatever its status
 *   window     window_min_bytes <= window <= window_bytes
 *
 * Before both: what the peer grants, of a put (grants.c).
 *
 * A piece is a fourth of the window at most, so that some are in flight at any window.
 *
 * Adaptive: the completion delay of bulk is held near target = base + window_target_ns, since what is above that only
 * queues. base is the least delay that bulk had on these lanes, BASE_TARGETS * window_target_ns before it had any: how
 * long the path is cannot be known beforehand.
 *
 *   lanes come up      window = window_min_bytes. Many senders that begin together are no burst then, and nothing is known
 *                      of the path yet
 *   delay > target     window -= window * (delay - target) / delay, half of it at most; once per window: only a wr that
 *                      was posted after the last cut tells what the cut did
 *   else               each time a whole window of bytes has completed, if it was the window that held pieces back since
 *                      the last time: window += window until the first cut, window_min_bytes after it
 *
 * Threads: none. Tests: tests/unit/link/window_test.c, pair_test.c.
 */
#include "link/internal.h"

#define BASE_TARGETS 40u /* 10 ms: a path that is longer has a small window */

#define PIECE_MIN 4096u /* of a window that is smaller still */

#define PLACED_PIECE  (128u << 10)
#define PLACED_WINDOW (512u << 10)

/* ---- what may go ---- */

uint64_t tn_lk_piece_max(const tn_link *link)
{
	return TN_MIN(link->chunk_max, TN_MAX(link->window / 4, PIECE_MIN));
}

/*
 * A transfer that is alone and no longer than the least window has nothing behind it that smaller pieces would let
 * through: over a stream each piece costs both sides a header and system calls. A longer one is cut, so that its first
 * pieces are taken while the next are on their way.
 */
static bool goes_whole(const tn_link *link, uint64_t bytes)
{
	return link->in_flight == 0 && link->shared->providers[link->provider].window_adaptive &&
	       bytes <= link->config->window_min_bytes && bytes <= link->chunk_max;
}

/*
 * What a message follows is as long as a caller that waits asked for, is paced by its calls, and over a stream queues in
 * a socket of bulk alone: neither the pieces nor the window of an adaptive link are shorter for it than these.
 */
static uint64_t piece_of(const tn_link *link, bool placed)
{
	uint64_t most = tn_lk_piece_max(link);

	return placed && link->adaptive ? TN_MAX(most, TN_MIN(link->chunk_max, PLACED_PIECE)) : most;
}

static bool window_open(const tn_link *link, uint64_t n, bool placed)
{
	return tn_lk_window_open(link, n) ||
	       (placed && link->adaptive &&
		link->in_flight + n <= TN_MIN(PLACED_WINDOW, link->config->window_bytes));
}

uint64_t tn_lk_bulk_next(tn_link *link, uint64_t left, bool put, bool placed)
{
	uint64_t n = goes_whole(link, left) ? left : TN_MIN(left, piece_of(link, placed));

	if (!tn_lk_is_bulk(link, n))
		return n;
	if (put && link->grants.tx)
		n = tn_lk_grants_room(link, n);
	if (!tn_lk_is_bulk(link, n)) /* also none at all */
		return n;
	if (!window_open(link, n, placed)) {
		tn_count_own(&link->counters.window_waits, 1);
		link->window_shut = link->limited = true;
		return 0;
	}
	if (link->budget && !tn_budget_open(link->budget, &link->budget_seat, n)) {
		tn_count_own(&link->counters.budget_waits, 1);
		link->window_shut = link->budget_shut = true;
		return 0;
	}
	return n;
}

bool tn_lk_bulk_fast(const tn_link *link, const tn_link_xfer *xfer, bool placed)
{
	const tn_link_budget *budget = link->budget;
	uint64_t bytes = xfer->bytes;

	/* Nothing passes bulk that waits, here or on another link of the device. */
	if (link->bulk_ready || link->outside ||
	    (bytes > piece_of(link, placed) && !goes_whole(link, bytes)) || !window_open(link, bytes, placed))
		return false;
	if (link->grants.tx && xfer->type != TN_XFER_GET && !tn_lk_grants_fit(link, bytes))
		return false;
	return !budget || (atomic_load_explicit(&budget->waiting, memory_order_relaxed) == 0 &&
			   atomic_load_explicit(&budget->taken, memory_order_relaxed) + bytes <= budget->cap);
}

/* Nothing more is posted now: no place in a queue is kept that is not needed. */
void tn_lk_bulk_rest(tn_link *link)
{
	if (link->budget && !link->budget_shut)
		tn_budget_leave(link->budget, &link->budget_seat);
	if (link->grants.tx)
		tn_lk_grants_rest(link);
}

/* ---- what is in flight ---- */

void tn_lk_bulk_posted(tn_link *link, tn_lk_wr *wr)
{
	link->in_flight += wr->bytes;
	if (link->grants.tx && (wr->kind == TN_WR_WRITE || wr->kind == TN_WR_IMM))
		tn_lk_grants_posted(link, wr);
	if (link->budget)
		tn_budget_take(link->budget, &link->budget_seat, wr->bytes);
}

static uint64_t target_of(const tn_link *link)
{
	return link->base_ns + link->config->window_target_ns;
}

static void shorter(tn_link *link, uint64_t delay_ns, uint64_t now_ns)
{
	uint64_t target = target_of(link), delay = TN_MIN(delay_ns, 2 * target);
	uint64_t part = ((delay - target) << 10) / delay; /* of 1024; at most a half */

	link->window = TN_MAX(link->window - (link->window * part >> 10), link->config->window_min_bytes);
	link->cut_ns = now_ns;
	link->doubling = false;
	link->window_done = 0;
	tn_count_own(&link->counters.window_cuts, 1);
}

/* A wr of bulk came back well. */
static void adapt(tn_link *link, const tn_lk_wr *wr, uint64_t now_ns)
{
	uint64_t delay = now_ns - wr->posted_ns;

	link->base_ns = TN_MIN(link->base_ns, delay);
	if (delay > target_of(link)) {
		if (wr->posted_ns >= link->cut_ns)
			shorter(link, delay, now_ns);
		return;
	}
	link->window_done += wr->bytes;
	if (link->window_done < link->window)
		return;
	link->window_done = 0;
	if (link->limited && link->window < link->config->window_bytes) {
		uint64_t step = link->doubling ? link->window : link->config->window_min_bytes;

		link->window = TN_MIN(link->window + step, link->config->window_bytes);
		tn_count_own(&link->counters.window_grows, 1);
	}
	link->limited = false;
}

void tn_lk_bulk_done(tn_link *link, tn_lk_wr *wr, tern_status status, uint64_t now_ns)
{
	if (TN_UNLIKELY(link->narrow))
		tn_lk_reshape_demand(link, now_ns);
	tn_lk_lanes_used(link, now_ns);
	TN_ASSERT(link->in_flight >= wr->bytes);
	link->in_flight -= TN_MUTANT(4) && status != TERN_OK ? 0 : wr->bytes;
	tn_lk_grants_done(link, wr);
	if (link->budget && !(TN_MUTANT(25) && status != TERN_OK))
		tn_budget_give(link->budget, &link->budget_seat, wr->bytes);
	/* posted_ns is 0 on the fast path: what waits for nothing tells nothing of the window. */
	if (link->adaptive && status == TERN_OK && wr->posted_ns && now_ns >= wr->posted_ns)
		adapt(link, wr, now_ns);
	wr->posted_ns = 0;
}

/* ---- lanes come and go ---- */

void tn_lk_flow_up(tn_link *link)
{
	TN_ASSERT(link->in_flight == 0);
	link->adaptive =
		link->config->window_adaptive || link->shared->providers[link->provider].window_adaptive;
	link->streams = link->shared->providers[link->provider].streams && link->remote_done &&
			(link->caps & TN_LINK_CAP_ORDERED_WRITES);
	link->window = link->adaptive ? link->config->window_min_bytes : link->config->window_bytes;
	link->doubling = link->adaptive;
	link->base_ns = BASE_TARGETS * link->config->window_target_ns;
	tn_lk_grants_up(link);
	tn_lk_slots_up(link);
	link->small = TN_MIN(link->config->small_bytes, link->chunk_max);
	/* Of what is granted by units, a unit is bulk. */
	if (link->grants.tx)
		link->small = TN_MIN(link->small, TN_GRANT_UNIT_MIN - 1);
	link->budget = link->shared->providers[link->provider].budget;
	link->limited = false;
}

void tn_lk_flow_down(tn_link *link)
{
	if (link->budget)
		tn_budget_leave(link->budget, &link->budget_seat);
	tn_lk_grants_down(link);
	tn_lk_slots_down(link);
	tn_lk_reshape_down(link);
}
