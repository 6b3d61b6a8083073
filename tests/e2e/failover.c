/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers that are killed, or come and go, while four clients push ones into counters:
 *
 *   failover   kill -9 of a server that is primary of slots; another process takes its place; TERN_TEST_KILLS times (5)
 *   moving     kill -9 of a server whose slots are on their way to others: it is drained, and slots are copied to a third one
 *              beside their backups; TERN_TEST_KILLS times (3). So are servers that slots are on their way to
 *   resize     a server is added, one is drained and ended; TERN_TEST_ROUNDS times (3)
 *
 *   sums         as failover, but the four are members of a group whose steps are summed (tern/ps_group.h): servers die in the
 *                middle of steps
 *   sums-moving  as moving, with those members
 *
 * At the end each row counts what was acknowledged for its key, not less, not more; no client had an error. What the longest
 * push took is printed. Server 0 has the coordinator, which does not survive its host: it is never killed. Servers are
 * processes of `tern server` (TERN), clients are in this one.
 *
 * FIELD-BUGS: BytePS S, acknowledged before applied; NCCL#1557, a failover must not duplicate.
 */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/ps.h>
#include <tern/ps_group.h>
#include <tern/rpc.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rand.h"
#include "base/time.h"
#include "channel/ctx_slots.h"
#include "cluster/wire.h"
#include "cmocka_all.h"
#include "ps/wire.h"

#define SERVERS 3
#define CLIENTS 4
#define KEYS    4096
#define SPAN    128
#define DIM     4

extern char **environ;

/* ---- servers ---- */

typedef struct server {
	pid_t pid; /* 0: there is none */
	char address[64];
} server;

static server servers[SERVERS + 1];
static unsigned number;
static tern_ctx *ctx;
static tern_ps *ps;
static tn_cl_map map;

/* A lease short enough for a test, and long enough for a host that does other things too. */
static char *extra[] = {(char *)"TERN_CLUSTER_LEASE=500ms",       (char *)"TERN_CLUSTER_MARGIN=100ms",
			(char *)"TERN_PS_REPLICA_PATIENCE=300ms", (char *)"TERN_CLUSTER_BALANCE=1h",
			(char *)"TERN_CLUSTER_MOVES=4096",        NULL};
#define MOVES 4u /* of extra */

/* The environment of servers: of this test's own variables they know nothing. */
static char **server_environment(void)
{
	static char *env[512];
	unsigned n = 0;

	for (char **e = environ; *e && n < 500; e++)
		if (strncmp(*e, "TERN_TEST_", 10) != 0)
			env[n++] = *e;
	for (char *const *e = extra; *e; e++)
		env[n++] = *e;
	env[n] = NULL;
	return env;
}

static void server_start(server *s, const char *join)
{
	char name[32], line[128],
		*argv[] = {(char *)"tern",
			   (char *)"server",
			   (char *)"--name",
			   name,
			   (char *)"--replicas",
			   (char *)"2",
			   (char *)"--first",
			   (char *)"3",
			   (char *)"--drain",
			   (char *)"60s",
			   (char *)"--join",
			   (char *)join,
			   NULL};
	posix_spawn_file_actions_t actions;
	size_t used = 0;
	int out[2];

	snprintf(name, sizeof(name), "server%u", number++);
	assert_int_equal(pipe(out), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	posix_spawn_file_actions_addclose(&actions, out[0]);
	assert_int_equal(posix_spawn(&s->pid, getenv("TERN"), &actions, NULL, argv, server_environment()), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(out[1]);
	while (used + 1 < sizeof(line) && read(out[0], line + used, 1) == 1 && line[used] != '\n')
		used++;
	line[used] = '\0';
	close(out[0]);
	if (used == 0 || used >= sizeof(s->address))
		fail_msg("%s said no address", name);
	snprintf(s->address, sizeof(s->address), "%.63s", line);
}

static void server_end(server *s, int signal)
{
	int status;

	if (!s->pid)
		return;
	assert_int_equal(kill(s->pid, signal), 0);
	assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
	s->pid = 0;
	if (signal == SIGTERM && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
		fail_msg("a server that was to end ended with status %d", status);
}

static tern_rpc *rpc_to_first(void)
{
	static tern_rpc *rpc;

	if (!rpc)
		assert_int_equal(tern_rpc_connect(ctx, servers[0].address, NULL, &rpc), TERN_OK);
	return rpc;
}

/* Something for the coordinator; its map, with what is next. */
static void ask_coordinator(tn_cl_op op, uint16_t which)
{
	static uint8_t bytes[TN_CL_ANSWER_MAX];
	uint8_t msg[TN_CL_HEAD];
	tn_cl_msg m = {.op = op, .server = which, .maps = TN_CL_VERSION};
	tern_rpc_call_params call = {.method = TN_CL_METHOD,
				     .args = msg,
				     .answer = bytes,
				     .answer_capacity = sizeof(bytes),
				     .flags = TERN_RPC_IDEMPOTENT};
	tn_cl_answer a;
	uint64_t n;

	call.args_bytes = tn_cl_msg_encode(msg, sizeof(msg), &m, NULL, NULL);
	if (tern_rpc_call_wait(rpc_to_first(), &call, 10000000000ull, &n) != TERN_OK)
		fail_msg("the coordinator: %s", tern_detail());
	assert_true(tn_cl_answer_decode(bytes, n, &a) && a.map);
	assert_true(tn_cl_map_decode(a.map, a.map_bytes, &map));
}

/* The map, as server 0 has it. */
static void fetch_map(void)
{
	static uint8_t bytes[TN_CL_MAP_BYTES_MAX];
	tern_rpc_call_params call = {.method = TN_PS_MAP,
				     .answer = bytes,
				     .answer_capacity = sizeof(bytes),
				     .flags = TERN_RPC_IDEMPOTENT};
	uint64_t n;

	if (tern_rpc_call_wait(rpc_to_first(), &call, 10000000000ull, &n) != TERN_OK)
		fail_msg("the map: %s", tern_detail());
	assert_true(tn_cl_map_decode(bytes, n, &map));
}

static uint32_t slots_of(const char *address)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		uint16_t p = map.slot[i].primary;

		n += p != TN_CL_NONE && tn_cl_alive(&map, p) && !strcmp(map.server[p].address, address);
	}
	return n;
}

static bool in_sync(void)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &map.slot[i];

		if (s->backup == TN_CL_NONE || !(s->flags & TN_CL_IN_SYNC) || s->flags & TN_CL_MOVE ||
		    !tn_cl_alive(&map, s->primary) || !tn_cl_alive(&map, s->backup))
			return false;
	}
	return true;
}

/*
 * All slots have a backup that has everything, and this server, if it is one, has some; for a while: the coordinator
 * moves slots in groups, and one that is being moved is at one server alone.
 */
static void settle(const char *address)
{
	uint64_t version = 0;

	for (unsigned i = 0, same = 0; i < 12000; i++) {
		fetch_map();
		same = map.version == version ? same + 1 : 0;
		version = map.version;
		if (same >= 40 && in_sync() && (!address || slots_of(address) > 0))
			return;
		tern_ctx_wait(ctx, 1000000);
		usleep(5000);
	}
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &map.slot[i];

		if (!(s->flags & TN_CL_IN_SYNC))
			fail_msg("slot %u: primary %u, backup %u, epoch %u, flags %u", i, s->primary,
				 s->backup, s->epoch, s->flags);
	}
	fail_msg("it does not come to rest: %s has %u slots", address ? address : "-",
		 address ? slots_of(address) : 0);
}

/* ---- clients ---- */

typedef struct client {
	pthread_t thread;
	unsigned id;
	_Atomic uint64_t pushes;
	_Atomic uint64_t longest_ns; /* since it was looked at */
	uint64_t acknowledged[KEYS];
	_Atomic int bad;
	char text[512];
} client;

static client clients[CLIENTS];
static _Atomic bool stop;
static bool members; /* they do not push by themselves, but in steps */

static uint64_t key_of(unsigned i)
{
	return i * 0x9e3779b97f4a7c15ull;
}

static void client_open(const char *name, tern_ctx **c, tern_ps **p)
{
	const char *at[SERVERS] = {servers[0].address, servers[1].address, servers[2].address};
	tern_ctx_params params = {.name = name, .listen = ""};
	tern_ps_params ps_params = {.servers = at, .count = SERVERS, .timeout_ns = 120 * TN_NS_PER_SEC};

	if (tern_ctx_create(&params, c) != TERN_OK || tern_ps_open(*c, &ps_params, p) != TERN_OK)
		fail_msg("a client: %s", tern_detail());
}

/* Pushes of a step, of ones into any keys. False: me->text says why. */
static bool push_step(client *me, tern_table *table, tern_ps_group *group, const float *rows, tn_rand *rand,
		      uint64_t step, unsigned counts[KEYS])
{
	for (unsigned pushes = 1 + (unsigned)tn_rand_below(rand, 3); pushes > 0; pushes--) {
		uint64_t keys[SPAN];
		tern_table_push_params push = {
			.keys = keys, .count = 1 + tn_rand_below(rand, SPAN), .rows = rows, .step = step};
		tern_status status;

		for (uint64_t i = 0; i < push.count; i++) {
			unsigned which = (unsigned)tn_rand_below(rand, KEYS);

			keys[i] = key_of(which);
			counts[which]++;
		}
		status = tern_ps_group_push(group, table, &push, 120 * TN_NS_PER_SEC);
		if (status != TERN_OK) {
			snprintf(me->text, sizeof(me->text), "step %llu: %s", (unsigned long long)step,
				 tern_detail());
			atomic_store(&me->bad, (int)status);
			return false;
		}
	}
	return true;
}

/* A member: what it has pushed in a step counts when it has been told that the step is closed. */
static void step_loop(client *me, tern_table *table, tern_ps_group *group, uint64_t step, const float *rows)
{
	tn_rand rand = {me->id + 1};

	for (; !atomic_load(&stop); step++) {
		unsigned counts[KEYS] = {0};
		uint64_t began = tn_now(), took;
		tern_status status;

		if (!push_step(me, table, group, rows, &rand, step, counts))
			return;
		status = tern_ps_group_end(group, step);
		if (status != TERN_OK) {
			snprintf(me->text, sizeof(me->text), "the end of step %llu: %s",
				 (unsigned long long)step, tern_detail());
			atomic_store(&me->bad, (int)status);
			return;
		}
		for (unsigned i = 0; i < KEYS; i++)
			me->acknowledged[i] += counts[i];
		atomic_fetch_add(&me->pushes, 1);
		took = tn_now() - began;
		if (took > atomic_load(&me->longest_ns))
			atomic_store(&me->longest_ns, took);
	}
}

static void be_member(client *me, tern_ps *p, tern_table *table, const float *rows)
{
	char name[32];
	tern_ps_group_params params = {.name = "job", .member = name, .flags = TERN_PS_GROUP_SUM};
	tern_ps_group *group;
	uint64_t step;

	snprintf(name, sizeof(name), "worker %u", me->id);
	if (tern_ps_group_join(p, &params, &step, &group) != TERN_OK)
		fail_msg("the group: %s", tern_detail());
	step_loop(me, table, group, step, rows);
	tern_ps_group_leave(group);
}

static void *push_loop(void *arg)
{
	client *me = arg;
	tn_rand rand = {me->id + 1};
	char name[32];
	tern_table *table;
	tern_ctx *c;
	void *memory;
	float *rows;
	tern_ps *p;

	snprintf(name, sizeof(name), "client%u", me->id);
	client_open(name, &c, &p);
	if (tern_table_open(p, "counters", NULL, &table) != TERN_OK)
		fail_msg("counters: %s", tern_detail());
	assert_int_equal(
		tern_mem_alloc(tern_ctx_mem(c), SPAN * DIM * 4, 0, TERN_ACCESS_READ, TERN_MEM_HOST, &memory),
		TERN_OK);
	rows = memory;
	for (unsigned i = 0; i < SPAN * DIM; i++)
		rows[i] = 1;
	if (members)
		be_member(me, p, table, rows);
	while (!members && !atomic_load(&stop)) {
		uint64_t keys[SPAN], began = tn_now(), took;
		unsigned which[SPAN];
		tern_table_push_params push = {
			.keys = keys, .count = 1 + tn_rand_below(&rand, SPAN), .rows = rows};
		tern_status status;

		for (uint64_t i = 0; i < push.count; i++) {
			which[i] = (unsigned)tn_rand_below(&rand, KEYS);
			keys[i] = key_of(which[i]);
		}
		status = tern_table_push_wait(table, &push, 120 * TN_NS_PER_SEC);
		if (status != TERN_OK) {
			snprintf(me->text, sizeof(me->text), "%s", tern_detail());
			atomic_store(&me->bad, (int)status);
			break;
		}
		for (uint64_t i = 0; i < push.count; i++)
			me->acknowledged[which[i]]++;
		atomic_fetch_add(&me->pushes, 1);
		took = tn_now() - began;
		if (took > atomic_load(&me->longest_ns))
			atomic_store(&me->longest_ns, took);
	}
	tern_ps_close(p);
	tern_ctx_destroy(c);
	return NULL;
}

static void check_clients(void)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (atomic_load(&clients[i].bad) != TERN_OK)
			fail_msg("client %u: %s: %s", i,
				 tern_status_name((tern_status)atomic_load(&clients[i].bad)),
				 clients[i].text);
}

/* So many pushes more by each. */
static void let_them_push(uint64_t more)
{
	uint64_t want[CLIENTS];

	for (unsigned i = 0; i < CLIENTS; i++)
		want[i] = atomic_load(&clients[i].pushes) + more;
	for (unsigned i = 0; i < CLIENTS; i++)
		while (atomic_load(&clients[i].pushes) < want[i]) {
			check_clients();
			usleep(1000);
		}
}

static uint64_t longest(void)
{
	uint64_t ns = 0;

	for (unsigned i = 0; i < CLIENTS; i++) {
		uint64_t one = atomic_exchange(&clients[i].longest_ns, 0);

		ns = TN_MAX(ns, one);
	}
	return ns;
}

static tern_table *begin(void)
{
	tern_table_schema schema = {.name = "counters", .dim = DIM};
	tern_table *table;

	server_start(&servers[0], "self");
	for (unsigned i = 1; i < SERVERS; i++)
		server_start(&servers[i], servers[0].address);
	client_open("watcher", &ctx, &ps);
	settle(NULL);
	if (tern_table_create(ps, &schema, &table) != TERN_OK)
		fail_msg("counters: %s", tern_detail());
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i].id = i;
		assert_int_equal(pthread_create(&clients[i].thread, NULL, push_loop, &clients[i]), 0);
	}
	let_them_push(3);
	(void)longest();
	return table;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void end(tern_table *table, const char *what, uint64_t *stalls, unsigned rounds)
{
	uint64_t total = 0;

	settle(NULL);
	let_them_push(5);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(clients[i].thread, NULL);
		total += atomic_load(&clients[i].pushes);
	}
	check_clients();
	for (unsigned k = 0; k < KEYS; k++) {
		uint64_t key = key_of(k), expected = 0;
		float row[DIM];
		tern_table_pull_params pull = {
			.keys = &key, .count = 1, .rows = row, .unknown = TERN_UNKNOWN_ZERO};

		for (unsigned i = 0; i < CLIENTS; i++)
			expected += clients[i].acknowledged[k];
		if (tern_table_pull_wait(table, &pull, 0) != TERN_OK)
			fail_msg("key %u: %s", k, tern_detail());
		for (unsigned j = 0; j < DIM; j++)
			if (row[j] != (float)expected)
				fail_msg("key %u counts %.0f, acknowledged were %llu", k, (double)row[j],
					 (unsigned long long)expected);
	}
	qsort(stalls, rounds, sizeof(*stalls), by_size);
	printf("%s: %llu %s; the longest took %llu ms (median of %u rounds), %llu ms (longest of all)\n",
	       what, (unsigned long long)total, members ? "steps of members" : "pushes",
	       (unsigned long long)(stalls[rounds / 2] / TN_NS_PER_MS), rounds,
	       (unsigned long long)(stalls[rounds - 1] / TN_NS_PER_MS));
	tern_table_close(table);
	for (unsigned i = SERVERS; i-- > 0;)
		server_end(&servers[i], SIGKILL);
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
}

static unsigned times(const char *name, unsigned otherwise)
{
	const char *text = getenv(name);
	unsigned n = text ? (unsigned)strtoul(text, NULL, 10) : otherwise;

	return n ? n : 1;
}

static unsigned kills_wanted, rounds_wanted;

static void killed(void **state)
{
	unsigned rounds = kills_wanted;
	uint64_t *stalls = calloc(rounds, sizeof(*stalls));
	tern_table *table = begin();
	tn_rand rand = {rounds};

	(void)state;
	assert_non_null(stalls);
	for (unsigned i = 0; i < rounds; i++) {
		server *victim = &servers[1 + tn_rand_below(&rand, SERVERS - 1)];

		settle(victim->address); /* it is primary of something */
		usleep((useconds_t)tn_rand_below(&rand, 100000));
		(void)longest();
		server_end(victim, SIGKILL);
		let_them_push(3);
		stalls[i] = longest();
		server_start(victim, servers[0].address);
	}
	end(table, "killed", stalls, rounds);
	free(stalls);
}

static uint16_t number_of(const char *address)
{
	for (uint16_t i = 0; i < map.servers; i++)
		if (tn_cl_alive(&map, i) && strcmp(map.server[i].address, address) == 0)
			return i;
	fail_msg("%s is not in the map", address);
	return TN_CL_NONE;
}

/* How many slots are being copied from, or to, this one, beside a backup. */
static uint32_t copied(uint16_t which)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &map.slot[i];

		n += s->next != TN_CL_NONE && (s->primary == which || s->backup == which || s->next == which);
	}
	return n;
}

/* In the middle of a move the one that slots come from dies, or one that they go to. */
static void moved(void **state)
{
	unsigned rounds = kills_wanted, middle = 0;
	uint64_t *stalls = calloc(rounds, sizeof(*stalls));
	tern_table *table;

	(void)state;
	assert_non_null(stalls);
	extra[MOVES] = (char *)"TERN_CLUSTER_MOVES=64"; /* so that it takes a while */
	table = begin();
	for (unsigned i = 0; i < rounds; i++) {
		server *from = &servers[1 + i % (SERVERS - 1)], *to = &servers[2 - i % (SERVERS - 1)];
		uint16_t drained;
		uint32_t under_way = 0;

		settle(from->address);
		drained = number_of(from->address);
		ask_coordinator(TN_CL_DRAIN, drained);
		for (unsigned tries = 0; tries < 5000 && under_way == 0; tries++) {
			usleep(500);
			ask_coordinator(TN_CL_STATUS, TN_CL_NONE);
			under_way = copied(drained);
		}
		middle += under_way > 0;
		(void)longest();
		server_end(i % 3 == 2 ? to : from, SIGKILL);
		let_them_push(3);
		stalls[i] = longest();
		ask_coordinator(TN_CL_STATUS, TN_CL_NONE);
		if (map.server[drained].state == TN_CL_DRAINING)
			ask_coordinator(TN_CL_UNDRAIN, drained);
		server_start(i % 3 == 2 ? to : from, servers[0].address);
	}
	assert_true(middle > 0);
	printf("%u of %u died while slots were on their way\n", middle, rounds);
	end(table, "moving", stalls, rounds);
	free(stalls);
}

static void resized(void **state)
{
	unsigned rounds = rounds_wanted;
	uint64_t *stalls = calloc(rounds, sizeof(*stalls));
	tern_table *table = begin();

	(void)state;
	assert_non_null(stalls);
	for (unsigned i = 0; i < rounds; i++) {
		server *leaves = &servers[1 + i % (SERVERS - 1)];

		(void)longest();
		server_start(&servers[SERVERS], servers[0].address);
		settle(servers[SERVERS].address);
		server_end(leaves, SIGTERM); /* drained first */
		*leaves = servers[SERVERS];
		servers[SERVERS].pid = 0;
		let_them_push(3);
		stalls[i] = longest();
	}
	end(table, "resized", stalls, rounds);
	free(stalls);
}

/* Whatever a test left. */
static int drop_servers(void **state)
{
	(void)state;
	for (unsigned i = 0; i <= SERVERS; i++)
		if (servers[i].pid) {
			kill(servers[i].pid, SIGKILL);
			waitpid(servers[i].pid, NULL, 0);
			servers[i].pid = 0;
		}
	return 0;
}

int main(void)
{
	const struct CMUnitTest kills[] = {cmocka_unit_test_teardown(killed, drop_servers)};
	const struct CMUnitTest moves[] = {cmocka_unit_test_teardown(moved, drop_servers)};
	const struct CMUnitTest resizes[] = {cmocka_unit_test_teardown(resized, drop_servers)};
	const char *what = getenv("TERN_TEST_WHAT");
	bool resize = what && strcmp(what, "resize") == 0, move = what && strstr(what, "moving");

	members = what && strncmp(what, "sums", 4) == 0;

	if (!getenv("TERN"))
		return 77;
	kills_wanted = times("TERN_TEST_KILLS", move ? 3 : 5);
	rounds_wanted = times("TERN_TEST_ROUNDS", 3);
	unsetenv("TERN_TEST_WHAT"); /* these are no options of the library */
	unsetenv("TERN_TEST_KILLS");
	unsetenv("TERN_TEST_ROUNDS");
	if (move)
		return cmocka_run_group_tests(moves, NULL, NULL);
	if (resize)
		return cmocka_run_group_tests(resizes, NULL, NULL);
	return cmocka_run_group_tests(kills, NULL, NULL);
}
