/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of services and words of refusals: what a channel needs while it opens or is refused, kept out of its row.
 * Channels that are opened one after the other to the same service share a row, so that a thousand at once touch
 * one.
 *
 *   name->refs = channels whose `name` is its index + 1;  0 = free
 *
 * Must not: search. Threads: none. Tests: tests/unit/link/channel_test.c.
 */
#include "link/internal.h"

static uint32_t row_of(tn_link *link, const char *text)
{
	uint32_t index = link->name_last;

	if (index < link->name_high && link->names[index].refs > 0 &&
	    strcmp(link->names[index].text, text) == 0)
		return index;
	index = link->name_free;
	if (index != TN_NONE) {
		link->name_free = link->names[index].next_free;
	} else {
		TN_ASSERT(link->name_high < link->config->channels_max);
		index = link->name_high++;
		link->names[index].refs = 0;
	}
	snprintf(link->names[index].text, sizeof(link->names[index].text), "%s", text);
	link->name_last = index;
	return index;
}

void tn_lk_name_set(tn_link *link, tn_lk_chan *chan, const char *text)
{
	uint32_t index;

	tn_lk_name_drop(link, chan);
	if (!text || !text[0])
		return;
	index = row_of(link, text);
	link->names[index].refs++;
	chan->name = index + 1;
}

void tn_lk_name_drop(tn_link *link, tn_lk_chan *chan)
{
	tn_lk_name_row *name;

	if (chan->name == 0)
		return;
	name = &link->names[chan->name - 1];
	TN_ASSERT(name->refs > 0);
	if (--name->refs == 0) {
		name->next_free = link->name_free;
		link->name_free = chan->name - 1;
	}
	chan->name = 0;
}
