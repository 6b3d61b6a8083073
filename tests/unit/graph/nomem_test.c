/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory at every single allocation of a job's set-up: model, gradients, plan, texts, executors. Each
 * time the call says TERN_E_NOMEM, nothing leaks (the address sanitizer's word) and the next try works.
 *
 * The allocator is replaced at link time (--wrap) for tern's own code; oneDNN keeps the real one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "graph/exec.h"
#include "job.h"
#include "onnx_build.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);

static uint64_t count, fail_at; /* 0: never */

static bool fails(void)
{
	return ++count == fail_at;
}

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : __real_strdup(s);
}

/* One device of the plan, set up and torn down. */
static tern_status run_device(const tern_plan *plan, uint32_t device)
{
	tn_exec_params params = {.batch = 4, .eval_batch = 2};
	tn_exec *exec = NULL;
	tn_xfer *stub = NULL;
	tern_status st = tn_stub_open(NULL, NULL, &stub);

	if (st == TERN_OK)
		st = tn_exec_create(plan, device, stub, &params, &exec);
	tn_exec_destroy(exec);
	if (stub)
		stub->ops->close(stub);
	return st;
}

static tern_status whole_job(void)
{
	static const uint64_t widths[] = {5};
	tern_plan_params params = {.servers = 1,
				   .workers = 2,
				   .sync = 1,
				   .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 1}};
	tern_graph *g = NULL;
	tern_plan *plan = NULL;
	char *text = NULL, *json = NULL;
	tern_status st = tern_graph_fully_connected("tiny", widths, 1, NULL, &g);

	if (st == TERN_OK)
		st = tern_plan_create(g, &params, &plan);
	if (st == TERN_OK) {
		text = tern_plan_text(plan);
		json = tern_plan_json(plan);
		st = text && json ? TERN_OK : TERN_E_NOMEM;
	}
	for (uint32_t d = 0; d < 2 && st == TERN_OK; d++)
		st = run_device(plan, d);
	tern_graph_text_free(text);
	tern_graph_text_free(json);
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
	return st;
}

/* Let the n-th allocation of the work fail for every n. */
static void fail_everywhere(tern_status (*work)(void), uint64_t at_least)
{
	uint64_t total;

	count = fail_at = 0;
	assert_ok(work());
	total = count;
	assert_true(total > at_least);
	for (uint64_t n = 1; n <= total; n++) {
		tern_status st;

		count = 0;
		fail_at = n;
		st = work();
		fail_at = 0;
		if (st != TERN_E_NOMEM)
			fail_msg("allocation %u of %u: %s (%s)", (unsigned)n, (unsigned)total,
				 tern_status_name(st), tern_detail());
	}
	assert_ok(work());
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	fail_everywhere(whole_job, 500);
}

/* ---- import ---- */

static ox_msg model;

/* A layer whose output is reshaped by arithmetic that is folded; run once. */
static void build_model(void)
{
	static const int64_t zero[1] = {0}, rest[1] = {-1}, w_dims[2] = {3, 2}, x_dims[2] = {-1, 3},
			     one[1] = {1};
	static const float w[6] = {1, 2, 3, 4, 5, 6};
	ox_msg g, n;

	tn_str_init(&g);
	ox_initialiser(&g, "w", 1, w_dims, 2, w, sizeof(w));
	ox_initialiser(&g, "zero", 7, one, 1, zero, sizeof(zero));
	ox_initialiser(&g, "rest", 7, one, 1, rest, sizeof(rest));
	ox_port(&g, 11, "x", 1, x_dims, 2);
	ox_port(&g, 12, "y", 1, x_dims, 2);
	ox_node(&g, "MatMul", "m", "x w", "h");
	ox_node(&g, "Shape", "s", "h", "dims");
	ox_node(&g, "Gather", "g", "dims zero", "first");
	ox_node_begin(&n, "Concat", "c", "first rest", "to");
	ox_attr_int(&n, "axis", 0);
	ox_put(&g, 1, &n);
	ox_node(&g, "Reshape", "r", "h to", "y");
	ox_model(&model, &g, 13);
	assert_false(model.failed);
}

static tern_status import_and_run(void)
{
	tern_program_params params = {.sizes = &(tern_size){"batch", 2}, .n_sizes = 1};
	tern_program *program = NULL;
	tern_graph *g = NULL;
	tern_status st = tern_graph_import_onnx_bytes(model.text, model.length, NULL, &g);

	if (st == TERN_OK)
		st = tern_program_create(g, &params, &program);
	if (st == TERN_OK)
		st = tern_program_run(program);
	tern_program_destroy(program);
	tern_graph_destroy(g);
	return st;
}

static void importing_may_fail_everywhere(void **state)
{
	(void)state;
	build_model();
	fail_everywhere(import_and_run, 100);
	tn_str_fini(&model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(importing_may_fail_everywhere),
	};

	return RUN(tests);
}
