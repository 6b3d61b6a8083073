/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers with backups, over each transport: a coordinator made by hand, four clients that push ones into counters,
 * read them, and create rows by reading, while a server ends, loses its lease, or gives its slots away. A row must
 * count what was acknowledged for its key, and a backup must have what its primary has, bit by bit.
 *
 * FIELD-BUGS: BytePS S, acknowledged before applied.
 */
#include <tern/ps_save.h>

#include "base/list.h"
#include "base/time.h"
#include "channel/ctx_slots.h"
#include "ps/server.h"
#include "ps_world.h"

#define DIM     4
#define CLIENTS 4
#define SPAN    64
#define KEYS    512

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

static bool has_lease(void *arg)
{
	return atomic_load(&c.lease[*(uint16_t *)arg]);
}

static void report(const uint16_t *slots, const uint32_t *epochs, uint32_t n, uint16_t from, int kind)
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

static void on_synced(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(slots, epochs, n, *(uint16_t *)arg, 0);
}

static void on_released(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(slots, epochs, n, *(uint16_t *)arg, 1);
}

static void on_lost(void *arg, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(slots, epochs, n, *(uint16_t *)arg, 2);
}

static void publish(void)
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
static void choose_backups(bool in_turn)
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

static void bury(uint16_t dead)
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

static bool in_sync(void)
{
	bool all = true;

	pthread_mutex_lock(&c.lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		all &= c.map.slot[i].backup != TN_CL_NONE && c.map.slot[i].flags == TN_CL_IN_SYNC;
	pthread_mutex_unlock(&c.lock);
	return all;
}

static void pause_ms(uint64_t ms)
{
	uint64_t end = tn_ctx_now(w.ctx) + ms * TN_NS_PER_MS;

	while (tn_ctx_now(w.ctx) < end)
		tern_ctx_wait(w.ctx, TN_NS_PER_MS);
}

static void settle(bool in_turn)
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

static void cluster_start(unsigned servers)
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

static tern_status keep(const tn_record *record, void *arg)
{
	image *i = arg;

	i->there = true;
	memcpy(i->bytes, record->value, DIM * 4);
	if (record->state)
		memcpy(i->bytes + DIM * 4, record->state, DIM * 4);
	return TERN_OK;
}

static image image_at(uint16_t server, const char *table, uint64_t key)
{
	ps_share *share = tn_ps_share_get(w.nodes[server].server, tn_ps_table_id(table));
	image i = {.there = false};

	assert_non_null(share);
	assert_success(tn_table_read_records(share->engine, &key, 1, keep, &i));
	tn_ps_share_put(share);
	return i;
}

static uint64_t key_of(unsigned i)
{
	return i ? UINT64_MAX / i : 0;
}

static void backups_equal(const char *table, unsigned keys)
{
	for (unsigned k = 0; k < keys; k++) {
		const tn_cl_slot *s = &c.map.slot[tn_table_slot(key_of(k))];
		image a = image_at(s->primary, table, key_of(k)), b = image_at(s->backup, table, key_of(k));

		if (a.there != b.there || memcmp(a.bytes, b.bytes, sizeof(a.bytes)) != 0)
			fail_msg("key %u: its backup %u has not what its primary %u has", k, s->backup,
				 s->primary);
	}
}

/* ---- clients ---- */

static _Atomic bool stop;

typedef struct pusher {
	pthread_t thread;
	unsigned id;
	uint64_t pushed[KEYS];
	_Atomic uint64_t pushes;
	uint64_t longest_ns;
	_Atomic tern_status bad;
	char text[512];
} pusher;

static pusher pushers[CLIENTS];

static bool push_some(pusher *p, tern_table *table, tn_rand *rand, float *rows)
{
	tern_table_push_params push = {.count = 1 + tn_rand_below(rand, SPAN), .rows = rows};
	uint64_t keys[SPAN], begin = tn_ctx_now(w.ctx);
	unsigned which[SPAN];

	push.keys = keys;
	for (uint64_t i = 0; i < push.count; i++) {
		which[i] = (unsigned)tn_rand_below(rand, KEYS);
		keys[i] = key_of(which[i]);
	}
	for (unsigned i = 0; i < SPAN * DIM; i++)
		rows[i] = 1;
	p->bad = tern_table_push_wait(table, &push, 0);
	p->longest_ns = TN_MAX(p->longest_ns, tn_ctx_now(w.ctx) - begin);
	if (p->bad != TERN_OK) {
		snprintf(p->text, sizeof(p->text), "%s", tern_detail());
		return false;
	}
	for (uint64_t i = 0; i < push.count; i++)
		p->pushed[which[i]]++;
	p->pushes++;
	return true;
}

/* A read is not below what this client was told. */
static bool read_some(pusher *p, tern_table *table, tn_rand *rand, float *rows)
{
	unsigned which = (unsigned)tn_rand_below(rand, KEYS);
	uint64_t key = key_of(which);
	tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};

	p->bad = tern_table_pull_wait(table, &pull, 0);
	if (p->bad == TERN_OK && rows[0] >= (float)p->pushed[which])
		return true;
	snprintf(p->text, sizeof(p->text), "key %u: %g, told were %llu: %s", which, (double)rows[0],
		 (unsigned long long)p->pushed[which], p->bad == TERN_OK ? "" : tern_detail());
	p->bad = p->bad == TERN_OK ? TERN_E_CORRUPT : p->bad;
	return false;
}

static void *push_loop(void *arg)
{
	pusher *p = arg;
	tn_rand rand = {p->id + 1};
	tern_table *table;
	tern_ctx *ctx;
	tern_ps *ps;
	void *memory;

	world_client(&w, &ctx, &ps);
	assert_success(tern_table_open(ps, "counters", NULL, &table));
	assert_ok(tern_mem_alloc(tern_ctx_mem(ctx), SPAN * DIM * 4, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
				 TERN_MEM_HOST, &memory));
	while (!atomic_load(&stop) && push_some(p, table, &rand, memory) &&
	       read_some(p, table, &rand, memory))
		;
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

static void pushers_start(void)
{
	memset(pushers, 0, sizeof(pushers));
	atomic_store(&stop, false);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pushers[i].id = i;
		assert_int_equal(pthread_create(&pushers[i].thread, NULL, push_loop, &pushers[i]), 0);
	}
}

static void pushers_end(const char *what)
{
	uint64_t total = 0, longest = 0;

	atomic_store(&stop, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(pushers[i].thread, NULL);
		if (pushers[i].bad != TERN_OK)
			fail_msg("client %u: %s: %s", i, tern_status_name(pushers[i].bad), pushers[i].text);
		total += pushers[i].pushes;
		longest = TN_MAX(longest, pushers[i].longest_ns);
	}
	printf("%s: %llu pushes, the longest took %llu ms\n", what, (unsigned long long)total,
	       (unsigned long long)(longest / TN_NS_PER_MS));
	assert_true(total > CLIENTS);
}

static void counters_right(tern_table *table)
{
	float *rows = world_rows(&w, DIM * 4);

	for (unsigned k = 0; k < KEYS; k++) {
		uint64_t key = key_of(k), expected = 0;
		tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};

		for (unsigned i = 0; i < CLIENTS; i++)
			expected += pushers[i].pushed[k];
		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (unsigned j = 0; j < DIM; j++)
			if (rows[j] != (float)expected)
				fail_msg("key %u counts %.0f, acknowledged were %llu", k, (double)rows[j],
					 (unsigned long long)expected);
	}
	tern_mem_free(w.mem, rows);
}

/* Rows are written by their primaries alone; a restore puts them at both. */
static void saved_once(const char *table, unsigned keys)
{
	char dir[] = "/tmp/tern-test-replicas-XXXXXX", command[64];
	tern_ps_save_params params = {.dir = dir};
	tern_ps_save_result saved, restored;
	unsigned rows = 0;

	assert_non_null(mkdtemp(dir));
	for (unsigned k = 0; k < keys; k++)
		rows += image_at(c.map.slot[tn_table_slot(key_of(k))].primary, table, key_of(k)).there;
	assert_success(tern_ps_save(w.ps, &params, &saved));
	assert_int_equal(saved.rows, rows);
	assert_success(tern_table_drop(w.ps, table));
	assert_success(tern_table_drop(w.ps, "late"));
	assert_success(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, &restored));
	assert_int_equal(restored.rows, 2 * rows);
	backups_equal(table, keys);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

/* ---- tests ---- */

/* Everything that changes a table reaches the backups: pushes, rows made by a pull, erasures, tables. */
static void all_writes(void **state)
{
	tern_table_schema s = {.name = "rows", .dim = DIM, .init = {TERN_ROW_UNIFORM, 1, 7}};
	uint64_t keys[KEYS];
	uint8_t found[KEYS];
	tern_table *table, *late;
	float *rows;

	(void)state;
	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.1f);
	cluster_start(3);
	assert_success(tern_table_create(w.ps, &s, &table));
	rows = world_rows(&w, KEYS * DIM * 4);
	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	/* half before there are backups, half while they are copied or after */
	for (unsigned half = 0; half < 2; half++) {
		tern_table_pull_params pull = {
			.keys = keys + half * KEYS / 2, .count = KEYS / 2, .rows = rows, .found = found};
		tern_table_push_params push = {
			.keys = keys + half * KEYS / 4, .count = KEYS / 2, .rows = rows};

		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (unsigned i = 0; i < KEYS / 2; i++)
			assert_int_equal(found[i], 1);
		assert_success(tern_table_push_wait(table, &push, 0));
		if (half == 0) {
			choose_backups(true);
			publish();
		}
	}
	settle(true);
	snprintf(s.name, sizeof(s.name), "late");
	assert_success(tern_table_create(w.ps, &s, &late));
	assert_success(tern_table_erase_wait(table, keys, KEYS / 8, 0));
	backups_equal("rows", KEYS);
	assert_false(image_at(c.map.slot[tn_table_slot(keys[0])].backup, "rows", keys[0]).there);
	assert_true(image_at(c.map.slot[tn_table_slot(keys[KEYS - 1])].backup, "rows", keys[KEYS - 1]).there);
	saved_once("rows", KEYS);
	assert_success(tern_table_drop(w.ps, "late"));
	for (unsigned i = 0; i < w.servers; i++)
		assert_null(tn_ps_share_get(w.nodes[i].server, tn_ps_table_id("late")));
	tern_table_close(table);
	tern_table_close(late);
	tern_mem_free(w.mem, rows);
	world_stop(&w);
}

/* Two keys of server 0: the first one's backup is server 1, the second one's is to be server 2. */
static void two_keys(uint64_t keys[2])
{
	unsigned n = 0;

	for (unsigned i = 0; i < KEYS && n < 2; i++) {
		tn_cl_slot *s = &c.map.slot[tn_table_slot(key_of(i))];

		if (s->primary != 0 || (n && tn_table_slot(keys[0]) == tn_table_slot(key_of(i))))
			continue;
		if (n) {
			s->backup = 2;
			s->epoch++;
		}
		keys[n++] = key_of(i);
	}
	assert_int_equal(n, 2);
}

static bool under_way(uint16_t from, uint16_t to)
{
	ps_replicas *r = w.nodes[from].server->replicas;
	bool flying;

	pthread_mutex_lock(&r->streams[to]->lock);
	flying = r->repl.out[to]->flying || r->repl.out[to]->open_waits.count;
	pthread_mutex_unlock(&r->streams[to]->lock);
	return flying;
}

/*
 * A pull that makes one row and reads another, which a push that nobody was told of has written: it waits for that one's
 * backup, though another has the row that it made.
 */
static void what_is_read_is_replicated(void **state)
{
	tern_table_schema s = {.name = "rows", .dim = DIM, .init = {TERN_ROW_UNIFORM, 1, 7}};
	uint64_t keys[2];
	float *rows;
	tern_table *table;
	tern_op pushed, pulled;

	(void)state;
	tern_optimizer_init(&s.optimizer, TERN_OPT_SGD, 1);
	cluster_start(3);
	two_keys(keys);
	assert_success(tern_table_create(w.ps, &s, &table));
	settle(true);
	rows = world_rows(&w, 4 * DIM * 4);
	pthread_mutex_lock(&w.nodes[1].server->replicas->in_lock); /* it takes no frames */
	{
		tern_table_push_params push = {.keys = keys, .count = 1, .rows = rows};
		tern_table_pull_params pull = {.keys = keys, .count = 2, .rows = rows + 2 * DIM};

		tern_op_init(&pushed, NULL, NULL);
		tern_op_init(&pulled, NULL, NULL);
		assert_success(tern_table_push(table, &push, &pushed));
		while (!image_at(0, "rows", keys[0]).there)
			pause_ms(1);
		assert_success(tern_table_pull(table, &pull, &pulled));
		while (!image_at(2, "rows", keys[1]).there || under_way(0, 2))
			pause_ms(1);
		pause_ms(20);
		assert_status(tern_op_test(&pushed), TERN_AGAIN);
		assert_status(tern_op_test(&pulled), TERN_AGAIN);
	}
	pthread_mutex_unlock(&w.nodes[1].server->replicas->in_lock);
	assert_success(tern_op_wait(w.ctx, &pushed, 0));
	assert_success(tern_op_wait(w.ctx, &pulled, 0));
	assert_true(image_at(1, "rows", keys[0]).there);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
	world_stop(&w);
}

/* A piece of push 1 of some client, as tern_table_push would send it. */
typedef struct piece {
	tern_op op;
	uint8_t args[TN_PS_BATCH_BYTES + 2 * 8 + 2 * DIM * 4];
	uint8_t answer[TN_PS_ANSWER_BYTES];
} piece;

static void push_piece(tern_rpc *rpc, piece *p, const uint64_t *keys, uint64_t n)
{
	ps_share *share = tn_ps_share_get(w.nodes[0].server, tn_ps_table_id("rows"));
	float grads[2 * DIM] = {1, 1, 1, 1, 1, 1, 1, 1};
	tn_ps_batch b = {.how = TERN_PUSH_ADD,
			 .flags = TN_PS_INLINE,
			 .dtype = TERN_F32,
			 .table = share->id,
			 .schema = share->hash,
			 .map_version = c.map.version,
			 .count = n,
			 .client = 4711,
			 .seq = 1,
			 .low_water = 1};
	tern_rpc_call_params call = {.method = TN_PS_PUSH,
				     .args = p->args,
				     .args_bytes = TN_PS_BATCH_BYTES + n * (8 + DIM * 4),
				     .answer = p->answer,
				     .answer_capacity = sizeof(p->answer)};

	tn_ps_share_put(share);
	tn_ps_batch_encode(p->args, &b);
	memcpy(p->args + TN_PS_BATCH_BYTES, keys, n * 8);
	memcpy(p->args + TN_PS_BATCH_BYTES + n * 8, grads, n * DIM * 4);
	tern_op_init(&p->op, NULL, NULL);
	assert_success(tern_rpc_call(rpc, &call, &p->op));
}

static void piece_ends(piece *p, uint8_t flags)
{
	tn_ps_answer a;

	assert_success(tern_op_wait(w.ctx, &p->op, 0));
	assert_true(tn_ps_answer_decode(p->answer, p->op.length, 0, 0, false, &a));
	assert_int_equal(a.flags & (TN_PS_DUPLICATE | TN_PS_RUNNING | TN_PS_WRONG_SERVER), flags);
}

/*
 * A key is pushed alone, and nobody is told of it; then, the map having changed, with another one that has a different
 * backup: the second piece tells of both, and the first backup has nothing yet.
 */
static void what_was_known_is_replicated(void **state)
{
	tern_table_schema s = counters("rows", DIM);
	uint64_t keys[2];
	piece alone, both;
	tern_table *table;
	tern_rpc *rpc;

	(void)state;
	cluster_start(3);
	two_keys(keys);
	assert_success(tern_table_create(w.ps, &s, &table));
	settle(true);
	assert_ok(tern_rpc_connect(w.ctx, w.addresses[0], NULL, &rpc));
	pthread_mutex_lock(&w.nodes[1].server->replicas->in_lock); /* it takes no frames */
	push_piece(rpc, &alone, keys, 1);
	while (!image_at(0, "rows", keys[0]).there)
		pause_ms(1);
	push_piece(rpc, &both, keys, 2);
	while (!image_at(2, "rows", keys[1]).there || under_way(0, 2))
		pause_ms(1);
	pause_ms(20);
	assert_status(tern_op_test(&both.op), TERN_AGAIN);
	assert_false(image_at(1, "rows", keys[0]).there);
	pthread_mutex_unlock(&w.nodes[1].server->replicas->in_lock);
	piece_ends(&alone, 0);
	piece_ends(&both, TN_PS_DUPLICATE);
	assert_true(image_at(1, "rows", keys[0]).there);
	tern_rpc_close(rpc);
	tern_table_close(table);
	world_stop(&w);
}

static tern_table *begin_load(unsigned servers)
{
	tern_table_schema s = counters("counters", DIM);
	tern_table *table;

	cluster_start(servers);
	assert_success(tern_table_create(w.ps, &s, &table));
	settle(true);
	pushers_start();
	for (unsigned i = 0; i < CLIENTS; i++)
		while (atomic_load(&pushers[i].pushes) == 0 && pushers[i].bad == TERN_OK)
			pause_ms(1);
	pause_ms(50);
	return table;
}

static void end_load(tern_table *table, const char *what)
{
	settle(false);
	pause_ms(100);
	pushers_end(what);
	settle(false);
	counters_right(table);
	backups_equal("counters", KEYS);
	tern_table_close(table);
	world_stop(&w);
}

static void a_server_ends(void **state)
{
	tern_table *table = begin_load(3);

	(void)state;
	c.dead[0] = true;
	node_stop(&w, 0);
	pause_ms(50);
	bury(0);
	end_load(table, "a server ended");
}

/* Nothing is acknowledged without a lease; what another server is primary of then is not any more. */
static void a_lease_ends(void **state)
{
	tern_table *table = begin_load(3);

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		uint16_t victim = (uint16_t)(round % w.servers);

		atomic_store(&c.lease[victim], false);
		pause_ms(20);
		bury(victim);
		for (unsigned i = 0; i < 10; i++) {
			if (c.changed)
				publish();
			pause_ms(5);
		}
		pthread_mutex_lock(&c.lock);
		tn_cl_server_set_state(&c.map.server[victim], TN_CL_UP);
		pthread_mutex_unlock(&c.lock);
		assert_success(tn_ps_replicas_map(w.nodes[victim].server, &c.map, victim));
		atomic_store(&c.lease[victim], true);
		settle(true);
	}
	end_load(table, "leases ended");
}

/* All slots of a server go to others, and come back. */
static void slots_move(void **state)
{
	tern_table *table = begin_load(3);

	(void)state;
	for (unsigned round = 0; round < 4; round++) {
		pthread_mutex_lock(&c.lock);
		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			if (c.map.slot[i].primary == round % w.servers)
				c.map.slot[i].flags |= TN_CL_MOVE;
		c.changed = true;
		pthread_mutex_unlock(&c.lock);
		settle(round % 2);
		pause_ms(20);
	}
	end_load(table, "slots moved");
}

/* A backup that does not answer is given up, and the others go on without it. */
static void a_backup_is_lost(void **state)
{
	tern_table *table = begin_load(2);

	(void)state;
	pthread_mutex_lock(&c.lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) /* all slots at one, by hand-over */
		if (c.map.slot[i].primary == 1)
			c.map.slot[i].flags |= TN_CL_MOVE;
	c.changed = true;
	pthread_mutex_unlock(&c.lock);
	settle(true);
	c.dead[1] = true;
	node_stop(&w, 1);
	for (unsigned i = 0; i < 1000 && c.lost < TN_CL_SLOTS; i++)
		pause_ms(5);
	assert_int_equal(c.lost, TN_CL_SLOTS);
	publish();
	pause_ms(50);
	pushers_end("a backup was lost");
	counters_right(table);
	tern_table_close(table);
	world_stop(&w);
}

int main(int argc, char **argv)
{
	static const char *const options[] = {"ps.replica_patience=300ms", NULL};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_writes),
		cmocka_unit_test(what_is_read_is_replicated),
		cmocka_unit_test(what_was_known_is_replicated),
		cmocka_unit_test(a_server_ends),
		cmocka_unit_test(a_lease_ends),
		cmocka_unit_test(slots_move),
		cmocka_unit_test(a_backup_is_lost),
	};

	server_options = options;
	world_transport(argc > 1 ? argv[1] : "shm");
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
