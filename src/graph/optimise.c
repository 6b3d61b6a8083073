/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers in the placed graph: the slots of each variable, its Apply nodes, and what clips gradients by
 * their norm. Owns what a tern_optimizer means as nodes; the arithmetic is in kern_apply.c.
 *
 *   sync, local   one Apply per variable on the gradients of all workers, added in worker order, times 1/W
 *   async         one Apply per variable and worker, each on that worker's gradient alone
 *
 * Clipping by norm, sync: each server adds the workers' gradients (AddN) and takes the norm of those that it
 * has (GradNorm); worker 0 joins the servers' norms (ClipScale) and sends the scale back, since servers have
 * no edges among themselves; one server does that by itself. Async: each worker takes the norm of its own
 * gradient and sends the scale along with it.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/optimise_test.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "graph/plan.h"

tern_status tn_optimizer_check(const tern_optimizer *o)
{
	const struct {
		const char *name;
		float value;
	} fractions[] = {
		{"momentum", o->momentum}, {"beta1", o->beta1}, {"beta2", o->beta2}, {"rho", o->rho}};

	if (o->kind > TERN_OPTIMIZER_RMSPROP)
		return tn_fail(TERN_E_INVALID, "optimizer: %d is none", (int)o->kind);
	if (!(o->lr > 0.0f) || !(o->lr_end >= 0.0f) || !(o->weight_decay >= 0.0f)) {
		return tn_fail(TERN_E_INVALID,
			       "optimizer: the learning rate %g must be above 0, lr_end %g and weight_decay "
			       "%g not below 0",
			       (double)o->lr, (double)o->lr_end, (double)o->weight_decay);
	}
	for (size_t i = 0; i < sizeof(fractions) / sizeof(fractions[0]); i++) {
		if (!(fractions[i].value >= 0.0f && fractions[i].value < 1.0f))
			return tn_fail(TERN_E_INVALID, "optimizer: %s %g is not in [0, 1)", fractions[i].name,
				       (double)fractions[i].value);
	}
	if (!(o->epsilon >= 0.0f) || !(o->clip_value >= 0.0f) || !(o->clip_norm >= 0.0f)) {
		return tn_fail(TERN_E_INVALID,
			       "optimizer: epsilon %g, clip_value %g and clip_norm %g must not be below 0",
			       (double)o->epsilon, (double)o->clip_value, (double)o->clip_norm);
	}
	if (o->clip_value > 0.0f && o->clip_norm > 0.0f)
		return tn_fail(TERN_E_INVALID, "optimizer: give clip_value or clip_norm, not both");
	return TERN_OK;
}

/* ---- attributes ---- */

#define ATTRS_MAX 16u

typedef struct attr_list {
	tn_attr v[ATTRS_MAX];
	uint32_t n;
} attr_list;

static void put_real(attr_list *a, tn_attr_key key, float x)
{
	a->v[a->n++] = tn_attr_float(key, (double)x);
}

/* 0.9 as a double, not the float next to it. */
static void put_or(attr_list *a, tn_attr_key key, float x, double dflt)
{
	a->v[a->n++] = tn_attr_float(key, x == 0.0f ? dflt : (double)x);
}

static void put_kind(attr_list *a, const tern_optimizer *o)
{
	if (o->kind == TERN_OPTIMIZER_MOMENTUM || (o->kind == TERN_OPTIMIZER_RMSPROP && o->momentum != 0.0f))
		put_real(a, TN_ATTR_MOMENTUM, o->momentum);
	if (o->kind == TERN_OPTIMIZER_ADAM) {
		put_or(a, TN_ATTR_BETA1, o->beta1, 0.9);
		put_or(a, TN_ATTR_BETA2, o->beta2, 0.999);
	}
	if (o->kind == TERN_OPTIMIZER_RMSPROP)
		put_or(a, TN_ATTR_RHO, o->rho, 0.9);
	if (o->kind >= TERN_OPTIMIZER_ADAGRAD)
		put_or(a, TN_ATTR_EPSILON, o->epsilon, o->kind == TERN_OPTIMIZER_ADAGRAD ? 1e-10 : 1e-8);
}

static void put_trained(attr_list *a, const tern_optimizer *o)
{
	put_real(a, TN_ATTR_LR, o->lr);
	if (o->lr_steps) {
		put_real(a, TN_ATTR_LR_END, o->lr_end);
		a->v[a->n++] = tn_attr_int(TN_ATTR_LR_STEPS, (int64_t)o->lr_steps);
	}
	put_kind(a, o);
	if (o->weight_decay != 0.0f)
		put_real(a, TN_ATTR_WEIGHT_DECAY, o->weight_decay);
	if (o->clip_value > 0.0f)
		put_real(a, TN_ATTR_CLIP_VALUE, o->clip_value);
	if (o->clip_norm > 0.0f)
		a->v[a->n++] = tn_attr_int(TN_ATTR_CLIPPED, 1);
}

/* ---- slots ---- */

typedef struct slot_row {
	tn_op op;
	uint32_t n;
	struct {
		const char *name;
		bool scalar;
	} slot[3];
} slot_row;

static const slot_row slot_rows[] = {
	[TERN_OPTIMIZER_SGD] = {TN_OP_APPLY_SGD, 0, {{0}}},
	[TERN_OPTIMIZER_MOMENTUM] = {TN_OP_APPLY_MOMENTUM, 1, {{"momentum", false}}},
	[TERN_OPTIMIZER_ADAGRAD] = {TN_OP_APPLY_ADAGRAD, 1, {{"accumulator", false}}},
	[TERN_OPTIMIZER_ADAM] = {TN_OP_APPLY_ADAM, 3, {{"m", false}, {"v", false}, {"updates", true}}},
	[TERN_OPTIMIZER_RMSPROP] = {TN_OP_APPLY_RMSPROP, 1, {{"accumulator", false}, {"momentum", false}}},
};

static tern_status add_slot(const tn_update *u, uint32_t v, const char *what, bool scalar, uint32_t *tensor)
{
	const tn_tensor *t = &u->placed->tensors[u->var[v]];
	tern_init zeros = {.kind = TERN_INIT_ZEROS};
	tern_shape shape = scalar ? (tern_shape){0} : t->shape;
	char name[2 * TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_VARIABLE,
			     .name = name,
			     .device = (int32_t)u->device[v],
			     .dtype = t->dtype,
			     .shape = &shape,
			     .init = &zeros};
	uint32_t node;
	tern_status st;

	snprintf(name, sizeof(name), "%s/%s", t->name, what);
	st = tn_graph_add(u->placed, &spec, &node);
	if (st == TERN_OK)
		*tensor = u->placed->nodes[node].out[0];
	return st;
}

static bool is_async(const tn_update *u)
{
	return u->params->servers && !u->params->sync;
}

static uint32_t worker_device(const tn_update *u, uint32_t worker)
{
	return u->params->servers + worker * u->stages;
}

/* ---- norms ---- */

static tern_status add_node(const tn_update *u, tn_op op, const char *name, const uint32_t *in, uint32_t n_in,
			    tn_attr attr, uint32_t device, uint32_t *tensor)
{
	return tn_graph_add1(u->placed, op, name, in, n_in, &attr, 1, (int32_t)device, tensor);
}

/* scale[0]: for everybody. The sums of gradients take the place of grad[0][v]; they are not scaled yet. */
static tern_status norm_of_sum(tn_update *u, uint32_t *scratch, uint32_t *scale)
{
	uint32_t workers = u->params->workers, n_norms = 0;
	uint32_t servers = u->params->servers ? u->params->servers : u->stages; /* who has variables */
	uint32_t *norms = scratch, *in = scratch + servers;
	tn_attr mean = tn_attr_float(TN_ATTR_SCALE, 1.0 / (workers * u->micro));
	tn_attr limit = tn_attr_float(TN_ATTR_CLIP_NORM, (double)u->params->optimizer.clip_norm);
	char name[2 * TN_NAME_MAX];

	for (uint32_t s = 0; s < servers; s++) {
		uint32_t n = 0;

		for (uint32_t v = 0; v < u->n_vars; v++) {
			uint32_t *first = &u->grad[v];

			if (u->device[v] != s || tn_update_ema(u, v))
				continue;
			for (uint32_t w = 0; w < workers; w++)
				in[n + w] = u->grad[w * u->n_vars + v];
			snprintf(name, sizeof(name), "%s/gradient", u->placed->tensors[u->var[v]].name);
			if (workers > 1)
				TN_TRY(tn_graph_add1(u->placed, TN_OP_ADD_N, name, in + n, workers, NULL, 0,
						     (int32_t)s, first));
			in[n++] = *first;
		}
		snprintf(name, sizeof(name), "norm%u", s);
		if (n)
			TN_TRY(add_node(u, TN_OP_GRAD_NORM, name, in, n, mean, s, &norms[n_norms++]));
	}
	return add_node(u, TN_OP_CLIP_SCALE, "clip", norms, n_norms, limit,
			u->params->servers > 1 ? worker_device(u, 0) : 0, scale);
}

/* scale[w] for each worker: each of its devices takes the norm of the gradients that it makes. */
static tern_status norm_of_worker(const tn_update *u, uint32_t worker, uint32_t *scratch, uint32_t *scale)
{
	uint32_t device = worker_device(u, worker), n_norms = 0, *in = scratch + u->stages;
	tn_attr limit = tn_attr_float(TN_ATTR_CLIP_NORM, (double)u->params->optimizer.clip_norm);
	tn_attr mean = tn_attr_float(TN_ATTR_SCALE, 1.0 / u->micro);
	char name[64];

	for (uint32_t s = 0; s < u->stages; s++) {
		uint32_t n = 0;

		for (uint32_t v = 0; v < u->n_vars; v++) {
			uint32_t grad = u->grad[worker * u->n_vars + v];

			if (!tn_update_ema(u, v) &&
			    u->placed->nodes[u->placed->tensors[grad].node].device == (int32_t)(device + s))
				in[n++] = grad;
		}
		if (s == 0)
			snprintf(name, sizeof(name), "worker%u/norm", worker);
		else
			snprintf(name, sizeof(name), "worker%u/norm%u", worker, s);
		if (n)
			TN_TRY(add_node(u, TN_OP_GRAD_NORM, name, in, n, mean, device + s,
					&scratch[n_norms++]));
	}
	snprintf(name, sizeof(name), "worker%u/clip", worker);
	return add_node(u, TN_OP_CLIP_SCALE, name, scratch, n_norms, limit, device, scale);
}

static tern_status add_norms(tn_update *u, uint32_t *scale)
{
	uint32_t room = u->n_vars + u->params->workers + u->params->servers + u->stages + 1;
	uint32_t *scratch;
	tern_status st = TERN_OK;

	if (u->params->optimizer.clip_norm <= 0.0f)
		return TERN_OK;
	scratch = calloc(room, sizeof(*scratch));
	if (!scratch)
		return tn_fail(TERN_E_NOMEM, "no memory for the norms of %u gradients", u->n_vars);
	if (!is_async(u))
		st = norm_of_sum(u, scratch, scale);
	for (uint32_t w = 0; w < u->params->workers && is_async(u) && st == TERN_OK; w++)
		st = norm_of_worker(u, w, scratch, &scale[w]);
	free(scratch);
	return st;
}

/* ---- updates ---- */

/* One Apply on the gradients of workers first .. first + n - 1. in[0..slots-1] are set. */
static tern_status add_apply(const tn_update *u, uint32_t v, tn_op op, uint32_t *in, uint32_t slots,
			     uint32_t first, const uint32_t *scale)
{
	bool async = is_async(u), is_ema = tn_update_ema(u, v), clipped = !is_ema && scale[0] != TN_NONE;
	uint32_t workers = async ? 1 : u->params->workers;
	uint32_t n = clipped && !async ? 1 : workers; /* their sum is there already */
	attr_list attrs = {.n = 0};
	char name[2 * TN_NAME_MAX];

	if (is_ema)
		put_real(&attrs, TN_ATTR_MOMENTUM, u->ema[v]);
	else
		put_trained(&attrs, &u->params->optimizer);
	if (workers * u->micro > 1)
		attrs.v[attrs.n++] = tn_attr_float(TN_ATTR_GRAD_SCALE, 1.0 / (workers * u->micro));
	if (async)
		attrs.v[attrs.n++] = tn_attr_int(TN_ATTR_FOR_DEVICE, worker_device(u, first));
	if (clipped)
		in[slots++] = scale[async ? first : 0];
	for (uint32_t w = 0; w < n; w++)
		in[slots++] = u->grad[(first + w) * u->n_vars + v];
	if (async)
		snprintf(name, sizeof(name), "%s/apply%u", u->placed->tensors[u->var[v]].name, first);
	else
		snprintf(name, sizeof(name), "%s/apply", u->placed->tensors[u->var[v]].name);
	return tn_graph_add1(u->placed, op, name, in, slots, attrs.v, attrs.n, (int32_t)u->device[v], NULL);
}

static tern_status update(const tn_update *u, uint32_t v, const uint32_t *scale)
{
	const tern_optimizer *o = &u->params->optimizer;
	const slot_row *row = &slot_rows[o->kind];
	uint32_t in[5 + TERN_PLAN_WORKERS_MAX], slots = 1;
	uint32_t n_slots = row->n + (o->kind == TERN_OPTIMIZER_RMSPROP && o->momentum != 0.0f);
	tn_op op = tn_update_ema(u, v) ? TN_OP_APPLY_EMA : row->op;
	tern_status st = TERN_OK;

	in[0] = u->var[v];
	for (uint32_t i = 0; i < n_slots && op != TN_OP_APPLY_EMA && st == TERN_OK; i++)
		st = add_slot(u, v, row->slot[i].name, row->slot[i].scalar, &in[slots++]);
	for (uint32_t w = 0; w < (is_async(u) ? u->params->workers : 1) && st == TERN_OK; w++)
		st = add_apply(u, v, op, in, slots, w, scale);
	return st;
}

tern_status tn_optimise(tn_update *u)
{
	uint32_t scale[TERN_PLAN_WORKERS_MAX];
	tern_status st;

	for (uint32_t w = 0; w < TERN_PLAN_WORKERS_MAX; w++)
		scale[w] = TN_NONE;
	st = add_norms(u, scale);
	for (uint32_t v = 0; v < u->n_vars && st == TERN_OK; v++)
		st = update(u, v, scale);
	return st;
}
