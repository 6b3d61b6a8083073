/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link needs while it posts: rows of work requests and operations, and the log of what was sent. Lent at the first
 * post or op after a rest, given back when nothing was posted between two looks of the keepalive, as far as it is empty.
 *
 *	RESTED (wrs == NULL, wr_room == op_room == 0)  -- first op or frame -->  AT WORK
 *	                                               <-- a tick without posts, no wr, no op --
 *
 * Handles of rows stay unique: rows of the next loan begin with generations above all that were used. The log is kept until
 * the peer has said that it has all of it; who rests with one that is not empty asks it to, by a SYNC.
 *
 * Threads: none. Tests: tests/unit/link/size_test.c, pair_test.c.
 */
#include "link/internal.h"

static size_t round_line(size_t n)
{
	return (n + TN_CACHE_LINE - 1) & ~(size_t)(TN_CACHE_LINE - 1);
}

static size_t wrs_bytes(const tn_link *link)
{
	return round_line((size_t)link->config->wrs_max * sizeof(tn_lk_wr));
}

static size_t rows_bytes(const tn_link *link)
{
	return wrs_bytes(link) + (size_t)link->config->ops_max * sizeof(tn_lk_op);
}

#define LOG_ROWS  (TN_JOURNAL_ROWS_ALL + (TN_LINK_LANES_MAX - 1) * TN_JOURNAL_ROWS)
#define LOG_BYTES (TN_JOURNAL_RING_BYTES + LOG_ROWS * sizeof(tn_lk_note))
_Static_assert(TN_JOURNAL_RING_BYTES % TN_CACHE_LINE == 0, "rows behind it are aligned");

static bool lend_log(tn_link *link)
{
	tn_lk_note *rows;

	if (!link->resumes || link->ring)
		return true;
	link->ring = tn_store_lend(link->config->store, LOG_BYTES);
	if (!link->ring)
		return false;
	rows = (tn_lk_note *)(link->ring + TN_JOURNAL_RING_BYTES);
	for (uint32_t i = 0; i < TN_LINK_LANES_MAX; i++) {
		link->journal[i].rows = rows;
		rows += link->journal[i].mask + 1;
	}
	return true;
}

bool tn_lk_work_lend(tn_link *link)
{
	uint8_t *rows;

	if (link->wrs)
		return true;
	if (!lend_log(link))
		return false;
	rows = tn_store_lend(link->config->store, rows_bytes(link));
	if (!rows)
		return false;
	link->wrs = (tn_lk_wr *)rows;
	link->ops = (tn_lk_op *)(rows + wrs_bytes(link));
	link->wr_room = link->config->wrs_max;
	link->op_room = link->config->ops_max;
	return true;
}

/* ---- rest ---- */

static bool log_empty(const tn_link *link)
{
	for (uint32_t i = 0; i < TN_LINK_LANES_MAX; i++)
		if (link->journal[i].head != link->journal[i].tail)
			return false;
	return true;
}

static void log_back(tn_link *link)
{
	tn_store_back(link->config->store, link->ring, LOG_BYTES);
	link->ring = NULL;
	link->ring_head = link->ring_tail = 0;
	for (uint32_t i = 0; i < TN_LINK_LANES_MAX; i++)
		link->journal[i].rows = NULL;
}

/* Rows to come begin above. */
static void keep_generations(tn_link *link)
{
	for (uint32_t i = 0; i < link->wr_high; i++)
		link->wr_generation = TN_MAX(link->wr_generation, link->wrs[i].generation);
	for (uint32_t i = 0; i < link->op_high; i++)
		link->op_generation = TN_MAX(link->op_generation, link->ops[i].generation);
}

static void rows_back(tn_link *link)
{
	if (link->wrs)
		keep_generations(link);
	tn_store_back(link->config->store, link->wrs, rows_bytes(link));
	link->wrs = NULL;
	link->ops = NULL;
	link->wr_room = link->op_room = link->wr_high = link->op_high = 0;
	link->wr_free = link->op_free = TN_NONE;
}

/* The last of what was sent may be there, and the peer has had no reason to say so. */
static void ask(tn_link *link)
{
	for (uint32_t i = 0; i < link->lane_count; i++)
		if (link->journal[i].head != link->journal[i].tail)
			link->ask_seen |= 1u << i;
}

void tn_lk_work_look(tn_link *link)
{
	uint32_t serial = 0;
	bool still;

	for (uint32_t i = 0; i < link->lane_count; i++)
		serial += link->by_index[i]->tx_serial;
	link->ask_seen = 0;
	still = serial == link->serial_looked && link->wr_live == 0 && link->op_live == 0;
	link->serial_looked = serial;
	if (!still || link->state != TN_LINK_UP || link->hold)
		return;
	rows_back(link);
	if (link->ring && log_empty(link))
		log_back(link);
	else if (link->ring)
		ask(link);
}

bool tn_lk_next_ask(tn_link *link, tn_link_post *post)
{
	for (uint32_t i = 0; i < link->lane_count && link->state == TN_LINK_UP && !link->hold; i++) {
		tn_lk_lane *lane = link->by_index[i];

		if (!(link->ask_seen & (1u << i)) || !tn_lk_lane_ready(link, lane) ||
		    tn_lk_credits(lane) <= (i == 0))
			continue;
		link->ask_seen &= ~(1u << i);
		tn_lk_sync_build(link, lane, post);
		return true;
	}
	return false;
}

void tn_lk_work_fini(tn_link *link)
{
	link->wr_live = link->op_live = 0;
	rows_back(link);
	log_back(link);
}
