/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors of a device share a buffer inside a step. The graph of a device is coloured in the order of the
 * whole job's graph: a tensor may have the buffer of another if all that touches the other comes before its
 * producer. Where no path says so already, a control edge does, so that the buffers are safe in whatever order
 * an executor runs the nodes. All such edges point forward in one order of the whole job's nodes: they close no
 * cycle, not even one through other devices.
 *
 *   shares    outputs of nodes that are computed in this device
 *   does not  what is sent (it may be read until the next step), output ports (read after the step), variables,
 *             constants, what is fed or received; nor tensors of different chains, which know nothing of each
 *             other's steps
 *
 * Views and in-place ops are followed: it is roots that have buffers, and who touches a view touches its root.
 * Of the free buffers the smallest that is large enough is taken, else the largest; those that need no new edge
 * first. Sizes are those of the plan's dims, else guessed: they only decide who shares with whom, the executor
 * makes each buffer as large as the largest tensor in it.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/random_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/plan.h"

#define SIZE_GUESS  32u
#define NODES_EXACT 16384u /* above that, paths are not looked for: n * n bits */

typedef struct buffer {
	uint64_t bytes;
	uint32_t chain;
	uint32_t root; /* who has it now */
} buffer;

typedef struct colouring {
	const tern_plan *plan;
	tn_device *d;
	tern_graph *g;
	uint32_t *order; /* nodes by position */
	uint32_t *rank;  /* per node: its place in order */
	uint32_t *set;   /* per node: union-find of chains */
	uint32_t *root;  /* per tensor */
	bool *shares;    /* per tensor */
	uint32_t
		*first; /* per root: users[first[r] .. first[r + 1]): nodes that touch it, its producer too */
	uint32_t *users;
	uint64_t *before; /* per node: bits of the nodes that a path leads from; NULL: too many nodes */
	uint32_t words;
	buffer *buffers;
} colouring;

/* ---- chains ---- */

static uint32_t find_set(uint32_t *set, uint32_t i)
{
	while (set[i] != i) {
		set[i] = set[set[i]];
		i = set[i];
	}
	return i;
}

static void join(colouring *c, uint32_t a, uint32_t b)
{
	const uint32_t source = TN_OPF_SOURCE;

	if (tn_op_flags(c->g->nodes[a].op) & source || tn_op_flags(c->g->nodes[b].op) & source)
		return;
	a = find_set(c->set, a);
	b = find_set(c->set, b);
	c->set[TN_MAX(a, b)] = TN_MIN(a, b);
}

static void find_chains(colouring *c)
{
	for (uint32_t i = 0; i < c->g->n_nodes; i++)
		c->set[i] = i;
	for (uint32_t i = 0; i < c->g->n_nodes; i++) {
		const tn_node *n = &c->g->nodes[i];

		for (uint32_t k = 0; k < n->n_in; k++)
			join(c, c->g->tensors[n->in[k]].node, i);
		for (uint32_t k = 0; k < n->n_ctrl; k++)
			join(c, n->ctrl[k], i);
	}
}

/* ---- who touches what ---- */

static void find_sharing(colouring *c)
{
	for (uint32_t t = 0; t < c->g->n_tensors; t++) {
		uint32_t flags = tn_op_flags(c->g->nodes[c->g->tensors[t].node].op);

		c->root[t] = tn_graph_root(c->g, t);
		c->shares[t] = c->root[t] == t && !(flags & (TN_OPF_SOURCE | TN_OPF_RECV | TN_OPF_JOIN));
	}
	for (uint32_t i = 0; i < c->g->n_nodes; i++) {
		if (tn_op_flags(c->g->nodes[i].op) & TN_OPF_SEND)
			c->shares[c->root[c->g->nodes[i].in[0]]] = false;
	}
	for (uint32_t i = 0; i < c->g->n_ports; i++)
		c->shares[c->root[c->g->ports[i].tensor]] = false;
}

static void find_users(colouring *c)
{
	for (uint32_t pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < c->g->n_nodes; i++) {
			const tn_node *n = &c->g->nodes[i];

			for (uint32_t k = 0; k < n->n_in + n->n_out; k++) {
				uint32_t r = c->root[k < n->n_in ? n->in[k] : n->out[k - n->n_in]];

				if (pass == 0)
					c->first[r + 1]++;
				else
					c->users[c->first[r]++] = i;
			}
		}
		for (uint32_t r = 0; r < c->g->n_tensors && pass == 0; r++)
			c->first[r + 1] += c->first[r];
	}
	for (uint32_t r = c->g->n_tensors; r > 0; r--)
		c->first[r] = c->first[r - 1];
	c->first[0] = 0;
}

static uint64_t expected_bytes(const colouring *c, uint32_t tensor)
{
	const tn_tensor *t = &c->g->tensors[tensor];
	tern_shape shape = t->shape;
	uint64_t bytes = 0;
	bool varies;

	for (uint32_t i = 0; i < shape.rank; i++) {
		if (tn_dim_symbolic(shape.dims[i]) &&
		    !tn_plan_dim(c->plan, c->g->symbols[tn_dim_symbol(shape.dims[i])], &shape.dims[i],
				 &varies))
			shape.dims[i] = SIZE_GUESS;
	}
	return tn_shape_bytes(&shape, t->dtype, &bytes) == TERN_OK ? bytes : 0;
}

/* ---- colouring ---- */

static bool leads(const colouring *c, uint32_t from, uint32_t to)
{
	return c->before && c->before[(size_t)to * c->words + from / 64] >> (from % 64) & 1;
}

static void add_before(colouring *c, uint32_t node, uint32_t pred)
{
	uint64_t *to = &c->before[(size_t)node * c->words], *from = &c->before[(size_t)pred * c->words];

	for (uint32_t w = 0; w < c->words; w++)
		to[w] |= from[w];
	to[pred / 64] |= UINT64_C(1) << (pred % 64);
}

/* Whether all users of a root come before the node; how many edges say so that are not there. */
static bool is_over(const colouring *c, uint32_t root, uint32_t node, uint32_t *edges)
{
	*edges = 0;
	for (uint32_t k = c->first[root]; k < c->first[root + 1]; k++) {
		if (c->rank[c->users[k]] >= c->rank[node])
			return false;
		*edges += !leads(c, c->users[k], node);
	}
	return true;
}

static uint32_t choose(const colouring *c, uint32_t node, uint64_t bytes)
{
	uint32_t best = TN_NONE, best_edges = 0, edges;
	uint32_t chain = find_set(c->set, node);

	for (uint32_t i = 0; i < c->d->n_buffers; i++) {
		const buffer *b = &c->buffers[i], *o = best == TN_NONE ? NULL : &c->buffers[best];
		bool fits = b->bytes >= bytes, better;

		if (b->chain != chain || !is_over(c, b->root, node, &edges))
			continue;
		if (!o)
			better = true;
		else if (fits != (o->bytes >= bytes))
			better = fits;
		else if ((edges == 0) != (best_edges == 0))
			better = edges == 0;
		else
			better = fits ? b->bytes < o->bytes : b->bytes > o->bytes;
		if (better) {
			best = i;
			best_edges = edges;
		}
	}
	return best;
}

static tern_status take_over(colouring *c, uint32_t node, buffer *b)
{
	for (uint32_t k = c->first[b->root]; k < c->first[b->root + 1]; k++) {
		uint32_t user = c->users[k];

		if (leads(c, user, node))
			continue;
		TN_TRY(tn_graph_add_control(c->g, user, node));
		c->d->reuse_edges++;
		if (c->before)
			add_before(c, node, user);
	}
	return TERN_OK;
}

static tern_status colour_node(colouring *c, uint32_t node)
{
	const tn_node *n = &c->g->nodes[node];

	for (uint32_t k = 0; k < n->n_in + n->n_ctrl && c->before; k++)
		add_before(c, node, k < n->n_in ? c->g->tensors[n->in[k]].node : n->ctrl[k - n->n_in]);
	for (uint32_t k = 0; k < n->n_out; k++) {
		uint32_t t = c->g->nodes[node].out[k], i;
		uint64_t bytes;

		if (!c->shares[t])
			continue;
		bytes = expected_bytes(c, t);
		i = choose(c, node, bytes);
		if (i == TN_NONE) {
			i = c->d->n_buffers++;
			c->buffers[i] = (buffer){.chain = find_set(c->set, node)};
			c->d->first_in[i] = t;
		} else {
			TN_TRY(take_over(c, node, &c->buffers[i]));
		}
		c->buffers[i].root = t;
		c->buffers[i].bytes = TN_MAX(c->buffers[i].bytes, bytes);
		c->d->buffer[t] = i;
		c->d->shared++;
		c->d->shared_bytes += bytes;
	}
	return TERN_OK;
}

static int by_position(const void *a, const void *b, void *arg)
{
	const uint32_t *position = arg;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	if (position[x] != position[y])
		return position[x] < position[y] ? -1 : 1;
	return x < y ? -1 : 1;
}

static tern_status colour(colouring *c)
{
	uint32_t n = c->g->n_nodes;

	for (uint32_t i = 0; i < n; i++)
		c->order[i] = i;
	qsort_r(c->order, n, sizeof(*c->order), by_position, c->d->position);
	for (uint32_t i = 0; i < n; i++)
		c->rank[c->order[i]] = i;
	find_chains(c);
	find_sharing(c);
	find_users(c);
	for (uint32_t i = 0; i < n; i++)
		TN_TRY(colour_node(c, c->order[i]));
	for (uint32_t i = 0; i < c->d->n_buffers; i++)
		c->d->buffer_bytes += c->buffers[i].bytes;
	return TERN_OK;
}

static tern_status alloc_colouring(colouring *c)
{
	uint32_t n = c->g->n_nodes, t = c->g->n_tensors, touches = 0;

	for (uint32_t i = 0; i < n; i++)
		touches += c->g->nodes[i].n_in + c->g->nodes[i].n_out;
	c->words = n / 64 + 1;
	c->order = calloc(n + 1, sizeof(*c->order));
	c->rank = calloc(n + 1, sizeof(*c->rank));
	c->set = calloc(n + 1, sizeof(*c->set));
	c->root = calloc(t + 1, sizeof(*c->root));
	c->shares = calloc(t + 1, sizeof(*c->shares));
	c->first = calloc(t + 2, sizeof(*c->first));
	c->users = calloc(touches + 1, sizeof(*c->users));
	c->buffers = calloc(t + 1, sizeof(*c->buffers));
	c->d->buffer = malloc((t + 1) * sizeof(*c->d->buffer));
	if (n <= NODES_EXACT)
		c->before = calloc((size_t)n * c->words + 1, sizeof(*c->before));
	c->d->first_in = calloc(t + 1, sizeof(*c->d->first_in));
	if (!c->d->first_in || !c->order || !c->rank || !c->set || !c->root || !c->shares || !c->first ||
	    !c->users || !c->buffers || !c->d->buffer || (n <= NODES_EXACT && !c->before))
		return tn_fail(TERN_E_NOMEM, "no memory to plan the buffers of %u nodes", n);
	memset(c->d->buffer, 0xff, (t + 1) * sizeof(*c->d->buffer));
	return TERN_OK;
}

tern_status tn_lifetimes(const tern_plan *plan, tn_device *device)
{
	colouring c = {.plan = plan, .d = device, .g = device->graph};
	tern_status st = alloc_colouring(&c);

	if (st == TERN_OK)
		st = colour(&c);
	free(c.order);
	free(c.rank);
	free(c.set);
	free(c.root);
	free(c.shares);
	free(c.first);
	free(c.users);
	free(c.before);
	free(c.buffers);
	return st;
}
