/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spreads variables over servers by bytes: the largest first, each to the server with the fewest bytes so
 * far, the lower number among equals. Within 4/3 of the best possible maximum (Graham 1969, LPT rule), and
 * the same in every process.
 *
 * Thread story: pure. Tests: tests/unit/graph/plan_test.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "graph/plan.h"

typedef struct shard_var {
	uint64_t bytes;
	uint32_t number;
} shard_var;

static int by_bytes(const void *a, const void *b)
{
	const shard_var *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->number < y->number ? -1 : 1; /* the order of qsort must not matter */
}

static void spread(const shard_var *vars, uint32_t n, uint32_t servers, uint64_t *load, uint32_t *server)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t best = 0;

		for (uint32_t s = 1; s < servers; s++)
			best = load[s] < load[best] ? s : best;
		load[best] += vars[i].bytes;
		server[vars[i].number] = best;
	}
}

tern_status tn_shard(const tern_graph *model, uint32_t servers, uint32_t *server)
{
	shard_var *vars = calloc(model->n_nodes + 1, sizeof(*vars));
	uint64_t *load = calloc(servers + 1, sizeof(*load));
	uint32_t n = 0;
	tern_status st = TERN_OK;

	if (!vars || !load) {
		free(vars);
		free(load);
		return tn_fail(TERN_E_NOMEM, "no memory to spread variables over %u servers", servers);
	}
	for (uint32_t i = 0; i < model->n_nodes && st == TERN_OK; i++) {
		const tn_tensor *t;

		if (model->nodes[i].op != TN_OP_VARIABLE)
			continue;
		t = &model->tensors[model->nodes[i].out[0]];
		vars[n].number = n;
		st = tn_shape_bytes(&t->shape, t->dtype, &vars[n++].bytes);
	}
	if (st == TERN_OK && servers > n) {
		st = tn_fail(TERN_E_INVALID,
			     "%u servers for the %u variables of '%s': a server would have none; use at most "
			     "%u servers",
			     servers, n, model->name, n);
	}
	if (st == TERN_OK) {
		qsort(vars, n, sizeof(*vars), by_bytes);
		spread(vars, n, servers, load, server);
	}
	free(vars);
	free(load);
	return st;
}
