/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels of a link: opening by name, the two-sided close, windows.
 * States and guarantees: state.h. Must not: build frames (tx.c), end ops (op.c) or order channels (turns.c).
 *
 *	opener                          acceptor
 *	OPEN {own handle, name} ----->  TN_ACT_CHANNEL_INCOMING
 *	                        <-----  OPEN_OK {both handles}, or OPEN_FAIL {status, words}
 *	...
 *	CLOSE {messages, notifies sent} once nothing of this side is under way; the other answers with its own.
 *	Notifications travel on other lanes than CLOSE: the receiver waits until it has seen as many.
 *
 * Threads: none. Tests: tests/unit/link/channel_test.c, pair_test.c.
 */
#include "link/internal.h"

static const char *const chan_state_names[] = {
	[TN_CHAN_FREE] = "FREE", [TN_CHAN_OPENING] = "OPENING", [TN_CHAN_INCOMING] = "INCOMING",
	[TN_CHAN_OPEN] = "OPEN", [TN_CHAN_CLOSING] = "CLOSING", [TN_CHAN_ENDED] = "ENDED",
};

#define B(s) (1u << TN_CHAN_##s)
static const uint32_t chan_predecessors[] = {
	[TN_CHAN_FREE] = B(ENDED),    [TN_CHAN_OPENING] = B(FREE),
	[TN_CHAN_INCOMING] = B(FREE), [TN_CHAN_OPEN] = B(OPENING) | B(INCOMING),
	[TN_CHAN_CLOSING] = B(OPEN),  [TN_CHAN_ENDED] = B(OPENING) | B(INCOMING) | B(OPEN) | B(CLOSING),
};

const char *tn_lk_chan_state_name(tn_lk_chan_state state)
{
	return (unsigned)state < TN_COUNT_OF(chan_state_names) ? chan_state_names[state] : "?";
}

static void set_state(tn_link *link, tn_lk_chan *chan, tn_lk_chan_state to)
{
	TN_ASSERT_MSG(chan_predecessors[to] & (1u << chan->state), "channel %x %s -> %s", chan->handle,
		      tn_lk_chan_state_name(chan->state), tn_lk_chan_state_name(to));
	tn_lk_log(link, TN_LOG_DEBUG, "channel %x (%s) %s -> %s", chan->handle, tn_lk_name(link, chan),
		  tn_lk_chan_state_name(chan->state), tn_lk_chan_state_name(to));
	chan->state = (uint8_t)to;
}

/* ---- rows ---- */

static tn_lk_chan *chan_new(tn_link *link, tn_lk_chan_state state)
{
	tn_lk_chan *chan;
	uint32_t index = link->chan_free, handle;

	if (link->chan_live == link->config->channels_max)
		return NULL;
	if (index != TN_NONE) {
		chan = &link->chans[index];
		link->chan_free = chan->next_free;
		handle = chan->handle;
	} else {
		index = link->chan_high++;
		chan = &link->chans[index];
		handle = 1u << 16 | index;
	}
	memset(chan, 0, sizeof(*chan));
	chan->handle = handle;
	tn_list_init(&chan->msgs);
	tn_list_init(&chan->xfers);
	tn_list_init(&chan->tails);
	chan->message_max = chan->peer_message_max = UINT64_MAX;
	link->chan_live++;
	set_state(link, chan, state);
	return chan;
}

static void chan_free(tn_link *link, tn_lk_chan *chan)
{
	uint32_t generation = (chan->handle >> 16) + 1;

	TN_ASSERT(chan->ops == 0 && chan->wrs == 0 && chan->xfers_out == 0);
	tn_lk_name_drop(link, chan);
	tn_list_remove(&chan->event_node);
	tn_list_remove(&chan->ctl_node);
	chan->ctl = chan->events = 0;
	set_state(link, chan, TN_CHAN_FREE);
	tn_lk_chan_update(link, chan);
	if (chan->opener)
		link->opened--;
	link->chan_live--;
	chan->handle = ((generation & 0xffff) ? (generation & 0xffff) : 1) << 16 | (chan->handle & 0xffff);
	chan->next_free = link->chan_free;
	link->chan_free = tn_lk_chan_index(link, chan);
}

tn_lk_chan *tn_lk_chan_get(const tn_link *link, uint32_t handle)
{
	uint32_t index = handle & 0xffff;
	tn_lk_chan *chan = &link->chans[index];

	if (index >= link->chan_high || chan->handle != handle || chan->state == TN_CHAN_FREE)
		return NULL;
	return chan;
}

/* ---- what a channel owes, and what the shell has to see ---- */

void tn_lk_chan_owe(tn_link *link, tn_lk_chan *chan, uint32_t ctl)
{
	if (!tn_lk_alive(link))
		return;
	chan->ctl |= (uint8_t)ctl;
	if (!tn_list_linked(&chan->ctl_node))
		tn_list_push_back(&link->ctl, &chan->ctl_node);
}

static void event(tn_link *link, tn_lk_chan *chan, uint32_t event)
{
	chan->events |= (uint8_t)event;
	if (!tn_list_linked(&chan->event_node))
		tn_list_push_back(&link->events, &chan->event_node);
}

static void drop_events(tn_lk_chan *chan)
{
	chan->events = 0;
	tn_list_remove(&chan->event_node);
}

/* ---- the end of a channel ---- */

void tn_lk_chan_stop(tn_link *link, tn_lk_chan *chan, tern_status status)
{
	tn_list *lists[] = {&chan->msgs, &chan->tails, &chan->xfers};

	for (unsigned i = 0; i < TN_COUNT_OF(lists); i++) {
		tn_lk_op *op;

		while ((op = TN_LIST_FIRST(lists[i], tn_lk_op, node)))
			tn_lk_op_stop(link, op, status);
	}
}

void tn_lk_chan_spoil(tn_link *link, tn_lk_chan *chan)
{
	if (chan->spoilt || chan->released || chan->peer_done || chan->state == TN_CHAN_ENDED)
		return;
	chan->spoilt = chan->closed_due = true;
	chan->status = TERN_E_INDETERMINATE;
	tn_lk_chan_stop(link, chan, TERN_E_INDETERMINATE);
	tn_lk_chan_advance(link, chan);
}

/* The peer's end of it is over: what it sent has arrived. The shell is told once our ops have ended. */
static void peer_done(tn_link *link, tn_lk_chan *chan, tern_status status)
{
	chan->peer_done = true;
	if (!chan->released && !chan->spoilt) {
		chan->status = status;
		chan->closed_due = true;
	}
	(void)link;
}

void tn_lk_chan_advance(tn_link *link, tn_lk_chan *chan)
{
	bool idle = chan->ops == 0 && chan->wrs == 0 && !chan->abort_due;

	if (TN_UNLIKELY(chan->name) && chan->state == TN_CHAN_OPEN && chan->wrs == 0)
		tn_lk_name_drop(link, chan); /* its OPEN is posted and answered */
	if (chan->state == TN_CHAN_OPEN && (chan->released || chan->close_received || chan->spoilt) && idle &&
	    !(chan->ctl & TN_CTL_OK) && tn_lk_alive(link)) {
		set_state(link, chan, TN_CHAN_CLOSING);
		chan->ctl &= (uint8_t)~TN_CTL_WINDOW;
		tn_lk_chan_owe(link, chan, TN_CTL_CLOSE);
	}
	if (chan->state == TN_CHAN_CLOSING && chan->close_sent && chan->peer_done)
		set_state(link, chan, TN_CHAN_ENDED);
	if (chan->closed_due && chan->ops == 0) {
		chan->closed_due = false;
		event(link, chan, TN_EVENT_CLOSED);
	}
	if (chan->state == TN_CHAN_ENDED && chan->released && chan->ops == 0 && chan->wrs == 0 &&
	    chan->ctl == 0)
		chan_free(link, chan);
}

/* No more frames: the link ended. */
void tn_lk_chans_end(tn_link *link)
{
	tern_status status = link->status == TERN_OK ? TERN_E_FLUSHED : link->status;

	for (uint32_t i = 0; i < link->chan_high; i++) {
		tn_lk_chan *chan = &link->chans[i];

		if (chan->state == TN_CHAN_FREE)
			continue;
		chan->ctl = 0;
		chan->abort_due = false;
		tn_list_remove(&chan->ctl_node);
		if (chan->events & TN_EVENT_INCOMING) {
			/* The shell has never heard of it. */
			drop_events(chan);
			chan->released = true;
		}
		if (chan->state != TN_CHAN_ENDED) {
			set_state(link, chan, TN_CHAN_ENDED);
			if (!chan->released && !chan->spoilt && !chan->closed_due &&
			    !(chan->events & TN_EVENT_CLOSED)) {
				chan->status = status;
				chan->closed_due = !chan->peer_done;
			}
		}
		tn_lk_chan_update(link, chan);
		tn_lk_chan_advance(link, chan);
	}
	link->fail_count = 0;
}

/* ---- what the shell asks ---- */

static bool good_name(const char *service)
{
	size_t n = service ? strnlen(service, TN_NAME_MAX) : 0;

	return n > 0 && n < TN_NAME_MAX;
}

tern_status tn_link_channel_open(tn_link *link, const char *service, void *user, uint64_t message_bytes_max,
				 uint32_t *channel)
{
	tn_lk_chan *chan;

	if (!tn_lk_alive(link) || link->close_wanted)
		return tn_fail(link->state >= TN_LINK_CLOSING && link->status != TERN_OK ? link->status
											 : TERN_E_STATE,
			       "the link is not up (%s)", tn_link_state_name(link->state));
	if (!good_name(service))
		return tn_fail(TERN_E_INVALID, "a service name has 1 to %d bytes", TN_NAME_MAX - 1);
	if (link->opened >= link->peer_setup->channels_max)
		return tn_fail(TERN_E_LIMIT, "the peer takes %u channels: raise link.channels_max there",
			       link->peer_setup->channels_max);
	chan = chan_new(link, TN_CHAN_OPENING);
	if (!chan)
		return tn_fail(TERN_E_LIMIT,
			       "all %u channels of the link are in use: raise link.channels_max",
			       link->config->channels_max);
	chan->opener = true;
	link->opened++;
	chan->user = user;
	chan->message_max = message_bytes_max ? message_bytes_max : UINT64_MAX;
	chan->rx_window = link->config->channel_window_bytes;
	tn_lk_name_set(link, chan, service);
	tn_lk_chan_owe(link, chan, TN_CTL_OPEN);
	*channel = chan->handle;
	return TERN_OK;
}

tern_status tn_link_channel_accept(tn_link *link, uint32_t channel, void *user, uint64_t message_bytes_max)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (!chan || chan->state != TN_CHAN_INCOMING || !tn_lk_alive(link)) {
		if (chan)
			chan->user = user;
		return TERN_E_STATE;
	}
	chan->user = user;
	chan->message_max = message_bytes_max ? message_bytes_max : UINT64_MAX;
	chan->rx_window = link->config->channel_window_bytes;
	set_state(link, chan, TN_CHAN_OPEN);
	tn_lk_chan_owe(link, chan, TN_CTL_OK);
	return TERN_OK;
}

void tn_link_channel_refuse(tn_link *link, uint32_t channel, tern_status status, const char *text)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (!chan)
		return;
	chan->released = true;
	chan->closed_due = false;
	drop_events(chan);
	if (chan->state == TN_CHAN_INCOMING) {
		chan->status = status;
		tn_lk_name_set(link, chan, text);
		set_state(link, chan, TN_CHAN_ENDED);
		tn_lk_chan_owe(link, chan, TN_CTL_FAIL);
	}
	tn_lk_chan_advance(link, chan);
}

void tn_link_channel_close(tn_link *link, uint32_t channel, bool drain)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (!chan)
		return;
	if (chan->state == TN_CHAN_INCOMING) {
		tn_link_channel_refuse(link, channel, TERN_E_NOT_FOUND, "");
		return;
	}
	chan->released = true;
	chan->closed_due = false;
	drop_events(chan);
	if (chan->state == TN_CHAN_OPENING && !chan->open_sent) {
		/* The peer has never heard of it. A link that is ending has dropped its ctl already. */
		chan->ctl = 0;
		tn_list_remove(&chan->ctl_node);
		set_state(link, chan, TN_CHAN_ENDED);
		drain = false;
	}
	tn_link_channel_resume(link, channel);
	/* Ending the last op may free the row: its handle tells. */
	if (!drain)
		tn_lk_chan_stop(link, chan, TERN_E_FLUSHED);
	if (chan->handle == channel) {
		tn_lk_chan_update(link, chan);
		tn_lk_chan_advance(link, chan);
	}
}

void tn_link_channel_set_user(tn_link *link, uint32_t channel, void *user)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (chan)
		chan->user = user;
}

uint64_t tn_link_channel_message_max(const tn_link *link, uint32_t channel)
{
	const tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	return chan ? chan->peer_message_max : UINT64_MAX;
}

void tn_link_channel_pause(tn_link *link, uint32_t channel)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (chan)
		chan->paused = true;
}

/*
 * Grant more once half of the window is used: the peer's next fragment never costs more than half. Also
 * after this side's close: what the peer still drains is dropped, but must not be stuck.
 */
void tn_lk_chan_window(tn_link *link, tn_lk_chan *chan)
{
	if (chan->state == TN_CHAN_OPEN && !chan->paused && !chan->close_received &&
	    chan->rx_window - chan->rx_bytes < link->config->channel_window_bytes / 2)
		tn_lk_chan_owe(link, chan, TN_CTL_WINDOW);
}

void tn_link_channel_resume(tn_link *link, uint32_t channel)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (!chan)
		return;
	chan->paused = false;
	tn_lk_chan_window(link, chan);
}

/* ---- frames ---- */

static const char *on_open(tn_link *link, const tn_frame *frame)
{
	tn_lk_chan *chan = chan_new(link, TN_CHAN_INCOMING);

	if (!chan) {
		uint32_t at = (link->fail_head + link->fail_count) % link->config->channels_max;

		/* The peer opens at most as many as our SETUP allows. */
		if (link->fail_count == link->config->channels_max)
			return "more OPENs than channels";
		link->fails[at] = (tn_lk_fail){.channel = frame->channel, .status = TERN_E_LIMIT};
		link->fail_count++;
		return NULL;
	}
	chan->peer = frame->channel;
	chan->tx_window = chan->peer_window = frame->open.window;
	chan->peer_message_max = frame->open.message_max ? frame->open.message_max : UINT64_MAX;
	tn_lk_name_set(link, chan, frame->open.service);
	event(link, chan, TN_EVENT_INCOMING);
	return NULL;
}

/* The peer's limit is known now: what was submitted before may be too long. */
static void stop_too_large(tn_link *link, tn_lk_chan *chan)
{
	TN_LIST_FOREACH_SAFE(node, &chan->msgs) {
		tn_lk_op *op = TN_LIST_ENTRY(node, tn_lk_op, node);

		if (op->length > chan->peer_message_max)
			tn_lk_op_stop(link, op, TERN_E_TOO_LARGE);
	}
}

static const char *on_open_ok(tn_link *link, const tn_frame *frame)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, frame->channel);

	if (!chan || chan->state != TN_CHAN_OPENING || !chan->open_sent)
		return "OPEN_OK without OPEN";
	chan->peer = frame->open.mine;
	chan->tx_window = chan->peer_window = frame->open.window;
	chan->peer_message_max = frame->open.message_max ? frame->open.message_max : UINT64_MAX;
	set_state(link, chan, TN_CHAN_OPEN);
	if (!chan->released)
		event(link, chan, TN_EVENT_OPENED);
	stop_too_large(link, chan);
	tn_lk_chan_update(link, chan);
	tn_lk_chan_advance(link, chan);
	return NULL;
}

static const char *on_open_fail(tn_link *link, const tn_frame *frame)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, frame->channel);

	if (!chan || chan->state != TN_CHAN_OPENING || !chan->open_sent)
		return "OPEN_FAIL without OPEN";
	set_state(link, chan, TN_CHAN_ENDED);
	peer_done(link, chan, frame->fail.status);
	tn_lk_name_set(link, chan, frame->fail.text);
	tn_lk_chan_stop(link, chan, frame->fail.status);
	if (chan->state == TN_CHAN_ENDED)
		tn_lk_chan_advance(link, chan);
	return NULL;
}

/* Everything counted in the peer's CLOSE is here? */
static const char *check_peer_done(tn_link *link, tn_lk_chan *chan)
{
	if (!chan->close_received || chan->peer_done)
		return NULL;
	if (chan->notifies_rx > chan->close_notifies)
		return "more notifications than CLOSE said";
	if (chan->notifies_rx == chan->close_notifies) {
		peer_done(link, chan, TERN_E_PEER_CLOSED);
		tn_lk_chan_advance(link, chan);
	}
	return NULL;
}

static const char *on_close(tn_link *link, const tn_frame *frame)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, frame->channel);

	if (!chan || (chan->state != TN_CHAN_OPEN && chan->state != TN_CHAN_CLOSING) || chan->close_received)
		return "CLOSE of a channel that is not open";
	if (frame->close.messages != chan->rx_seq || chan->rx_partial)
		return "CLOSE before its last message";
	chan->close_received = true;
	chan->close_notifies = frame->close.notifies;
	tn_lk_chan_stop(link, chan, TERN_E_PEER_CLOSED);
	tn_lk_chan_update(link, chan);
	tn_lk_chan_advance(link, chan);
	return check_peer_done(link, chan);
}

const char *tn_lk_chan_notified(tn_link *link, tn_lk_chan *chan)
{
	chan->notifies_rx++;
	return check_peer_done(link, chan);
}

static const char *on_window(tn_link *link, const tn_frame *frame)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, frame->channel);

	if (!chan || (chan->state != TN_CHAN_OPEN && chan->state != TN_CHAN_CLOSING))
		return "WINDOW of a channel that is not open";
	if (frame->window < chan->tx_window || frame->window - chan->tx_sent > TN_TRANSFER_BYTES_MAX)
		return "WINDOW shrinks or is out of range";
	chan->tx_window = frame->window;
	tn_lk_chan_update(link, chan);
	return NULL;
}

const char *tn_lk_chan_frame(tn_link *link, const tn_frame *frame)
{
	switch (frame->head.type) {
	case TN_FRAME_OPEN:
		return on_open(link, frame);
	case TN_FRAME_OPEN_OK:
		return on_open_ok(link, frame);
	case TN_FRAME_OPEN_FAIL:
		return on_open_fail(link, frame);
	case TN_FRAME_CLOSE:
		return on_close(link, frame);
	default:
		return on_window(link, frame);
	}
}

/* ---- events ---- */

bool tn_lk_next_event(tn_link *link, tn_link_action *act)
{
	tn_lk_chan *chan = TN_LIST_FIRST(&link->events, tn_lk_chan, event_node);
	uint32_t bit;

	if (!chan)
		return false;
	bit = chan->events & -(uint32_t)chan->events; /* INCOMING before OPENED before CLOSED */
	chan->events &= (uint8_t)~bit;
	act->type = bit == TN_EVENT_INCOMING ? TN_ACT_CHANNEL_INCOMING
		    : bit == TN_EVENT_OPENED ? TN_ACT_CHANNEL_OPENED
					     : TN_ACT_CHANNEL_CLOSED;
	act->channel.channel = chan->handle;
	act->channel.user = chan->user;
	act->channel.service = tn_lk_name(link, chan);
	act->channel.message_bytes_max = chan->peer_message_max;
	act->channel.status = bit == TN_EVENT_CLOSED ? chan->status : TERN_OK;
	act->channel.detail = bit != TN_EVENT_CLOSED               ? ""
			      : chan->status == TERN_E_PEER_CLOSED ? "the peer closed the channel"
			      : link->settled                      ? tn_lk_text(link->detail)
								   : tn_lk_name(link, chan);
	if (chan->events == 0)
		tn_list_remove(&chan->event_node);
	return true;
}
