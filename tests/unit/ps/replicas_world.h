/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers with backups and a coordinator made by hand: tests say when maps change, who has a lease and who is dead. And what
 * rows look like at a server, bit by bit. Threads: the main one; servers report from theirs, under the coordinator's lock.
 */
#ifndef TN_TESTS_REPLICAS_WORLD_H
#define TN_TESTS_REPLICAS_WORLD_H

#include "base/list.h"
#include "base/time.h"
#include "channel/ctx_slots.h"
#include "ps/server.h"
#include "ps_world.h"

#define DIM 4

/* ---- the coordinator ---- */

typedef struct coordinator {
	pthread_mutex_t lock;
	world *w;
	tn_cl_map map;
	bool dead[SERVERS_MAX];
	_Atomic bool lease[SERVERS_MAX];
	uint16_t number[SERVERS_MAX];
	_Atomic bool changed;
	_Atomic unsigned lost;
} coordinator;

static coordinator c;
static world w;

static inline bool has_lease(void *arg)
{
	return atomic_load(&c.lease[*(uint16_t *)arg]);
}

static inline void report(const uint16_t *slots, const uint32_t *epochs, uint32_t n, uint16_t from, int kind)
{
	pthread_mutex_lock(&c.lock);
	for (uint32_t i = 0; i < n; i++) {
		tn_cl_slot *s = &c.map.slot[slots[i]];

		if (s->epoch != epochs[i] || s->primary != from)
			continue;
		if (kind == 0) {
			s->flags |= TN_CL_IN_SYNC;
		} else if (kind == 1 && s->flags & TN_CL_MOVE) {
			s->primary = s->backup;
			s->backup = TN_CL_NONE;
			s->flags = 0;
			s->epoch++;
		} else if (kind == 2) {
			s->backup = TN_CL_NONE;
			s->flags = 0;
			s->epoch++;
			c.lost++;
		}
	}
	c.changed = true;
	pthread_mutex_unlock(&c.lock);
}

static inline void on_synced(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(slots, epochs, n, *(uint16_t *)arg, 0);
}

static inline void on_released(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(slots, epochs, n, *(uint16_t *)arg, 1);
}

static inline void on_lost(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(slots, epochs, n, *(uint16_t *)arg, 2);
}

static inline void publish(void)
{
	tn_cl_map *map = malloc(sizeof(*map));

	assert_non_null(map);
	pthread_mutex_lock(&c.lock);
	c.changed = false;
	c.map.version++;
	*map = c.map;
	pthread_mutex_unlock(&c.lock);
	for (uint16_t i = 0; i < w.servers; i++)
		if (!c.dead[i] && atomic_load(&c.lease[i]))
			assert_success(tn_ps_replicas_map(w.nodes[i].server, map, i));
	free(map);
}

/* A backup for each slot that has none, where that can be. */
static inline void choose_backups(bool in_turn)
{
	pthread_mutex_lock(&c.lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		tn_cl_slot *s = &c.map.slot[i];

		for (uint16_t k = 1; k < w.servers && s->backup == TN_CL_NONE; k++) {
			uint16_t b = (uint16_t)((s->primary + (in_turn ? k : w.servers - k)) % w.servers);

			if (c.dead[b] || !atomic_load(&c.lease[b]))
				continue;
			s->backup = b;
			s->epoch++;
			c.changed = true;
		}
	}
	pthread_mutex_unlock(&c.lock);
}

static inline void bury(uint16_t dead)
{
	pthread_mutex_lock(&c.lock);
	tn_cl_server_set_state(&c.map.server[dead], TN_CL_DOWN);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		tn_cl_slot *s = &c.map.slot[i];

		if (s->primary != dead && s->backup != dead)
			continue;
		if (s->primary == dead) {
			assert_true(s->flags & TN_CL_IN_SYNC);
			s->primary = s->backup;
		}
		s->backup = TN_CL_NONE;
		s->flags = 0;
		s->epoch++;
	}
	c.changed = true;
	pthread_mutex_unlock(&c.lock);
}

static inline bool in_sync(void)
{
	bool all = true;

	pthread_mutex_lock(&c.lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		all &= c.map.slot[i].backup != TN_CL_NONE && c.map.slot[i].flags == TN_CL_IN_SYNC;
	pthread_mutex_unlock(&c.lock);
	return all;
}

static inline void pause_ms(uint64_t ms)
{
	uint64_t end = tn_ctx_now(w.ctx) + ms * TN_NS_PER_MS;

	while (tn_ctx_now(w.ctx) < end)
		tern_ctx_wait(w.ctx, TN_NS_PER_MS);
}

static inline void settle(bool in_turn)
{
	for (unsigned i = 0; i < 6000; i++) {
		choose_backups(in_turn);
		if (c.changed)
			publish();
		if (in_sync())
			return;
		pause_ms(5);
	}
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &c.map.slot[i];

		if (s->flags != TN_CL_IN_SYNC)
			fail_msg("slot %u: (%u, %u) epoch %u flags %u", i, s->primary, s->backup, s->epoch,
				 s->flags);
	}
}

static inline void cluster_start(unsigned servers)
{
	world_start(&w, servers);
	memset(&c, 0, sizeof(c));
	pthread_mutex_init(&c.lock, NULL);
	tn_cl_map_spread(&c.map, 1, servers, 1);
	for (uint16_t i = 0; i < servers; i++) {
		tn_replicas_env env = {has_lease, on_synced, on_released, on_lost, &c.number[i]};

		c.number[i] = i;
		atomic_init(&c.lease[i], true);
		c.map.server[i].incarnation = i + 1u;
		snprintf(c.map.server[i].address, TN_ADDRESS_MAX, "%s", w.addresses[i]);
		assert_success(tn_ps_replicas_open(w.nodes[i].server, &env));
	}
	publish();
	tern_ps_close(w.ps); /* it knows the list alone */
	tern_ctx_destroy(w.ctx);
	world_client(&w, &w.ctx, &w.ps);
	w.mem = tern_ctx_mem(w.ctx);
}

/* ---- bit by bit ---- */

typedef struct image {
	bool there;
	uint8_t bytes[DIM * 8];
} image;

static inline tern_status keep(const tn_record *record, void *arg)
{
	image *i = arg;

	i->there = true;
	memcpy(i->bytes, record->value, DIM * 4);
	if (record->state)
		memcpy(i->bytes + DIM * 4, record->state, DIM * 4);
	return TERN_OK;
}

static inline image image_at(uint16_t server, const char *table, uint64_t key)
{
	ps_share *share = tn_ps_share_get(w.nodes[server].server, tn_ps_table_id(table));
	image i = {.there = false};

	assert_non_null(share);
	assert_success(tn_table_read_records(share->engine, &key, 1, keep, &i));
	tn_ps_share_put(share);
	return i;
}

static inline uint64_t key_of(unsigned i)
{
	return i ? UINT64_MAX / i : 0;
}

static inline void backups_equal(const char *table, unsigned keys)
{
	for (unsigned k = 0; k < keys; k++) {
		const tn_cl_slot *s = &c.map.slot[tn_table_slot(key_of(k))];
		image a = image_at(s->primary, table, key_of(k)), b = image_at(s->backup, table, key_of(k));

		if (a.there != b.there || memcmp(a.bytes, b.bytes, sizeof(a.bytes)) != 0)
			fail_msg("key %u: its backup %u has not what its primary %u has", k, s->backup,
				 s->primary);
	}
}

#endif
