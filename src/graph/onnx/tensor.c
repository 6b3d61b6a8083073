/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of ONNX files: types, shapes, and values from raw_data, from the typed fields, or from an external
 * file beside the model. A tensor is taken only if its bytes are exactly those that its shape asks for.
 *
 * Thread story: none. Tests: tests/unit/graph/onnx_test.c, fuzz/onnx_model.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "graph/onnx/model.h"

/* ONNX's number -> tern's, name for texts. */
static const struct {
	tern_dtype dtype;
	const char *name;
} types[] = {
	[ONNX__TENSOR_PROTO__DATA_TYPE__UNDEFINED] = {0, "undefined"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT] = {TERN_F32, "float"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__UINT8] = {TERN_U8, "uint8"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__INT8] = {TERN_I8, "int8"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__UINT16] = {0, "uint16"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__INT16] = {0, "int16"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__INT32] = {TERN_I32, "int32"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__INT64] = {TERN_I64, "int64"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__STRING] = {0, "string"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__BOOL] = {TERN_BOOL, "bool"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16] = {TERN_F16, "float16"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE] = {TERN_F64, "double"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__UINT32] = {0, "uint32"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__UINT64] = {TERN_U64, "uint64"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX64] = {0, "complex64"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX128] = {0, "complex128"},
	[ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16] = {TERN_BF16, "bfloat16"},
};
#define TYPES ((int32_t)(sizeof(types) / sizeof(types[0])))

tern_dtype tn_ox_dtype(int32_t elem_type)
{
	return elem_type >= 0 && elem_type < TYPES ? types[elem_type].dtype : 0;
}

const char *tn_ox_dtype_name(int32_t elem_type)
{
	return elem_type >= 0 && elem_type < TYPES && types[elem_type].name ? types[elem_type].name : "?";
}

/* ---- typed fields ---- */

static tern_status count_is(const char *name, uint64_t has, uint64_t wants)
{
	if (has == wants)
		return TERN_OK;
	return tn_fail(TERN_E_CORRUPT, "tensor '%s': has %" PRIu64 " values, its shape asks for %" PRIu64,
		       name, has, wants);
}

/* int32_data holds all the small types: the low bytes are theirs. */
static tern_status from_int32(const Onnx__TensorProto *t, const char *name, uint64_t n, uint64_t size,
			      void *values)
{
	TN_TRY(count_is(name, t->n_int32_data, n));
	for (uint64_t i = 0; i < n; i++)
		memcpy((char *)values + i * size, &t->int32_data[i], size);
	return TERN_OK;
}

static tern_status from_fields(const Onnx__TensorProto *t, const char *name, tern_dtype dtype, uint64_t n,
			       void *values)
{
	const void *from;
	uint64_t has;

	switch (dtype) {
	case TERN_F32:
		from = t->float_data;
		has = t->n_float_data;
		break;
	case TERN_F64:
		from = t->double_data;
		has = t->n_double_data;
		break;
	case TERN_I64:
		from = t->int64_data;
		has = t->n_int64_data;
		break;
	case TERN_U64:
		from = t->uint64_data;
		has = t->n_uint64_data;
		break;
	default:
		return from_int32(t, name, n, tern_dtype_bytes(dtype), values);
	}
	TN_TRY(count_is(name, has, n));
	if (n)
		memcpy(values, from, n * tern_dtype_bytes(dtype));
	return TERN_OK;
}

/* ---- external data ---- */

typedef struct external {
	const char *location;
	uint64_t offset, length;
	bool has_length;
} external;

static tern_status external_number(const char *name, const char *key, const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || *value > TN_TRANSFER_BYTES_MAX)
		return tn_fail(TERN_E_CORRUPT,
			       "tensor '%s': %s of its external data is '%.32s', not a number", name, key,
			       text);
	return TERN_OK;
}

static tern_status external_parse(const Onnx__TensorProto *t, const char *name, external *x)
{
	*x = (external){0};
	for (size_t i = 0; i < t->n_external_data; i++) {
		const char *key = t->external_data[i]->key, *value = t->external_data[i]->value;

		if (!key || !value)
			continue;
		if (strcmp(key, "location") == 0)
			x->location = value;
		else if (strcmp(key, "offset") == 0)
			TN_TRY(external_number(name, key, value, &x->offset));
		else if (strcmp(key, "length") == 0) {
			TN_TRY(external_number(name, key, value, &x->length));
			x->has_length = true;
		}
	}
	if (!x->location || !*x->location)
		return tn_fail(TERN_E_CORRUPT, "tensor '%s': its external data has no location", name);
	return TERN_OK;
}

/* A model must not read files that its folder does not hold. */
static bool stays_inside(const char *location)
{
	if (location[0] == '/')
		return false;
	for (const char *p = location; p; p = strchr(p, '/')) {
		p += *p == '/';
		if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == '\0'))
			return false;
	}
	return true;
}

static tern_status pread_all(int fd, const char *name, const external *x, void *values, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = pread(fd, (char *)values + at, bytes - at, (off_t)(x->offset + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tn_fail_errno(TERN_E_IO, x->location, "external data of tensor '%s'", name);
		if (n == 0)
			return tn_fail(TERN_E_CORRUPT,
				       "tensor '%s': its external file '%s' ends before byte %" PRIu64, name,
				       x->location, x->offset + bytes);
		at += (uint64_t)n;
	}
	return TERN_OK;
}

/* Opened only if it is a file that holds all of the bytes. */
static tern_status external_open_file(const char *name, const external *x, const char *folder, uint64_t bytes,
				      int *fd)
{
	int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat info;

	*fd = dir < 0 ? -1 : openat(dir, x->location, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (dir >= 0)
		close(dir);
	if (*fd < 0)
		return tn_fail_errno(TERN_E_IO, x->location, "external data of tensor '%s'", name);
	if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size >= x->offset &&
	    (uint64_t)info.st_size - x->offset >= bytes)
		return TERN_OK;
	close(*fd);
	*fd = -1;
	return tn_fail(TERN_E_CORRUPT,
		       "tensor '%s': its external data '%s' is no file with %" PRIu64 " bytes from %" PRIu64
		       " on",
		       name, x->location, bytes, x->offset);
}

static tern_status external_open(const Onnx__TensorProto *t, const char *name, const char *folder,
				 uint64_t bytes, external *x, int *fd)
{
	TN_TRY(external_parse(t, name, x));
	if (!folder)
		return tn_fail(TERN_E_UNSUPPORTED,
			       "tensor '%s': its data is in the file '%s': read the model from its file",
			       name, x->location);
	if (!stays_inside(x->location))
		return tn_fail(TERN_E_INVALID,
			       "tensor '%s': its external data is at '%s', outside of the model's folder",
			       name, x->location);
	if (x->has_length && x->length != bytes)
		return tn_fail(TERN_E_CORRUPT,
			       "tensor '%s': has %" PRIu64 " external bytes, its shape asks for %" PRIu64,
			       name, x->length, bytes);
	return external_open_file(name, x, folder, bytes, fd);
}

/* ---- tensors ---- */

static tern_status shape_of(const Onnx__TensorProto *t, const char *name, tern_shape *shape)
{
	if (t->n_dims > TERN_RANK_MAX)
		return tn_fail(TERN_E_UNSUPPORTED, "tensor '%s': rank %zu is above %d", name, t->n_dims,
			       TERN_RANK_MAX);
	*shape = (tern_shape){.rank = (uint32_t)t->n_dims};
	for (uint32_t i = 0; i < shape->rank; i++) {
		if (t->dims[i] < 0)
			return tn_fail(TERN_E_CORRUPT, "tensor '%s': dim %u is %" PRIi64, name, i,
				       t->dims[i]);
		shape->dims[i] = (uint64_t)t->dims[i];
	}
	return TERN_OK;
}

/* Truth is one byte, 0 or 1, whatever the file has. */
static void make_bools(uint8_t *values, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		values[i] = values[i] != 0;
}

static bool is_external(const Onnx__TensorProto *t)
{
	return t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
}

/* What the file itself holds must be there before memory is taken for what the shape says. */
static tern_status bytes_are_there(const Onnx__TensorProto *t, const char *name, tern_dtype dtype, uint64_t n)
{
	uint64_t has = t->n_int32_data;

	if (is_external(t))
		return TERN_OK;
	if (t->has_raw_data) {
		if (t->raw_data.len == n * tern_dtype_bytes(dtype))
			return TERN_OK;
		return tn_fail(TERN_E_CORRUPT, "tensor '%s': has %zu bytes, its shape asks for %" PRIu64,
			       name, t->raw_data.len, n * tern_dtype_bytes(dtype));
	}
	if (dtype == TERN_F32)
		has = t->n_float_data;
	else if (dtype == TERN_F64)
		has = t->n_double_data;
	else if (dtype == TERN_I64)
		has = t->n_int64_data;
	else if (dtype == TERN_U64)
		has = t->n_uint64_data;
	return count_is(name, has, n);
}

static tern_status take_values(const Onnx__TensorProto *t, const char *name, const char *folder,
			       tern_dtype dtype, uint64_t n, void **values)
{
	uint64_t bytes = n * tern_dtype_bytes(dtype);
	tern_status st = TERN_OK;
	external x = {0};
	int fd = -1;

	if (is_external(t))
		TN_TRY(external_open(t, name, folder, bytes, &x, &fd));
	*values = tn_values_new(!is_external(t) && t->has_raw_data ? t->raw_data.data : NULL, bytes);
	if (!*values)
		st = tn_fail(TERN_E_NOMEM, "no memory for the %" PRIu64 " bytes of tensor '%s'", bytes, name);
	else if (fd >= 0)
		st = pread_all(fd, name, &x, *values, bytes);
	else if (!t->has_raw_data)
		st = from_fields(t, name, dtype, n, *values);
	if (fd >= 0)
		close(fd);
	return st;
}

tern_status tn_ox_tensor_read(const Onnx__TensorProto *t, const char *name, const char *folder,
			      tern_dtype *dtype, tern_shape *shape, void **values)
{
	tern_status st;
	uint64_t n;

	*values = NULL;
	*dtype = t->has_data_type ? tn_ox_dtype(t->data_type) : 0;
	if (!*dtype)
		return tn_fail(TERN_E_UNSUPPORTED, "tensor '%s': tern has no type %s", name,
			       t->has_data_type ? tn_ox_dtype_name(t->data_type)
						: "for a tensor without one");
	if (t->segment)
		return tn_fail(TERN_E_UNSUPPORTED, "tensor '%s': tensors in segments are not read", name);
	TN_TRY(shape_of(t, name, shape));
	st = tn_shape_elements(shape, &n);
	if (st != TERN_OK) {
		tn_detail_prefix("tensor '%.100s'", name);
		return st;
	}
	TN_TRY(bytes_are_there(t, name, *dtype, n));
	st = take_values(t, name, folder, *dtype, n, values);
	if (st != TERN_OK) {
		tn_values_unref(*values);
		*values = NULL;
		return st;
	}
	if (*dtype == TERN_BOOL)
		make_bools(*values, n);
	return TERN_OK;
}
