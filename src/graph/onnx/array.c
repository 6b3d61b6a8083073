/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in files of their own: NumPy's .npy (format 1.0 to 3.0) and ONNX's TensorProto. The text at the
 * head of an .npy file is a Python literal of a fixed form; only that form is read, and nothing is trusted.
 *
 * Thread story: none. Tests: tests/unit/graph/onnx_test.c, fuzz/onnx_array.c.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/onnx/array.h"

#define MAGIC       "\x93NUMPY"
#define MAGIC_BYTES 6u
#define HEADER_MAX  65536u

static const struct {
	const char *descr;
	tern_dtype dtype;
} types[] = {
	{"<f4", TERN_F32}, {"<f8", TERN_F64}, {"<f2", TERN_F16}, {"|i1", TERN_I8},   {"|u1", TERN_U8},
	{"<i4", TERN_I32}, {"<i8", TERN_I64}, {"<u8", TERN_U64}, {"|b1", TERN_BOOL},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

/* ---- .npy ---- */

/* What follows 'key': in the head, behind the colon and spaces; NULL if it is not there. */
static const char *member(const char *head, const char *key)
{
	const char *at = strstr(head, key);

	if (!at)
		return NULL;
	at += strlen(key);
	while (*at == ' ' || *at == ':')
		at++;
	return at;
}

static bool parse_dtype(const char *head, tern_dtype *dtype)
{
	const char *at = member(head, "'descr'");

	for (size_t i = 0; at && i < TYPES; i++) {
		if (at[0] == '\'' && strncmp(at + 1, types[i].descr, 3) == 0 && at[4] == '\'') {
			*dtype = types[i].dtype;
			return true;
		}
	}
	return false;
}

static bool parse_shape(const char *head, tern_shape *shape)
{
	const char *at = member(head, "'shape'");

	*shape = (tern_shape){.rank = 0};
	if (!at || *at++ != '(')
		return false;
	for (;;) {
		uint64_t dim = 0;

		while (*at == ' ' || *at == ',')
			at++;
		if (*at == ')')
			return true;
		if (!isdigit((unsigned char)*at) || shape->rank == TERN_RANK_MAX)
			return false;
		for (; isdigit((unsigned char)*at); at++) {
			dim = dim * 10 + (uint64_t)(*at - '0');
			if (dim > UINT64_C(1) << 48)
				return false;
		}
		shape->dims[shape->rank++] = dim;
	}
}

/* Where the head's text begins and how long it is. */
static bool find_head(const uint8_t *d, uint64_t n, uint64_t *begin, uint64_t *length)
{
	if (n < 12 || d[6] < 1 || d[6] > 3)
		return false;
	*begin = d[6] == 1 ? 10 : 12;
	*length = d[6] == 1 ? (uint64_t)d[8] | (uint64_t)d[9] << 8
			    : (uint64_t)d[8] | (uint64_t)d[9] << 8 | (uint64_t)d[10] << 16 |
				      (uint64_t)d[11] << 24;
	return *length <= HEADER_MAX && *length <= n - *begin;
}

static tern_status npy_parse(const uint8_t *d, uint64_t n, tern_array *a, void **values)
{
	uint64_t begin, length, bytes;
	const char *order;
	tern_status st = TERN_OK;
	char *head;

	if (!find_head(d, n, &begin, &length))
		return tn_fail(TERN_E_CORRUPT, "the head of the .npy file is cut or too long");
	head = strndup((const char *)d + begin, length);
	if (!head)
		return tn_fail(TERN_E_NOMEM, "no memory for the head of a .npy file");
	order = member(head, "'fortran_order'");
	if (!parse_dtype(head, &a->dtype))
		st = tn_fail(TERN_E_UNSUPPORTED, "tern does not have the .npy file's type");
	else if (!order || strncmp(order, "False", 5) != 0)
		st = tn_fail(TERN_E_UNSUPPORTED, "the .npy file is in Fortran's order: save it in C's");
	else if (!parse_shape(head, &a->shape))
		st = tn_fail(TERN_E_CORRUPT, "the .npy file's shape is not a tuple of at most %d numbers",
			     TERN_RANK_MAX);
	else
		st = tn_shape_bytes(&a->shape, a->dtype, &bytes);
	free(head);
	TN_TRY(st);
	if (n - begin - length != bytes)
		return tn_fail(TERN_E_CORRUPT,
			       "the .npy file has %" PRIu64 " bytes of data, its shape asks for %" PRIu64,
			       n - begin - length, bytes);
	*values = tn_values_new(d + begin + length, bytes);
	return *values ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " bytes", bytes);
}

/* ---- TensorProto ---- */

static tern_status proto_parse(const uint8_t *d, uint64_t n, tern_array *a, void **values)
{
	ProtobufCMessage *message;
	Onnx__TensorProto *t;
	tern_status st = tn_ox_unpack(&onnx__tensor_proto__descriptor, d, n, &message);

	if (st == TERN_E_CORRUPT)
		return tn_fail(TERN_E_CORRUPT, "this is neither a .npy file nor an ONNX tensor");
	TN_TRY(st);
	t = (Onnx__TensorProto *)message;
	st = tn_ox_tensor_read(t, t->name ? t->name : "", NULL, &a->dtype, &a->shape, values);
	if (st == TERN_OK && t->name && !(a->name = strdup(t->name))) {
		tn_values_unref(*values);
		st = tn_fail(TERN_E_NOMEM, "no memory for a name");
	}
	tn_ox_release(&t->base);
	return st;
}

/* ---- both ---- */

tern_status tn_array_parse(const void *data, uint64_t bytes, tern_array *array)
{
	bool npy = bytes >= MAGIC_BYTES && memcmp(data, MAGIC, MAGIC_BYTES) == 0;
	tern_array a = {.name = NULL};
	void *values = NULL;

	TN_TRY(npy ? npy_parse(data, bytes, &a, &values) : proto_parse(data, bytes, &a, &values));
	a.data = values;
	*array = a;
	return TERN_OK;
}

tern_status tern_array_read(const char *path, tern_array *array)
{
	uint64_t bytes;
	tern_status st;
	void *data;

	if (!path || !array)
		return tn_fail(TERN_E_INVALID, "path and array must not be NULL");
	TN_TRY(tn_ox_read_file(path, &data, &bytes));
	st = tn_array_parse(data, bytes, array);
	free(data);
	if (st != TERN_OK)
		tn_detail_prefix("%s", path);
	return st;
}

/* The head of an .npy file, padded so that the data begins at a multiple of 64. */
static tern_status make_head(const tern_array *a, tn_str *head)
{
	const char *descr = NULL;
	uint64_t length;

	for (size_t i = 0; i < TYPES; i++) {
		if (types[i].dtype == a->dtype)
			descr = types[i].descr;
	}
	if (!descr)
		return tn_fail(TERN_E_UNSUPPORTED, "NumPy has no %s: cast it", tern_dtype_name(a->dtype));
	tn_str_addf(head, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
	for (uint32_t i = 0; i < a->shape.rank; i++)
		tn_str_addf(head, "%s%" PRIu64 "%s", i ? " " : "", a->shape.dims[i],
			    i + 1 < a->shape.rank || a->shape.rank == 1 ? "," : "");
	tn_str_addf(head, "), }");
	length = 10 + head->length + 1;
	tn_str_addf(head, "%*s\n", (int)((64 - length % 64) % 64), "");
	return head->failed ? tn_fail(TERN_E_NOMEM, "no memory for the head of a .npy file") : TERN_OK;
}

static tern_status write_file(const char *path, const tn_str *head, const void *data, uint64_t bytes)
{
	uint8_t start[10] = MAGIC "\x01";
	FILE *file = fopen(path, "wbe");
	bool ok;

	if (!file)
		return tn_fail_errno(TERN_E_IO, path, "cannot make it");
	start[8] = (uint8_t)head->length;
	start[9] = (uint8_t)(head->length >> 8);
	ok = fwrite(start, sizeof(start), 1, file) == 1 && fwrite(head->text, head->length, 1, file) == 1 &&
	     (bytes == 0 || fwrite(data, bytes, 1, file) == 1);
	if (fclose(file) != 0 || !ok)
		return tn_fail_errno(TERN_E_IO, path, "cannot write it");
	return TERN_OK;
}

tern_status tern_array_write(const char *path, const tern_array *array)
{
	uint64_t bytes;
	tern_status st;
	tn_str head;

	if (!path || !array || array->shape.rank > TERN_RANK_MAX)
		return tn_fail(TERN_E_INVALID, "path and array must not be NULL, nor the rank above %d",
			       TERN_RANK_MAX);
	TN_TRY(tn_shape_bytes(&array->shape, array->dtype, &bytes));
	if (bytes && !array->data)
		return tn_fail(TERN_E_INVALID, "the array has no data");
	tn_str_init(&head);
	st = make_head(array, &head);
	if (st == TERN_OK)
		st = write_file(path, &head, array->data, bytes);
	tn_str_fini(&head);
	return st;
}

void tern_array_free(tern_array *array)
{
	if (!array)
		return;
	tn_values_unref((void *)(uintptr_t)array->data);
	free((void *)(uintptr_t)array->name);
	*array = (tern_array){0};
}
