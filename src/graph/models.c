/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built-in models, made with the public builder alone. A model's ports are documented in graph.h.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c pins the parameter counts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "graph/models.h"

#define WIDTH_MAX (UINT64_C(1) << 20)

typedef struct model_row {
	const char *name;
	uint32_t n_widths;
	uint64_t widths[8];
} model_row;

static const model_row models[] = {
	{"mlp", 2, {256, 128}},
	{"fcn5", 4, {4096, 4096, 4096, 4096}},
};
#define N_MODELS (sizeof(models) / sizeof(models[0]))

/* X (batch, in) -> X W + b (batch, out). Weights "fcN/w" (in, out), bias "fcN/b" (out). */
static tern_status layer(tern_graph *g, uint32_t number, tern_value x, uint64_t in, uint64_t out, bool hidden,
			 uint64_t seed, tern_value *y)
{
	tern_init w_init = {.kind = hidden ? TERN_INIT_HE_UNIFORM : TERN_INIT_XAVIER_UNIFORM, .seed = seed};
	tern_init b_init = {.kind = TERN_INIT_ZEROS};
	tern_shape w_shape = {.rank = 2, .dims = {in, out}}, b_shape = {.rank = 1, .dims = {out}};
	tern_value w, b, mm;
	char name[64];
	tern_status st;

	snprintf(name, sizeof(name), "fc%u/w", number);
	st = tern_graph_variable(g, name, TERN_F32, &w_shape, &w_init, &w);
	snprintf(name, sizeof(name), "fc%u/b", number);
	if (st == TERN_OK)
		st = tern_graph_variable(g, name, TERN_F32, &b_shape, &b_init, &b);
	snprintf(name, sizeof(name), "fc%u/matmul", number);
	if (st == TERN_OK)
		st = tern_graph_node(g, "MatMul", name, (tern_value[]){x, w}, 2, NULL, 0, &mm, 1);
	snprintf(name, sizeof(name), "fc%u/bias", number);
	if (st == TERN_OK)
		st = tern_graph_node(g, "BiasAdd", name, (tern_value[]){mm, b}, 2, NULL, 0, y, 1);
	snprintf(name, sizeof(name), "fc%u/relu", number);
	if (st == TERN_OK && hidden)
		st = tern_graph_node(g, "Relu", name, y, 1, NULL, 0, y, 1);
	return st;
}

static tern_status build(tern_graph *g, const uint64_t *widths, uint32_t n_widths, uint64_t inputs,
			 uint64_t classes, uint64_t seed)
{
	uint64_t batch, in = inputs;
	tern_value images, labels, x, out[3];
	tern_status st = tern_graph_symbol(g, "batch", &batch);
	tern_shape image_shape = {.rank = 2, .dims = {batch, inputs}},
		   label_shape = {.rank = 1, .dims = {batch}};

	if (st == TERN_OK)
		st = tern_graph_placeholder(g, "images", TERN_F32, &image_shape, &images);
	if (st == TERN_OK)
		st = tern_graph_placeholder(g, "labels", TERN_I32, &label_shape, &labels);
	x = st == TERN_OK ? images : 0;
	for (uint32_t i = 0; i <= n_widths && st == TERN_OK; i++) {
		uint64_t width = i < n_widths ? widths[i] : classes;

		st = layer(g, i + 1, x, in, width, i < n_widths, seed, &x);
		in = width;
	}
	if (st == TERN_OK) {
		st = tern_graph_node(g, "SoftmaxCrossEntropy", "loss", (tern_value[]){x, labels}, 2, NULL, 0,
				     out, 3);
	}
	if (st == TERN_OK)
		st = tern_graph_input(g, "images", images);
	if (st == TERN_OK)
		st = tern_graph_input(g, "labels", labels);
	if (st == TERN_OK)
		st = tern_graph_output(g, "loss", out[0]);
	if (st == TERN_OK)
		st = tern_graph_output(g, "correct", out[1]);
	return st == TERN_OK ? tern_graph_output(g, "probs", out[2]) : st;
}

tern_status tern_graph_fully_connected(const char *name, const uint64_t *widths, uint32_t n_widths,
				       const tern_model_params *params, tern_graph **graph)
{
	uint64_t inputs = params && params->inputs ? params->inputs : 784;
	uint64_t classes = params && params->classes ? params->classes : 10;
	tern_graph *g;
	tern_status st;

	if (!name || !graph || (n_widths && !widths))
		return tn_fail(TERN_E_INVALID, "name, widths and graph must not be NULL");
	for (uint32_t i = 0; i < n_widths + 2; i++) {
		uint64_t w = i < n_widths ? widths[i] : i == n_widths ? inputs : classes;

		if (w == 0 || w > WIDTH_MAX) {
			return tn_fail(TERN_E_INVALID, "model '%s': width %" PRIu64 " is not in 1..%" PRIu64,
				       name, w, WIDTH_MAX);
		}
	}
	st = tern_graph_create(name, &g);
	if (st != TERN_OK)
		return st;
	st = build(g, widths, n_widths, inputs, classes, params ? params->seed : 0);
	if (st != TERN_OK) {
		tern_graph_destroy(g);
		return st;
	}
	*graph = g;
	return TERN_OK;
}

/* ---- all models ---- */

static const tn_model *const tables[] = {tn_models_cnn, tn_models_inception, tn_models_seq,
					 tn_models_attention};
#define N_TABLES (sizeof(tables) / sizeof(tables[0]))

static const tn_model *find(const char *name)
{
	for (size_t t = 0; t < N_TABLES; t++) {
		for (const tn_model *m = tables[t]; m->name; m++) {
			if (strcmp(m->name, name) == 0)
				return m;
		}
	}
	return NULL;
}

static tern_status unknown(const char *model)
{
	char known[512] = "";

	for (size_t i = 0; i < N_MODELS; i++)
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i ? ", " : "",
			 models[i].name);
	for (size_t t = 0; t < N_TABLES; t++) {
		for (const tn_model *m = tables[t]; m->name; m++)
			snprintf(known + strlen(known), sizeof(known) - strlen(known), ", %s", m->name);
	}
	return tn_fail(TERN_E_NOT_FOUND, "there is no model '%s'; models: %s", model, known);
}

static tern_status read_size(const tn_model *m, const tern_model_params *params, tn_model_size *size)
{
	*size = m->size;
	if (params && params->classes)
		size->classes = params->classes;
	if (params && params->steps && size->steps) {
		if (size->inputs > 1 && m->fixed_inputs) /* of a step, if there are any number of them */
			size->inputs = size->inputs / size->steps *
				       (tn_dim_symbolic(params->steps) ? 1 : params->steps);
		size->steps = params->steps;
	}
	if (params && params->inputs && params->inputs != size->inputs) {
		if (m->fixed_inputs) {
			return tn_fail(TERN_E_INVALID,
				       "model '%s': rows have %" PRIu64 " numbers, not %" PRIu64, m->name,
				       size->inputs, params->inputs);
		}
		size->inputs = params->inputs;
	}
	if (size->classes > WIDTH_MAX || size->inputs > WIDTH_MAX ||
	    (!tn_dim_symbolic(size->steps) && size->steps > WIDTH_MAX)) {
		return tn_fail(TERN_E_INVALID, "model '%s': a size is above %" PRIu64, m->name, WIDTH_MAX);
	}
	return TERN_OK;
}

static tern_status build_model(const tn_model *m, const tern_model_params *params, tern_graph **graph)
{
	tn_builder b = {.seed = params ? params->seed : 0};
	tn_model_size size;
	uint64_t steps;

	TN_TRY(read_size(m, params, &size));
	TN_TRY(tern_graph_create(m->name, &b.g));
	b.st = tern_graph_symbol(b.g, "batch", &b.batch);
	if (b.st == TERN_OK && tn_dim_symbolic(size.steps)) {
		b.st = tern_graph_symbol(b.g, "steps", &steps);
		size.steps = steps;
	}
	if (b.st == TERN_OK)
		m->build(&b, &size);
	if (b.st != TERN_OK) {
		tern_graph_destroy(b.g);
		return b.st;
	}
	*graph = b.g;
	return TERN_OK;
}

tern_status tern_graph_model(const char *model, const tern_model_params *params, tern_graph **graph)
{
	const tn_model *m;

	if (!model || !graph)
		return tn_fail(TERN_E_INVALID, "model and graph must not be NULL");
	for (size_t i = 0; i < N_MODELS; i++) {
		if (strcmp(models[i].name, model) == 0)
			return tern_graph_fully_connected(model, models[i].widths, models[i].n_widths, params,
							  graph);
	}
	m = find(model);
	return m ? build_model(m, params, graph) : unknown(model);
}
