/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spreads variables over servers by what they cost a server in a step, not by what they weigh:
 *
 *   load of a variable = its readers x (its bytes + MESSAGE_BYTES)
 *
 * Readers are the devices that fetch it; a message costs as much as so many bytes. A variable is split by
 * rows if it is big (more than split_bytes), so that all servers work on it at once when everybody wants it,
 * or hot (more than a server's fair share of the load): into as many parts as there are servers, rows or
 * pieces of at least PART_BYTES_MIN.
 *
 * Parts go by falling load to the server with the least load so far that has no part of the same variable, the
 * lower number among equals. Within 4/3 of the best possible maximum where parts are free to go anywhere
 * (Graham 1969, LPT rule), and the same in every process. A server may end up with nothing: it takes part all
 * the same.
 *
 * Thread story: pure. Tests: tests/unit/graph/part_test.c, plan_test.c.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/plan.h"

#define SPLIT_BYTES    (UINT64_C(4) << 20) /* default of split_bytes */
#define PART_BYTES_MIN (UINT64_C(64) << 10)
#define MESSAGE_BYTES  4096u

typedef struct shard_part {
	uint64_t load;
	uint32_t number; /* in parts */
} shard_part;

static int by_load(const void *a, const void *b)
{
	const shard_part *x = a, *y = b;

	if (x->load != y->load)
		return x->load < y->load ? 1 : -1;
	return x->number < y->number ? -1 : 1; /* the order of qsort must not matter */
}

/* Into how many parts; fair: a server's share of the load of all variables. */
static uint32_t count_parts(const tn_variable *v, const tern_plan_params *p, uint64_t fair)
{
	uint64_t split = p->split_bytes ? p->split_bytes : SPLIT_BYTES, n = p->servers, rows = 1;

	if (v->shape.rank > 0)
		rows = v->shape.dims[tn_part_axis(&v->shape)];
	if (v->bytes <= split && (v->load <= fair || v->bytes < 2 * PART_BYTES_MIN))
		return 1;
	n = TN_MIN(n, rows);
	n = TN_MIN(n, v->bytes <= split ? v->bytes / PART_BYTES_MIN : (v->bytes + split - 1) / split);
	return (uint32_t)TN_MAX(n, 1);
}

/* A part of the same variable may be there already; parts are fewer than servers, so there is one without. */
static uint32_t choose_server(const tn_part *parts, uint32_t n, const tn_part *part, uint32_t servers,
			      const uint64_t *load, bool *taken)
{
	uint32_t best = TN_NONE;

	for (uint32_t s = 0; s < servers; s++)
		taken[s] = false;
	for (uint32_t i = 0; i < n; i++) {
		if (parts[i].variable == part->variable && parts[i].server != TN_NONE)
			taken[parts[i].server] = true;
	}
	for (uint32_t s = 0; s < servers; s++) {
		if (!taken[s] && (best == TN_NONE || load[s] < load[best]))
			best = s;
	}
	TN_ASSERT(best != TN_NONE);
	return best;
}

static tern_status spread(tn_part *parts, uint32_t n, const tn_variable *vars, uint32_t servers)
{
	shard_part *order = calloc(n + 1, sizeof(*order));
	uint64_t *load = calloc(servers, sizeof(*load));
	bool *taken = calloc(servers, sizeof(*taken));
	bool ok = order && load && taken;

	for (uint32_t i = 0; i < n && ok; i++)
		order[i] = (shard_part){.load = vars[parts[i].variable].load / parts[i].parts, .number = i};
	if (ok)
		qsort(order, n, sizeof(*order), by_load);
	for (uint32_t i = 0; i < n && ok; i++) {
		tn_part *part = &parts[order[i].number];

		part->server = choose_server(parts, n, part, servers, load, taken);
		load[part->server] += order[i].load;
	}
	free(order);
	free(load);
	free(taken);
	return ok ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory to spread variables over %u servers", servers);
}

tern_status tn_shard(tn_variable *vars, uint32_t n_vars, const tern_plan_params *params, tn_part **parts,
		     uint32_t *n_parts)
{
	uint64_t total = 0;
	uint32_t n = 0;
	tn_part *out;

	for (uint32_t v = 0; v < n_vars; v++) {
		TN_TRY(tn_shape_bytes(&vars[v].shape, TERN_F32, &vars[v].bytes));
		vars[v].load = TN_MAX(vars[v].readers, 1) * (vars[v].bytes + MESSAGE_BYTES);
		total += vars[v].load;
	}
	for (uint32_t v = 0; v < n_vars; v++) {
		vars[v].first = n;
		vars[v].parts = params->servers ? count_parts(&vars[v], params, total / params->servers) : 1;
		n += vars[v].parts;
	}
	out = calloc(n + 1, sizeof(*out));
	if (!out)
		return tn_fail(TERN_E_NOMEM, "no memory for %u parts of variables", n);
	for (uint32_t v = 0; v < n_vars; v++) {
		for (uint32_t i = 0; i < vars[v].parts; i++)
			out[vars[v].first + i] = (tn_part){
				.variable = v, .part = i, .parts = vars[v].parts, .server = TN_NONE};
	}
	if (params->servers) {
		tern_status st = spread(out, n, vars, params->servers);

		if (st != TERN_OK) {
			free(out);
			return st;
		}
	}
	*parts = out;
	*n_parts = n;
	return TERN_OK;
}
