/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control connection of a link: bytes in, cut anywhere, become messages; messages out become bytes.
 * Must not: know what a message means. Threads: none. Tests: tests/unit/link/hello_test.c.
 */
#include "link/internal.h"

tn_writer tn_lk_out_begin(tn_link *link)
{
	tn_writer w;

	if (!link->ctrl_out)
		link->ctrl_out = tn_store_lend(link->config->store, TN_CTRL_OUT_BYTES);
	if (link->ctrl_out)
		tn_writer_init(&w, link->ctrl_out + link->ctrl_out_bytes,
			       TN_CTRL_OUT_BYTES - link->ctrl_out_bytes);
	else
		tn_writer_init(&w, NULL, 0);
	return w;
}

void tn_lk_out_end(tn_link *link, const tn_writer *w, uint64_t now_ns)
{
	if (link->ctrl_closed)
		return;
	if (w->bad) {
		/* Whole messages are dropped, so that the reason fits. */
		link->ctrl_out_bytes = 0;
		if (link->ctrl_out)
			tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s",
					"the peer asks for more than it reads");
		else
			tn_lk_fail_link(link, now_ns, TERN_E_NOMEM, "%s", "no memory for control messages");
		return;
	}
	link->ctrl_out_bytes += (uint32_t)w->at;
	TN_ASSERT(link->ctrl_out_bytes <= TN_CTRL_OUT_BYTES);
}

static void in_rest(tn_link *link)
{
	if (link->ctrl_in_bytes > 0)
		return;
	tn_store_back(link->config->store, link->ctrl_in, TN_CTRL_IN_BYTES);
	link->ctrl_in = NULL;
}

void tn_lk_ctrl_rest(tn_link *link)
{
	if (link->ctrl_out_bytes == 0) {
		tn_store_back(link->config->store, link->ctrl_out, TN_CTRL_OUT_BYTES);
		link->ctrl_out = NULL;
	}
	if (link->rejoin_out_bytes == 0 && !tn_lk_ctrl_gone(link)) {
		tn_store_back(link->config->store, link->rejoin, sizeof(*link->rejoin));
		link->rejoin = NULL;
	}
}

void tn_lk_ctrl_fini(tn_link *link)
{
	link->ctrl_in_bytes = link->ctrl_out_bytes = link->rejoin_out_bytes = 0;
	link->ctrl_lost = link->rejoin_wait = false;
	link->ctrl_kept = link->ctrl_again = link->ctrl_tx;
	in_rest(link);
	tn_lk_ctrl_rest(link);
	tn_lk_ctrl_log_drop(link);
}

void tn_lk_say_epoch(tn_link *link, tn_ctrl_type type, uint32_t epoch, uint64_t now_ns)
{
	tn_writer w = tn_lk_out_begin(link);

	tn_wire_put_epoch(&w, type, epoch);
	tn_lk_out_end(link, &w, now_ns);
}

void tn_link_on_ctrl_up(tn_link *link, uint64_t now_ns)
{
	if (tn_lk_ctrl_gone(link) && link->active) {
		tn_lk_rejoin_begin(link, now_ns);
		return;
	}
	if (link->state > TN_LINK_DIAL)
		return;
	link->ctrl_up = true;
	tn_lk_hello_start(link, now_ns);
}

/* One whole message stands in ctrl_in. */
static void take_message(tn_link *link, tn_ctrl_type type, uint64_t now_ns)
{
	uint32_t bytes = link->ctrl_in_bytes - TN_CTRL_HEAD_BYTES;
	const char *wrong;

	link->ctrl_in_bytes = 0;
	wrong = tn_lk_message(link, type, link->ctrl_in + TN_CTRL_HEAD_BYTES, bytes, now_ns);
	if (wrong)
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s (control message %d)", wrong, (int)type);
}

/* Bytes that the message in ctrl_in still lacks; 0 and a type if it is whole. */
static uint32_t missing(tn_link *link, tn_ctrl_type *type, uint64_t now_ns)
{
	bool first = link->state <= TN_LINK_HELLO && !link->peer_known;
	const char *wrong;
	uint32_t bytes;

	if (link->ctrl_in_bytes < TN_CTRL_HEAD_BYTES)
		return TN_CTRL_HEAD_BYTES - link->ctrl_in_bytes;
	wrong = tn_wire_ctrl_head(link->ctrl_in, first, type, &bytes);
	/* Who has not proved anything sends no more than a HELLO's worth at a time. */
	if (!wrong && link->state < TN_LINK_SETUP && bytes > TN_CTRL_HELLO_BYTES)
		wrong = "control message too long before authentication";
	if (wrong) {
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s", wrong);
		return TN_NONE;
	}
	return TN_CTRL_HEAD_BYTES + bytes - link->ctrl_in_bytes;
}

/* Messages, and a part of one that waits for the rest of it. */
static void take_bytes(tn_link *link, const uint8_t *bytes, uint64_t n, uint64_t now_ns)
{
	tn_ctrl_type type = 0;

	if (TN_UNLIKELY(link->rejoin_wait)) {
		uint64_t used = tn_lk_rejoin_bytes(link, bytes, n, now_ns);

		bytes += used;
		n -= used;
		if (link->rejoin_wait)
			return;
	}
	while (link->ctrl_up && !link->ctrl_closed && link->state != TN_LINK_DOWN) {
		uint32_t want = missing(link, &type, now_ns);

		/* Broken, or the end is settled: what else comes has no meaning. */
		if (want == TN_NONE || link->settled)
			return;
		if (want == 0) {
			take_message(link, type, now_ns);
			continue;
		}
		if (n == 0)
			return;
		if (!link->ctrl_in)
			link->ctrl_in = tn_store_lend(link->config->store, TN_CTRL_IN_BYTES);
		if (!link->ctrl_in) {
			tn_lk_fail_link(link, now_ns, TERN_E_NOMEM, "%s", "no memory for control messages");
			return;
		}
		want = (uint32_t)TN_MIN((uint64_t)want, n);
		memcpy(link->ctrl_in + link->ctrl_in_bytes, bytes, want);
		link->ctrl_in_bytes += want;
		link->ctrl_rx += want;
		bytes += want;
		n -= want;
	}
}

void tn_link_on_ctrl_bytes(tn_link *link, const void *data, uint64_t n, uint64_t now_ns)
{
	link->heard = true;
	take_bytes(link, data, n, now_ns);
	in_rest(link);
}
