/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of the six models of the published comparison, full size, on two servers and two workers: every
 * tensor that carries parameters is static and written once, one-sided, without a copy; what each device
 * sends each other is pinned by golden files, with a digest of all edges.
 *
 * TERN_GOLDEN_UPDATE=1 in the environment rewrites the golden files instead of comparing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/plan.h"

enum { SERVERS = 2, WORKERS = 2, DEVICES = SERVERS + WORKERS };
#define PART_BYTES (UINT64_C(4) << 20)

static const char *const names[] = {"fcn5", "alexnet", "vgg16", "inception_v3", "lstm", "gru"};
#define N_MODELS (sizeof(names) / sizeof(names[0]))

static tern_plan *plan_of(const char *model, int sync, tern_comm comm)
{
	tern_plan_params params = {
		.servers = SERVERS,
		.workers = WORKERS,
		.sync = sync,
		.comm = comm,
		.optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.1f, .momentum = 0.9f}};
	tern_graph *g;
	tern_plan *plan;

	assert_ok(tern_graph_model(model, NULL, &g));
	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	return plan;
}

/* ---- what must hold whatever the golden files say ---- */

static void check_edge(const char *model, const tern_edge_info *e)
{
	bool down = e->src < SERVERS && e->dst >= SERVERS, up = e->src >= SERVERS && e->dst < SERVERS;

	if (!down && !up)
		fail_msg("%s: edge '%s' is neither to a server nor from one", model, e->name);
	if (!e->is_static || strcmp(e->op, "RdmaSend/RdmaRecv") != 0 || e->copies != 0)
		fail_msg("%s: edge '%s' is %s, by %s, with %u copies (%s)", model, e->name,
			 e->is_static ? "static" : "dynamic", e->op, e->copies, e->copy_reason);
	assert_true(e->bytes > 0);
}

/* Each worker gets all parameters once per step and sends all gradients once. */
static void check_traffic(const tern_plan *plan)
{
	uint64_t down[WORKERS] = {0}, up[WORKERS] = {0};

	for (uint32_t i = 0; i < tern_plan_edges(plan); i++) {
		tern_edge_info e;

		assert_ok(tern_plan_edge(plan, i, &e));
		check_edge(plan->model, &e);
		if (e.src < SERVERS)
			down[e.dst - SERVERS] += e.bytes;
		else
			up[e.src - SERVERS] += e.bytes;
	}
	for (uint32_t w = 0; w < WORKERS; w++) {
		/* running statistics go both ways as well */
		assert_true(down[w] >= plan->parameter_bytes);
		assert_true(down[w] < plan->parameter_bytes + plan->parameter_bytes / 100);
		assert_int_equal(down[w], up[w]);
	}
}

/* No server has more than its share and one part: variables up to that size stay whole. */
static void check_balance(const tern_plan *plan)
{
	uint64_t bytes[SERVERS] = {0}, all = 0;

	for (uint32_t s = 0; s < SERVERS; s++) {
		tern_device_info d;

		assert_ok(tern_plan_device(plan, s, &d));
		bytes[s] = d.variable_bytes;
		all += bytes[s];
	}
	for (uint32_t s = 0; s < SERVERS; s++)
		assert_true(bytes[s] <= all / SERVERS + PART_BYTES);
}

static void parameter_traffic(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_MODELS; i++) {
		for (int sync = 0; sync < 2; sync++) {
			tern_plan *plan = plan_of(names[i], sync, TERN_COMM_ZEROCOPY);

			check_traffic(plan);
			check_balance(plan);
			tern_plan_destroy(plan);
		}
	}
}

/* Where copies are made, each has a reason. */
static void other_modes(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_MODELS; i++) {
		tern_plan *plan = plan_of(names[i], 1, i & 1 ? TERN_COMM_COPY : TERN_COMM_RPC);

		for (uint32_t k = 0; k < tern_plan_edges(plan); k++) {
			tern_edge_info e;

			assert_ok(tern_plan_edge(plan, k, &e));
			assert_true(e.copies > 0 && *e.copy_reason);
		}
		tern_plan_destroy(plan);
	}
}

/* ---- golden files ---- */

static uint64_t mix(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
	return h;
}

static uint64_t digest(const tern_plan *plan)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < tern_plan_edges(plan); i++) {
		char line[1024], shape[TN_SHAPE_TEXT_MAX];
		tern_edge_info e;

		assert_ok(tern_plan_edge(plan, i, &e));
		snprintf(line, sizeof(line), "%s %u %u %s%s %" PRIu64 " %d %s %s %u %s\n", e.name, e.src,
			 e.dst, tern_dtype_name(e.dtype), tn_shape_text(NULL, &e.shape, shape, sizeof(shape)),
			 e.bytes, e.is_static, e.reason, e.op, e.copies, e.copy_reason);
		h = mix(h, line);
	}
	return h;
}

static void add_pairs(tn_str *text, const tern_plan *plan)
{
	for (uint32_t src = 0; src < DEVICES; src++) {
		for (uint32_t dst = 0; dst < DEVICES; dst++) {
			uint32_t n = 0, n_static = 0, copies = 0;
			uint64_t bytes = 0;

			for (uint32_t i = 0; i < tern_plan_edges(plan); i++) {
				tern_edge_info e;

				assert_ok(tern_plan_edge(plan, i, &e));
				if (e.src != src || e.dst != dst)
					continue;
				n++;
				n_static += e.is_static != 0;
				copies += e.copies;
				bytes += e.bytes;
			}
			if (n)
				tn_str_addf(text,
					    "%s -> %s: %u edges, %u static, %u copies, %" PRIu64 " bytes\n",
					    plan->devices[src].name, plan->devices[dst].name, n, n_static,
					    copies, bytes);
		}
	}
}

static char *summary(const tern_plan *plan)
{
	tn_str text;

	tn_str_init(&text);
	tn_str_addf(&text, "%s: %" PRIu64 " parameters, %" PRIu64 " bytes, %u edges\n", plan->model,
		    plan->parameters, plan->parameter_bytes, tern_plan_edges(plan));
	for (uint32_t d = 0; d < DEVICES; d++) {
		tern_device_info info;

		assert_ok(tern_plan_device(plan, d, &info));
		tn_str_addf(&text, "%s: %u variables, %" PRIu64 " bytes\n", info.name, info.variables,
			    info.variable_bytes);
	}
	add_pairs(&text, plan);
	tn_str_addf(&text, "edges: %016" PRIx64 "\n", digest(plan));
	return tn_str_take(&text);
}

static void compare(const char *name, const char *text)
{
	char path[1024], want[8192];
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "%s/model_%s.txt", TERN_GOLDEN_DIR, name);
	if (getenv("TERN_GOLDEN_UPDATE")) {
		f = fopen(path, "wb");
		assert_non_null(f);
		fputs(text, f);
		fclose(f);
	}
	f = fopen(path, "rb");
	if (!f)
		fail_msg("no golden file %s", path);
	n = fread(want, 1, sizeof(want) - 1, f);
	want[n] = '\0';
	fclose(f);
	if (strcmp(want, text) != 0)
		fail_msg("%s differs; the plan is now:\n%s", path, text);
}

static void golden_plans(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_MODELS; i++) {
		tern_plan *plan = plan_of(names[i], 1, TERN_COMM_ZEROCOPY);
		char *text = summary(plan);

		assert_non_null(text);
		compare(names[i], text);
		free(text);
		tern_plan_destroy(plan);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parameter_traffic),
		cmocka_unit_test(other_modes),
		cmocka_unit_test(golden_plans),
	};

	return RUN(tests);
}
