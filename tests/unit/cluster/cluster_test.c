/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership as servers have it: contexts of one process that join a coordinator in the first of them, over calls; what
 * they find out is told at once, as if slots were empty. Joins, drains, deaths, leases. With the argument "etcd" the same
 * over an etcd that the test starts.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/channel.h>

#include "base/clock.h"
#include "cluster/cluster.h"
#include "cmocka_all.h"
#include "etcd_world.h"

#define NODES 4

typedef struct node {
	tern_ctx *ctx;
	tn_cluster *cluster;
	pthread_mutex_t lock;
	tn_cl_map map;
	uint16_t self;
	uint16_t slots[TN_CL_SLOTS];
	uint32_t epochs[TN_CL_SLOTS];
	bool silent; /* reports nothing */
	uint64_t versions;
} node;

static int wait_10ms = 6000;
static node nodes[NODES];
static bool by_etcd;
static char etcd_join[100];
static unsigned etcd_prefix;
static const char *const options[] = {"cluster.lease=400ms", "cluster.margin=100ms", "cluster.balance=200ms",
				      NULL};

static void report(node *n, const tn_cl_map *map, bool released)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &map->slot[i];

		bool next = s->next != TN_CL_NONE;

		if (s->primary != n->self || s->backup == TN_CL_NONE)
			continue;
		if (next ? released
			 : ((s->flags & TN_CL_MOVE) != 0) != released ||
				    (!released && (s->flags & TN_CL_IN_SYNC)))
			continue;
		n->slots[k] = (uint16_t)i;
		n->epochs[k++] = next ? s->next_epoch : s->epoch;
	}
	if (released)
		tn_cluster_released(n->cluster, n->slots, n->epochs, k);
	else
		tn_cluster_synced(n->cluster, n->slots, n->epochs, k);
}

static void on_map(void *arg, const tn_cl_map *map, uint16_t self)
{
	node *n = arg;

	pthread_mutex_lock(&n->lock);
	assert_true(map->version >= n->map.version);
	n->map = *map;
	n->self = self;
	n->versions++;
	pthread_mutex_unlock(&n->lock);
	if (n->silent || self == TN_CL_NONE)
		return;
	report(n, map, false);
	report(n, map, true);
}

static void begin(unsigned i, const char *join, uint32_t replicas, uint32_t first)
{
	char name[16];
	tern_ctx_params params = {.name = name, .transports = "tcp", .options = options};
	tn_cluster_params cluster = {.join = by_etcd ? etcd_join : join,
				     .replicas = replicas,
				     .first = first,
				     .on_map = on_map,
				     .arg = &nodes[i]};
	node *n = &nodes[i];

	if (by_etcd && i == 0) /* a job of its own */
		snprintf(etcd_join, sizeof(etcd_join), "%s/job%u", etcd_address, etcd_prefix++);
	snprintf(name, sizeof(name), "member%u", i);
	memset(n, 0, sizeof(*n));
	pthread_mutex_init(&n->lock, NULL);
	assert_ok(tern_ctx_create(&params, &n->ctx));
	if (tn_cluster_open(n->ctx, &cluster, &n->cluster) != TERN_OK)
		fail_msg("node %u: %s", i, tern_detail());
}

static void end(unsigned i, bool leave)
{
	if (!nodes[i].ctx)
		return;
	if (leave)
		tn_cluster_leave(nodes[i].cluster);
	tn_cluster_close(nodes[i].cluster);
	tern_ctx_destroy(nodes[i].ctx);
	nodes[i].ctx = NULL;
}

static const char *where(unsigned i)
{
	return tern_ctx_address(nodes[i].ctx);
}

typedef struct counts {
	uint32_t primary[NODES], backup[NODES], in_sync, none;
	uint8_t state[NODES];
} counts;

/* As node `by` has heard; nodes are known by their addresses. */
static counts count(unsigned by)
{
	node *n = &nodes[by];
	counts k = {0};

	pthread_mutex_lock(&n->lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		k.in_sync += n->map.slot[i].flags & TN_CL_IN_SYNC,
			k.none += n->map.slot[i].primary == TN_CL_NONE;
	for (unsigned m = 0; m < NODES; m++)
		for (uint32_t s = 0; nodes[m].ctx && s < n->map.servers; s++) {
			if (strcmp(n->map.server[s].address, where(m)) != 0)
				continue;
			k.state[m] = n->map.server[s].state;
			for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
				k.primary[m] += n->map.slot[i].primary == s;
				k.backup[m] += n->map.slot[i].backup == s;
			}
		}
	pthread_mutex_unlock(&n->lock);
	return k;
}

/* Until the condition over k holds, as `by` hears it; a minute at most. */
#define until(by, condition)                                                                               \
	do {                                                                                               \
		counts k = count(by);                                                                      \
		for (int t_ = 0; !(condition) && t_ < wait_10ms; t_++, k = count(by))                      \
			tn_sleep_ns(10000000);                                                             \
		if (!(condition))                                                                          \
			fail_msg("%s never came: primaries %u %u %u, backups %u %u %u, in sync %u, "       \
				 "states %u %u %u",                                                        \
				 #condition, k.primary[0], k.primary[1], k.primary[2], k.backup[0],        \
				 k.backup[1], k.backup[2], k.in_sync, k.state[0], k.state[1], k.state[2]); \
	} while (0)

static bool about(uint32_t n, uint32_t share)
{
	return n > TN_CL_SLOTS / share * 8 / 10 && n < TN_CL_SLOTS / share * 12 / 10;
}

static void grows_and_shrinks(void **state)
{
	(void)state;
	begin(0, NULL, 1, 1);
	assert_true(tn_cluster_lease_valid(nodes[0].cluster));
	until(0, k.primary[0] == TN_CL_SLOTS);
	begin(1, where(0), 0, 0);
	until(1, about(k.primary[0], 2) && about(k.primary[1], 2));
	begin(2, where(0), 0, 0);
	until(0, about(k.primary[0], 3) && about(k.primary[1], 3) && about(k.primary[2], 3));
	tn_cluster_drain(nodes[1].cluster);
	until(1, k.primary[1] == 0 && k.state[1] == TN_CL_DRAINING && about(k.primary[2], 2));
	end(1, true);
	until(2, about(k.primary[2], 2));
	assert_true(tn_cluster_lease_valid(nodes[2].cluster));
	end(2, false);
	end(0, false);
}

static void backups_take_over(void **state)
{
	(void)state;
	begin(0, "", 2, 3);
	assert_int_equal(count(0).none, TN_CL_SLOTS); /* three are awaited */
	begin(1, where(0), 0, 0);
	begin(2, where(0), 0, 0);
	until(2, k.in_sync == TN_CL_SLOTS && about(k.primary[2], 3));
	end(2, false); /* it says nothing any more */
	until(0, k.in_sync == TN_CL_SLOTS && k.primary[0] + k.primary[1] == TN_CL_SLOTS);
	begin(2, where(0), 0, 0);
	until(1, k.in_sync == TN_CL_SLOTS && about(k.primary[2], 3));
	end(2, true); /* goodbye: nobody waits for a lease */
	until(1, k.in_sync == TN_CL_SLOTS && k.primary[0] + k.primary[1] == TN_CL_SLOTS);
	end(1, false);
	end(0, false);
}

/* A backup that does not answer is given up before the primary goes on alone. */
static void lost_backups(void **state)
{
	node *n = &nodes[0];
	uint32_t epoch;
	uint16_t slot = 9;

	(void)state;
	begin(0, NULL, 2, 2);
	begin(1, where(0), 0, 0);
	until(0, k.in_sync == TN_CL_SLOTS);
	pthread_mutex_lock(&n->lock);
	assert_int_equal(n->map.slot[slot].primary, n->self);
	epoch = n->map.slot[slot].epoch;
	pthread_mutex_unlock(&n->lock);
	tn_cluster_lost(n->cluster, &slot, &epoch, 1);
	until(0, k.in_sync == TN_CL_SLOTS - 1);
	assert_int_equal(n->map.slot[slot].backup, TN_CL_NONE);
	until(0, k.in_sync == TN_CL_SLOTS); /* it is well: after a while it is one again */
	end(1, false);
	end(0, false);
}

/* Without its coordinator a server stops by itself. */
static void leases_end(void **state)
{
	(void)state;
	begin(0, NULL, 1, 1);
	begin(1, where(0), 0, 0);
	until(1, about(k.primary[1], 2));
	assert_true(tn_cluster_lease_valid(nodes[1].cluster));
	if (by_etcd)
		etcd_stop();
	end(0, false);
	for (int i = 0; i < 6000 && tn_cluster_lease_valid(nodes[1].cluster); i++)
		tn_sleep_ns(10000000);
	assert_false(tn_cluster_lease_valid(nodes[1].cluster));
	end(1, true);
}

static void nobody_there(void **state)
{
	static const char *const short_join[] = {"cluster.join=100ms", NULL};
	tern_ctx_params params = {.name = "lonely", .transports = "tcp", .options = short_join};
	tn_cluster_params cluster = {.join = "127.0.0.1:1", .on_map = on_map, .arg = &nodes[0]};
	tn_cluster *c = NULL;
	tern_ctx *ctx;

	(void)state;
	assert_ok(tern_ctx_create(&params, &ctx));
	assert_true(tn_cluster_open(ctx, &cluster, &c) != TERN_OK);
	assert_null(c);
	cluster.join = NULL;
	cluster.replicas = 3;
	assert_status(tn_cluster_open(ctx, &cluster, &c), TERN_E_INVALID);
	tern_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows_and_shrinks), cmocka_unit_test(backups_take_over),
		cmocka_unit_test(lost_backups),      cmocka_unit_test(leases_end),
		cmocka_unit_test(nobody_there),
	};

	int failed;

	by_etcd = argc > 1 && strcmp(argv[1], "etcd") == 0;
	if (by_etcd && !etcd_there()) {
		printf("skipped: /usr/bin/etcd is missing (apt-get install etcd-server)\n");
		return 77;
	}
	if (by_etcd)
		etcd_start();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	etcd_stop();
	return failed;
}
