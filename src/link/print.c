/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's whole state as text, made to be pasted into a report. Changes nothing. Threads: none.
 * Tests: tests/unit/link/life_test.c.
 */
#include <inttypes.h>
#include <stdarg.h>

#include "link/internal.h"

typedef struct out {
	char *buf;
	size_t bytes, at; /* at: what was wanted so far */
} out;

TN_PRINTF(2, 3) static void put(out *o, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(o->at < o->bytes ? o->buf + o->at : NULL, o->at < o->bytes ? o->bytes - o->at : 0, fmt,
		      args);
	va_end(args);
	o->at += n > 0 ? (size_t)n : 0;
}

static void put_lanes(const tn_link *link, out *o)
{
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++) {
		const tn_lk_lane *l = link->lanes[i];

		if (!l || l->state == TN_LANE_FREE)
			continue;
		put(o,
		    "  lane %u epoch %u %s%s: credits %u (granted %u consumed %u) ours: granted %u told %u "
		    "received %u "
		    "freed %u; units tx %u seen %u rx %u; wrs %u frames %u\n",
		    l->index, l->epoch, tn_lk_lane_state_name(l->state), l->stalled ? " stalled" : "",
		    tn_lk_credits(l), l->granted, l->consumed, l->my_granted, l->my_told, l->received,
		    l->freed, l->tx_units, l->peer_seen, l->rx_units, l->wrs, l->frames);
	}
}

static void put_chans(const tn_link *link, out *o)
{
	for (uint32_t i = 0; i < link->chan_high; i++) {
		const tn_lk_chan *c = &link->chans[i];

		if (c->state == TN_CHAN_FREE)
			continue;
		put(o,
		    "  channel %x peer %x %s '%s' ops %u wrs %u ctl %x events %x%s%s%s%s%s: tx seq %" PRIu64
		    " sent %" PRIu64 "/%" PRIu64 " rx seq %" PRIu64 " bytes %" PRIu64 "/%" PRIu64
		    " notifies %" PRIu64 " %" PRIu64 "\n",
		    c->handle, c->peer, tn_lk_chan_state_name(c->state), tn_lk_name(link, c), c->ops, c->wrs,
		    c->ctl, c->events, c->released ? " released" : "", c->close_sent ? " close-sent" : "",
		    c->close_received ? " close-received" : "", c->paused ? " paused" : "",
		    c->abort_due ? " abort-due" : "", c->tx_seq, c->tx_sent, c->tx_window, c->rx_seq,
		    c->rx_bytes, c->rx_window, c->notifies_tx, c->notifies_rx);
	}
}

static void put_ops(const tn_link *link, out *o)
{
	static const char *const kinds[] = {"message", "put", "put_notify", "put_flag", "get"};

	for (uint32_t i = 0; i < link->op_high; i++) {
		const tn_lk_op *op = &link->ops[i];

		if (op->state == TN_LOP_FREE)
			continue;
		put(o, "  op %u %s %s channel %x %" PRIu64 "/%" PRIu64 " bytes wrs %u%s%s%s %s\n", i,
		    kinds[op->kind], tn_lk_op_state_name(op->state), link->chans[op->chan].handle, op->sent,
		    op->length, op->wrs, op->tail ? " tail" : "",
		    op->need_ack && !op->acked ? " unacked" : "", op->lost ? " lost" : "",
		    op->status == TERN_OK ? "" : tern_status_name(op->status));
	}
}

size_t tn_link_print(const tn_link *link, char *buf, size_t bytes)
{
	out o = {.buf = buf, .bytes = bytes};

	if (bytes)
		buf[0] = '\0';
	put(&o,
	    "link '%s' -> '%s' %s %s%s%s epoch %u lanes %u in flight %" PRIu64 "/%" PRIu64
	    "%s wrs %u ops %u channels %u\n",
	    link->shared ? link->shared->name : "", link->peer.name, tn_link_state_name(link->state),
	    tern_status_name(link->status), link->detail && link->detail[0] ? ": " : "",
	    tn_lk_text(link->detail), link->epoch, link->lane_count, link->in_flight, link->window,
	    link->budget_seat.queued ? " (waits for the device)" : "", link->wr_live, link->op_live,
	    link->chan_live);
	put(&o,
	    "  ctrl%s%s out %u; bye %d/%d closed %d/%d; credit due %x; transfers ready %u; settled %d "
	    "verdict %d\n",
	    link->ctrl_up ? " up" : "", link->ctrl_closed ? " closed" : "", link->ctrl_out_bytes,
	    link->bye_sent, link->bye_received, link->closed_sent, link->closed_received, link->credit_due,
	    link->xfer_ready, link->settled, link->verdict_pending);
	if (link->grants.tx || link->grants.rx)
		put(&o,
		    "  grants: share %" PRIu64 " standing %" PRIu64 " wanted %" PRIu64 " total %" PRIu64
		    " used %" PRIu64 " done %" PRIu64 " back %" PRIu64 "; ours: wanted %" PRIu64
		    " granted %" PRIu64 " done %" PRIu64 "%s\n",
		    link->grants.share, link->grants.standing, link->grants.wanted, link->grants.total,
		    link->grants.used, link->grants.done, link->grants.back, link->grants.seat.wanted,
		    link->grants.seat.granted, link->grants.seat.done,
		    link->grants.seat.joined ? "" : " (left)");
	put_lanes(link, &o);
	put_chans(link, &o);
	put_ops(link, &o);
	return o.at;
}
