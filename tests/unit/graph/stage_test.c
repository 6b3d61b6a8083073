/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model parallelism: stages by hand and by the cut, micro-batches, and both with data parallelism.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cmocka_all.h"
#include "graph/mincut.h"
#include "job.h"

static job_params job_of(uint32_t servers, uint32_t workers, uint32_t stages, uint32_t micro)
{
	return (job_params){
		.plan = {.servers = servers,
			 .workers = workers,
			 .sync = 1,
			 .stages = stages,
			 .micro_batches = micro,
			 .dims = {{.name = "batch", .size = 24 / workers}},
			 .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.05f, .momentum = 0.9f}},
		.batch = 24,
		.steps = 10};
}

static int32_t by_layer(const tn_node *node)
{
	return strncmp(node->name, "fc1", 3) == 0 || strcmp(node->name, "images") == 0 ? 0 : 1;
}

static int32_t back_and_forth(const tn_node *node)
{
	return strstr(node->name, "relu") || strstr(node->name, "/b") ? 1 : 0;
}

static void same_bits(const job_result *a, const job_result *b, uint64_t steps, uint32_t workers)
{
	assert_int_equal(a->n_weights, b->n_weights);
	assert_memory_equal(a->weights, b->weights, a->n_weights * sizeof(float));
	for (uint32_t w = 0; w < workers; w++) {
		assert_memory_equal(a->loss[w], b->loss[w], steps * sizeof(float));
		assert_memory_equal(a->correct[w], b->correct[w], steps * sizeof(int32_t));
	}
}

static void stages_give_the_same_bits(void **state)
{
	static int32_t (*const places[])(const tn_node *) = {by_layer, back_and_forth, NULL};

	(void)state;
	for (uint32_t servers = 0; servers <= 2; servers++) {
		for (uint32_t workers = 1; workers <= (servers ? 2 : 1); workers++) {
			job_params p = job_of(servers, workers, 1, 1);
			job_result one, many;

			job_run(&p, &one);
			for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
				p.plan.stages = 2 + (places[i] == NULL);
				p.place = places[i];
				p.lazy_seed = i;
				job_run(&p, &many);
				same_bits(&one, &many, p.steps, workers);
				job_free(&many);
			}
			job_free(&one);
		}
	}
}

/* Sums in another order: close, not the same. */
static void micro_batches_give_the_same_within_rounding(void **state)
{
	static int32_t (*const places[])(const tn_node *) = {by_layer, back_and_forth, NULL};

	(void)state;
	for (uint32_t stages = 1; stages <= 3; stages++) {
		job_params p = job_of(2, 2, 1, 1);
		job_result one, many;

		job_run(&p, &one);
		for (uint32_t micro = 2; micro <= 6; micro += 2) {
			p.plan.stages = stages;
			p.plan.micro_batches = micro;
			p.place = stages == 1 ? NULL : places[(stages + micro / 2) % 3];
			if (p.place)
				p.plan.stages = 2;
			p.plan.split_bytes = micro == 4 ? 64 : 0;
			job_run(&p, &many);
			for (uint64_t i = 0; i < one.n_weights; i++)
				assert_true(fabsf(one.weights[i] - many.weights[i]) < 2e-5f);
			for (uint32_t w = 0; w < 2; w++) {
				for (uint64_t s = 0; s < p.steps; s++)
					assert_true(fabsf(one.loss[w][s] - many.loss[w][s]) < 2e-5f);
				assert_memory_equal(one.correct[w], many.correct[w],
						    p.steps * sizeof(int32_t));
			}
			job_free(&many);
		}
		job_free(&one);
	}
}

/* Clipping by norm and other optimisers with stages, servers or not. */
static void optimisers_know_stages(void **state)
{
	static const tern_optimizer_kind kinds[] = {TERN_OPTIMIZER_SGD, TERN_OPTIMIZER_ADAM,
						    TERN_OPTIMIZER_RMSPROP};

	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		job_params p = job_of(i % 2 ? 2 : 0, i % 2 ? 2 : 1, 1, 1);
		job_result one, many;

		p.plan.optimizer = (tern_optimizer){.kind = kinds[i / 2], .lr = 0.01f, .clip_norm = 0.5f};
		p.plan.sync = i != 5;
		if (!p.plan.sync)
			p.plan.workers = 1;
		p.plan.dims[0].size = 24 / p.plan.workers;
		job_run(&p, &one);
		p.plan.stages = 3;
		p.plan.micro_batches = 2;
		job_run(&p, &many);
		for (uint64_t k = 0; k < one.n_weights; k++)
			assert_true(fabsf(one.weights[k] - many.weights[k]) < 1e-3f);
		job_free(&one);
		job_free(&many);
	}
}

/* ---- the cut ---- */

static uint64_t seed;

static uint32_t below(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % n;
}

enum { VERTICES = 120, EDGES = 300 };

/* Parts in topological order, each with its share of the weight: what a cut must not be worse than. */
static uint64_t naive_bytes(const tn_cut_problem *p)
{
	uint32_t part[VERTICES];
	uint64_t total = 0, sum = 0;

	for (uint32_t v = 0; v < p->n; v++)
		total += p->weight[v];
	for (uint32_t v = 0; v < p->n; v++) {
		part[v] = (uint32_t)((sum + p->weight[v] / 2) * p->parts / total);
		sum += p->weight[v];
	}
	return tn_cut_bytes(p, part);
}

static void cuts_are_balanced_and_acyclic(void **state)
{
	uint64_t cut = 0, naive = 0;

	(void)state;
	for (seed = 1; seed < 40; seed++) {
		uint64_t weight[VERTICES], load[8] = {0}, total = 0, heaviest = 0, s = seed;
		int32_t fixed[VERTICES];
		tn_cut_edge edges[EDGES];
		uint32_t part[VERTICES];
		tn_cut_problem p = {.parts = 2 + below(5),
				    .n = VERTICES,
				    .weight = weight,
				    .fixed = fixed,
				    .n_edges = EDGES,
				    .edges = edges};

		for (uint32_t v = 0; v < VERTICES; v++) {
			weight[v] = 1 + below(100);
			total += weight[v];
			heaviest = weight[v] > heaviest ? weight[v] : heaviest;
			fixed[v] = -1;
		}
		for (uint32_t i = 0; i < EDGES; i++) {
			uint32_t a = below(VERTICES - 1), b = a + 1 + below(TN_MIN(VERTICES - 1 - a, 12));

			edges[i] = (tn_cut_edge){.from = a, .to = b, .bytes = 1 + below(1000)};
		}
		assert_ok(tn_mincut(&p, part));
		for (uint32_t v = 0; v < VERTICES; v++)
			load[part[v]] += weight[v];
		for (uint32_t i = 0; i < EDGES; i++)
			assert_true(part[edges[i].from] <= part[edges[i].to]);
		for (uint32_t k = 0; k < p.parts; k++)
			assert_true(load[k] <= TN_MAX(total / p.parts * 11 / 10, heaviest) + heaviest);
		cut += tn_cut_bytes(&p, part);
		naive += naive_bytes(&p);
		seed = s;
	}
	assert_true(cut * 10 < naive * 9); /* it is good for something */
}

/* Two chains that are thick inside and joined by one thin edge: that is where to cut. */
static void the_thin_place_is_found(void **state)
{
	enum { N = 20 };
	uint64_t weight[N];
	int32_t fixed[N];
	tn_cut_edge edges[N - 1];
	uint32_t part[N];
	tn_cut_problem p = {
		.parts = 2, .n = N, .weight = weight, .fixed = fixed, .n_edges = N - 1, .edges = edges};

	(void)state;
	for (uint32_t thin = 9; thin <= 11; thin++) {
		for (uint32_t v = 0; v < N; v++) {
			weight[v] = 10;
			fixed[v] = -1;
		}
		for (uint32_t v = 0; v + 1 < N; v++)
			edges[v] = (tn_cut_edge){.from = v, .to = v + 1, .bytes = v + 1 == thin ? 1 : 1000};
		assert_ok(tn_mincut(&p, part));
		assert_int_equal(tn_cut_bytes(&p, part), 1);
	}
	fixed[15] = 0; /* the author wants it there, whatever it costs */
	fixed[16] = 1;
	assert_ok(tn_mincut(&p, part));
	assert_int_equal(part[15], 0);
	assert_int_equal(part[16], 1);
	for (uint32_t v = 0; v < 15; v++)
		assert_int_equal(part[v], 0);
}

static void the_author_places_nodes(void **state)
{
	tern_shape shape = {.rank = 2, .dims = {4, 4}};
	tern_init init = {.kind = TERN_INIT_UNIFORM, .value = 1};
	tern_plan_params params = {.workers = 1, .optimizer = {.lr = 0.1f}};
	tern_value x, w, a, b, loss;
	uint32_t local[3];
	tern_graph *g;
	tern_plan *p;

	(void)state;
	assert_ok(tern_graph_create("placed", &g));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &x));
	assert_ok(tern_graph_variable(g, "w", TERN_F32, &shape, &init, &w));
	assert_ok(tern_graph_set_device(g, 2));
	assert_ok(tern_graph_node(g, "MatMul", "a", (tern_value[]){x, w}, 2, NULL, 0, &a, 1));
	assert_ok(tern_graph_set_device(g, TERN_DEVICE_ANY));
	assert_ok(tern_graph_node(g, "Relu", "b", &a, 1, NULL, 0, &b, 1));
	assert_ok(tern_graph_node(g, "ReduceMean", "loss", &b, 1, NULL, 0, &loss, 1));
	assert_ok(tern_graph_place(g, loss, 0));
	assert_ok(tern_graph_output(g, "loss", loss));
	assert_status(tern_graph_set_device(g, TERN_DEVICES_MAX), TERN_E_INVALID);
	assert_status(tern_graph_place(g, loss, -2), TERN_E_INVALID);
	assert_status(tern_graph_place(g, 99, 0), TERN_E_NOT_FOUND);
	assert_ok(tern_plan_create(g, &params, &p)); /* stages: as many as the nodes name */
	assert_int_equal(tern_plan_devices(p), 3);
	for (uint32_t d = 0; d < 3; d++)
		local[d] = tn_graph_find(p->devices[d].graph, d == 2 ? "a" : "loss");
	assert_true(local[0] != TN_NONE && local[2] != TN_NONE);
	assert_true(tn_graph_find(p->devices[2].graph, "w") != TN_NONE); /* with who reads it */
	assert_true(tn_graph_find(p->devices[2].graph, "grad/w") != TN_NONE);
	tern_plan_destroy(p);
	params.stages = 2;
	assert_status(tern_plan_create(g, &params, &p), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "'a' is placed on device 2"));
	tern_graph_destroy(g);
}

/* Sizes that the job fixes make edges static, sizes that vary make them dynamic, with what to expect. */
static void sizes_decide_static_or_dynamic(void **state)
{
	(void)state;
	for (int k = 0; k < 3; k++) {
		tern_plan_params params = {
			.workers = 1,
			.stages = 2,
			.dims = {{.name = k ? "batch" : NULL, .size = 16, .varies = k == 2}},
			.optimizer = {.lr = 0.1f}};
		tern_graph *g = job_model();
		uint32_t crossing = 0;
		tern_plan *p;

		assert_ok(tern_plan_create(g, &params, &p));
		for (uint32_t i = 0; i < tern_plan_edges(p); i++) {
			tern_edge_info e;

			assert_ok(tern_plan_edge(p, i, &e));
			if (strcmp(e.reason, "every dim is known before the first step") == 0)
				continue; /* a variable or its gradient */
			crossing++;
			assert_int_equal(e.is_static, k == 1);
			assert_true(k == 0 ? e.bytes == 0 : e.bytes > 0 && e.bytes % 64 == 0);
			assert_non_null(strstr(e.reason, k == 0   ? "known only when a step runs"
							 : k == 1 ? "gives symbols their sizes"
								  : "differs from step to step"));
			assert_string_equal(e.op,
					    k == 1 ? "RdmaSend/RdmaRecv" : "RdmaSendDynamic/RdmaRecvDynamic");
			assert_int_equal(e.copies, 0);
		}
		assert_true(crossing >= 2); /* there and back */
		tern_plan_destroy(p);
		tern_graph_destroy(g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stages_give_the_same_bits),
		cmocka_unit_test(micro_batches_give_the_same_within_rounding),
		cmocka_unit_test(optimisers_know_stages),
		cmocka_unit_test(cuts_are_balanced_and_acyclic),
		cmocka_unit_test(the_thin_place_is_found),
		cmocka_unit_test(the_author_places_nodes),
		cmocka_unit_test(sizes_decide_static_or_dynamic),
	};

	return RUN(tests);
}
