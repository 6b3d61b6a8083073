/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importer's walk over a file: opset, initialisers, inputs, nodes in order, outputs; what each name stands
 * for; and what is said when something cannot be imported. See import.h. Knows no op.
 *
 * Thread story: see import.h. Tests: tests/unit/graph/onnx_test.c, tests/onnx/node_test.py, fuzz/onnx_model.c.
 */
#include "graph/onnx/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

#define NOTES_LENGTH 400 /* of a detail text, which has TN_DETAIL_MAX */

/* ---- what is wrong ---- */

/* The latest failure in this thread is one more reason why the import fails. */
static void note(tn_ox *x, tern_status status)
{
	const char *text = tn_detail_get();

	if (x->n_notes++ == 0)
		x->first = status;
	if (x->notes.length + strlen(text) < NOTES_LENGTH || x->n_notes == 1)
		tn_str_addf(&x->notes, "%s%s", x->notes.length ? "; " : "", text);
	if (x->params->report)
		x->params->report(x->params->report_arg, text);
}

static tern_status verdict(const tn_ox *x)
{
	if (x->n_notes == 0)
		return TERN_OK;
	return tn_fail(x->first, "%u thing%s of '%s' cannot be imported: %s", x->n_notes,
		       x->n_notes == 1 ? "" : "s", x->model->name, x->notes.text ? x->notes.text : "");
}

/* ---- names ---- */

static uint32_t hash_of(const char *s)
{
	uint32_t h = 2166136261u;

	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 16777619u;
	return h;
}

static uint32_t find_value(const tn_ox *x, const char *name)
{
	for (uint32_t i = hash_of(name) & (x->cap_names - 1); x->names[i]; i = (i + 1) & (x->cap_names - 1)) {
		if (strcmp(x->values[x->names[i] - 1].name, name) == 0)
			return x->names[i] - 1;
	}
	return TN_NONE;
}

/* A new name. Room for all names of the file was made at the start. */
static tern_status define(tn_ox *x, const char *name, tn_ox_value **value)
{
	uint32_t i;

	if (find_value(x, name) != TN_NONE)
		return tn_fail(TERN_E_CORRUPT, "'%.100s' is made twice", name);
	TN_ASSERT(x->n_values < x->cap_values);
	for (i = hash_of(name) & (x->cap_names - 1); x->names[i];)
		i = (i + 1) & (x->cap_names - 1);
	x->names[i] = x->n_values + 1;
	*value = &x->values[x->n_values++];
	**value = (tn_ox_value){.name = name, .tensor = TN_NONE, .scratch = TN_NONE};
	return TERN_OK;
}

static tern_status make_room(tn_ox *x)
{
	uint64_t n = 1 + x->proto->n_initializer + x->proto->n_input, cap = 64;

	for (size_t i = 0; i < x->proto->n_node; i++)
		n += x->proto->node[i]->n_output;
	if (n > UINT32_MAX / 8)
		return tn_fail(TERN_E_TOO_LARGE, "the model has %" PRIu64 " names", n);
	while (cap < 2 * n)
		cap *= 2;
	x->cap_values = (uint32_t)n;
	x->cap_names = (uint32_t)cap;
	x->values = calloc(n, sizeof(*x->values));
	x->names = calloc(cap, sizeof(*x->names));
	if (!x->values || !x->names)
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " names", n);
	return TERN_OK;
}

/* A node's name in the graph: the file's, cut to fit, and made unique. */
static const char *graph_name(const tern_graph *g, const char *wish, char buf[TN_NAME_MAX])
{
	if (strlen(wish) < TN_NAME_MAX)
		snprintf(buf, TN_NAME_MAX, "%s", *wish ? wish : "unnamed");
	else
		snprintf(buf, TN_NAME_MAX, "%.100s~%08x", wish, hash_of(wish));
	for (unsigned k = strlen(wish) > 80 ? g->n_nodes : 2; tn_graph_find(g, buf) != TN_NONE; k++) {
		char cut[101];

		snprintf(cut, sizeof(cut), "%.100s", wish);
		snprintf(buf, TN_NAME_MAX, "%s~%u", cut, k);
	}
	return buf;
}

/* ---- values in the graph ---- */

static tern_status add_source(tn_ox *x, tn_op op, const tn_ox_value *v, uint32_t *tensor)
{
	tern_init init = {.kind = TERN_INIT_DATA};
	char name[TN_NAME_MAX];
	tn_node_spec spec = {.op = op,
			     .name = graph_name(x->graph, v->name, name),
			     .device = TN_DEVICE_NONE,
			     .dtype = v->dtype,
			     .shape = &v->shape,
			     .init = op == TN_OP_VARIABLE ? &init : NULL,
			     .values = op == TN_OP_PLACEHOLDER ? NULL : v->data};
	uint32_t node;

	TN_TRY(tn_graph_add(x->graph, &spec, &node));
	*tensor = x->graph->nodes[node].out[0];
	return TERN_OK;
}

static tern_status add_placeholder(tn_ox *x, tn_ox_value *v)
{
	TN_TRY(add_source(x, TN_OP_PLACEHOLDER, v, &v->tensor));
	return tn_graph_add_port(x->graph, v->name, v->tensor, true);
}

/* The first symbol among the elements. */
static const char *symbol_in(const tn_ox *x, const tn_ox_value *v)
{
	uint64_t n = 0;

	if (tn_shape_elements(&v->shape, &n) != TERN_OK)
		return "";
	for (uint64_t i = 0; i < n; i++) {
		int64_t e = ((const int64_t *)v->data)[i];

		if (tn_ox_is_symbol(e))
			return x->model->symbols[e - TN_OX_SYMBOL];
	}
	return "";
}

tern_status tn_ox_materialise(tn_ox *x, tn_ox_value *v, uint32_t *tensor)
{
	tern_status st = TERN_OK;

	TN_ASSERT(v->kind != TN_OX_LOST);
	if (x->folding && v->scratch == TN_NONE) {
		TN_ASSERT(v->kind == TN_OX_CONST);
		st = add_source(x, TN_OP_CONSTANT, v, &v->scratch);
	} else if (!x->folding && v->tensor == TN_NONE && v->symbols) {
		st = tn_fail(TERN_E_UNSUPPORTED,
			     "'%.100s' is computed from the symbolic dim '%s': give its size", v->name,
			     symbol_in(x, v));
	} else if (!x->folding && v->tensor == TN_NONE && v->kind == TN_OX_INPUT) {
		st = add_placeholder(x, v);
	} else if (!x->folding && v->tensor == TN_NONE) {
		st = add_source(x, v->kind == TN_OX_WEIGHT ? TN_OP_VARIABLE : TN_OP_CONSTANT, v, &v->tensor);
	}
	*tensor = x->folding ? v->scratch : v->tensor;
	return st;
}

tern_status tn_ox_frozen_tensor(tn_ox *x, uint32_t i, uint32_t *tensor)
{
	const tn_ox_value *v = tn_ox_in(x, i);

	if (!v || v->kind != TN_OX_WEIGHT)
		return tn_ox_tensor(x, i, tensor);
	return add_source(x, TN_OP_CONSTANT, v, tensor);
}

/* ---- initialisers and inputs ---- */

static tern_status take_initialiser(tn_ox *x, Onnx__TensorProto *t)
{
	const char *name = t->name ? t->name : "";
	tn_ox_value *v;

	TN_TRY(define(x, name, &v));
	TN_TRY(tn_ox_tensor_read(t, name, x->folder, &v->dtype, &v->shape, &v->data));
	/* scalars are parts of formulas, not weights */
	v->kind =
		v->dtype == TERN_F32 && v->shape.rank > 0 && !x->params->frozen ? TN_OX_WEIGHT : TN_OX_CONST;
	return TERN_OK;
}

static const tern_array *offered(const tn_ox *x, const char *name)
{
	for (uint32_t i = 0; i < x->params->n_values; i++) {
		if (strcmp(x->params->values[i].name, name) == 0)
			return &x->params->values[i];
	}
	return NULL;
}

static const Onnx__TensorShapeProto *declared_shape(const Onnx__ValueInfoProto *info)
{
	return info->type && info->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
			       info->type->tensor_type
		       ? info->type->tensor_type->shape
		       : NULL;
}

/* The sizes of named dims, from the shapes of the values that are offered for an input. */
static tern_status bind_sizes(tn_ox *x, const Onnx__ValueInfoProto *info)
{
	const tern_array *a = info->name ? offered(x, info->name) : NULL;
	const Onnx__TensorShapeProto *s = declared_shape(info);

	if (!x->params->bind || !a || !s || s->n_dim != a->shape.rank)
		return TERN_OK;
	for (size_t i = 0; i < s->n_dim; i++) {
		const Onnx__TensorShapeProto__Dimension *d = s->dim[i];
		uint32_t k = 0;

		if (d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM || !d->dim_param ||
		    !*d->dim_param)
			continue;
		while (k < x->n_bound && strcmp(x->bound[k].name, d->dim_param) != 0)
			k++;
		if (k == TN_OX_BOUND_MAX)
			return tn_fail(TERN_E_LIMIT, "input '%.100s': more than %u dims have names",
				       info->name, TN_OX_BOUND_MAX);
		if (k == x->n_bound)
			x->bound[x->n_bound++] = (tern_size){d->dim_param, a->shape.dims[i]};
		if (x->bound[k].size != a->shape.dims[i])
			return tn_fail(TERN_E_SHAPE,
				       "input '%.100s': dim %zu, '%.60s', is %" PRIu64 " here and %" PRIu64
				       " elsewhere",
				       info->name, i, d->dim_param, a->shape.dims[i], x->bound[k].size);
	}
	return TERN_OK;
}

static bool find_size(const tern_size *sizes, uint32_t n, const char *name, uint64_t *size)
{
	for (uint32_t i = 0; i < n; i++) {
		if (strcmp(sizes[i].name, name) == 0) {
			*size = sizes[i].size;
			return true;
		}
	}
	return false;
}

static tern_status take_dim(tn_ox *x, const char *input, size_t i, const Onnx__TensorShapeProto__Dimension *d,
			    uint64_t *dim)
{
	const tern_array *a = x->params->bind ? offered(x, input) : NULL;
	char name[TN_NAME_MAX];

	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
		if (d->dim_value < 0)
			return tn_fail(TERN_E_CORRUPT, "input '%.100s': dim %zu is %" PRIi64, input, i,
				       d->dim_value);
		*dim = (uint64_t)d->dim_value;
		return TERN_OK;
	}
	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && d->dim_param &&
	    *d->dim_param)
		snprintf(name, sizeof(name), "%s", d->dim_param);
	else
		snprintf(name, sizeof(name), "%.100s_dim%zu", input, i);
	if (find_size(x->params->sizes, x->params->n_sizes, name, dim) ||
	    find_size(x->bound, x->n_bound, name, dim))
		return TERN_OK;
	if (a && i < a->shape.rank && d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM) {
		*dim = a->shape.dims[i];
		return TERN_OK;
	}
	return tern_graph_symbol(x->model, name, dim);
}

static tern_status take_type(tn_ox *x, const Onnx__ValueInfoProto *info, tn_ox_value *v)
{
	const Onnx__TypeProto__Tensor *t =
		info->type && info->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
			? info->type->tensor_type
			: NULL;

	if (!t || !t->has_elem_type)
		return tn_fail(TERN_E_UNSUPPORTED, "input '%.100s' is no tensor with a type", v->name);
	v->dtype = tn_ox_dtype(t->elem_type);
	if (!v->dtype)
		return tn_fail(TERN_E_UNSUPPORTED, "input '%.100s': tern has no type %s", v->name,
			       tn_ox_dtype_name(t->elem_type));
	if (!t->shape) {
		const tern_array *a = offered(x, v->name);

		if (!a)
			return tn_fail(TERN_E_UNSUPPORTED, "input '%.100s' has no shape in the file",
				       v->name);
		v->shape = a->shape;
		return TERN_OK;
	}
	if (t->shape->n_dim > TERN_RANK_MAX)
		return tn_fail(TERN_E_UNSUPPORTED, "input '%.100s': rank %zu is above %d", v->name,
			       t->shape->n_dim, TERN_RANK_MAX);
	v->shape.rank = (uint32_t)t->shape->n_dim;
	for (uint32_t i = 0; i < v->shape.rank; i++)
		TN_TRY(take_dim(x, v->name, i, t->shape->dim[i], &v->shape.dims[i]));
	return TERN_OK;
}

/* The value that the caller offers for an input must be one that could be fed. */
static tern_status take_offer(tn_ox_value *v, const tern_array *a)
{
	bool fits = a->dtype == v->dtype && a->shape.rank == v->shape.rank;
	uint64_t bytes;

	for (uint32_t i = 0; i < v->shape.rank && fits; i++)
		fits = tn_dim_symbolic(v->shape.dims[i]) || v->shape.dims[i] == a->shape.dims[i];
	if (!fits)
		return tn_fail(TERN_E_SHAPE, "the value for input '%.100s' is not of its type and shape",
			       v->name);
	TN_TRY(tn_shape_bytes(&a->shape, a->dtype, &bytes));
	v->data = tn_values_new(a->data, bytes);
	if (!v->data)
		return tn_fail(TERN_E_NOMEM, "no memory for the value of '%.100s'", v->name);
	v->kind = TN_OX_INPUT;
	v->shape = a->shape;
	return TERN_OK;
}

static tern_status take_input(tn_ox *x, const Onnx__ValueInfoProto *info)
{
	const char *name = info->name ? info->name : "";
	const tern_array *a = offered(x, name);
	tn_ox_value *v;

	if (find_value(x, name) != TN_NONE)
		return TERN_OK; /* files of the first versions list initialisers among inputs */
	TN_TRY(define(x, name, &v));
	TN_TRY(take_type(x, info, v));
	if (a && (!tn_shape_symbolic(&v->shape) || v->shape.rank == 1))
		return take_offer(v, a);
	v->kind = TN_OX_TENSOR;
	TN_TRY(add_placeholder(x, v));
	return TERN_OK;
}

/* ---- nodes ---- */

static const char *node_name(const Onnx__NodeProto *n)
{
	if (n->name && *n->name)
		return n->name;
	return n->n_output && n->output[0] ? n->output[0] : "";
}

tern_status tn_ox_fail(const tn_ox *x, tern_status status, const char *fmt, ...)
{
	char text[TN_DETAIL_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return tn_fail(status, "%.60s '%.100s': %s", x->node->op_type, node_name(x->node), text);
}

static tern_status find_row(tn_ox *x)
{
	const Onnx__NodeProto *n = x->node;
	const char *domain = n->domain ? n->domain : "";

	if (!n->op_type)
		return tn_fail(TERN_E_CORRUPT, "node '%.100s' has no op", node_name(n));
	x->op = *domain && strcmp(domain, "ai.onnx") != 0 ? NULL : tn_ox_find_op(n->op_type);
	if (!x->op)
		return tn_fail(TERN_E_UNSUPPORTED, "%.60s%s%.60s '%.100s': tern has no such op", domain,
			       *domain ? "." : "", n->op_type, node_name(n));
	if (x->opset < x->op->since)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "its definition in opset %" PRIi64 " is older than %u, which tern knows",
				  x->opset, x->op->since);
	if (n->n_input < x->op->in_min || (n->n_input > x->op->in_max && x->op->in_max != 255) ||
	    n->n_input > TN_OX_IN_MAX)
		return tn_ox_fail(x, TERN_E_CORRUPT, "it cannot have %zu inputs", n->n_input);
	if (n->n_output == 0 || (n->n_output > x->op->outs && x->op->outs != 255))
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it cannot have %zu outputs here", n->n_output);
	return TERN_OK;
}

/* lost: an input was made by a node that could not be imported. */
static tern_status find_inputs(tn_ox *x, bool *lost)
{
	const Onnx__NodeProto *n = x->node;

	*lost = false;
	for (size_t i = 0; i < n->n_input; i++) {
		x->in[i] = TN_NONE;
		if (!n->input[i] || !*n->input[i])
			continue;
		x->in[i] = find_value(x, n->input[i]);
		if (x->in[i] == TN_NONE)
			return tn_ox_fail(x, TERN_E_CORRUPT,
					  "its input '%.100s' is made by no node before it", n->input[i]);
		*lost |= x->values[x->in[i]].kind == TN_OX_LOST;
	}
	for (size_t i = 0; i < n->n_input && i < x->op->in_min; i++) {
		if (x->in[i] == TN_NONE)
			return tn_ox_fail(x, TERN_E_CORRUPT, "its input %zu is missing", i);
	}
	return TERN_OK;
}

static tern_status handle(tn_ox *x)
{
	tern_status st;

	x->made = 0;
	x->bad_attr = NULL;
	st = tn_ox_foldable(x) ? tn_ox_fold(x) : TERN_E_UNSUPPORTED;
	if (st == TERN_E_UNSUPPORTED) { /* not folded: then it runs */
		for (size_t i = 0; i < x->node->n_output; i++) {
			tn_values_unref(x->results[i].data);
			x->results[i] = (tn_ox_result){.tensor = TN_NONE};
		}
		st = x->op->handler(x);
	}
	if (st == TERN_OK && x->bad_attr)
		st = tn_ox_fail(x, TERN_E_CORRUPT, "its attribute '%.60s' is of another type", x->bad_attr);
	return st;
}

/* The result of an output becomes what its name stands for. */
static tern_status bind_output(tn_ox *x, size_t i)
{
	tn_ox_result *r = &x->results[i];
	tn_ox_value *v;

	if (!x->node->output[i] || !*x->node->output[i])
		return TERN_OK;
	if (r->tensor == TN_NONE && !r->data)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern does not make its output %zu, '%.100s'", i,
				  x->node->output[i]);
	TN_TRY(define(x, x->node->output[i], &v));
	v->tensor = r->tensor;
	v->kind = r->tensor != TN_NONE ? TN_OX_TENSOR : r->weight ? TN_OX_WEIGHT : TN_OX_CONST;
	v->dtype = r->tensor == TN_NONE ? r->dtype : x->model->tensors[r->tensor].dtype;
	v->shape = r->tensor == TN_NONE ? r->shape : x->model->tensors[r->tensor].shape;
	v->data = r->data;
	v->symbols = r->symbols;
	r->data = NULL;
	return TERN_OK;
}

/* What the node should have made is lost; what depends on it is not worth a word. */
static void lose_outputs(tn_ox *x)
{
	tn_ox_value *v;

	for (size_t i = 0; i < x->node->n_output; i++) {
		if (x->node->output[i] && *x->node->output[i] && find_value(x, x->node->output[i]) == TN_NONE)
			define(x, x->node->output[i], &v);
	}
}

static void take_node(tn_ox *x)
{
	bool lost = false;
	tern_status st = find_row(x);

	x->in = calloc(x->node->n_input + 1, sizeof(*x->in));
	x->results = calloc(x->node->n_output + 1, sizeof(*x->results));
	if (!x->in || !x->results)
		st = tn_fail(TERN_E_NOMEM, "no memory for node '%.100s'", node_name(x->node));
	for (size_t i = 0; i < x->node->n_output && x->results; i++)
		x->results[i].tensor = TN_NONE;
	if (st == TERN_OK)
		st = find_inputs(x, &lost);
	if (st == TERN_OK && !lost)
		st = handle(x);
	for (size_t i = 0; i < x->node->n_output && st == TERN_OK && !lost; i++)
		st = bind_output(x, i);
	if (st != TERN_OK)
		note(x, st);
	if (st != TERN_OK || lost)
		lose_outputs(x);
	for (size_t i = 0; i < x->node->n_output && x->results; i++)
		tn_values_unref(x->results[i].data);
	free(x->in);
	free(x->results);
	x->in = NULL;
	x->results = NULL;
}

/* ---- the whole ---- */

static tern_status find_opset(tn_ox *x, const Onnx__ModelProto *model)
{
	for (size_t i = 0; i < model->n_opset_import; i++) {
		const Onnx__OperatorSetIdProto *o = model->opset_import[i];

		if (o->has_version && (!o->domain || !*o->domain || strcmp(o->domain, "ai.onnx") == 0))
			x->opset = o->version;
	}
	if (x->opset >= 1 && x->opset <= TN_OX_OPSET_MAX)
		return TERN_OK;
	return tn_fail(TERN_E_UNSUPPORTED, "the model is of opset %" PRIi64 "; tern reads %d to %d", x->opset,
		       TN_OX_OPSET_MIN, TN_OX_OPSET_MAX);
}

static void take_outputs(tn_ox *x)
{
	for (size_t i = 0; i < x->proto->n_output; i++) {
		const char *name = x->proto->output[i]->name ? x->proto->output[i]->name : "";
		uint32_t v = find_value(x, name), tensor;
		tern_status st = TERN_OK;

		if (v == TN_NONE)
			st = tn_fail(TERN_E_CORRUPT, "output '%.100s' is made by no node", name);
		else if (x->values[v].kind != TN_OX_LOST)
			st = tn_ox_materialise(x, &x->values[v], &tensor);
		if (st == TERN_OK && x->values[v].kind != TN_OX_LOST)
			st = tn_graph_port(x->model, name, false) == TN_NONE
				     ? tn_graph_add_port(x->model, name, tensor, false)
				     : tn_fail(TERN_E_CORRUPT, "output '%.100s' is there twice", name);
		if (st != TERN_OK)
			note(x, st);
	}
}

/* Inputs that nothing used are ports all the same. */
static void leave_inputs(tn_ox *x)
{
	for (uint32_t i = 0; i < x->n_values; i++) {
		tn_ox_value *v = &x->values[i];
		tern_status st = TERN_OK;

		if (v->kind == TN_OX_INPUT && !v->asked && v->tensor == TN_NONE)
			st = add_placeholder(x, v);
		if (st != TERN_OK)
			note(x, st);
	}
}

static void walk(tn_ox *x)
{
	for (size_t i = 0; i < x->proto->n_initializer; i++) {
		tern_status st = take_initialiser(x, x->proto->initializer[i]);

		if (st != TERN_OK)
			note(x, st);
	}
	if (x->proto->n_sparse_initializer)
		note(x, tn_fail(TERN_E_UNSUPPORTED, "sparse initialisers are not read"));
	for (size_t i = 0; i < x->proto->n_input; i++) {
		tern_status st = bind_sizes(x, x->proto->input[i]);

		if (st != TERN_OK)
			note(x, st);
	}
	for (size_t i = 0; i < x->proto->n_input; i++) {
		tern_status st = take_input(x, x->proto->input[i]);

		if (st != TERN_OK)
			note(x, st);
	}
	for (size_t i = 0; i < x->proto->n_node; i++) {
		x->node = x->proto->node[i];
		take_node(x);
	}
	take_outputs(x);
	leave_inputs(x);
}

static tern_status import(tn_ox *x, const Onnx__ModelProto *model)
{
	tern_status st;

	TN_TRY(find_opset(x, model));
	TN_TRY(make_room(x));
	TN_TRY(tern_graph_create(x->proto->name ? x->proto->name : "", &x->model));
	x->graph = x->model;
	tn_str_init(&x->notes);
	walk(x);
	st = verdict(x);
	tn_str_fini(&x->notes);
	return st == TERN_OK ? tern_graph_check(x->model) : st;
}

static tern_status check_params(const tern_onnx_params *p)
{
	if ((p->n_sizes && !p->sizes) || (p->n_values && !p->values))
		return tn_fail(TERN_E_INVALID, "sizes and values must not be NULL if there are any");
	for (uint32_t i = 0; i < p->n_sizes; i++) {
		if (!p->sizes[i].name || p->sizes[i].size > UINT64_C(1) << 48)
			return tn_fail(TERN_E_INVALID, "size %u needs a name and a size up to 2^48", i);
	}
	for (uint32_t i = 0; i < p->n_values; i++) {
		uint64_t n = 0;

		if (!p->values[i].name || p->values[i].shape.rank > TERN_RANK_MAX ||
		    tn_shape_symbolic(&p->values[i].shape) || !tern_dtype_bytes(p->values[i].dtype))
			return tn_fail(TERN_E_INVALID, "value %u needs a name, a type and a shape", i);
		TN_TRY(tn_shape_elements(&p->values[i].shape, &n));
		if (n && !p->values[i].data)
			return tn_fail(TERN_E_INVALID, "value %u, '%.100s', has no data", i,
				       p->values[i].name);
	}
	return TERN_OK;
}

static tern_status import_model(const char *path, const void *bytes, uint64_t n,
				const tern_onnx_params *params, tern_graph **graph)
{
	static const tern_onnx_params none;
	tn_ox x = {.params = params ? params : &none};
	tn_ox_model model;
	tern_status st;

	TN_TRY(check_params(x.params));
	TN_TRY(tn_ox_model_open(&model, path, bytes, n));
	x.proto = model.proto->graph;
	x.folder = model.folder;
	st = import(&x, model.proto);
	if (st != TERN_OK && path)
		tn_detail_prefix("%s", path);
	for (uint32_t i = 0; i < x.n_values; i++)
		tn_values_unref(x.values[i].data);
	free(x.values);
	free(x.names);
	tn_ox_model_close(&model);
	if (st == TERN_OK)
		*graph = x.model;
	else
		tern_graph_destroy(x.model);
	return st;
}

tern_status tern_graph_import_onnx(const char *path, const tern_onnx_params *params, tern_graph **graph)
{
	if (!path || !graph)
		return tn_fail(TERN_E_INVALID, "path and graph must not be NULL");
	return import_model(path, NULL, 0, params, graph);
}

tern_status tern_graph_import_onnx_bytes(const void *bytes, uint64_t n_bytes, const tern_onnx_params *params,
					 tern_graph **graph)
{
	if (!bytes || !graph)
		return tn_fail(TERN_E_INVALID, "bytes and graph must not be NULL");
	return import_model(NULL, bytes, n_bytes, params, graph);
}
