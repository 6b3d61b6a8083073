/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of a lane are numbered (feature NUMBERS): a device that delivers one twice, or reports success for one that it
 * left out, breaks the lane or nothing, never the link. Soft-RoCE does both when acknowledgements come late.
 *
 *	number = rx_units + 1     the next one: taken
 *	a little below            it came before: dropped, and its slot counts for nothing
 *	else                      one is missing: the lane is broken (recover.c sends again what was not taken)
 *
 * What is not taken is not in `received`, so a wrong guess costs a rebuild and no more. Of the last units of a lane
 * nothing behind them tells: where the device does not vouch for the remote level, a side whose lane has been at rest
 * for a tick of keepalive says on the control connection how many it sent, and the other looks a tick later.
 *
 * Data of one-sided writes carries no number. Threads: none. Tests: tests/unit/link/numbers_test.c, pair_test.c.
 */
#include "link/internal.h"

/* ---- in turn ---- */

static void left_out(tn_link *link, tn_lk_lane *lane, uint64_t now_ns)
{
	tn_count_own(&link->counters.left_out, 1);
	tn_lk_lane_failed(link, lane, TERN_E_LANE, "a message that the device said it sent did not come",
			  now_ns);
}

static bool alive(const tn_link *link)
{
	return link->state == TN_LINK_UP || link->state == TN_LINK_CLOSING;
}

/* ahead: of the next one, modulo; behind: what it is for one that came before, at least. */
static bool out_of_turn(tn_link *link, tn_lk_lane *lane, uint32_t ahead, uint32_t behind, uint64_t now_ns)
{
	if (ahead >= behind) {
		tn_count_own(&link->counters.came_twice, 1);
		lane->twice++;
		lane->received += TN_MUTANT(28);
		return false;
	}
	left_out(link, lane, now_ns);
	return false;
}

bool tn_lk_frame_in_turn(tn_link *link, tn_lk_lane *lane, const void *bytes, uint64_t n, uint64_t now_ns)
{
	tn_frame_head head;
	uint16_t ahead;

	if (!link->number_mask || n < sizeof(head) || !alive(link))
		return true;
	memcpy(&head, bytes, sizeof(head));
	ahead = (uint16_t)(head.number - tn_lk_number(link, lane->rx_units));
	if (ahead == 0 || head.epoch != lane->epoch || (TN_MUTANT(29) && ahead < 0x8000))
		return true;
	return out_of_turn(link, lane, ahead, 0x8000, now_ns);
}

/* Two bits: one behind came before, any other is as well as missing. */
bool tn_lk_imm_in_turn(tn_link *link, tn_lk_lane *lane, uint32_t imm, uint64_t now_ns)
{
	uint32_t number = imm >> TN_IMM_NUMBER_SHIFT;

	if (!alive(link) || tn_lk_imm_next(link, lane, imm))
		return true;
	return out_of_turn(link, lane, (number - lane->rx_units - 1) & 3, 3, now_ns);
}

uint32_t tn_lk_slots_of_units(tn_lk_lane *lane, uint32_t n)
{
	uint32_t twice = TN_MIN(n, lane->twice);

	lane->twice -= twice;
	return n - twice;
}

/* ---- the last ones ---- */

static bool looks(const tn_link *link)
{
	return link->number_mask && !link->remote_done && link->state == TN_LINK_UP;
}

void tn_lk_numbers_up(tn_link *link)
{
	bool imms = link->number_mask && !link->remote_done;

	link->imm_mask = imms ? TN_IMM_NUMBER : 0;
	link->imm_channels = imms ? TN_IMM_CHANNELS_NUMBERED : TN_IMM_CHANNELS;
}

static void say_sent(tn_link *link, uint64_t now_ns)
{
	tn_wire_resume sent = {.epoch = link->epoch, .lanes = link->lane_count};
	tn_writer w = tn_lk_out_begin(link);

	for (uint32_t i = 0; i < link->lane_count; i++)
		sent.received[i] = link->by_index[i]->tx_said = link->by_index[i]->tx_units;
	tn_wire_put_resume(&w, TN_CTRL_SENT, &sent);
	tn_lk_out_end(link, &w, now_ns);
}

/* True: something was sent that the peer was not told of, and nothing for a tick. */
static bool at_rest(tn_link *link)
{
	bool news = false, busy = false;

	for (uint32_t i = 0; i < link->lane_count; i++) {
		tn_lk_lane *lane = link->by_index[i];

		news |= lane->tx_units != lane->tx_said;
		busy |= lane->tx_units != lane->tx_looked || lane->wrs > 0;
		lane->tx_looked = lane->tx_units;
	}
	return news && !busy && !TN_MUTANT(30);
}

void tn_lk_numbers_look(tn_link *link, uint64_t now_ns)
{
	if (!looks(link))
		return;
	for (uint32_t i = 0; i < link->lane_count; i++) {
		tn_lk_lane *lane = link->by_index[i];
		bool missing = (int32_t)(lane->rx_said - lane->rx_units) > 0;

		if (missing && lane->rx_due) {
			left_out(link, lane, now_ns);
			return;
		}
		lane->rx_due = missing;
	}
	if (!tn_lk_ctrl_gone(link) && at_rest(link))
		say_sent(link, now_ns);
}

const char *tn_lk_sent_message(tn_link *link, const uint8_t *payload, uint32_t bytes)
{
	tn_wire_resume sent;
	const char *wrong = tn_wire_get_resume(payload, bytes, &sent);

	if (wrong)
		return wrong;
	if (!link->number_mask)
		return "SENT without the feature";
	if (sent.epoch > link->epoch_last)
		return "SENT of an epoch to come";
	if (sent.epoch != link->epoch || !looks(link))
		return NULL;
	if (sent.lanes != link->lane_count)
		return "SENT with a wrong number of lanes";
	for (uint32_t i = 0; i < sent.lanes; i++)
		link->by_index[i]->rx_said = sent.received[i];
	return NULL;
}
