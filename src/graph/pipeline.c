/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's copy of the model: split over stages, once per micro-batch, in the order of a pipeline.
 *
 *   stage 0   F0 F1 F2    B0 F3 B1    B2    B3        N = 3 stages, 4 micro-batches: "one forward, one
 *   stage 1      F0 F1 B0 F2 B1 F3 B2    B3           backward" (Narayanan et al., SOSP 2019, and 2021:
 *   stage 2         F0 B0 F1 B1 F2 B2 F3 B3           PipeDream-Flush). Stage s keeps N - s micro-batches
 *
 * Nodes are numbered in this order, which is a topological order of the whole; a control edge from the end of
 * B(m - (N - s)) to the start of F(m) holds a stage to it. Where the stages of a hand-placed model are no
 * pipeline (data goes back to a lower stage before the loss), micro-batches are numbered one behind the other.
 *
 * Gradients are added in the order of the micro-batches, in the memory of the first one's.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/stage_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/replicate.h"

typedef struct copier {
	tn_replica *r;
	uint32_t worker;
	bool *batched;     /* per node of the model */
	uint64_t batch;    /* dim that is cut into micro-batches, 0 = none */
	uint64_t fraction; /* its part */
	uint32_t **map;    /* per micro-batch, per tensor of the model: tensor in placed */
	uint32_t **node;   /* per micro-batch, per node of the model: node in placed, or TN_NONE */
	uint32_t *sum;     /* per variable: gradients so far, or TN_NONE */
	uint32_t *last;    /* per (stage, micro-batch): last node of the backward unit, or TN_NONE */
} copier;

/* ---- names ---- */

/* "worker1/m0/fc1", "worker1/fc1", "m0/fc1", "fc1". */
static void name_copy(const copier *c, uint32_t micro, const char *base, char *name, size_t size)
{
	char m[16] = "", w[24] = "";

	if (micro != TN_NONE)
		snprintf(m, sizeof(m), "m%u/", micro);
	if (c->r->params->servers)
		snprintf(w, sizeof(w), "worker%u/", c->worker);
	snprintf(name, size, "%s%s%s", w, m, base);
}

/* ---- sources: fed tensors and variables ---- */

/* The stages that read a tensor of the model, as a mask by stage. */
static void reading_stages(const tn_replica *r, uint32_t tensor, bool *stage)
{
	memset(stage, 0, r->stages * sizeof(*stage));
	for (uint32_t i = 0; i < r->model->n_nodes; i++) {
		const tn_node *n = &r->model->nodes[i];

		for (uint32_t k = 0; k < n->n_in && n->op != TN_OP_APPLY_EMA; k++)
			stage[n->device] |= n->in[k] == tensor;
	}
}

static tern_status add_part(copier *c, uint32_t tensor, const char *base, uint32_t micro, int32_t device,
			    uint32_t *out)
{
	tn_attr attrs[2] = {tn_attr_int(TN_ATTR_PART, micro), tn_attr_int(TN_ATTR_PARTS, c->r->micro)};
	char name[2 * TN_NAME_MAX];

	name_copy(c, micro, base, name, sizeof(name));
	return tn_graph_add1(c->r->placed, TN_OP_PART, name, &tensor, 1, attrs, 2, device, out);
}

/*
 * A fed tensor on one of the stages that read it: each has its own placeholder, since feeding is free and
 * sending is not. map gets it for the nodes of that stage; see copy_inputs.
 */
static tern_status feed_stage(copier *c, uint32_t i, uint32_t stage, bool alone, uint32_t *tensors)
{
	const tn_node *from = &c->r->model->nodes[i];
	const tn_tensor *t = &c->r->model->tensors[from->out[0]];
	char base[2 * TN_NAME_MAX], name[2 * TN_NAME_MAX];
	int32_t device = tn_stage_device(c->r, c->worker, stage);
	tn_node_spec spec = {.op = TN_OP_PLACEHOLDER,
			     .name = name,
			     .device = device,
			     .dtype = t->dtype,
			     .shape = &t->shape};
	uint32_t node;

	if (alone)
		snprintf(base, sizeof(base), "%s", from->name);
	else
		snprintf(base, sizeof(base), "stage%u/%s", stage, from->name);
	name_copy(c, TN_NONE, base, name, sizeof(name));
	TN_TRY(tn_graph_add(c->r->placed, &spec, &node));
	for (uint32_t p = 0; p < c->r->model->n_ports; p++) {
		const tn_port *port = &c->r->model->ports[p];

		if (port->is_input && port->tensor == from->out[0])
			TN_TRY(tn_graph_add_port(c->r->placed, port->name, c->r->placed->nodes[node].out[0],
						 true));
	}
	for (uint32_t m = 0; m < c->r->micro; m++) {
		tensors[m] = c->r->placed->nodes[node].out[0];
		if (c->batch && t->shape.rank && t->shape.dims[0] == c->batch)
			TN_TRY(add_part(c, tensors[m], base, m, device, &tensors[m]));
	}
	return TERN_OK;
}

/* The variable's tensor on a stage: itself, or its parts joined there. */
static tern_status fetch_variable(copier *c, uint32_t v, uint32_t stage, bool alone, uint32_t *tensor)
{
	const tn_variable *var = &c->r->vars[v];
	const char *own = c->r->model->tensors[c->r->var[v]].name;
	tn_attr axis = tn_attr_int(TN_ATTR_AXIS, tn_part_axis(&var->shape));
	char base[2 * TN_NAME_MAX], name[2 * TN_NAME_MAX];

	if (var->parts == 1) {
		*tensor = c->r->part_var[var->first];
		return TERN_OK;
	}
	if (alone)
		snprintf(base, sizeof(base), "%s", own);
	else
		snprintf(base, sizeof(base), "stage%u/%s", stage, own);
	name_copy(c, TN_NONE, base, name, sizeof(name));
	return tn_graph_add1(c->r->placed, TN_OP_JOIN, name, &c->r->part_var[var->first], var->parts, &axis,
			     axis.u.i ? 1 : 0, tn_stage_device(c->r, c->worker, stage), tensor);
}

/* ---- nodes ---- */

/* Dims that are the batch become those of a micro-batch. */
static void to_fraction(const copier *c, tn_attr *attrs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (attrs[i].key != TN_ATTR_SHAPE)
			continue;
		for (uint32_t k = 0; k < attrs[i].u.ints.n; k++) {
			if ((uint64_t)attrs[i].u.ints.v[k] == c->batch)
				attrs[i].u.ints.v[k] = (int64_t)c->fraction;
		}
	}
}

static tern_status copy_node(copier *c, uint32_t i, uint32_t micro)
{
	const tn_node *from = &c->r->model->nodes[i];
	const tn_tensor *out = from->n_out ? &c->r->model->tensors[from->out[0]] : NULL;
	uint32_t *in = malloc((from->n_in + 1) * sizeof(*in));
	tn_attr *attrs = malloc((from->n_attrs + 1) * sizeof(*attrs));
	bool per_micro = c->batched[i] && c->r->micro > 1;
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = from->op,
			     .name = name,
			     .in = in,
			     .n_in = from->n_in,
			     .attrs = attrs,
			     .n_attrs = from->n_attrs,
			     .device = tn_stage_device(c->r, c->worker, (uint32_t)from->device),
			     .dtype = out ? out->dtype : TERN_F32,
			     .shape = out ? &out->shape : NULL,
			     .values = from->data};
	tern_status st = in && attrs ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for node '%s'", from->name);

	if (st == TERN_OK) {
		for (uint32_t k = 0; k < from->n_in; k++)
			in[k] = c->map[micro][(size_t)from->device * c->r->model->n_tensors + from->in[k]];
		memcpy(attrs, from->attrs, from->n_attrs * sizeof(*attrs));
		if (c->batch && per_micro)
			to_fraction(c, attrs, from->n_attrs);
		name_copy(c, per_micro ? micro : TN_NONE, from->name, name, sizeof(name));
		st = tn_graph_add(c->r->placed, &spec, &c->node[micro][i]);
	}
	free(in);
	free(attrs);
	if (st != TERN_OK)
		return st;
	for (uint32_t m = micro; m < (per_micro ? micro + 1 : c->r->micro); m++) {
		c->node[m][i] = c->node[micro][i];
		for (uint32_t k = 0; k < from->n_out; k++) {
			for (uint32_t s = 0; s < c->r->stages; s++)
				c->map[m][(size_t)s * c->r->model->n_tensors + from->out[k]] =
					c->r->placed->nodes[c->node[micro][i]].out[k];
		}
	}
	return TERN_OK;
}

/* ---- gradients ---- */

/* Whether the sum may be made in the memory of a tensor: nothing but this sum ever writes it. */
static bool may_sum_in(const copier *c, uint32_t v, uint32_t tensor)
{
	const tern_graph *g = c->r->placed;
	uint32_t root = tn_graph_root(g, tensor);
	uint32_t flags = tn_op_flags(g->nodes[g->tensors[root].node].op);

	if (flags & (TN_OPF_SOURCE | TN_OPF_RECV) || g->tensors[root].dtype != TERN_F32 || root != tensor ||
	    g->nodes[g->tensors[root].node].device != g->nodes[g->tensors[tensor].node].device)
		return false;
	for (uint32_t o = 0; o < c->r->n_vars; o++) {
		if (o != v && c->sum[o] != TN_NONE && tn_graph_root(g, c->sum[o]) == root)
			return false;
	}
	return true;
}

/* The gradient of micro-batch `micro` joins the sum of the variable. */
static tern_status add_gradient(copier *c, uint32_t v, uint32_t micro)
{
	const tn_node *n = &c->r->model->nodes[c->r->model->tensors[c->r->grad[v]].node];
	uint32_t term = c->map[micro][(size_t)n->device * c->r->model->n_tensors + c->r->grad[v]];
	char base[2 * TN_NAME_MAX], name[2 * TN_NAME_MAX];
	tn_op op;

	if (micro == 0) {
		c->sum[v] = term;
		return TERN_OK;
	}
	/* What ApplyEma averages is read on the way back: not written before. */
	op = micro > 1 || (c->r->model->tensors[c->r->grad[v]].node >= c->r->n_forward &&
			   may_sum_in(c, v, c->sum[v]))
		     ? TN_OP_ACCUMULATE
		     : TN_OP_ADD_N;
	snprintf(base, sizeof(base), "sum/%s", c->r->model->tensors[c->r->var[v]].name);
	name_copy(c, micro, base, name, sizeof(name));
	return tn_graph_add1(c->r->placed, op, name, (uint32_t[]){c->sum[v], term}, 2, NULL, 0,
			     tn_stage_device(c->r, c->worker, (uint32_t)n->device), &c->sum[v]);
}

/* ---- units ---- */

/* Nodes of a unit that wait for no other node of it start only when `after` is done. */
static tern_status hold_back(copier *c, uint32_t stage, bool forward, uint32_t micro, uint32_t after)
{
	const tern_graph *model = c->r->model, *g = c->r->placed;
	uint32_t lo = forward ? 0 : c->r->n_forward, hi = forward ? c->r->n_forward : model->n_nodes;

	for (uint32_t i = lo; i < hi; i++) {
		const tn_node *n = &model->nodes[i];
		bool inner = false;

		if ((uint32_t)n->device != stage || !c->batched[i] || tn_op_flags(n->op) & TN_OPF_SOURCE)
			continue;
		for (uint32_t k = 0; k < n->n_in; k++) {
			const tn_node *p = &model->nodes[model->tensors[n->in[k]].node];

			inner |= p->device == n->device && p->op != TN_OP_PLACEHOLDER &&
				 c->batched[model->tensors[n->in[k]].node];
		}
		if (!inner)
			TN_TRY(tn_graph_add_control(c->r->placed, after, c->node[micro][i]));
	}
	TN_ASSERT(g == c->r->placed);
	return TERN_OK;
}

static tern_status copy_unit(copier *c, uint32_t stage, bool forward, uint32_t micro)
{
	const tern_graph *model = c->r->model;
	uint32_t lo = forward ? 0 : c->r->n_forward, hi = forward ? c->r->n_forward : model->n_nodes;
	uint32_t *last = &c->last[stage * c->r->micro + micro];

	for (uint32_t i = lo; i < hi; i++) {
		const tn_node *n = &model->nodes[i];

		if ((stage != TN_NONE && (uint32_t)n->device != stage) || c->node[micro][i] != TN_NONE ||
		    n->op == TN_OP_VARIABLE || n->op == TN_OP_PLACEHOLDER || n->op == TN_OP_APPLY_EMA)
			continue;
		TN_TRY(copy_node(c, i, micro));
		if (stage != TN_NONE && !forward && c->batched[i] &&
		    !(tn_op_flags(n->op) & (TN_OPF_SOURCE | TN_OPF_VIEW)))
			*last = c->node[micro][i];
	}
	for (uint32_t v = 0; v < c->r->n_vars; v++) {
		uint32_t node = model->tensors[c->r->grad[v]].node;

		if (node >= lo && node < hi &&
		    (stage == TN_NONE || (uint32_t)model->nodes[node].device == stage))
			TN_TRY(add_gradient(c, v, micro));
	}
	return TERN_OK;
}

/* Whether data flows up the stages before the loss and down them after it. */
static bool is_pipeline(const tn_replica *r)
{
	for (uint32_t i = 0; i < r->model->n_nodes; i++) {
		const tn_node *n = &r->model->nodes[i];

		for (uint32_t k = 0; k < n->n_in; k++) {
			uint32_t from = r->model->tensors[n->in[k]].node;
			int32_t device = r->model->nodes[from].device;

			if (tn_op_flags(r->model->nodes[from].op) & TN_OPF_SOURCE)
				continue;
			if (i < r->n_forward && device > n->device)
				return false;
			if (i >= r->n_forward && from >= r->n_forward && device < n->device)
				return false;
			if (i >= r->n_forward && from < r->n_forward && device > n->device)
				return false;
		}
	}
	return true;
}

/* Which unit is number `at` of a stage: warm-up forwards, then one backward and one forward in turn. */
static bool unit_at(const tn_replica *r, uint32_t stage, uint32_t at, uint32_t *micro)
{
	uint32_t warm = TN_MIN(r->stages - stage, r->micro);

	if (at < warm) {
		*micro = at;
		return true;
	}
	at -= warm;
	/* B0 Fw B1 Fw+1 ... until the forwards are out, then backwards alone */
	if (at >= 2 * (r->micro - warm)) {
		*micro = r->micro - warm + (at - 2 * (r->micro - warm));
		return false;
	}
	*micro = at % 2 ? warm + at / 2 : at / 2;
	return at % 2 == 1;
}

/* Units in an order in which each comes after those it needs: one per stage and round. */
static tern_status copy_pipeline(copier *c)
{
	const tn_replica *r = c->r;
	uint32_t *at = calloc(r->stages, sizeof(*at));                    /* units done */
	uint32_t *done[2] = {calloc(r->stages, 4), calloc(r->stages, 4)}; /* micro-batches done: B, F */
	uint32_t left = r->stages * r->micro * 2;
	tern_status st =
		at && done[0] && done[1] ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a pipeline");

	while (left > 0 && st == TERN_OK) {
		uint32_t before = left;

		for (uint32_t s = 0; s < r->stages && st == TERN_OK; s++) {
			uint32_t m = 0, keep = r->stages - s;
			bool forward;

			if (at[s] == 2 * r->micro)
				continue;
			forward = unit_at(r, s, at[s], &m);
			if (forward ? s > 0 && done[1][s - 1] <= m
				    : done[1][s] <= m || (s + 1 < r->stages && done[0][s + 1] <= m))
				continue;
			st = copy_unit(c, s, forward, m);
			if (st == TERN_OK && forward && m >= keep &&
			    c->last[s * r->micro + m - keep] != TN_NONE)
				st = hold_back(c, s, true, m, c->last[s * r->micro + m - keep]);
			done[forward][s]++;
			at[s]++;
			left--;
		}
		TN_ASSERT(left < before || st != TERN_OK);
	}
	free(at);
	free(done[0]);
	free(done[1]);
	return st;
}

static tern_status copy_in_turn(copier *c)
{
	for (uint32_t m = 0; m < c->r->micro; m++) {
		TN_TRY(copy_unit(c, TN_NONE, true, m));
		TN_TRY(copy_unit(c, TN_NONE, false, m));
	}
	return TERN_OK;
}

/* ---- ports ---- */

/* What a port yields of several micro-batches: rows joined, means averaged, counts added. */
static tern_status gather_port(copier *c, const tn_port *p, uint32_t *tensors, uint32_t *out)
{
	const tn_tensor *t = &c->r->model->tensors[p->tensor];
	const tn_node *from = &c->r->model->nodes[t->node];
	int32_t device = tn_stage_device(c->r, c->worker, (uint32_t)from->device);
	uint32_t n = c->r->micro;
	tn_attr scale = tn_attr_float(TN_ATTR_SCALE, 1.0 / n);
	char base[2 * TN_NAME_MAX], name[2 * TN_NAME_MAX];

	snprintf(base, sizeof(base), "port/%s", p->name);
	name_copy(c, TN_NONE, base, name, sizeof(name));
	if (t->shape.rank > 0 && t->shape.dims[0] == c->batch)
		return tn_graph_add1(c->r->placed, TN_OP_JOIN, name, tensors, n, NULL, 0, device, out);
	if (t->shape.rank > 0 || (t->dtype != TERN_F32 && t->dtype != TERN_I32)) {
		return tn_fail(
			TERN_E_UNSUPPORTED,
			"output port '%s' has neither rows of the batch nor a single f32 or i32: it can't be "
			"put together from %u micro-batches",
			p->name, n);
	}
	if (t->dtype == TERN_I32) {
		*out = tensors[0];
		for (uint32_t m = 1; m < n; m++) {
			name_copy(c, m, base, name, sizeof(name));
			TN_TRY(tn_graph_add1(c->r->placed, TN_OP_ACCUMULATE, name,
					     (uint32_t[]){*out, tensors[m]}, 2, NULL, 0, device, out));
		}
		return TERN_OK;
	}
	TN_TRY(tn_graph_add1(c->r->placed, TN_OP_ADD_N, name, tensors, n, NULL, 0, device, out));
	snprintf(base, sizeof(base), "port/%s/mean", p->name);
	name_copy(c, TN_NONE, base, name, sizeof(name));
	return tn_graph_add1(c->r->placed, TN_OP_SCALE, name, out, 1, &scale, 1, device, out);
}

static tern_status add_output(copier *c, const tn_port *p)
{
	const tern_graph *model = c->r->model;
	const tn_node *from = &model->nodes[model->tensors[p->tensor].node];
	uint32_t *tensors = calloc(c->r->micro, sizeof(*tensors)), out = TN_NONE;
	tern_status st = tensors ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for port '%s'", p->name);

	for (uint32_t m = 0; m < c->r->micro && tensors; m++)
		tensors[m] = c->map[m][(size_t)from->device * model->n_tensors + p->tensor];
	if (st == TERN_OK)
		out = tensors[0];
	if (st == TERN_OK && c->r->micro > 1 && c->batched[model->tensors[p->tensor].node] &&
	    from->op != TN_OP_PLACEHOLDER)
		st = gather_port(c, p, tensors, &out);
	free(tensors);
	return st == TERN_OK ? tn_graph_add_port(c->r->placed, p->name, out, false) : st;
}

/* ---- all of it ---- */

static tern_status map_sources(copier *c)
{
	const tern_graph *model = c->r->model;
	bool *reads = calloc(c->r->stages, sizeof(*reads));
	uint32_t *tensors = calloc(c->r->micro, sizeof(*tensors)), v = 0;
	tern_status st = reads && tensors ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a worker");

	for (uint32_t i = 0; i < model->n_nodes && st == TERN_OK; i++) {
		const tn_node *n = &model->nodes[i];
		uint32_t readers = 0;

		if ((n->op != TN_OP_PLACEHOLDER && n->op != TN_OP_VARIABLE) || tn_node_attr(n, TN_ATTR_TABLE))
			continue;
		reading_stages(c->r, n->out[0], reads);
		for (uint32_t s = 0; s < c->r->stages; s++)
			readers += reads[s];
		if (readers == 0)
			reads[n->device] = true;
		for (uint32_t s = 0; s < c->r->stages && st == TERN_OK; s++) {
			if (!reads[s])
				continue;
			if (n->op == TN_OP_PLACEHOLDER)
				st = feed_stage(c, i, s, readers <= 1, tensors);
			else
				st = fetch_variable(c, v, s, readers <= 1, &tensors[0]);
			for (uint32_t m = 0; m < c->r->micro; m++)
				c->map[m][(size_t)s * model->n_tensors + n->out[0]] =
					tensors[n->op == TN_OP_PLACEHOLDER ? m : 0];
		}
		v += n->op == TN_OP_VARIABLE;
	}
	free(reads);
	free(tensors);
	return st;
}

static tern_status copy_controls(copier *c)
{
	for (uint32_t m = 0; m < c->r->micro; m++) {
		for (uint32_t i = 0; i < c->r->model->n_nodes; i++) {
			const tn_node *n = &c->r->model->nodes[i];

			for (uint32_t k = 0; k < n->n_ctrl; k++) {
				uint32_t a = c->node[m][n->ctrl[k]], b = c->node[m][i];

				/* sources are there before everything else */
				if (a != TN_NONE && b != TN_NONE)
					TN_TRY(tn_graph_add_control(c->r->placed, a, b));
			}
		}
	}
	return TERN_OK;
}

static void mark_batched(copier *c)
{
	const tern_graph *g = c->r->model;

	for (uint32_t i = 0; i < g->n_nodes; i++) {
		c->batched[i] = g->nodes[i].op == TN_OP_PLACEHOLDER;
		for (uint32_t k = 0; k < g->nodes[i].n_in; k++)
			c->batched[i] |= c->batched[g->tensors[g->nodes[i].in[k]].node];
	}
}

/* A micro-batch is a range of rows: only the first dim can be cut. */
static tern_status check_feeds(const copier *c)
{
	for (uint32_t i = 0; i < c->r->model->n_nodes; i++) {
		const tn_node *n = &c->r->model->nodes[i];
		const tn_tensor *t = n->n_out ? &c->r->model->tensors[n->out[0]] : NULL;

		for (uint32_t k = 1; n->op == TN_OP_PLACEHOLDER && k < t->shape.rank; k++) {
			if (t->shape.dims[k] == c->batch)
				return tn_fail(TERN_E_UNSUPPORTED,
					       "'%s' has the batch as dim %u: only a batch that is dim 0 can "
					       "be cut into "
					       "micro-batches",
					       n->name, k);
		}
	}
	return TERN_OK;
}

static tern_status find_batch(copier *c)
{
	char name[TN_NAME_MAX + 16];
	uint32_t symbol = tn_graph_symbol_find(c->r->placed, "batch");

	if (c->r->micro == 1)
		return TERN_OK;
	if (symbol == TN_NONE)
		return tn_fail(TERN_E_INVALID, "graph '%s' has no dim 'batch' to cut into %u micro-batches",
			       c->r->model->name, c->r->micro);
	c->batch = UINT64_MAX - symbol;
	TN_TRY(check_feeds(c));
	snprintf(name, sizeof(name), "batch/%u", c->r->micro);
	return tern_graph_symbol(c->r->placed, name, &c->fraction);
}

static tern_status alloc_copier(copier *c)
{
	const tn_replica *r = c->r;
	size_t n = (size_t)r->stages * r->model->n_tensors + 1;

	c->batched = calloc(r->model->n_nodes + 1, sizeof(*c->batched));
	c->map = calloc(r->micro, sizeof(*c->map));
	c->node = calloc(r->micro, sizeof(*c->node));
	c->sum = calloc(r->n_vars + 1, sizeof(*c->sum));
	c->last = calloc((size_t)r->stages * r->micro, sizeof(*c->last));
	if (!c->batched || !c->map || !c->node || !c->sum || !c->last)
		return tn_fail(TERN_E_NOMEM, "no memory for worker %u", c->worker);
	for (uint32_t m = 0; m < r->micro; m++) {
		c->map[m] = malloc(n * sizeof(**c->map));
		c->node[m] = malloc((r->model->n_nodes + 1) * sizeof(**c->node));
		if (!c->map[m] || !c->node[m])
			return tn_fail(TERN_E_NOMEM, "no memory for worker %u", c->worker);
		memset(c->map[m], 0xff, n * sizeof(**c->map));
		memset(c->node[m], 0xff, (r->model->n_nodes + 1) * sizeof(**c->node));
	}
	memset(c->last, 0xff, (size_t)r->stages * r->micro * sizeof(*c->last));
	memset(c->sum, 0xff, (r->n_vars + 1) * sizeof(*c->sum));
	return TERN_OK;
}

static tern_status copy_model(copier *c)
{
	TN_TRY(alloc_copier(c));
	TN_TRY(find_batch(c));
	mark_batched(c);
	TN_TRY(map_sources(c));
	if (c->r->stages > 1 && is_pipeline(c->r))
		TN_TRY(copy_pipeline(c));
	else
		TN_TRY(copy_in_turn(c));
	TN_TRY(copy_controls(c));
	for (uint32_t i = 0; i < c->r->model->n_ports; i++) {
		if (!c->r->model->ports[i].is_input)
			TN_TRY(add_output(c, &c->r->model->ports[i]));
	}
	for (uint32_t v = 0; v < c->r->n_vars; v++)
		c->r->worker_grad[c->worker * c->r->n_vars + v] = c->sum[v];
	return TERN_OK;
}

tern_status tn_replicate_worker(tn_replica *r, uint32_t worker)
{
	copier c = {.r = r, .worker = worker};
	tern_status st = copy_model(&c);

	for (uint32_t m = 0; m < r->micro; m++) {
		if (c.map)
			free(c.map[m]);
		if (c.node)
			free(c.node[m]);
	}
	free(c.batched);
	free(c.map);
	free(c.node);
	free(c.sum);
	free(c.last);
	return st;
}
