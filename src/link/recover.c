/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery: lanes that broke under a link that is UP are rebuilt, and nothing is lost or comes twice.
 *
 *	who notices                              the other
 *	RECOVERING, closes all lanes
 *	UNWIRE {epoch, why}       ---------->    RECOVERING, closes all lanes
 *	...drained: no wr, nothing can arrive    ...drained
 *	RESUME {epoch, received}  <--------->    RESUME {epoch, received}      received: units of each lane
 *	what arrived is done, the rest waits     the same
 *	the dialer wires a new epoch, any provider that both have (wiring.c)
 *	UP: the log is sent again, then new work
 *
 * What arrived on a lane is always the beginning of what was sent on it, so a count says exactly which units
 * did. The count is final: it is told after the lane is closed and drained, and nothing that comes later is
 * taken. Data without a notification has no such record: a put that was under way ends INDETERMINATE.
 *
 * Ends in UP, or DRAINING when it takes longer than recover_ns, the control connection ends, or no provider
 * works. Threads: none. Tests: tests/unit/link/pair_test.c.
 */
#include "link/internal.h"

bool tn_lk_can_recover(const tn_link *link, tern_status status)
{
	bool path = tern_status_radius(status) == TERN_RADIUS_PATH || status == TERN_E_FLUSHED;

	return link->resumes && !link->torn && path && link->ctrl_up && !link->ctrl_closed &&
	       (tn_lk_alive(link) || (link->state == TN_LINK_WIRING && link->wired_sent));
}

/* ---- draining ---- */

static bool drained(const tn_link *link)
{
	for (uint32_t i = 0; i < link->lane_count; i++)
		if (link->by_index[i]->state != TN_LANE_FREE)
			return false;
	return true;
}

static void unready(tn_link *link)
{
	for (uint32_t i = 0; i < link->lane_count; i++)
		while (tn_list_pop_front(&link->by_index[i]->acks))
			;
	for (uint32_t i = 0; i < link->chan_high; i++)
		if (link->chans[i].state != TN_CHAN_FREE)
			tn_lk_chan_update(link, &link->chans[i]);
	TN_ASSERT(tn_list_empty(&link->msg_ready) && link->xfer_ready == 0);
}

static void begin(tn_link *link, uint64_t now_ns)
{
	tn_lk_hold(link, false);
	tn_lk_disarm(link, TN_TIMER_PROBE);
	tn_lk_disarm(link, TN_TIMER_SPARE);
	tn_lk_disarm(link, TN_TIMER_LANES);
	if (link->state != TN_LINK_RECOVERING) {
		if (!link->moving && link->was_up) {
			tn_lk_strike(link, now_ns);
			tn_count_own(&link->counters.recoveries, 1);
			link->broke_ns = now_ns;
		}
		tn_link_set_state(link, TN_LINK_RECOVERING);
		link->rewires = link->provider_next = link->few = 0;
		tn_lk_text_back(link, &link->reason);
		tn_lk_arm(link, TN_TIMER_RECOVER, tn_deadline(now_ns, link->config->recover_ns));
	}
	link->draining = true;
	link->resume_sent = link->resume_received = false;
	link->wire_active = link->wire_wait = link->reach_ask = link->reach_wait = false;
	link->credit_due = 0;
	tn_lk_disarm(link, TN_TIMER_STEP);
	tn_lk_disarm(link, TN_TIMER_REWIRE);
	tn_lk_disarm(link, TN_TIMER_ACK);
	tn_lk_disarm(link, TN_TIMER_RETRY);
	unready(link);
	tn_lk_flow_down(link);
	tn_lk_lanes_close(link);
	tn_lk_recover_step(link, now_ns);
}

/* Both have agreed on a move: the end of the old lanes is no fault, however it is seen first. */
static void note_planned(tn_link *link)
{
	link->moving |= link->hold && link->spare.move_sent && !link->active;
}

void tn_lk_recover(tn_link *link, tern_status status, const char *why, uint64_t now_ns)
{
	tn_writer w;

	if (link->draining)
		return;
	note_planned(link);
	w = tn_lk_out_begin(link);
	tn_lk_log(link, link->moving ? TN_LOG_INFO : TN_LOG_WARN, "rebuilding the lanes: %s", why);
	tn_wire_put_unwire(&w, link->epoch, status, why);
	tn_lk_out_end(link, &w, now_ns);
	if (link->state != TN_LINK_DRAINING) /* the output overflowed */
		begin(link, now_ns);
}

/* The peer never had its lanes: it does not look back, and nothing was sent either way. */
static void as_if_new(tn_link *link, uint64_t now_ns)
{
	link->draining = false;
	link->wire_broke = true;
	link->lane_count = 0;
	tn_lk_disarm(link, TN_TIMER_RECOVER);
	tn_link_set_state(link, TN_LINK_WIRING);
	tn_lk_wiring_again(link, now_ns);
}

void tn_lk_peer_recovers(tn_link *link, const char *why, uint64_t now_ns)
{
	if (link->draining) {
		if (!link->was_up && !link->both_recover && !link->wired_received)
			as_if_new(link, now_ns);
		return;
	}
	note_planned(link);
	tn_lk_log(link, link->moving ? TN_LOG_INFO : TN_LOG_WARN, "rebuilding the lanes: the peer says: %s",
		  why);
	begin(link, now_ns);
}

/* ---- what arrived, and what did not ---- */

tn_lk_op *tn_lk_op_get(const tn_link *link, uint64_t handle)
{
	uint32_t index = (uint32_t)handle;
	tn_lk_op *op = index < link->op_high ? &link->ops[index] : NULL;

	if (handle == 0 || !op || op->generation != handle >> 32 || op->state < TN_LOP_QUEUED ||
	    op->state > TN_LOP_POSTED)
		return NULL;
	return op;
}

static void arrived(tn_link *link, tn_lk_op *op)
{
	op->acked = true;
	op->lost = op->redo = op->resent = false;
	tn_lk_op_settle(link, op);
}

void tn_lk_note_arrived(tn_link *link, const tn_lk_note *note)
{
	tn_lk_op *op = tn_lk_op_get(link, note->op);

	if (op)
		arrived(link, op);
}

void tn_lk_note_lost(tn_link *link, tn_lk_note *note)
{
	tn_lk_op *op = tn_lk_op_get(link, note->op);

	note->written = false;
	if (!op)
		return;
	if (op->kind == TN_OP_MESSAGE) {
		op->resent = true;
		return;
	}
	/* Its data goes again as well: nobody was told of it. It stays until the peer says that it came. */
	op->need_ack = true;
	op->acked = false;
	op->redo = true;
	op->sent = 0;
	op->lost = false;
}

/* Back to where it was before its first piece. */
static void restart(tn_link *link, tn_lk_op *op)
{
	tn_lk_chan *chan = &link->chans[op->chan];

	tn_list_remove(&op->node);
	tn_lk_op_set_state(link, op, TN_LOP_QUEUED);
	op->sent = 0;
	op->lost = op->silent = op->tail = op->flag_posted = false;
	if (op->lane != TN_NONE) {
		op->lane = TN_NONE;
		chan->xfers_out--;
	}
	tn_list_push_front(&chan->xfers, &op->node);
}

/* Its pieces all came through, or it ends here. */
static void arrived_or_lost(tn_link *link, tn_lk_op *op)
{
	if ((op->lost || op->silent) && !TN_MUTANT(7)) {
		tn_lk_op_stop(link, op, TERN_E_INDETERMINATE);
		return;
	}
	if (op->state == TN_LOP_ACTIVE) {
		tn_list_remove(&op->node);
		op->tail = false;
		tn_lk_op_set_state(link, op, TN_LOP_POSTED);
	}
	op->acked = true;
	tn_lk_op_settle(link, op);
}

static void resume_begun(tn_link *link, tn_lk_op *op)
{
	bool plain = op->kind == TN_OP_PUT || op->kind == TN_OP_PUT_FLAG;
	bool all = op->sent == op->length && (op->kind == TN_OP_PUT || op->flag_posted);

	if (plain && (op->lost || all))
		arrived_or_lost(link, op);
	else
		restart(link, op);
}

/* Transfers of a channel that were begun and are not all posted, last first so that they keep their order. */
static void resume_lists(tn_link *link, tn_lk_chan *chan)
{
	tn_lk_op *first = TN_LIST_FIRST(&chan->xfers, tn_lk_op, node);

	if (first && first->state == TN_LOP_ACTIVE)
		resume_begun(link, first);
	while (!tn_list_empty(&chan->tails))
		resume_begun(link, TN_LIST_ENTRY(chan->tails.prev, tn_lk_op, node));
}

static void resume_posted(tn_link *link, tn_lk_op *op)
{
	if (op->state != TN_LOP_POSTED || op->redo)
		return;
	if (op->kind == TN_OP_GET && !TN_MUTANT(16))
		restart(link, op);
	else if (op->kind == TN_OP_PUT_NOTIFY ||
		 TN_MUTANT(16)) /* no row of a journal waits for it: it had arrived */
		arrived(link, op);
	else if (op->kind != TN_OP_MESSAGE)
		arrived_or_lost(link, op);
}

/* The link holds a copy of all that was sent of it. */
static void resume_message(tn_link *link, tn_lk_op *op)
{
	if (op->kind != TN_OP_MESSAGE || op->state < TN_LOP_ACTIVE || op->state > TN_LOP_POSTED)
		return;
	op->lost = false;
	if (op->state == TN_LOP_POSTED && !op->resent)
		op->acked = true;
	tn_lk_op_settle(link, op);
}

/* Not every attempt comes as far as lanes. */
static bool silent_lost(const tn_link *link, const tn_lk_chan *chan, const tn_wire_resume *theirs)
{
	const tn_lk_lane *lane = link->by_index[chan->silent_lane];

	return link->lane_count > 0 && chan->silent_serial &&
	       (int32_t)(chan->silent_serial - lane->tx_arrived) > 0 &&
	       (int32_t)(theirs->received[chan->silent_lane] - chan->silent_slot) <= 0;
}

static void reconcile(tn_link *link, uint64_t now_ns)
{
	const tn_wire_resume *theirs = &link->resume;

	TN_ASSERT(link->wr_live == 0 && link->in_flight == 0);
	link->redo_wrs = 0;
	link->both_recover = true;
	for (uint32_t i = 0; i < link->chan_high; i++)
		if (link->chans[i].state != TN_CHAN_FREE && silent_lost(link, &link->chans[i], theirs))
			tn_lk_chan_spoil(link, &link->chans[i]);
	for (uint32_t i = 0; i < link->lane_count; i++)
		tn_lk_journal_settle(link, link->by_index[i], TN_MUTANT(2) ? 0 : theirs->received[i]);
	for (uint32_t i = 0; i < link->chan_high; i++) {
		tn_lk_chan *chan = &link->chans[i];

		if (chan->state == TN_CHAN_FREE)
			continue;
		resume_lists(link, chan);
		chan->lane = chan->notify_lane = 0;
		chan->notify_slot = chan->silent_serial = 0;
	}
	for (uint32_t i = 0; i < link->op_high; i++) {
		resume_posted(link, &link->ops[i]);
		resume_message(link, &link->ops[i]);
	}
	link->draining = false;
	link->lane_count = 0;
	if (tn_lk_spare_usable(link))
		tn_lk_wiring_adopt(link, now_ns);
	else
		tn_lk_wiring_again(link, now_ns);
}

void tn_lk_recover_step(tn_link *link, uint64_t now_ns)
{
	tn_wire_resume own = {.epoch = link->epoch, .lanes = link->wire_lanes};
	tn_writer w;

	if (!link->draining)
		return;
	if (!link->resume_sent && drained(link)) {
		tn_lk_spare_settle(link, now_ns);
		link->resume_sent = true;
		for (uint32_t i = 0; i < link->lane_count; i++)
			own.received[i] = link->by_index[i]->received + TN_MUTANT(3);
		w = tn_lk_out_begin(link);
		tn_wire_put_resume(&w, TN_CTRL_RESUME, &own);
		tn_lk_out_end(link, &w, now_ns);
	}
	if (link->resume_sent && link->resume_received && link->state == TN_LINK_RECOVERING)
		reconcile(link, now_ns);
}

const char *tn_lk_resume_message(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	tn_wire_resume resume;
	const char *wrong = tn_wire_get_resume(payload, bytes, &resume);

	if (wrong)
		return wrong;
	if (link->state == TN_LINK_WIRING)
		return NULL; /* of an attempt that ended here before the peer could know */
	if (resume.epoch != link->epoch || !link->draining || link->resume_received)
		return "RESUME at a wrong time";
	if (resume.lanes != link->wire_lanes)
		return "RESUME with a wrong number of lanes";
	for (uint32_t i = 0; i < resume.lanes; i++) {
		uint32_t sent = i < link->lane_count ? link->by_index[i]->consumed : 0;

		if ((int32_t)(sent - resume.received[i]) >= 0)
			continue;
		tn_lk_log(link, TN_LOG_WARN, "lane %u of %u: %u received, %u sent", i, link->lane_count,
			  resume.received[i], sent);
		return "RESUME counts more than was sent";
	}
	link->resume = resume;
	link->resume_received = true;
	tn_lk_recover_step(link, now_ns);
	return NULL;
}

/* How long the link stood: less than recover_ns, or it would have ended. */
static void tell_resume(tn_link *link, uint64_t now_ns)
{
	uint64_t ns = now_ns - link->broke_ns;

	if (link->broke_ns == 0)
		return;
	link->broke_ns = 0;
	tn_count_own(&link->counters.resumes, 1);
	tn_count_own(&link->counters.resume_ns, ns);
	tn_lk_log(link, TN_LOG_WARN, "the lanes are rebuilt, after %llu.%03llu ms",
		  (unsigned long long)(ns / TN_NS_PER_MS), (unsigned long long)(ns / 1000 % 1000));
}

/* The new lanes are up. */
void tn_lk_recovered(tn_link *link, uint64_t now_ns)
{
	tn_lk_disarm(link, TN_TIMER_RECOVER);
	tell_resume(link, now_ns);
	/* The new lanes may be those of another provider. */
	for (uint32_t i = 0; i < link->op_high; i++) {
		tn_lk_op *op = &link->ops[i];

		if (op->state != TN_LOP_QUEUED || op->kind == TN_OP_MESSAGE)
			continue;
		if ((op->kind == TN_OP_GET && !(link->caps & TN_LINK_CAP_READ)) ||
		    (op->kind == TN_OP_PUT_FLAG && !(link->caps & TN_LINK_CAP_ORDERED_WRITES)))
			tn_lk_op_stop(link, op, TERN_E_UNSUPPORTED);
		else
			op->need_ack = op->remote && !link->remote_done && op->kind != TN_OP_GET;
	}
	for (uint32_t i = 0; i < link->chan_high; i++) {
		if (link->chans[i].state == TN_CHAN_FREE)
			continue;
		tn_lk_chan_update(link, &link->chans[i]);
		tn_lk_chan_advance(link, &link->chans[i]);
	}
	if (link->close_wanted) {
		link->close_wanted = false;
		tn_link_close(link, now_ns);
	}
}
