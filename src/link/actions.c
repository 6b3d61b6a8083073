/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shell is to do next, most urgent first. Ends of ops come before the end of their channel, and both
 * before the end of the link.
 * Threads: none. Tests: tests/unit/link.
 */
#include "link/internal.h"

/* Bytes for the control connection: of this one, of the last one again, new ones. */
static bool next_bytes(tn_link *link, tn_link_action *act)
{
	const uint8_t *bytes = link->rejoin ? link->rejoin->out : NULL;
	uint32_t n = link->rejoin_out_bytes;

	if (n == 0 &&
	    ((link->ctrl_out_bytes == 0 && link->ctrl_again == link->ctrl_tx) || tn_lk_ctrl_gone(link))) {
		if (TN_UNLIKELY(link->ctrl_out || link->rejoin))
			tn_lk_ctrl_rest(link);
		return false;
	}
	link->rejoin_out_bytes = 0;
	if (n == 0)
		n = tn_lk_ctrl_again(link, &bytes);
	if (n == 0) {
		bytes = link->ctrl_out;
		n = link->ctrl_out_bytes;
		link->ctrl_out_bytes = 0;
		tn_lk_ctrl_sent(link, bytes, n);
	}
	act->type = TN_ACT_CTRL_SEND;
	act->ctrl.bytes = bytes;
	act->ctrl.n = n;
	return true;
}

static bool next_ctrl(tn_link *link, tn_link_action *act)
{
	if (next_bytes(link, act))
		return true;
	if (link->dial_due) {
		link->dial_due = false;
		act->type = TN_ACT_CTRL_DIAL;
		return true;
	}
	if (link->rejoin_ask) {
		link->rejoin_ask = false;
		act->type = TN_ACT_REJOIN;
		act->ctrl.bytes = link->birth->hello_peer;
		act->ctrl.n = link->birth->hello_peer_bytes;
		return true;
	}
	if (link->peer_ask) {
		link->peer_ask = false;
		act->type = TN_ACT_PEER;
		return true;
	}
	if (link->ctrl_closing) {
		link->ctrl_closing = false;
		link->ctrl_closed = true;
		act->type = TN_ACT_CTRL_CLOSE;
		return true;
	}
	return false;
}

bool tn_link_next_action(tn_link *link, uint64_t now_ns, tn_link_action *act)
{
	TN_ASSERT(link->posting == TN_NONE); /* a post waits for its answer */
	act->type = TN_ACT_NONE;
	if (next_ctrl(link, act) || tn_lk_next_lane(link, act))
		return true;
	if (link->up_due) {
		link->up_due = false;
		act->type = TN_ACT_LINK_UP;
		return true;
	}
	if (link->moved_due) {
		link->moved_due = false;
		act->type = TN_ACT_LINK_MOVED;
		return true;
	}
	if (tn_lk_next_done(link, act) || tn_lk_next_event(link, act) || tn_lk_next_post(link, now_ns, act))
		return true;
	if (link->hold) {
		tn_lk_move_step(link, now_ns);
		if (next_ctrl(link, act) || tn_lk_next_lane(link, act))
			return true;
	}
	if (TN_UNLIKELY(tn_lk_quota_news(link))) {
		tn_lk_reshape_asked(link, now_ns);
		if (next_ctrl(link, act) || tn_lk_next_lane(link, act))
			return true;
	}
	return tn_lk_next_down(link, act);
}

bool tn_link_pending(const tn_link *link)
{
	return link->ctrl_out_bytes || link->rejoin_out_bytes || link->ctrl_again != link->ctrl_tx ||
	       link->dial_due || link->rejoin_ask || link->peer_ask || link->ctrl_closing ||
	       link->lane_work || link->reach_ask || link->spare.reach_ask || link->up_due ||
	       link->moved_due || link->hold || link->credit_due || tn_lk_journal_due(link) ||
	       link->xfer_ready || link->fail_count || link->state >= TN_LINK_CLOSING ||
	       !tn_list_empty(&link->done) || !tn_list_empty(&link->events) || !tn_list_empty(&link->ctl) ||
	       !tn_list_empty(&link->msg_ready);
}
