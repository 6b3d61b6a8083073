/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of summed groups (<tern/ps_group.h>, ps/round.h) over real contexts: a step is the set of its senders, applied
 * once, in the order of their names, whatever is repeated and whoever dies. BytePS: a round counted pushes, not senders,
 * and acknowledged before it applied.
 */
#include "ps/round.h"

#include <tern/ps_group.h>

#include "base/os.h"
#include "ps/client.h"
#include "ps/group.h"
#include "ps_world.h"

#define SECOND  1000000000ull
#define WORKERS 4
#define KEYS    37
#define DIM     5
#define STEPS   12

static tern_ps_group *join(world *w, const char *member)
{
	tern_ps_group_params params = {.name = "sum", .member = member, .flags = TERN_PS_GROUP_SUM};
	tern_ps_group *group;

	assert_success(tern_ps_group_join(w->ps, &params, NULL, &group));
	return group;
}

static tern_table *table_of(world *w, const char *name)
{
	tern_table_schema schema = counters(name, 1);
	tern_table *table;

	assert_success(tern_table_create(w->ps, &schema, &table));
	return table;
}

static tern_status push(tern_ps_group *group, tern_table *table, uint64_t step, uint64_t key, float value)
{
	tern_table_push_params p = {.keys = &key, .count = 1, .rows = &value, .step = step};

	return tern_ps_group_push(group, table, &p, 0);
}

static float value_of(tern_table *table, uint64_t key)
{
	float value = -77;
	tern_table_pull_params p = {.keys = &key, .count = 1, .rows = &value, .unknown = TERN_UNKNOWN_ZERO};

	assert_success(tern_table_pull_wait(table, &p, 0));
	return value;
}

/* A member that ends a step in a thread of its own: end() waits for the others. */
typedef struct ender {
	tn_thread thread;
	tern_ps_group *group;
	uint64_t step;
	tern_status status;
	char detail[256];
} ender;

static void *run_end(void *arg)
{
	ender *e = arg;

	e->status = tern_ps_group_end(e->group, e->step);
	snprintf(e->detail, sizeof(e->detail), "%s", tern_detail());
	return NULL;
}

static void start_end(ender *e, tern_ps_group *group, uint64_t step)
{
	*e = (ender){.group = group, .step = step};
	assert_ok(tn_os_thread_start(&e->thread, "ender", run_end, e));
}

static void must_end(ender *e, tern_status status)
{
	tn_os_thread_join(&e->thread);
	if (e->status != status)
		fail_msg("%s, expected %s: %s", tern_status_name(e->status), tern_status_name(status),
			 e->detail);
}

/* Until the keeper does not wait for that member any more; `by` has not ended the step. */
static void wait_until_ended(tern_ps_group *by, uint64_t step, const char *name)
{
	char missing[32];

	snprintf(missing, sizeof(missing), "%s (step", name);
	do
		assert_status(tern_ps_group_begin(by, step, SECOND / 50), TERN_E_DEADLINE);
	while (strstr(tern_detail(), missing));
}

static void a_step_is_applied_when_all_have_ended_it(void **state)
{
	tern_ps_group *a, *b;
	tern_table *t;
	ender e;
	world w;

	(void)state;
	world_start(&w, 2);
	t = table_of(&w, "t");
	a = join(&w, "a");
	b = join(&w, "b");
	assert_success(push(a, t, 0, 1, 2));
	assert_success(push(b, t, 0, 1, 3));
	assert_success(push(b, t, 0, UINT64_MAX, 4));
	assert_true(value_of(t, 1) == 0);
	start_end(&e, a, 0);
	wait_until_ended(b, 1, "a");
	assert_true(value_of(t, 1) == 0);
	/* gradients of the step after it may come already */
	assert_success(push(b, t, 1, 1, 100));
	assert_success(tern_ps_group_end(b, 0));
	must_end(&e, TERN_OK);
	assert_true(value_of(t, 1) == 5);
	assert_true(value_of(t, UINT64_MAX) == 4);
	assert_status(push(a, t, 0, 1, 9), TERN_E_STATE);
	start_end(&e, a, 1);
	assert_success(tern_ps_group_end(b, 1));
	must_end(&e, TERN_OK);
	assert_true(value_of(t, 1) == 105);
	assert_success(tern_ps_group_begin(a, 2, 0));
	tern_ps_group_leave(a);
	tern_ps_group_leave(b);
	world_stop(&w);
}

static void sums_are_in_the_order_of_names(void **state)
{
	/* in another order the 1 is lost in one of the large ones */
	static const float values[3] = {1e8f, -1e8f, 1};
	static const char *const names[3] = {"worker 0", "worker 1", "worker 2"};
	static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
					      {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
	tern_ps_group *g[3];
	tern_table *t;
	world w;

	(void)state;
	world_start(&w, 1);
	t = table_of(&w, "t");
	for (unsigned i = 0; i < 3; i++)
		g[i] = join(&w, names[(i + 1) % 3]); /* nor does the order of joining matter */
	for (uint64_t step = 0; step < 6; step++) {
		ender e[2];

		for (unsigned i = 0; i < 3; i++) {
			unsigned who = orders[step][i];

			assert_success(push(g[(who + 2) % 3], t, step, step, values[who]));
		}
		start_end(&e[0], g[0], step);
		start_end(&e[1], g[1], step);
		assert_success(tern_ps_group_end(g[2], step));
		must_end(&e[0], TERN_OK);
		must_end(&e[1], TERN_OK);
		assert_true(value_of(t, step) == 1);
	}
	for (unsigned i = 0; i < 3; i++)
		tern_ps_group_leave(g[i]);
	world_stop(&w);
}

static void who_dies_in_a_step_is_left_out_of_it(void **state)
{
	tern_ps_group *a, *b, *c;
	tern_table *t;
	ender e, dead;
	world w;

	(void)state;
	world_start(&w, 2);
	t = table_of(&w, "t");
	a = join(&w, "a");
	b = join(&w, "b");
	c = join(&w, "c");
	for (uint64_t key = 0; key < 20; key++) {
		assert_success(push(a, t, 0, key, 1));
		assert_success(push(b, t, 0, key, 10));
		assert_success(push(c, t, 0, key, 100));
	}
	/* c has ended the step when it is removed, b has not */
	start_end(&dead, c, 0);
	start_end(&e, a, 0);
	wait_until_ended(b, 1, "c");
	assert_success(tern_ps_group_remove(b, "c"));
	must_end(&dead, TERN_E_CANCELED);
	assert_success(tern_ps_group_remove(b, "b"));
	must_end(&e, TERN_OK);
	for (uint64_t key = 0; key < 20; key++)
		assert_true(value_of(t, key) == 101);
	assert_status(tern_ps_group_end(b, 0), TERN_E_NOT_FOUND);
	/* late gradients of the dead are refused, those of the next step go with it */
	assert_status(push(b, t, 0, 1, 1000), TERN_E_STATE);
	assert_success(push(b, t, 1, 1, 1000));
	assert_success(push(a, t, 1, 1, 1));
	assert_success(tern_ps_group_end(a, 1));
	assert_true(value_of(t, 1) == 102);
	tern_ps_group_leave(a);
	tern_ps_group_leave(b);
	tern_ps_group_leave(c);
	world_stop(&w);
}

static void repeated_messages_do_not_count(void **state)
{
	uint8_t stage[TN_PS_STAGE_BYTES + 12], closing[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX];
	uint8_t answer[TN_PS_ANSWER_BYTES + TN_PS_SLOT_BYTES];
	tern_rpc_call_params call = {.args = stage,
				     .args_bytes = sizeof(stage),
				     .answer = answer,
				     .answer_capacity = sizeof(answer),
				     .flags = TERN_RPC_IDEMPOTENT};
	tn_ps_close c = {.life = 9, .step = 3, .senders = 1, .sender = {5}};
	uint64_t key = 8;
	float one = 1;
	tn_ps_stage s = {.dtype = TERN_F32, .life = 9, .member = 5, .step = 3, .count = 1};
	tern_table *t;
	world w;

	(void)state;
	world_start(&w, 1);
	t = table_of(&w, "t");
	s.table = t->id;
	s.schema = t->hash;
	memcpy(stage + TN_PS_STAGE_BYTES, &key, 8);
	memcpy(stage + TN_PS_STAGE_BYTES + 8, &one, 4);
	for (int i = 0; i < 6; i++) {
		s.seq = i / 3;
		tn_ps_stage_encode(stage, &s);
		call.method = TN_PS_STAGE;
		assert_success(tern_rpc_call_wait(w.ps->route->hosts[0]->rpc, &call, SECOND, NULL));
	}
	call.method = TN_PS_CLOSE;
	call.args = closing;
	call.args_bytes = tn_ps_close_encode(closing, &c);
	for (int i = 0; i < 4; i++) {
		tn_ps_slots closed;
		uint64_t bytes;

		assert_success(tern_rpc_call_wait(w.ps->route->hosts[0]->rpc, &call, SECOND, &bytes));
		assert_int_equal(bytes, sizeof(answer));
		tn_ps_slots_decode(answer + TN_PS_ANSWER_BYTES, &closed);
		for (uint32_t slot = 0; slot < TERN_TABLE_SLOTS; slot++)
			assert_true(tn_ps_slots_has(&closed, slot));
	}
	assert_true(value_of(t, key) == 2);
	/* what does not fit the table is refused */
	s.count = 2;
	s.step = 4;
	tn_ps_stage_encode(stage, &s);
	call = (tern_rpc_call_params){.method = TN_PS_STAGE, .args = stage, .args_bytes = sizeof(stage)};
	assert_status(tern_rpc_call_wait(w.ps->route->hosts[0]->rpc, &call, SECOND, NULL), TERN_E_PROTOCOL);
	world_stop(&w);
}

static void links_that_break_do_not_count_twice(void **state)
{
	tern_ps_group *a;
	tern_table *t;
	world w;

	(void)state;
	world_start(&w, 2);
	t = table_of(&w, "t");
	a = join(&w, "a");
	for (uint64_t step = 0; step < 20; step++) {
		for (uint64_t key = 0; key < 8; key++)
			assert_success(push(a, t, step, key, 1));
		node_cut(&w.nodes[step % 2]);
		assert_success(tern_ps_group_end(a, step));
	}
	for (uint64_t key = 0; key < 8; key++)
		assert_true(value_of(t, key) == 20);
	tern_ps_group_leave(a);
	world_stop(&w);
}

static void limits_and_mistakes_are_named(void **state)
{
	static const char *const small[] = {"ps.staged_bytes=4096", NULL};
	tern_ps_group_params params = {.name = "sum", .member = "x"};
	tern_ps_group *a, *other;
	tern_table *t;
	world w;

	(void)state;
	server_options = small;
	world_start(&w, 1);
	server_options = NULL;
	t = table_of(&w, "t");
	a = join(&w, "a");
	assert_status(tern_ps_group_join(w.ps, &params, NULL, &other), TERN_E_INVALID);
	params.flags = TERN_PS_GROUP_SUM;
	params.staleness = 2;
	assert_status(tern_ps_group_join(w.ps, &params, NULL, &other), TERN_E_INVALID);
	for (int i = 0; i < 4096 / 12; i++)
		assert_success(push(a, t, 0, 7, 1));
	assert_status(push(a, t, 0, 7, 1), TERN_E_LIMIT);
	assert_non_null(strstr(tern_detail(), "ps.staged_bytes"));
	assert_success(tern_ps_group_end(a, 0));
	assert_true(value_of(t, 7) == 341);
	assert_success(push(a, t, 1, 7, 1));
	params = (tern_ps_group_params){.name = "plain", .member = "x"};
	assert_success(tern_ps_group_join(w.ps, &params, NULL, &other));
	assert_status(push(other, t, 0, 7, 1), TERN_E_STATE);
	tern_ps_group_leave(other);
	/* a server that goes takes what is staged with it */
	tern_ps_group_leave(a);
	world_stop(&w);
}

/* ---- bits ---- */

static float gradient(uint64_t worker, uint64_t step, uint64_t key, uint32_t column)
{
	tn_rand rand = {worker * 1000003 + step * 10007 + key * 101 + column};

	return (float)tn_rand_below(&rand, 1u << 20) * 1e-3f - 500;
}

typedef struct worker {
	tn_thread thread;
	world *w;
	tern_table *table;
	unsigned index;
	tern_status status;
} worker;

static tern_status work(worker *me, tern_ps_group *group)
{
	uint64_t keys[KEYS];
	float rows[KEYS * DIM];

	for (uint64_t step = 0; step < STEPS; step++) {
		tern_table_push_params p = {.keys = keys, .rows = rows, .step = step};

		/* each has some of the keys */
		for (uint64_t key = 0; key < KEYS; key++) {
			if ((key + step) % WORKERS == me->index)
				continue;
			for (uint32_t c = 0; c < DIM; c++)
				rows[p.count * DIM + c] = gradient(me->index, step, key, c);
			keys[p.count++] = key;
		}
		tern_status status = tern_ps_group_begin(group, step, 0);

		if (status == TERN_OK)
			status = tern_ps_group_push(group, me->table, &p, 0);
		if (status == TERN_OK)
			status = tern_ps_group_end(group, step);
		if (status != TERN_OK)
			return status;
	}
	return TERN_OK;
}

static tern_ps_group *groups[WORKERS];

static void *run_worker(void *arg)
{
	worker *me = arg;

	me->status = work(me, groups[me->index]);
	if (me->status != TERN_OK)
		fprintf(stderr, "worker %u: %s\n", me->index, tern_detail());
	return NULL;
}

static void train(unsigned servers, float *out)
{
	tern_table_schema schema = counters("t", DIM);
	worker workers[WORKERS] = {0};
	uint64_t keys[KEYS];
	tern_table_pull_params p = {.keys = keys, .count = KEYS, .rows = out};
	tern_table *table;
	world w;

	world_start(&w, servers);
	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAM, 0.1f);
	assert_success(tern_table_create(w.ps, &schema, &table));
	for (unsigned i = 0; i < WORKERS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "worker %u", i);
		groups[i] = join(&w, name);
		workers[i] = (worker){.w = &w, .table = table, .index = i};
	}
	for (unsigned i = 0; i < WORKERS; i++)
		assert_ok(tn_os_thread_start(&workers[i].thread, "worker", run_worker, &workers[i]));
	for (unsigned i = 0; i < WORKERS; i++) {
		tn_os_thread_join(&workers[i].thread);
		assert_int_equal(workers[i].status, TERN_OK);
		tern_ps_group_leave(groups[i]);
	}
	for (uint64_t key = 0; key < KEYS; key++)
		keys[key] = key;
	assert_success(tern_table_pull_wait(table, &p, 0));
	world_stop(&w);
}

/* One worker that pushes all batches of a step in one, in the order of workers. */
static void oracle(float *out)
{
	tern_table_schema schema = counters("t", DIM);
	uint64_t keys[KEYS * WORKERS];
	float *rows = test_malloc(sizeof(float) * KEYS * WORKERS * DIM);
	tern_table_pull_params pull = {.keys = keys, .count = KEYS, .rows = out};
	tern_table *table;
	world w;

	world_start(&w, 1);
	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAM, 0.1f);
	assert_success(tern_table_create(w.ps, &schema, &table));
	for (uint64_t step = 0; step < STEPS; step++) {
		tern_table_push_params p = {.keys = keys, .rows = rows, .step = step};

		for (unsigned i = 0; i < WORKERS; i++) {
			for (uint64_t key = 0; key < KEYS; key++) {
				if ((key + step) % WORKERS == i)
					continue;
				for (uint32_t c = 0; c < DIM; c++)
					rows[p.count * DIM + c] = gradient(i, step, key, c);
				keys[p.count++] = key;
			}
		}
		assert_success(tern_table_push_wait(table, &p, 0));
	}
	for (uint64_t key = 0; key < KEYS; key++)
		keys[key] = key;
	assert_success(tern_table_pull_wait(table, &pull, 0));
	test_free(rows);
	world_stop(&w);
}

static void workers_come_to_the_bits_of_one(void **state)
{
	float one[KEYS * DIM], got[KEYS * DIM];

	(void)state;
	oracle(one);
	for (unsigned servers = 1; servers <= SERVERS_MAX; servers++) {
		train(servers, got);
		assert_memory_equal(got, one, sizeof(one));
	}
}

/* ---- the wire ---- */

static void messages_survive_the_wire_and_junk_does_not(void **state)
{
	tn_ps_stage s = {.dtype = 1,
			 .lr_scale = 1,
			 .life = 2,
			 .member = 3,
			 .step = 4,
			 .seq = 5,
			 .table = 6,
			 .schema = 7,
			 .count = 1};
	tn_ps_close c = {.life = 1, .step = 2, .senders = 2, .sender = {3, 4}}, c2;
	uint8_t out[TN_PS_STAGE_BYTES + 8 + 4], closing[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX];
	tn_rand rand = {5};
	tn_ps_stage again;
	uint64_t n;

	(void)state;
	memset(out, 0xaa, sizeof(out));
	tn_ps_stage_encode(out, &s);
	assert_memory_equal(out,
			    "\2\1\0\0\0\0\200?"
			    "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0"
			    "\6\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0",
			    TN_PS_STAGE_BYTES);
	assert_true(tn_ps_stage_decode(out, sizeof(out), &again));
	assert_int_equal(again.seq, 5);
	assert_int_equal(again.row_bytes, 4);
	assert_ptr_equal(again.keys, out + TN_PS_STAGE_BYTES);
	for (uint64_t k = 0; k < TN_PS_STAGE_BYTES + 8; k++)
		assert_false(tn_ps_stage_decode(out, k, &again));
	n = tn_ps_close_encode(closing, &c);
	assert_int_equal(n, 40);
	assert_true(tn_ps_close_decode(closing, n, &c2));
	assert_true(c2.life == 1 && c2.step == 2 && c2.senders == 2 && c2.sender[1] == 4);
	for (uint64_t k = 0; k < n; k++)
		assert_false(tn_ps_close_decode(closing, k, &c2));
	for (int i = 0; i < 20000; i++) {
		out[tn_rand_below(&rand, sizeof(out))] = (uint8_t)tn_rand_next(&rand);
		closing[tn_rand_below(&rand, n)] = (uint8_t)tn_rand_next(&rand);
		if (tn_ps_stage_decode(out, sizeof(out), &again))
			assert_true(again.keys >= out && again.rows + again.row_bytes == out + sizeof(out));
		(void)tn_ps_close_decode(closing, n, &c2);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_survive_the_wire_and_junk_does_not),
		cmocka_unit_test(a_step_is_applied_when_all_have_ended_it),
		cmocka_unit_test(sums_are_in_the_order_of_names),
		cmocka_unit_test(who_dies_in_a_step_is_left_out_of_it),
		cmocka_unit_test(repeated_messages_do_not_count),
		cmocka_unit_test(links_that_break_do_not_count_twice),
		cmocka_unit_test(limits_and_mistakes_are_named),
		cmocka_unit_test(workers_come_to_the_bits_of_one),
	};

	if (argc > 1)
		world_transport(argv[1]);
	return RUN(tests);
}
