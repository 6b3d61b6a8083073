/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of layers_test.py that runs here: computes one op and its gradients by a program.
 *
 *   layers DIR...   for each DIR: reads DIR/case.txt and DIR/in<i>, writes DIR/out<i> and DIR/grad<i>
 *
 * case.txt has a line each:
 *   op NAME OUTPUTS            first; outputs number 0..OUTPUTS - 1 are written
 *   int NAME V | float NAME V | ints NAME N V...
 *   in RANK DIMS...            the next input; its data is in<i>, f32
 *   dout I                     the gradient of output I is in dout<I>: gradients of all inputs are written
 *
 * Threads: one.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/graph.h>
#include <tern/status.h>

#define MAX 16

typedef struct layer {
	const char *dir;
	char op[64], names[MAX][64];
	unsigned n_outs, n_attrs, n_in, douts;
	tern_attr attrs[MAX];
	tern_shape shapes[MAX];
	tern_graph *graph;
	tern_value in[MAX], out[MAX], dout[MAX];
} layer;

__attribute__((noreturn)) static void die(const layer *l, const char *what)
{
	fprintf(stderr, "layers: %s %s: %s: %s\n", l->dir, l->op, what, tern_detail());
	exit(1);
}

static void ok(const layer *l, const char *what, tern_status st)
{
	if (st != TERN_OK)
		die(l, what);
}

static FILE *file(const layer *l, const char *name, int number, const char *mode)
{
	char path[4096];
	FILE *f;

	if (number < 0)
		snprintf(path, sizeof(path), "%s/%s", l->dir, name);
	else
		snprintf(path, sizeof(path), "%s/%s%d", l->dir, name, number);
	f = fopen(path, mode);
	if (!f)
		die(l, path);
	return f;
}

static void read_attr(layer *l, FILE *f, const char *kind)
{
	tern_attr *a = &l->attrs[l->n_attrs];
	long long v;

	if (l->n_attrs == MAX || fscanf(f, "%63s", l->names[l->n_attrs]) != 1)
		die(l, "attribute");
	a->name = l->names[l->n_attrs++];
	a->n_ints = 0;
	a->type = kind[0] == 'f' ? TERN_ATTR_FLOAT : kind[3] ? TERN_ATTR_INTS : TERN_ATTR_INT;
	if (a->type == TERN_ATTR_FLOAT && fscanf(f, "%lf", &a->f) != 1)
		die(l, a->name);
	if (a->type == TERN_ATTR_INTS && (fscanf(f, "%u", &a->n_ints) != 1 || a->n_ints > MAX))
		die(l, a->name);
	for (unsigned i = 0; a->type != TERN_ATTR_FLOAT && i < (a->n_ints ? a->n_ints : 1); i++) {
		if (fscanf(f, "%lld", &v) != 1)
			die(l, a->name);
		if (a->type == TERN_ATTR_INT)
			a->i = v;
		else
			a->ints[i] = v;
	}
}

static void read_case(layer *l)
{
	FILE *f = file(l, "case.txt", -1, "r");
	unsigned long long dim;
	unsigned which;
	char kind[16];

	while (fscanf(f, "%15s", kind) == 1) {
		if (strcmp(kind, "op") == 0) {
			if (fscanf(f, "%63s %u", l->op, &l->n_outs) != 2)
				die(l, "op");
		} else if (strcmp(kind, "in") == 0) {
			tern_shape *s = &l->shapes[l->n_in++];

			if (l->n_in > MAX || fscanf(f, "%u", &s->rank) != 1 || s->rank > TERN_RANK_MAX)
				die(l, "in");
			for (unsigned i = 0; i < s->rank; i++) {
				if (fscanf(f, "%llu", &dim) != 1)
					die(l, "in");
				s->dims[i] = dim;
			}
		} else if (strcmp(kind, "dout") == 0) {
			if (fscanf(f, "%u", &which) != 1)
				die(l, "dout");
			l->douts |= 1u << which;
		} else {
			read_attr(l, f, kind);
		}
	}
	fclose(f);
}

static tern_value node(layer *l, const char *op, const char *name, unsigned number, const tern_value *in,
		       uint32_t n)
{
	char unique[64];
	tern_value v;

	snprintf(unique, sizeof(unique), "%s%u", name, number);
	ok(l, unique, tern_graph_node(l->graph, op, unique, in, n, NULL, 0, &v, 1));
	return v;
}

static tern_value feed(layer *l, const char *name, unsigned i, const tern_shape *shape)
{
	char port[32];
	tern_value v;

	snprintf(port, sizeof(port), "%s%u", name, i);
	ok(l, port, tern_graph_placeholder(l->graph, port, TERN_F32, shape, &v));
	ok(l, port, tern_graph_input(l->graph, port, v));
	return v;
}

static void fetch(layer *l, const char *name, unsigned i, tern_value v)
{
	char port[32];

	snprintf(port, sizeof(port), "%s%u", name, i);
	ok(l, port, tern_graph_output(l->graph, port, v));
}

/* loss = sum of the outputs times the gradients that the file gives for them */
static void add_gradients(layer *l)
{
	tern_value loss = 0, grads[MAX];
	bool any = false;

	for (unsigned i = 0; i < l->n_outs; i++) {
		tern_value_info info;
		tern_value term;

		if (!(l->douts >> i & 1))
			continue;
		ok(l, "output", tern_graph_value(l->graph, l->out[i], &info));
		l->dout[i] = feed(l, "dout", i, &info.shape);
		term = node(l, "Mul", "product", i, (tern_value[]){l->out[i], l->dout[i]}, 2);
		term = node(l, "ReduceSum", "sum", i, &term, 1);
		loss = any ? node(l, "Add", "loss", i, (tern_value[]){loss, term}, 2) : term;
		any = true;
	}
	ok(l, "gradients", tern_graph_gradients(l->graph, loss, l->in, l->n_in, grads));
	for (unsigned i = 0; i < l->n_in; i++)
		fetch(l, "grad", i, grads[i]);
}

static void transfer(layer *l, tern_program *p, const char *name, unsigned i, int is_input)
{
	FILE *f = file(l, name, (int)i, is_input ? "rb" : "wb");
	uint64_t bytes = 0, n = 1;
	tern_value_info info;
	char port[32];
	void *data;

	snprintf(port, sizeof(port), "%s%u", name, i);
	ok(l, port, tern_program_port(p, port, is_input, &info));
	for (unsigned d = 0; d < info.shape.rank; d++)
		n *= info.shape.dims[d];
	bytes = n * tern_dtype_bytes(info.dtype);
	data = malloc(bytes + 1);
	if (!data || (is_input && fread(data, 1, bytes, f) != bytes))
		die(l, port);
	if (is_input)
		ok(l, port, tern_program_feed(p, port, data, bytes));
	else
		ok(l, port, tern_program_fetch(p, port, data, bytes));
	if (!is_input && fwrite(data, 1, bytes, f) != bytes)
		die(l, port);
	free(data);
	if (fclose(f) != 0)
		die(l, port);
}

static void run(layer *l)
{
	tern_program_params params = {.threads = 1};
	tern_program *p;

	ok(l, "program", tern_program_create(l->graph, &params, &p));
	for (unsigned i = 0; i < l->n_in; i++)
		transfer(l, p, "in", i, 1);
	for (unsigned i = 0; i < l->n_outs; i++) {
		if (l->douts >> i & 1)
			transfer(l, p, "dout", i, 1);
	}
	ok(l, "run", tern_program_run(p));
	for (unsigned i = 0; i < l->n_outs; i++)
		transfer(l, p, "out", i, 0);
	for (unsigned i = 0; i < l->n_in && l->douts; i++)
		transfer(l, p, "grad", i, 0);
	tern_program_destroy(p);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		layer l = {.dir = argv[i]};

		read_case(&l);
		ok(&l, "graph", tern_graph_create("layer", &l.graph));
		for (unsigned k = 0; k < l.n_in; k++)
			l.in[k] = feed(&l, "in", k, &l.shapes[k]);
		ok(&l, "op",
		   tern_graph_node(l.graph, l.op, "op", l.in, l.n_in, l.attrs, l.n_attrs, l.out, l.n_outs));
		for (unsigned k = 0; k < l.n_outs; k++)
			fetch(&l, "out", k, l.out[k]);
		if (l.douts)
			add_gradients(&l);
		run(&l);
		tern_graph_destroy(l.graph);
	}
	return 0;
}
