/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: golden dumps, the spread of variables, edges and copies by mode, what is refused, and graphs that
 * are placed by hand.
 *
 * TERN_GOLDEN_UPDATE=1 in the environment rewrites the golden files instead of comparing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/plan.h"

static const uint64_t widths[] = {16};

static tern_graph *small_model(void)
{
	tern_graph *g;

	assert_ok(tern_graph_fully_connected(
		"small", widths, 1, &(tern_model_params){.seed = 1, .inputs = 12, .classes = 4}, &g));
	return g;
}

static tern_plan_params params_of(uint32_t servers, uint32_t workers, int sync, tern_comm comm)
{
	return (tern_plan_params){
		.servers = servers,
		.workers = workers,
		.sync = sync,
		.comm = comm,
		.optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.1f, .momentum = 0.9f}};
}

static tern_plan *plan_of(uint32_t servers, uint32_t workers, int sync, tern_comm comm)
{
	tern_plan_params params = params_of(servers, workers, sync, comm);
	tern_graph *g = small_model();
	tern_plan *plan;

	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	return plan;
}

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *text;
	long n;

	if (!f)
		return NULL;
	fseek(f, 0, SEEK_END);
	n = ftell(f);
	rewind(f);
	text = calloc(1, (size_t)n + 1);
	if (fread(text, 1, (size_t)n, f) != (size_t)n) {
		free(text);
		text = NULL;
	}
	fclose(f);
	return text;
}

/* Takes text over. */
static void golden(const char *name, char *text)
{
	char path[1024], *want;

	assert_non_null(text);
	snprintf(path, sizeof(path), "%s/%s", TERN_GOLDEN_DIR, name);
	if (getenv("TERN_GOLDEN_UPDATE")) {
		FILE *f = fopen(path, "wb");

		assert_non_null(f);
		fputs(text, f);
		fclose(f);
	}
	want = read_file(path);
	if (!want)
		fail_msg("no golden file %s", path);
	if (strcmp(want, text) != 0)
		fail_msg("%s differs; the plan is now:\n%s", name, text);
	free(want);
	free(text);
}

static void golden_plans(void **state)
{
	static const struct {
		const char *name;
		uint32_t servers, workers;
		int sync;
		tern_comm comm;
	} plans[] = {
		{"small_s2_w2_sync_zerocopy", 2, 2, 1, TERN_COMM_ZEROCOPY},
		{"small_s2_w2_async_zerocopy", 2, 2, 0, TERN_COMM_ZEROCOPY},
		{"small_s1_w1_sync_rpc", 1, 1, 1, TERN_COMM_RPC},
		{"small_s1_w3_sync_copy", 1, 3, 1, TERN_COMM_COPY},
		{"small_local", 0, 1, 1, TERN_COMM_ZEROCOPY},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		tern_plan *p = plan_of(plans[i].servers, plans[i].workers, plans[i].sync, plans[i].comm);
		char name[128];

		snprintf(name, sizeof(name), "%s.txt", plans[i].name);
		golden(name, tern_plan_text(p));
		snprintf(name, sizeof(name), "%s.json", plans[i].name);
		golden(name, tern_plan_json(p));
		tern_plan_destroy(p);
	}
}

static void the_same_plan_every_time(void **state)
{
	tern_plan *a = plan_of(3, 4, 1, TERN_COMM_ZEROCOPY), *b = plan_of(3, 4, 1, TERN_COMM_ZEROCOPY);
	char *x = tern_plan_text(a), *y = tern_plan_text(b);

	(void)state;
	assert_string_equal(x, y);
	tern_graph_text_free(x);
	tern_graph_text_free(y);
	tern_plan_destroy(a);
	tern_plan_destroy(b);
}

static void fcn5_edges(void **state)
{
	tern_plan_params params = params_of(2, 2, 1, TERN_COMM_ZEROCOPY);
	uint64_t bytes = 0, on[2];
	tern_graph *g;
	tern_plan *p;

	(void)state;
	assert_ok(tern_graph_model("fcn5", NULL, &g));
	assert_ok(tern_plan_create(g, &params, &p));
	assert_int_equal(tern_plan_devices(p), 4);
	/* four weights of 12 to 64 MiB in two parts each, one of 160 KiB and five biases whole */
	assert_int_equal(tern_plan_edges(p), (4 * 2 + 6) * 2 * 2);
	for (uint32_t i = 0; i < tern_plan_edges(p); i++) {
		tern_edge_info e;

		assert_ok(tern_plan_edge(p, i, &e));
		assert_true(e.is_static);
		assert_int_equal(e.copies, 0);
		assert_string_equal(e.copy_reason, "");
		assert_string_equal(e.op, "RdmaSend/RdmaRecv");
		bytes += e.bytes;
	}
	assert_int_equal(bytes, 53600266ull * 4 * 2 * 2);
	for (uint32_t i = 0; i < 2; i++) {
		tern_device_info d;

		assert_ok(tern_plan_device(p, i, &d));
		on[i] = d.variable_bytes;
	}
	assert_int_equal(on[0] + on[1], 53600266ull * 4);
	assert_true(on[0] < 108000000 && on[1] < 108000000);
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

static void shards_are_balanced(void **state)
{
	static const uint64_t bytes_of[] = {22400, 280,  16800, 240,  12000, 200, 8000,
					    160,   4800, 120,   2400, 80,    800, 40};
	enum { VARS = 14 };

	(void)state;
	for (uint32_t servers = 1; servers <= 20; servers++) {
		tern_plan_params params = {.servers = servers, .workers = 1};
		uint64_t load[20] = {0}, max = 0, total = 0, largest = 0, best;
		tn_variable vars[VARS] = {{.readers = 1}};
		tn_part *parts;
		uint32_t n;

		for (uint32_t v = 0; v < VARS; v++)
			vars[v] =
				(tn_variable){.shape = {.rank = 1, .dims = {bytes_of[v] / 4}}, .readers = 1};
		assert_ok(tn_shard(vars, VARS, &params, &parts, &n));
		assert_int_equal(n, VARS); /* small ones stay whole */
		for (uint32_t i = 0; i < n; i++) {
			assert_true(parts[i].server < servers);
			load[parts[i].server] += vars[i].load;
			total += vars[i].load;
			largest = vars[i].load > largest ? vars[i].load : largest;
		}
		for (uint32_t s = 0; s < servers; s++) {
			assert_true(load[s] > 0 || servers > VARS);
			max = load[s] > max ? load[s] : max;
		}
		best = total / servers > largest ? total / servers : largest;
		assert_true(max * 3 <= best * 4 + 3);
		free(parts);
	}
}

static void refused_plans(void **state)
{
	tern_graph *g = small_model(), *bare;
	tern_plan *p;
	uint32_t device;
	static const struct {
		uint32_t servers, workers;
		const char *words;
	} bad[] = {{0, 2, "without a server"},
		   {1, 0, "0 workers"},
		   {1, 257, "257 workers"},
		   {1u << 20, 1, "servers"}};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		tern_plan_params params = params_of(bad[i].servers, bad[i].workers, 1, TERN_COMM_ZEROCOPY);

		assert_status(tern_plan_create(g, &params, &p), TERN_E_INVALID);
		if (!strstr(tern_detail(), bad[i].words))
			fail_msg("'%s' is not in: %s", bad[i].words, tern_detail());
	}
	for (int k = 0; k < 3; k++) {
		tern_plan_params params = params_of(1, 1, 1, TERN_COMM_ZEROCOPY);

		params.optimizer.lr = k == 0 ? 0.0f : 0.1f;
		params.optimizer.momentum = k == 1 ? 1.0f : 0.9f;
		params.comm = k == 2 ? (tern_comm)9 : TERN_COMM_COPY;
		assert_status(tern_plan_create(g, &params, &p), TERN_E_INVALID);
	}
	assert_ok(tern_graph_create("bare", &bare));
	assert_status(tern_plan_create(bare, &(tern_plan_params){.workers = 1, .optimizer = {.lr = 1}}, &p),
		      TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "loss"));
	tern_graph_destroy(bare);
	tern_graph_destroy(g);
	p = plan_of(1, 1, 1, TERN_COMM_COPY);
	assert_ok(tern_plan_find(p, TERN_ROLE_WORKER, 0, &device));
	assert_int_equal(device, 1);
	assert_status(tern_plan_find(p, TERN_ROLE_WORKER, 1, &device), TERN_E_NOT_FOUND);
	assert_status(tern_plan_device(p, 2, &(tern_device_info){0}), TERN_E_NOT_FOUND);
	assert_status(tern_plan_edge(p, 99, &(tern_edge_info){0}), TERN_E_NOT_FOUND);
	tern_plan_destroy(p);
}

static void copies_have_reasons(void **state)
{
	static const tern_comm modes[] = {TERN_COMM_ZEROCOPY, TERN_COMM_COPY, TERN_COMM_RPC};

	(void)state;
	for (int m = 0; m < 3; m++) {
		tern_plan *p = plan_of(2, 2, 1, modes[m]);

		for (uint32_t i = 0; i < tern_plan_edges(p); i++) {
			tern_edge_info e;

			assert_ok(tern_plan_edge(p, i, &e));
			assert_int_equal(e.copies, m == 0 ? 0 : 2);
			assert_true((e.copies == 0) == (e.copy_reason[0] == 0));
			assert_string_equal(e.op, m == 0 ? "RdmaSend/RdmaRecv" : "Send/Recv");
		}
		tern_plan_destroy(p);
	}
}

/* x on device 0 -> relu on 1 -> relu on 0: one edge per (tensor, device), however many readers. */
static tern_graph *hand_placed(bool symbolic, bool control)
{
	tern_graph *g;
	uint64_t batch = 8;
	tern_value x, outs[5];
	tern_shape shape = {.rank = 2, .dims = {8, 4}};
	static const int32_t devices[] = {0, 0, 1, 1, 0, 0};

	assert_ok(tern_graph_create("placed", &g));
	if (symbolic)
		assert_ok(tern_graph_symbol(g, "batch", &batch));
	shape.dims[0] = batch;
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &x));
	assert_ok(tern_graph_node(g, "Relu", "a", &x, 1, NULL, 0, &outs[0], 1));
	assert_ok(tern_graph_node(g, "Relu", "b", &outs[0], 1, NULL, 0, &outs[1], 1));
	assert_ok(tern_graph_node(g, "Add", "c", (tern_value[]){outs[0], x}, 2, NULL, 0, &outs[2], 1));
	assert_ok(tern_graph_node(g, "Mul", "d", (tern_value[]){outs[1], outs[2]}, 2, NULL, 0, &outs[3], 1));
	assert_ok(tern_graph_node(g, "Relu", "e", &outs[2], 1, NULL, 0, &outs[4], 1));
	if (control)
		assert_ok(tern_graph_control(g, outs[1], outs[4]));
	for (uint32_t i = 0; i < 6; i++)
		g->nodes[i].device = devices[i];
	return g;
}

static void one_edge_per_tensor_and_destination(void **state)
{
	tern_graph *g = hand_placed(false, false);
	static const char *const names[] = {"b", "c", "a", "x"};
	tern_plan *p;

	(void)state;
	assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &p));
	assert_int_equal(tern_plan_edges(p), 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_string_equal(p->edges[i].name, names[i]);
	/* x is fed by the caller: the only edge that is not one-sided, with a reason */
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(p->edges[i].one_sided, i != 3);
		assert_int_equal(p->edges[i].copies, i == 3);
	}
	assert_non_null(strstr(p->edges[3].copy_reason, "feeds"));
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

static void symbolic_edges_are_dynamic(void **state)
{
	tern_graph *g = hand_placed(true, false);
	tern_edge_info e;
	tern_plan *p;

	(void)state;
	assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &p));
	assert_ok(tern_plan_edge(p, 0, &e));
	assert_false(e.is_static);
	assert_non_null(strstr(e.reason, "batch"));
	assert_string_equal(e.op, "RdmaSendDynamic/RdmaRecvDynamic");
	assert_int_equal(e.copies, 0);
	assert_non_null(strstr(e.site, "Relu 'b'"));
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

static void bad_placements(void **state)
{
	tern_graph *g = hand_placed(false, true);
	tern_plan *p;

	(void)state;
	assert_status(tn_plan_placed(g, 1, TERN_COMM_ZEROCOPY, &p), TERN_E_INVALID);
	tern_graph_destroy(g);
}

/* b on 1 before e on 0: an empty tensor crosses, after b, and e waits for it. */
static void control_edges_cross_devices(void **state)
{
	tern_graph *g = hand_placed(false, true);
	const tn_node *e, *send;
	tn_edge *edge;
	tern_plan *p;

	(void)state;
	assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &p));
	assert_int_equal(tern_plan_edges(p), 5);
	edge = &p->edges[4];
	assert_string_equal(edge->name, "done/b");
	assert_int_equal(edge->bytes, 0);
	assert_true(edge->is_static && edge->copies == 0);
	e = &p->devices[0].graph->nodes[tn_graph_find(p->devices[0].graph, "e")];
	assert_true(e->n_ctrl > 0);
	assert_int_equal(e->ctrl[0], edge->recv_node);
	send = &p->devices[1].graph->nodes[edge->send_node];
	assert_int_equal(send->n_ctrl, 1);
	assert_string_equal(p->devices[1].graph->nodes[send->ctrl[0]].name, "b");
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_plans),
		cmocka_unit_test(the_same_plan_every_time),
		cmocka_unit_test(fcn5_edges),
		cmocka_unit_test(shards_are_balanced),
		cmocka_unit_test(refused_plans),
		cmocka_unit_test(copies_have_reasons),
		cmocka_unit_test(one_edge_per_tensor_and_destination),
		cmocka_unit_test(symbolic_edges_are_dynamic),
		cmocka_unit_test(bad_placements),
		cmocka_unit_test(control_edges_cross_devices),
	};

	return RUN(tests);
}
