/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes ONNX messages byte by byte, so that tests can make wrong ones as well. Field numbers are onnx.proto's.
 */
#ifndef TESTS_UNIT_GRAPH_ONNX_BUILD_H
#define TESTS_UNIT_GRAPH_ONNX_BUILD_H

#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"

/* A message under construction; tn_str may hold any bytes. */
typedef tn_str ox_msg;

static inline void ox_varint(ox_msg *m, uint64_t v)
{
	for (; v > 127; v >>= 7)
		tn_str_addn(m, (char[]){(char)(v | 128)}, 1);
	tn_str_addn(m, (char[]){(char)v}, 1);
}

static inline void ox_int(ox_msg *m, unsigned field, uint64_t v)
{
	ox_varint(m, field << 3);
	ox_varint(m, v);
}

static inline void ox_bytes(ox_msg *m, unsigned field, const void *data, size_t n)
{
	ox_varint(m, field << 3 | 2);
	ox_varint(m, n);
	tn_str_addn(m, data, n);
}

static inline void ox_text(ox_msg *m, unsigned field, const char *text)
{
	ox_bytes(m, field, text, strlen(text));
}

/* Puts the message into another one and frees it. */
static inline void ox_put(ox_msg *m, unsigned field, ox_msg *child)
{
	ox_bytes(m, field, child->text ? child->text : "", child->length);
	tn_str_fini(child);
	tn_str_init(child);
}

/* ---- TensorProto: dims 1, data_type 2, name 8, raw_data 9 ---- */

static inline void ox_tensor(ox_msg *t, const char *name, int type, const int64_t *dims, unsigned rank,
			     const void *data, size_t bytes)
{
	tn_str_init(t);
	for (unsigned i = 0; i < rank; i++)
		ox_int(t, 1, (uint64_t)dims[i]);
	ox_int(t, 2, (uint64_t)type);
	ox_text(t, 8, name);
	ox_bytes(t, 9, data, bytes);
}

/* ---- GraphProto: node 1, name 2, initializer 5, input 11, output 12 ---- */

static inline void ox_initialiser(ox_msg *g, const char *name, int type, const int64_t *dims, unsigned rank,
				  const void *data, size_t bytes)
{
	ox_msg t;

	ox_tensor(&t, name, type, dims, rank, data, bytes);
	ox_put(g, 5, &t);
}

/* A dim below 0 is a dim_param: batch is -1, other names "n2", "n3", ... */
static inline void ox_port(ox_msg *g, unsigned field, const char *name, int type, const int64_t *dims,
			   unsigned rank)
{
	ox_msg info, kind, tensor, shape, dim;

	tn_str_init(&info);
	tn_str_init(&kind);
	tn_str_init(&tensor);
	tn_str_init(&shape);
	for (unsigned i = 0; i < rank; i++) {
		tn_str_init(&dim);
		if (dims[i] >= 0)
			ox_int(&dim, 1, (uint64_t)dims[i]);
		else
			ox_text(&dim, 2,
				dims[i] == -1 ? "batch" : (char[]){'n', (char)('0' - dims[i]), '\0'});
		ox_put(&shape, 1, &dim);
	}
	ox_int(&tensor, 1, (uint64_t)type);
	ox_put(&tensor, 2, &shape);
	ox_put(&kind, 1, &tensor);
	ox_text(&info, 1, name);
	ox_put(&info, 2, &kind);
	ox_put(g, field, &info);
}

/* ---- NodeProto: input 1, output 2, name 3, op_type 4, attribute 5; AttributeProto: name 1, i 3, ints 8, type 20 -- */

/* Names are lists with spaces; "-" is an input that is left out. */
static inline void ox_names(ox_msg *n, unsigned field, const char *list)
{
	while (*list) {
		size_t length = strcspn(list, " ");

		ox_bytes(n, field, list, *list == '-' ? 0 : length);
		list += length + (list[length] == ' ');
	}
}

static inline void ox_attr_int(ox_msg *n, const char *name, int64_t i)
{
	ox_msg a;

	tn_str_init(&a);
	ox_text(&a, 1, name);
	ox_int(&a, 3, (uint64_t)i);
	ox_int(&a, 20, 2);
	ox_put(n, 5, &a);
}

static inline void ox_attr_ints(ox_msg *n, const char *name, unsigned count, const int64_t *v)
{
	ox_msg a;

	tn_str_init(&a);
	ox_text(&a, 1, name);
	for (unsigned i = 0; i < count; i++)
		ox_int(&a, 8, (uint64_t)v[i]);
	ox_int(&a, 20, 7);
	ox_put(n, 5, &a);
}

static inline void ox_node_begin(ox_msg *n, const char *op, const char *name, const char *in, const char *out)
{
	tn_str_init(n);
	ox_names(n, 1, in);
	ox_names(n, 2, out);
	ox_text(n, 3, name);
	ox_text(n, 4, op);
}

static inline void ox_node(ox_msg *g, const char *op, const char *name, const char *in, const char *out)
{
	ox_msg n;

	ox_node_begin(&n, op, name, in, out);
	ox_put(g, 1, &n);
}

/* ---- ModelProto: ir_version 1, graph 7, opset_import 8 {domain 1, version 2} ---- */

static inline void ox_model(ox_msg *m, ox_msg *g, int64_t opset)
{
	ox_msg set;

	tn_str_init(m);
	tn_str_init(&set);
	ox_int(&set, 2, (uint64_t)opset);
	ox_int(m, 1, 8);
	ox_text(g, 2, "model");
	ox_put(m, 7, g);
	ox_put(m, 8, &set);
}

#endif
