/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which variables are kept as rows of tables, and the nodes that read and train them.
 *
 *   Y = Gather(v, indices)               becomes   Y = PullRows(indices)
 *   dv = GatherGrad(dY, indices), Apply  becomes   PushRows(dY, indices): the table's optimiser applies it
 *
 * The variable is on no device then: a worker has the rows of its batch, each once, for as long as the step. What an
 * optimiser does to all rows in each step (momentum, weight decay, Adam's averages) happens to a row when it is pushed.
 *
 * A variable can be such a table if it is a matrix that one Gather along axis 0 reads and nothing else does, if the job
 * has servers, and if gradients are not clipped, which would need all of them. It becomes one if the caller marked it
 * (tern_graph_sparse: an error says what is missing), or if it has tern_plan_params.sparse_bytes or more.
 *
 * Thread story: pure. Tests: tests/unit/graph/sparse_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/infer.h"
#include "graph/replicate.h"
#include "graph/store.h"

tern_status tern_graph_sparse(tern_graph *g, tern_value variable)
{
	tn_node *n;
	tn_attr *attrs;

	if (!g || variable >= g->n_tensors)
		return tn_fail(TERN_E_NOT_FOUND, "the graph has no tensor number %u", variable);
	n = &g->nodes[g->tensors[variable].node];
	if (n->op != TN_OP_VARIABLE)
		return tn_fail(TERN_E_INVALID, "'%s' is no variable", n->name);
	if (tn_node_attr(n, TN_ATTR_SPARSE))
		return TERN_OK;
	attrs = realloc(n->attrs, (n->n_attrs + 1) * sizeof(*attrs));
	if (!attrs)
		return tn_fail(TERN_E_NOMEM, "no memory for node '%s'", n->name);
	attrs[n->n_attrs++] = tn_attr_int(TN_ATTR_SPARSE, 1);
	n->attrs = attrs;
	return TERN_OK;
}

/* The one reader of a variable; NULL: there are others. */
static tn_node *only_reader(const tern_graph *g, uint32_t tensor)
{
	tn_node *found = NULL;

	for (uint32_t i = 0; i < g->n_nodes; i++) {
		for (uint32_t k = 0; k < g->nodes[i].n_in; k++) {
			if (g->nodes[i].in[k] != tensor)
				continue;
			if (found)
				return NULL;
			found = &g->nodes[i];
		}
	}
	return found;
}

static bool is_port(const tern_graph *g, uint32_t tensor)
{
	for (uint32_t i = 0; i < g->n_ports; i++) {
		if (g->ports[i].tensor == tensor)
			return true;
	}
	return false;
}

/* What keeps a variable from being a table; NULL: nothing. */
static const char *obstacle(const tn_replica *r, uint32_t v)
{
	const tern_graph *g = r->model;
	const tn_tensor *t = &g->tensors[r->var[v]];
	const tn_node *gather = only_reader(g, r->var[v]), *grad = &g->nodes[g->tensors[r->grad[v]].node];

	if (r->params->servers == 0)
		return "the job has no servers";
	if (r->ema[v] >= 0.0f)
		return "it is an average, which is not trained";
	if (t->shape.rank != 2 || t->shape.dims[1] > TN_STORE_DIM)
		return "it is no matrix of rows of up to 8192 numbers";
	if (!gather || gather->op != TN_OP_GATHER || gather->in[0] != r->var[v] || is_port(g, r->var[v]) ||
	    tn_node_axis(gather, 0, 2) != 0)
		return "something else than one Gather along axis 0 reads it";
	if (grad->op != TN_OP_GATHER_GRAD || grad->in[1] != gather->in[1] || only_reader(g, r->grad[v]) ||
	    is_port(g, r->grad[v]))
		return "its gradient is not that of one Gather";
	if (r->params->optimizer.clip_norm > 0.0f || r->params->optimizer.clip_value > 0.0f)
		return "gradients are clipped, which needs all of them";
	if (r->n_vars < 2)
		return "the model has no other variable";
	return NULL;
}

static tern_status wanted(const tn_replica *r, uint32_t v, bool *yes)
{
	const tern_graph *g = r->model;
	const tn_node *n = &g->nodes[g->tensors[r->var[v]].node];
	uint64_t bytes = 0, least = r->params->sparse_bytes;
	const char *why = NULL;

	TN_TRY(tn_shape_bytes(&g->tensors[r->var[v]].shape, TERN_F32, &bytes));
	*yes = tn_node_int(n, TN_ATTR_SPARSE, 0) || (least && bytes >= least);
	if (*yes)
		why = obstacle(r, v);
	if (!why)
		return TERN_OK;
	*yes = false;
	/* Without servers it is in one place anyway. */
	if (!tn_node_int(n, TN_ATTR_SPARSE, 0) || r->params->servers == 0)
		return TERN_OK;
	return tn_fail(TERN_E_INVALID, "'%s' cannot be sparse: %s", n->name, why);
}

static tern_status set_attrs(tn_node *n, const tn_attr *attrs, uint32_t count)
{
	tn_attr *copy = malloc(count * sizeof(*copy));

	if (!copy)
		return tn_fail(TERN_E_NOMEM, "no memory for node '%s'", n->name);
	memcpy(copy, attrs, count * sizeof(*copy));
	free(n->attrs);
	n->attrs = copy;
	n->n_attrs = count;
	return TERN_OK;
}

/* The table's variable, for its name, shape and initial values. */
static tern_status add_table(tn_replica *r, uint32_t v, uint32_t *number)
{
	const tn_tensor *t = &r->model->tensors[r->var[v]];
	const tn_node *from = &r->model->nodes[t->node];
	tn_node_spec spec = {.op = TN_OP_VARIABLE,
			     .name = from->name,
			     .device = TN_DEVICE_NONE,
			     .dtype = t->dtype,
			     .shape = &t->shape,
			     .init = &from->init,
			     .values = from->data};

	if (!r->tables)
		TN_TRY(tern_graph_create("tables", &r->tables));
	return tn_graph_add(r->tables, &spec, number);
}

static tern_status to_table(tn_replica *r, uint32_t v)
{
	tern_graph *g = r->model;
	const tern_optimizer *o = &r->params->optimizer;
	const tern_shape *shape = &g->tensors[r->var[v]].shape;
	tn_node *pull = only_reader(g, r->var[v]), *push = &g->nodes[g->tensors[r->grad[v]].node];
	uint32_t table = 0, terms = (r->params->sync ? r->params->workers : 1) * r->micro;
	tn_attr attrs[6] = {{0}, tn_attr_int(TN_ATTR_ROWS, (int64_t)shape->dims[0])};

	TN_TRY(add_table(r, v, &table));
	attrs[0] = tn_attr_int(TN_ATTR_TABLE, table);
	attrs[2] = tn_attr_int(TN_ATTR_SIZE, (int64_t)shape->dims[1]);
	TN_TRY(set_attrs(pull, attrs, 3));
	attrs[2] = tn_attr_float(TN_ATTR_GRAD_SCALE, 1.0 / terms);
	attrs[3] = tn_attr_float(TN_ATTR_LR, (double)o->lr);
	attrs[4] = tn_attr_float(TN_ATTR_LR_END, (double)o->lr_end);
	attrs[5] = tn_attr_int(TN_ATTR_LR_STEPS, (int64_t)o->lr_steps);
	TN_TRY(set_attrs(push, attrs, 6));
	attrs[0] = tn_attr_int(TN_ATTR_TABLE, table);
	TN_TRY(set_attrs(&g->nodes[g->tensors[r->var[v]].node], attrs, 1));
	pull->op = TN_OP_PULL_ROWS;
	pull->in[0] = pull->in[1];
	pull->n_in = 1;
	push->op = TN_OP_PUSH_ROWS;
	push->n_out = 0;
	return TERN_OK;
}

tern_status tn_sparse(tn_replica *r)
{
	uint32_t left = 0;

	for (uint32_t v = 0; v < r->n_vars; v++) {
		bool yes = false;

		TN_TRY(wanted(r, v, &yes));
		if (yes) {
			TN_TRY(to_table(r, v));
			continue;
		}
		r->var[left] = r->var[v];
		r->grad[left] = r->grad[v];
		r->ema[left++] = r->ema[v];
	}
	if (left == 0)
		return tn_fail(
			TERN_E_INVALID,
			"'%s': all variables are tables; one at least has to be none: give a higher bound",
			r->model->name);
	r->n_vars = left;
	return TERN_OK;
}

/* ---- for those who look ---- */

/* With the plan's sizes; 1 for what is not known. */
static uint64_t expected(const tern_plan *plan, const tern_graph *g, const tern_shape *shape)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < shape->rank; i++) {
		uint64_t size = shape->dims[i];
		bool varies;

		if (tn_dim_symbolic(size) &&
		    !tn_plan_dim(plan, g->symbols[tn_dim_symbol(size)], &size, &varies))
			size = 1;
		n *= size;
	}
	return n;
}

uint64_t tn_plan_rows(const tern_plan *plan, const tn_device *d, uint32_t table)
{
	uint64_t rows = plan->tables->tensors[table].shape.dims[0], sum = 0;

	for (uint32_t i = 0; i < d->graph->n_nodes; i++) {
		const tn_node *n = &d->graph->nodes[i];

		if (n->op == TN_OP_PULL_ROWS && (uint32_t)tn_node_int(n, TN_ATTR_TABLE, 0) == table)
			sum += TN_MIN(rows, expected(plan, d->graph, &d->graph->tensors[n->in[0]].shape));
	}
	return sum;
}
