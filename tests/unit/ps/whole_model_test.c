/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameter server as a whole against plain oracles: clients pull, push and erase keys of their own, at random, and compare
 * every row bit by bit, while servers join and are drained and all tables are saved; at the end the last checkpoint, a base and
 * its deltas, is restored onto another number of servers, while these give each other slots, and is what the oracles have. In several configurations: one copy,
 * backups, a tier for cold rows. TERN_TEST_ROUNDS: keys that clients name per configuration (1000000 for a long run);
 * TERN_TEST_SEED.
 *
 * Threads: one for each client; the main one has the servers, and judges.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tern/ps.h>
#include <tern/ps_save.h>

#include "cmocka_all.h"
/* after cmocka */
#include "base/clock.h"
#include "oracle.h"
#include "ps_folder.h"
#include "support/mem_tier.h"
#include "support/ps_node.h"

#define NODES   4
#define CLIENTS 3
#define OWN     1500 /* keys of a client */
#define BATCH   48
#define DIM     6
/* Servers that have just joined are being given slots while it restores: several times, for it is a race. */
#define RESTORES 4

typedef struct config {
	const char *name;
	uint32_t replicas;
	bool tier;
	tern_table_schema schema;
	float lr;
} config;

static const config configs[] = {
	{"one copy, adagrad",
	 1,
	 false,
	 {.name = "a", .dim = DIM, .init = {TERN_ROW_UNIFORM, 1, 3}, .optimizer.kind = TERN_OPT_ADAGRAD},
	 0.1f},
	{"backups, adam, bf16",
	 2,
	 false,
	 {.name = "b",
	  .dim = DIM,
	  .dtype = TERN_BF16,
	  .init = {TERN_ROW_NORMAL, 1, 5},
	  .optimizer.kind = TERN_OPT_ADAM},
	 0.01f},
	{"a tier, momentum",
	 1,
	 true,
	 {.name = "c",
	  .dim = DIM,
	  .optimizer.kind = TERN_OPT_MOMENTUM,
	  .budget_bytes = 250000,
	  .eviction = TERN_EVICT_LRU},
	 0.1f},
};

typedef struct client {
	pthread_t thread;
	tern_ctx *ctx;
	tern_ps *ps;
	tern_table *table;
	oracle o;
	tn_rand r;
	uint64_t step, rounds;
	_Atomic uint64_t named; /* the main thread looks */
	_Atomic bool done;
	uint64_t keys[BATCH];
	uint32_t u[BATCH], n;
	float rows[BATCH * DIM];
	char error[600];
} client;

static ps_node nodes[NODES];
static client clients[CLIENTS];
static char tiers[64];
static const char *first_address;
static uint64_t seed;

/* ---- servers ---- */

static void begin(const config *c, unsigned i)
{
	static const char *const options[] = {"cluster.lease=2s", "cluster.margin=200ms",
					      "cluster.balance=100ms", "cluster.moves=256", NULL};
	static unsigned number;
	char name[32], tier[80];
	tern_ctx_params params = {.name = name, .options = options};
	tern_ps_server_params server = {
		.join = i ? first_address : "", .replicas = c->replicas, .tier_dir = c->tier ? tier : NULL};

	snprintf(name, sizeof(name), "whole%u", number++);
	snprintf(tier, sizeof(tier), "%s/%u", tiers, i);
	if (c->tier && mkdir(tier, 0700) != 0)
		assert_int_equal(errno, EEXIST);
	ps_node_begin(&nodes[i], &params, &server);
	if (!i)
		first_address = tern_ctx_address(nodes[0].ctx);
}

static void open_client(client *c)
{
	static unsigned number;
	char name[32];
	tern_ctx_params params = {.name = name, .listen = ""};
	tern_ps_params ps = {.servers = &first_address, .count = 1};

	snprintf(name, sizeof(name), "user%u", number++);
	assert_ok(tern_ctx_create(&params, &c->ctx));
	if (tern_ps_open(c->ctx, &ps, &c->ps) != TERN_OK)
		fail_msg("client: %s", tern_detail());
}

static void close_client(client *c)
{
	tern_ps_close(c->ps);
	tern_ctx_destroy(c->ctx);
}

/* ---- clients ---- */

static bool bad(client *c, const char *what)
{
	if (!c->error[0])
		snprintf(c->error, sizeof(c->error), "%s: %s", what, tern_detail());
	return false;
}

/* Different keys: in which order equal ones are summed is another test's matter. */
static void draw(client *c)
{
	uint32_t at = (uint32_t)tn_rand_below(&c->r, OWN);

	c->n = 1 + (uint32_t)tn_rand_below(&c->r, BATCH);
	for (uint32_t i = 0; i < c->n; i++) {
		c->u[i] = (at + i * 31) % OWN;
		c->keys[i] = c->o.keys[c->u[i]];
	}
	c->step += tn_rand_below(&c->r, 2);
	atomic_fetch_add(&c->named, c->n);
}

static bool same(client *c, uint32_t i, const float *want)
{
	for (uint32_t d = 0; d < DIM; d++)
		if (memcmp(&c->rows[i * DIM + d], &want[d], sizeof(*want)) != 0) {
			snprintf(c->error, sizeof(c->error), "key %llx, column %u: %a, expected %a",
				 (unsigned long long)c->keys[i], d, (double)c->rows[i * DIM + d],
				 (double)want[d]);
			return false;
		}
	return true;
}

static bool do_pull(client *c, tern_unknown unknown)
{
	static const float zeros[DIM];
	uint8_t found[BATCH];
	tern_table_pull_params pull = {.keys = c->keys,
				       .count = c->n,
				       .rows = c->rows,
				       .dtype = TERN_F32,
				       .unknown = unknown,
				       .found = found,
				       .step = c->step};

	if (tern_table_pull_wait(c->table, &pull, 0) != TERN_OK)
		return bad(c, "pull");
	for (uint32_t i = 0; i < c->n; i++) {
		row *r = &c->o.rows[c->u[i]];
		float initial[DIM];

		oracle_default(&c->o, c->keys[i], initial);
		if (!r->present && unknown == TERN_UNKNOWN_CREATE)
			oracle_make(&c->o, c->u[i], c->step);
		if (found[i] != r->present) {
			snprintf(c->error, sizeof(c->error), "key %llx: %sfound",
				 (unsigned long long)c->keys[i], found[i] ? "" : "not ");
			return false;
		}
		if (!same(c, i, r->present ? r->w : unknown == TERN_UNKNOWN_DEFAULT ? initial : zeros))
			return false;
	}
	return true;
}

static bool do_push(client *c)
{
	static const tern_push_mode modes[] = {TERN_PUSH_GRADIENT, TERN_PUSH_GRADIENT, TERN_PUSH_ADD,
					       TERN_PUSH_ASSIGN};
	tern_table_push_params push = {.keys = c->keys,
				       .count = c->n,
				       .rows = c->rows,
				       .mode = modes[tn_rand_below(&c->r, 4)],
				       .step = c->step};

	for (uint32_t i = 0; i < c->n * DIM; i++)
		c->rows[i] = (float)tn_rand_double(&c->r) - 0.5f;
	if (tern_table_push_wait(c->table, &push, 0) != TERN_OK)
		return bad(c, "push");
	for (uint32_t i = 0; i < c->n; i++) {
		if (!c->o.rows[c->u[i]].present)
			oracle_make(&c->o, c->u[i], c->step);
		oracle_apply(&c->o, c->u[i], push.mode, 1, c->rows + i * DIM);
	}
	return true;
}

static bool do_erase(client *c)
{
	if (tern_table_erase_wait(c->table, c->keys, c->n, 0) != TERN_OK)
		return bad(c, "erase");
	for (uint32_t i = 0; i < c->n; i++)
		oracle_drop(&c->o, c->u[i]);
	return true;
}

static void *work(void *arg)
{
	static const tern_unknown policies[] = {TERN_UNKNOWN_CREATE, TERN_UNKNOWN_ZERO, TERN_UNKNOWN_DEFAULT};
	client *c = arg;
	bool good = true;

	while (good && c->named < c->rounds) {
		uint64_t dice = tn_rand_below(&c->r, 100);

		draw(c);
		good = dice < 50   ? do_push(c)
		       : dice < 92 ? do_pull(c, policies[tn_rand_below(&c->r, 3)])
				   : do_erase(c);
	}
	atomic_store(&c->done, true);
	return NULL;
}

static void start(const config *cfg)
{
	const char *text = getenv("TERN_TEST_ROUNDS");
	tern_table_schema s = cfg->schema;

	tern_optimizer_init(&s.optimizer, cfg->schema.optimizer.kind, cfg->lr);
	for (unsigned i = 0; i < CLIENTS; i++) {
		client *c = &clients[i];

		memset(c, 0, sizeof(*c));
		c->rounds = (text ? strtoull(text, NULL, 10) : 60000) / CLIENTS;
		c->step = 1;
		c->r.state = seed + i;
		oracle_init(&c->o, &s, OWN, seed);
		for (uint32_t u = 0; u < OWN; u++)
			c->o.keys[u] = UINT64_MAX - (u * CLIENTS + i) * 0x9e3779b97f4a7c15ull;
		open_client(c);
		assert_ok(tern_table_create(c->ps, &s, &c->table));
		assert_int_equal(pthread_create(&c->thread, NULL, work, c), 0);
	}
}

/* ---- what happens meanwhile ---- */

static bool at_work(void)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (!atomic_load(&clients[i].done))
			return true;
	return false;
}

/* Not while slots are on their way, nor while the map still has a server that has just gone. */
static bool later(tern_status status)
{
	if (status != TERN_E_STATE && tern_status_radius(status) != TERN_RADIUS_PATH &&
	    tern_status_radius(status) != TERN_RADIUS_PEER)
		return false;
	tn_sleep_ns(10000000);
	return true;
}

static void save(tern_ps *ps, tern_ps_save_result *result)
{
	tern_ps_save_params params = {.dir = dir, .kind = TERN_PS_SAVE_AUTO, .deltas_max = 3, .keep = 2};
	tern_status status;

	for (unsigned tries = 0; tries < 1000; tries++) {
		status = tern_ps_save(ps, &params, result);
		if (status == TERN_OK || !later(status))
			break;
	}
	if (status != TERN_OK)
		fail_msg("save: %s: %s", tern_status_name(status), tern_detail());
}

typedef struct events {
	unsigned joined, drained, saved, deltas;
} events;

static void one_event(const config *c, tn_rand *r, tern_ps *ps, events *seen)
{
	unsigned i = 1 + (unsigned)tn_rand_below(r, NODES - 1);
	tern_ps_save_result result;

	if (tn_rand_below(r, 2)) {
		save(ps, &result);
		seen->saved++;
		seen->deltas += result.base != UINT64_MAX;
	} else if (!nodes[i].ctx) {
		begin(c, i);
		seen->joined++;
	} else if (tern_ps_server_drain(nodes[i].server, 60 * TN_NS_PER_SEC) == TERN_OK) {
		ps_node_end(&nodes[i]);
		seen->drained++;
	}
}

/* Rows of all clients, as a client that knows nothing of them sees them. */
static void judge(client *reader)
{
	for (unsigned i = 0; i < CLIENTS; i++) {
		oracle own = reader->o;

		reader->o = clients[i].o;
		for (uint32_t u = 0; u < OWN; u += reader->n) {
			reader->n = OWN - u < BATCH ? OWN - u : BATCH;
			for (uint32_t k = 0; k < reader->n; k++) {
				reader->u[k] = u + k;
				reader->keys[k] = clients[i].o.keys[u + k];
			}
			if (!do_pull(reader, TERN_UNKNOWN_ZERO))
				fail_msg("keys of client %u: %s", i, reader->error);
		}
		reader->o = own;
	}
}

static void judge_restored(const config *c, unsigned servers)
{
	client reader = {0};
	tern_status status;

	begin(c, 0);
	for (unsigned i = 1; i < servers; i++)
		begin(c, i);
	open_client(&reader);
	for (unsigned tries = 0; tries < 1000; tries++) {
		status = tern_ps_restore(reader.ps, dir, UINT64_MAX, 0, NULL);
		if (status == TERN_OK || !later(status))
			break;
	}
	if (status != TERN_OK)
		fail_msg("restore: %s", tern_detail());
	assert_ok(tern_table_open(reader.ps, c->schema.name, NULL, &reader.table));
	judge(&reader);
	close_client(&reader);
	for (unsigned i = NODES; i-- > 0;)
		ps_node_end(&nodes[i]);
}

static void run(const config *c)
{
	tn_rand r = {seed * 77 + 5};
	client reader = {0};
	events seen = {0};
	tern_ps_save_result last;

	begin(c, 0);
	start(c);
	open_client(&reader);
	while (at_work() || !seen.saved || !seen.joined || !seen.drained)
		one_event(c, &r, reader.ps, &seen);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(clients[i].thread, NULL);
		if (clients[i].error[0])
			fail_msg("%s, client %u: %s", c->name, i, clients[i].error);
	}
	assert_ok(tern_table_open(reader.ps, c->schema.name, NULL, &reader.table));
	judge(&reader);
	save(reader.ps, &last);
	printf("  %s: %u servers came, %u went, %u saves, %u of them deltas; the last is a %s\n", c->name,
	       seen.joined, seen.drained, seen.saved, seen.deltas,
	       last.base == UINT64_MAX ? "base" : "delta");
	close_client(&reader);
	for (unsigned i = 0; i < CLIENTS; i++)
		close_client(&clients[i]);
	for (unsigned i = NODES; i-- > 0;)
		ps_node_end(&nodes[i]);
	for (unsigned i = 0; i < RESTORES; i++)
		judge_restored(c, 1 + (unsigned)tn_rand_below(&r, 3));
	for (unsigned i = 0; i < CLIENTS; i++)
		oracle_fini(&clients[i].o);
}

static int make_dirs(void **state)
{
	snprintf(tiers, sizeof(tiers), "/tmp/tern-test-cold-XXXXXX");
	return make_dir(state) || mkdtemp(tiers) == NULL;
}

static int drop_dirs(void **state)
{
	char tier[80];

	for (unsigned i = NODES; i-- > 0;)
		ps_node_end(&nodes[i]); /* after a failure */
	for (unsigned i = 0; i < NODES; i++) {
		snprintf(tier, sizeof(tier), "%s/%u", tiers, i);
		if (tn_dir_remove(AT_FDCWD, tier) != TERN_OK)
			return -1;
	}
	return drop_dir(state) || rmdir(tiers) != 0;
}

static void one_copy(void **state)
{
	(void)state;
	run(&configs[0]);
}

static void backups(void **state)
{
	(void)state;
	run(&configs[1]);
}

static void cold_rows(void **state)
{
	(void)state;
	if (!test_tier_can(TIER_ROCKSDB))
		skip();
	run(&configs[2]);
}

int main(void)
{
	const char *text = getenv("TERN_TEST_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_copy, make_dirs, drop_dirs),
		cmocka_unit_test_setup_teardown(backups, make_dirs, drop_dirs),
		cmocka_unit_test_setup_teardown(cold_rows, make_dirs, drop_dirs),
	};

	seed = text ? strtoull(text, NULL, 10) : 1;
	return RUN(tests);
}
