/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushes that were applied, by client: see dedup.h. A client has few pushes that are not over, so its entries are a
 * short array in no order.
 *
 * Pure; no locks. Threads: one at a time. Tests: tests/unit/ps/dedup_test.c.
 */
#include "ps/dedup.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/list.h"
#include "base/map.h"

typedef struct entry {
	uint64_t seq;
	tern_status status;
	bool running;
	tn_ps_slots done;
	struct entry *next; /* in the list of spare ones */
} entry;

typedef struct client {
	tn_list node; /* the longest silent first */
	uint64_t id;
	uint64_t low;
	uint32_t count, cap;
	entry **entries;
} client;

struct tn_ps_dedup {
	tn_map by_id;
	tn_list silent;
	uint64_t clients, entries;
	entry *spare;
};

bool tn_ps_slots_within(const tn_ps_slots *a, const tn_ps_slots *b)
{
	uint64_t outside = 0;

	for (unsigned i = 0; i < 64; i++)
		outside |= a->bits[i] & ~b->bits[i];
	return outside == 0;
}

tn_ps_dedup *tn_ps_dedup_new(void)
{
	tn_ps_dedup *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	tn_list_init(&d->silent);
	if (tn_map_init(&d->by_id, 16, false, 0x9d5e) == TERN_OK)
		return d;
	free(d);
	return NULL;
}

/* ---- entries ---- */

static void entry_drop(tn_ps_dedup *d, client *c, uint32_t i)
{
	entry *e = c->entries[i];

	TN_ASSERT(i < c->count && d->entries > 0);
	c->entries[i] = c->entries[--c->count];
	d->entries--;
	e->next = d->spare;
	d->spare = e;
}

static entry *entry_find(const client *c, uint64_t seq)
{
	for (uint32_t i = 0; i < c->count; i++)
		if (c->entries[i]->seq == seq)
			return c->entries[i];
	return NULL;
}

static bool entries_grow(client *c)
{
	uint32_t cap = c->cap ? c->cap * 2 : 4;
	entry **more = TN_FAULT("ps.dedup.alloc") ? NULL : realloc(c->entries, cap * sizeof(entry *));

	if (!more)
		return false;
	c->entries = more;
	c->cap = cap;
	return true;
}

static entry *entry_new(tn_ps_dedup *d, client *c, uint64_t seq)
{
	entry *e = d->spare;

	if (c->count == c->cap && !entries_grow(c))
		return NULL;
	if (e)
		d->spare = e->next;
	else
		e = TN_FAULT("ps.dedup.alloc") ? NULL : malloc(sizeof(*e));
	if (!e)
		return NULL;
	memset(e, 0, sizeof(*e));
	e->seq = seq;
	c->entries[c->count++] = e;
	d->entries++;
	return e;
}

/* Everything below low is over. A copy at work is an old one that nobody waits for: its entry goes when it ends. */
static void advance(tn_ps_dedup *d, client *c, uint64_t low)
{
	if (low <= c->low)
		return;
	c->low = low;
	for (uint32_t i = c->count; i-- > 0;)
		if (c->entries[i]->seq < low && !c->entries[i]->running)
			entry_drop(d, c, i);
}

/* ---- clients ---- */

static bool client_busy(const client *c)
{
	for (uint32_t i = 0; i < c->count; i++)
		if (c->entries[i]->running)
			return true;
	return false;
}

static void client_drop(tn_ps_dedup *d, client *c)
{
	TN_ASSERT(!client_busy(c));
	while (c->count)
		entry_drop(d, c, c->count - 1);
	tn_list_remove(&c->node);
	tn_map_remove(&d->by_id, c->id, NULL);
	d->clients--;
	free(c->entries);
	free(c);
}

static void make_room(tn_ps_dedup *d)
{
	tn_list *node = d->silent.next;

	while (d->clients >= TN_PS_CLIENTS_MAX && node != &d->silent) {
		client *c = TN_CONTAINER_OF(node, client, node);

		node = node->next;
		if (!client_busy(c))
			client_drop(d, c);
	}
}

static client *client_get(tn_ps_dedup *d, uint64_t id)
{
	client *c = tn_map_ptr(&d->by_id, id);

	if (c) {
		tn_list_remove(&c->node);
		tn_list_push_back(&d->silent, &c->node);
		return c;
	}
	make_room(d);
	c = TN_FAULT("ps.dedup.alloc") ? NULL : calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->id = id;
	if (tn_map_put(&d->by_id, id, (uint64_t)(uintptr_t)c) != TERN_OK) {
		free(c);
		return NULL;
	}
	tn_list_push_back(&d->silent, &c->node);
	d->clients++;
	return c;
}

void tn_ps_dedup_free(tn_ps_dedup *d)
{
	if (!d)
		return;
	while (!tn_list_empty(&d->silent))
		client_drop(d, TN_CONTAINER_OF(d->silent.next, client, node));
	while (d->spare) {
		entry *e = d->spare;

		d->spare = e->next;
		free(e);
	}
	tn_map_fini(&d->by_id);
	free(d);
}

void tn_ps_dedup_forget(tn_ps_dedup *d, uint64_t id)
{
	client *c = tn_map_ptr(&d->by_id, id);

	if (c && !client_busy(c))
		client_drop(d, c);
}

/* ---- a push ---- */

tn_ps_verdict tn_ps_dedup_begin(tn_ps_dedup *d, uint64_t id, uint64_t seq, uint64_t low,
				const tn_ps_slots *want, tn_ps_slots *fresh, tern_status *status)
{
	client *c = client_get(d, id);
	entry *e;

	*status = TERN_OK;
	if (!c)
		return TN_PS_NO_MEMORY;
	advance(d, c, low);
	if (seq < c->low)
		return TN_PS_KNOWN; /* over: whoever asks does not wait */
	if (seq - c->low >= TN_PS_WINDOW)
		return TN_PS_BEYOND;
	e = entry_find(c, seq);
	if (!e)
		e = entry_new(d, c, seq);
	if (!e)
		return TN_PS_NO_MEMORY;
	if (e->running)
		return TN_PS_AT_WORK;
	for (unsigned i = 0; i < 64; i++)
		fresh->bits[i] = want->bits[i] & ~e->done.bits[i];
	*status = e->status;
	if (tn_ps_slots_none(fresh) && !tn_ps_slots_none(want))
		return TN_PS_KNOWN;
	e->running = true;
	return TN_PS_FRESH;
}

void tn_ps_dedup_end(tn_ps_dedup *d, uint64_t id, uint64_t seq, const tn_ps_slots *fresh, bool applied,
		     tern_status status)
{
	client *c = tn_map_ptr(&d->by_id, id);
	entry *e = c ? entry_find(c, seq) : NULL;

	TN_ASSERT(e && e->running);
	e->running = false;
	for (unsigned i = 0; applied && i < 64; i++)
		e->done.bits[i] |= fresh->bits[i];
	if (applied && e->status == TERN_OK)
		e->status = status;
	for (uint32_t i = 0; seq < c->low && i < c->count; i++)
		if (c->entries[i] == e) {
			entry_drop(d, c, i);
			break;
		}
}

/* ---- one slot's part ---- */

void tn_ps_dedup_export(const tn_ps_dedup *d, uint32_t slot, tn_ps_fact_fn fn, void *arg)
{
	for (tn_list *node = d->silent.next; node != &d->silent; node = node->next) {
		const client *c = TN_CONTAINER_OF(node, client, node);

		fn(c->id, c->low, TN_PS_NO_SEQ, TERN_OK, arg);
		for (uint32_t i = 0; i < c->count; i++)
			if (tn_ps_slots_has(&c->entries[i]->done, slot))
				fn(c->id, c->low, c->entries[i]->seq, c->entries[i]->status, arg);
	}
}

void tn_ps_dedup_export_slots(const tn_ps_dedup *d, const tn_ps_slots *slots, tn_ps_facts_fn fn, void *arg)
{
	tn_ps_slots both;

	for (tn_list *node = d->silent.next; node != &d->silent; node = node->next) {
		const client *c = TN_CONTAINER_OF(node, client, node);

		fn(c->id, c->low, TN_PS_NO_SEQ, TERN_OK, NULL, arg);
		for (uint32_t i = 0; i < c->count; i++) {
			for (unsigned w = 0; w < 64; w++)
				both.bits[w] = c->entries[i]->done.bits[w] & slots->bits[w];
			if (!tn_ps_slots_none(&both))
				fn(c->id, c->low, c->entries[i]->seq, c->entries[i]->status, &both, arg);
		}
	}
}

tern_status tn_ps_dedup_applied(tn_ps_dedup *d, uint64_t id, uint64_t low, uint64_t seq,
				const tn_ps_slots *slots, tern_status status)
{
	client *c = client_get(d, id);
	entry *e;

	if (!c)
		return TERN_E_NOMEM;
	advance(d, c, low);
	if (seq == TN_PS_NO_SEQ || seq < c->low)
		return TERN_OK;
	if (seq - c->low >= TN_PS_WINDOW)
		return TERN_E_LIMIT;
	e = entry_find(c, seq);
	if (!e)
		e = entry_new(d, c, seq);
	if (!e)
		return TERN_E_NOMEM;
	for (unsigned w = 0; w < 64; w++)
		e->done.bits[w] |= slots->bits[w];
	if (e->status == TERN_OK)
		e->status = status;
	return TERN_OK;
}

tern_status tn_ps_dedup_import(tn_ps_dedup *d, uint32_t slot, uint64_t id, uint64_t low, uint64_t seq,
			       tern_status status)
{
	tn_ps_slots one = {{0}};

	tn_ps_slots_add(&one, slot);
	return tn_ps_dedup_applied(d, id, low, seq, &one, status);
}

void tn_ps_dedup_drop_slots(tn_ps_dedup *d, const tn_ps_slots *slots)
{
	for (tn_list *node = d->silent.next; node != &d->silent; node = node->next) {
		const client *c = TN_CONTAINER_OF(node, client, node);

		for (uint32_t i = 0; i < c->count; i++)
			for (unsigned w = 0; w < 64; w++)
				c->entries[i]->done.bits[w] &= ~slots->bits[w];
	}
}

void tn_ps_dedup_drop(tn_ps_dedup *d, uint32_t slot)
{
	tn_ps_slots one = {{0}};

	tn_ps_slots_add(&one, slot);
	tn_ps_dedup_drop_slots(d, &one);
}

uint64_t tn_ps_dedup_clients(const tn_ps_dedup *d)
{
	return d->clients;
}

uint64_t tn_ps_dedup_entries(const tn_ps_dedup *d)
{
	return d->entries;
}

void tn_ps_dedup_check(const tn_ps_dedup *d)
{
	uint64_t clients = 0, entries = 0;

	for (const tn_list *node = d->silent.next; node != &d->silent; node = node->next, clients++) {
		const client *c = TN_CONTAINER_OF(node, client, node);

		TN_ASSERT(tn_map_ptr(&d->by_id, c->id) == c);
		TN_ASSERT(c->count <= c->cap);
		for (uint32_t i = 0; i < c->count; i++) {
			const entry *e = c->entries[i];

			TN_ASSERT(e->running || e->seq >= c->low);
			TN_ASSERT(e->seq < c->low || e->seq - c->low < TN_PS_WINDOW);
			TN_ASSERT(entry_find(c, e->seq) == e);
		}
		entries += c->count;
	}
	TN_ASSERT(clients == d->clients && entries == d->entries);
	TN_ASSERT(d->by_id.count == d->clients);
}
