/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control connection comes back: when it ends while the lanes stand, the dialer connects again, both prove that
 * they know the session, and the stream of control messages goes on where each side had it.
 *
 *	dialer                                             acceptor
 *	(ended)                                            (ended, or not noticed yet)
 *	connects; REJOIN {session, number, received}  -->  its shell finds the link by the session
 *	                                              <--  REJOINED {number, received}
 *	both send again what the other had not received, then go on
 *
 *	ctrl_tx, ctrl_rx   bytes of the stream so far; REJOIN and REJOINED do not count
 *	ctrl_kept          what is before is not kept: the peer had it, or it was too much. It can't be sent again; if it has
 *	                   to, that ends the link
 *	ctrl_again         what goes again begins there; = ctrl_tx: nothing
 *	ping_at            where the last PING ended: its PONG says that the peer has all before it
 *	number             rises with each REJOIN, so that an old one is worth nothing
 *
 * Who refuses the dial, or does not know the session, is not the peer any more. Lanes that break meanwhile end the
 * link: both ways to the peer are gone. Threads: none. Tests: tests/unit/link/rejoin_test.c, pair_test.c.
 */
#include "link/internal.h"

#define DIAL_PAUSE_NS (50 * TN_NS_PER_MS)

/* ---- what each side says ---- */

static tern_status session_id(const tn_link *link, uint8_t id[TN_LINK_ID_BYTES])
{
	uint8_t mac[TN_HMAC_BYTES];

	TN_TRY(tn_lk_session_mac(link, "tern id", NULL, 0, mac));
	memcpy(id, mac, TN_LINK_ID_BYTES);
	return TERN_OK;
}

static tern_status prove(const tn_link *link, bool dialer, const tn_wire_rejoin *say,
			 uint8_t mac[TN_HMAC_BYTES])
{
	uint8_t bytes[12];
	tn_writer w;

	tn_writer_init(&w, bytes, sizeof(bytes));
	tn_put_u32(&w, say->number);
	tn_put_u64(&w, say->received);
	return tn_lk_session_mac(link, dialer ? "tern rejoin d" : "tern rejoin a", bytes, sizeof(bytes), mac);
}

static bool proves(const tn_link *link, bool dialer, const tn_wire_rejoin *said)
{
	uint8_t mac[TN_HMAC_BYTES], id[TN_LINK_ID_BYTES];

	return session_id(link, id) == TERN_OK && tn_crypto_equal(id, said->session, sizeof(id)) &&
	       prove(link, dialer, said, mac) == TERN_OK && tn_crypto_equal(mac, said->mac, sizeof(mac));
}

static tern_status say(tn_link *link)
{
	tn_wire_rejoin own = {.number = link->rejoin_number, .received = link->ctrl_rx};
	tn_writer w;

	TN_TRY(session_id(link, own.session));
	TN_TRY(prove(link, link->active, &own, own.mac));
	tn_writer_init(&w, link->rejoin->out, sizeof(link->rejoin->out));
	tn_wire_put_rejoin(&w, link->active ? TN_CTRL_REJOIN : TN_CTRL_REJOINED, &own);
	link->rejoin_out_bytes = (uint32_t)w.at;
	return TERN_OK;
}

/* ---- the stream ---- */

void tn_lk_ctrl_log_drop(tn_link *link)
{
	tn_store_back(link->config->store, link->ctrl_log, link->ctrl_log_bytes);
	link->ctrl_log = NULL;
	link->ctrl_log_bytes = 0;
}

/* A ring of so many bytes with what is kept; without memory for it nothing is. */
static void log_resize(tn_link *link, uint32_t bytes)
{
	uint8_t *log;

	if (bytes == link->ctrl_log_bytes)
		return;
	log = tn_store_lend(link->config->store, bytes);
	for (uint64_t at = link->ctrl_kept; log && at < link->ctrl_tx; at++)
		log[at % bytes] = link->ctrl_log[at % link->ctrl_log_bytes];
	if (!log)
		link->ctrl_kept = link->ctrl_again = link->ctrl_tx;
	tn_lk_ctrl_log_drop(link);
	link->ctrl_log = log;
	link->ctrl_log_bytes = log ? bytes : 0;
}

static uint32_t log_bytes(uint64_t kept)
{
	return kept <= TN_CTRL_LOG_FIRST ? TN_CTRL_LOG_FIRST : TN_CTRL_LOG_BYTES;
}

void tn_lk_ctrl_sent(tn_link *link, const uint8_t *bytes, uint32_t n)
{
	if (link->rejoins)
		log_resize(link,
			   TN_MAX(link->ctrl_log_bytes, log_bytes(link->ctrl_tx - link->ctrl_kept + n)));
	for (uint32_t i = 0; i < n && link->ctrl_log; i++)
		link->ctrl_log[(link->ctrl_tx + i) % link->ctrl_log_bytes] = bytes[i];
	link->ctrl_tx += n;
	link->ctrl_again = link->ctrl_tx;
	if (!link->ctrl_log)
		link->ctrl_kept = link->ctrl_tx;
	else if (link->ctrl_tx - link->ctrl_kept > link->ctrl_log_bytes)
		link->ctrl_kept = link->ctrl_tx - link->ctrl_log_bytes;
}

void tn_lk_ctrl_ponged(tn_link *link, uint64_t number)
{
	if (number != link->ping_number || link->ping_at > link->ctrl_again)
		return;
	link->ctrl_kept = TN_MAX(link->ctrl_kept, link->ping_at);
	if (link->ctrl_kept == link->ctrl_tx)
		tn_lk_ctrl_log_drop(link);
	else if (link->ctrl_again == link->ctrl_tx)
		log_resize(link, log_bytes(link->ctrl_tx - link->ctrl_kept));
}

/* Answers to the peer's PINGs are many, and nothing says that they came. */
bool tn_lk_ctrl_unsure(const tn_link *link)
{
	return link->ctrl_tx - link->ctrl_kept > TN_CTRL_LOG_FIRST / 2;
}

uint32_t tn_lk_ctrl_again(tn_link *link, const uint8_t **bytes)
{
	uint64_t at;
	uint32_t n;

	if (link->ctrl_again == link->ctrl_tx)
		return 0;
	at = link->ctrl_again % link->ctrl_log_bytes;
	n = (uint32_t)TN_MIN(link->ctrl_tx - link->ctrl_again, link->ctrl_log_bytes - at);
	*bytes = link->ctrl_log + at;
	link->ctrl_again += n;
	return n;
}

/* The peer had so much of it. */
static bool go_on(tn_link *link, uint64_t received, uint64_t now_ns)
{
	if (received > link->ctrl_tx || received < link->ctrl_kept) {
		tn_lk_fail_link(link, now_ns, TERN_E_PEER_LOST, "%s",
				"more control messages were lost with their connection than are kept");
		return false;
	}
	link->ctrl_again = received;
	link->ctrl_lost = link->rejoin_wait = false;
	link->ctrl_up = link->heard = true;
	tn_lk_disarm(link, TN_TIMER_REDIAL);
	tn_lk_disarm(link, TN_TIMER_DIAL);
	tn_count_own(&link->counters.rejoins, 1);
	tn_lk_log(link, TN_LOG_INFO, "the control connection is back");
	return true;
}

/* Lanes are there, or were given up on purpose a moment ago. */
static bool stands(const tn_link *link)
{
	return link->state == TN_LINK_UP || (link->state == TN_LINK_RECOVERING && link->moving);
}

/* ---- it ends ---- */

bool tn_lk_ctrl_gone(const tn_link *link)
{
	return link->ctrl_lost || link->rejoin_wait;
}

static bool borrow(tn_link *link)
{
	if (!link->rejoin)
		link->rejoin = tn_store_lend(link->config->store, sizeof(*link->rejoin));
	return link->rejoin != NULL;
}

bool tn_lk_ctrl_may_return(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	bool again = tn_lk_ctrl_gone(link);

	/* Without lanes nothing says that the peer lives; and who refuses is not there. */
	if (!link->rejoins || !stands(link) || (again && status == TERN_E_REFUSED) || !borrow(link))
		return false;
	link->ctrl_lost = true;
	link->ctrl_up = link->rejoin_wait = false;
	link->rejoin_out_bytes = link->rejoin_in_bytes = 0;
	if (again) {
		tn_lk_arm(link, TN_TIMER_DIAL, now_ns + DIAL_PAUSE_NS);
		return true;
	}
	snprintf(link->rejoin->lost_text, sizeof(link->rejoin->lost_text), "%s", text);
	tn_lk_log(link, TN_LOG_WARN, "control connection lost: %s", text);
	tn_lk_arm(link, TN_TIMER_REDIAL, tn_deadline(now_ns, link->config->redial_ns));
	link->dial_due = link->active;
	return true;
}

void tn_lk_redial_timeout(tn_link *link, uint64_t now_ns)
{
	tn_lk_fail_link(link, now_ns, TERN_E_PEER_LOST,
			"control connection lost: %s; not back within %llu ms (link.redial)",
			link->rejoin->lost_text,
			(unsigned long long)(link->config->redial_ns / TN_NS_PER_MS));
}

/* ---- the dialer ---- */

void tn_lk_rejoin_begin(tn_link *link, uint64_t now_ns)
{
	link->ctrl_lost = link->dial_due = false;
	link->rejoin_wait = link->ctrl_up = true;
	tn_lk_disarm(link, TN_TIMER_DIAL);
	link->rejoin_in_bytes = 0;
	link->rejoin_number++;
	if (say(link) != TERN_OK)
		tn_lk_fail_link(link, now_ns, TERN_E_INTERNAL, "%s", "libcrypto refuses HMAC");
}

static const char *answer(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
			  uint64_t now_ns)
{
	tn_wire_rejoin said;
	const char *wrong;

	if (type == TN_CTRL_REFUSE)
		return tn_lk_message(link, type, payload, bytes, now_ns);
	if (type != TN_CTRL_REJOINED)
		return "REJOINED was awaited";
	wrong = tn_wire_get_rejoin(payload, bytes, &said);
	if (wrong)
		return wrong;
	if (said.number != link->rejoin_number || !proves(link, false, &said))
		return "REJOINED without proof";
	go_on(link, said.received, now_ns);
	return NULL;
}

uint64_t tn_lk_rejoin_bytes(tn_link *link, const uint8_t *bytes, uint64_t n, uint64_t now_ns)
{
	uint64_t used = 0;

	while (link->rejoin_wait && link->state < TN_LINK_DRAINING) {
		uint32_t want = TN_CTRL_HEAD_BYTES, length = 0;
		tn_ctrl_type type = 0;
		const char *wrong = NULL;

		if (link->rejoin_in_bytes >= TN_CTRL_HEAD_BYTES) {
			wrong = tn_wire_ctrl_head(link->rejoin->in, false, &type, &length);
			want += length;
			if (!wrong && want > sizeof(link->rejoin->in))
				wrong = "an answer to REJOIN that is too long";
		}
		if (!wrong && link->rejoin_in_bytes == want) {
			link->rejoin_in_bytes = 0;
			wrong = answer(link, type, link->rejoin->in + TN_CTRL_HEAD_BYTES, length, now_ns);
			if (!wrong)
				continue;
		}
		if (wrong) {
			tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s", wrong);
			return used;
		}
		if (used == n)
			return used;
		want = (uint32_t)TN_MIN((uint64_t)(want - link->rejoin_in_bytes), n - used);
		memcpy(link->rejoin->in + link->rejoin_in_bytes, bytes + used, want);
		link->rejoin_in_bytes += want;
		used += want;
	}
	return used;
}

/* ---- the acceptor ---- */

bool tn_link_rejoin(tn_link *link, const void *rejoin, uint64_t bytes, uint64_t now_ns)
{
	tn_wire_rejoin said;

	if (!link->rejoins || link->active || (!stands(link) && link->state != TN_LINK_CLOSING) ||
	    tn_wire_get_rejoin(rejoin, bytes, &said) || said.number <= link->rejoin_number ||
	    !proves(link, true, &said))
		return false;
	link->rejoin_number = said.number;
	if (!borrow(link))
		tn_lk_fail_link(link, now_ns, TERN_E_NOMEM, "%s", "no memory to take the connection back");
	else if (go_on(link, said.received, now_ns) && say(link) != TERN_OK)
		tn_lk_fail_link(link, now_ns, TERN_E_INTERNAL, "%s", "libcrypto refuses HMAC");
	return true;
}
