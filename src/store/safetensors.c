/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors format. See safetensors.h.
 * Threads: one per object. Tests: tests/unit/store/safetensors_test.c; fuzz/store_safetensors.c.
 */
#include "store/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/os.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie in memory");

static const struct {
	tern_dtype dtype;
	const char *name;
} DTYPES[] = {
	{TERN_F32, "F32"}, {TERN_F64, "F64"}, {TERN_F16, "F16"}, {TERN_BF16, "BF16"}, {TERN_I8, "I8"},
	{TERN_U8, "U8"},   {TERN_I32, "I32"}, {TERN_I64, "I64"}, {TERN_U64, "U64"},   {TERN_BOOL, "BOOL"},
};

static const char *dtype_name(tern_dtype dtype)
{
	for (unsigned i = 0; i < TN_COUNT_OF(DTYPES); i++)
		if (DTYPES[i].dtype == dtype)
			return DTYPES[i].name;
	return NULL;
}

/* Bytes of a tensor; false if they don't fit in 64 bits. */
static bool tensor_bytes(const tn_st_tensor *tensor, uint64_t *bytes)
{
	uint64_t n = tern_dtype_bytes(tensor->dtype);

	for (uint32_t i = 0; i < tensor->shape.rank; i++)
		if (__builtin_mul_overflow(n, tensor->shape.dims[i], &n))
			return false;
	*bytes = n;
	return true;
}

/* ---- writing ---- */

static tern_status check_names(const tn_st_tensor *tensors, unsigned n)
{
	if (n > TN_ST_TENSORS_MAX)
		return tn_fail(TERN_E_INVALID, "%u tensors, a file has at most %d", n, TN_ST_TENSORS_MAX);
	for (unsigned i = 0; i < n; i++) {
		if (!tensors[i].name[0] || strnlen(tensors[i].name, TN_ST_NAME_MAX) == TN_ST_NAME_MAX)
			return tn_fail(TERN_E_INVALID, "a tensor's name has 1 to %d bytes",
				       TN_ST_NAME_MAX - 1);
		for (unsigned k = 0; k < i; k++)
			if (strcmp(tensors[i].name, tensors[k].name) == 0)
				return tn_fail(TERN_E_INVALID, "two tensors are called %s", tensors[i].name);
	}
	return TERN_OK;
}

static tern_status header_tensor(tn_json *json, const tn_st_tensor *tensor, uint64_t *at)
{
	const char *dtype = dtype_name(tensor->dtype);
	uint64_t bytes;

	if (!dtype || tensor->shape.rank > TERN_RANK_MAX || !tensor_bytes(tensor, &bytes))
		return tn_fail(TERN_E_INVALID, "tensor %s has no type and shape that can be written",
			       tensor->name);
	tn_json_key(json, tensor->name);
	tn_json_object(json);
	tn_json_key(json, "dtype");
	tn_json_string(json, dtype);
	tn_json_key(json, "shape");
	tn_json_array(json);
	for (uint32_t i = 0; i < tensor->shape.rank; i++)
		tn_json_u64(json, tensor->shape.dims[i]);
	tn_json_end_array(json);
	tn_json_key(json, "data_offsets");
	tn_json_array(json);
	tn_json_u64(json, *at);
	tn_json_u64(json, *at += bytes);
	tn_json_end_array(json);
	tn_json_end_object(json);
	return TERN_OK;
}

static tern_status header_text(tn_str *text, const tn_st_tensor *tensors, unsigned n, const tn_st_note *notes,
			       unsigned n_notes)
{
	uint64_t at = 0;
	tn_json json;

	tn_json_init(&json, text, 0);
	tn_json_object(&json);
	tn_json_key(&json, "__metadata__");
	tn_json_object(&json);
	for (unsigned i = 0; i < n_notes; i++) {
		tn_json_key(&json, notes[i].key);
		tn_json_string(&json, notes[i].text);
	}
	tn_json_end_object(&json);
	for (unsigned i = 0; i < n; i++)
		TN_TRY(header_tensor(&json, &tensors[i], &at));
	tn_json_end_object(&json);
	while (text->length % 8) /* the data is aligned to 8 bytes, as the format asks for */
		tn_str_add(text, " ");
	return text->failed ? tn_fail(TERN_E_NOMEM, "no memory for a file's header") : TERN_OK;
}

static tern_status write_all(tn_file *file, const tn_str *header, const tn_st_tensor *tensors,
			     const void *const *data, unsigned n)
{
	uint64_t length = header->length, bytes = 0;

	TN_TRY(tn_file_write(file, &length, sizeof(length)));
	TN_TRY(tn_file_write(file, header->text, header->length));
	for (unsigned i = 0; i < n; i++) {
		(void)tensor_bytes(&tensors[i], &bytes); /* it fits: header_tensor */
		TN_TRY(tn_file_write(file, data[i], bytes));
	}
	return TERN_OK;
}

tern_status tn_st_write(tn_file *file, const tn_st_tensor *tensors, const void *const *data, unsigned n,
			const tn_st_note *notes, unsigned n_notes)
{
	tern_status status;
	tn_str header;

	TN_TRY(check_names(tensors, n));
	tn_str_init(&header);
	status = header_text(&header, tensors, n, notes, n_notes);
	if (status == TERN_OK)
		status = write_all(file, &header, tensors, data, n);
	tn_str_fini(&header);
	return status;
}

/* ---- reading ---- */

static tern_status corrupt(const char *file, const char *what, const char *tensor)
{
	return tn_fail(TERN_E_CORRUPT, "%s is no good safetensors file: %s%s%s", file, what,
		       tensor ? " of " : "", tensor ? tensor : "");
}

static bool natural(const json_t *value, uint64_t *number)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*number = (uint64_t)json_integer_value(value);
	return true;
}

static bool parse_dtype(const json_t *value, tern_dtype *dtype)
{
	const char *name = json_string_value(value);

	for (unsigned i = 0; name && i < TN_COUNT_OF(DTYPES); i++) {
		if (strcmp(DTYPES[i].name, name) == 0) {
			*dtype = DTYPES[i].dtype;
			return true;
		}
	}
	return false;
}

static bool parse_shape(const json_t *value, tern_shape *shape)
{
	if (!json_is_array(value) || json_array_size(value) > TERN_RANK_MAX)
		return false;
	shape->rank = (uint32_t)json_array_size(value);
	for (uint32_t i = 0; i < shape->rank; i++)
		if (!natural(json_array_get(value, i), &shape->dims[i]))
			return false;
	return true;
}

static tern_status parse_tensor(const char *file, const char *name, const json_t *value, uint64_t start,
				uint64_t data_bytes, tn_st_tensor *tensor)
{
	const json_t *offsets = json_object_get(value, "data_offsets");
	uint64_t begin, end, bytes;

	if (strlen(name) >= TN_ST_NAME_MAX)
		return corrupt(file, "a name is too long", NULL);
	strcpy(tensor->name, name);
	if (!parse_dtype(json_object_get(value, "dtype"), &tensor->dtype))
		return corrupt(file, "unknown dtype", name);
	if (!parse_shape(json_object_get(value, "shape"), &tensor->shape) || !tensor_bytes(tensor, &bytes))
		return corrupt(file, "bad shape", name);
	if (json_array_size(offsets) != 2 || !natural(json_array_get(offsets, 0), &begin) ||
	    !natural(json_array_get(offsets, 1), &end) || begin > end || end > data_bytes ||
	    end - begin != bytes)
		return corrupt(file, "offsets that don't fit shape or file", name);
	tensor->offset = start + begin;
	tensor->bytes = bytes;
	return TERN_OK;
}

static int by_offset(const void *a, const void *b)
{
	const tn_st_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors fill the file: no gap, no overlap. */
static tern_status check_filled(const char *file, tn_st_tensor *tensors, unsigned count, uint64_t start,
				uint64_t data_bytes)
{
	uint64_t at = start;

	qsort(tensors, count, sizeof(*tensors), by_offset);
	for (unsigned i = 0; i < count; i++) {
		if (tensors[i].offset != at)
			return corrupt(file, "gap or overlap before the data", tensors[i].name);
		at += tensors[i].bytes;
	}
	return at == start + data_bytes ? TERN_OK : corrupt(file, "bytes after the last tensor", NULL);
}

static tern_status parse_root(const char *name, json_t *root, uint64_t start, uint64_t data_bytes,
			      tn_st_tensor *tensors, unsigned *count)
{
	const char *key;
	json_t *value;

	*count = 0;
	json_object_foreach(root, key, value)
	{
		if (strcmp(key, "__metadata__") == 0)
			continue;
		TN_TRY(parse_tensor(name, key, value, start, data_bytes, &tensors[*count]));
		++*count;
	}
	return check_filled(name, tensors, *count, start, data_bytes);
}

tern_status tn_st_parse(const char *name, const char *text, uint64_t bytes, uint64_t data_bytes,
			tn_st_tensor **tensors, unsigned *count)
{
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
	tern_status status;
	size_t members = json_object_size(root);

	*tensors = NULL;
	if (!json_is_object(root)) {
		status = corrupt(name, "its header is no JSON object", NULL);
	} else if (members > TN_ST_TENSORS_MAX + 1) {
		status = corrupt(name, "too many tensors", NULL);
	} else if ((*tensors = calloc(members + 1, sizeof(**tensors))) == NULL) {
		status = tn_fail(TERN_E_NOMEM, "no memory for the header of %s", name);
	} else {
		status = parse_root(name, root, 8 + bytes, data_bytes, *tensors, count);
	}
	json_decref(root);
	if (status != TERN_OK) {
		free(*tensors);
		*tensors = NULL;
	}
	return status;
}

static tern_status read_header(tn_st_file *file, uint64_t file_bytes)
{
	uint64_t length;
	tern_status status;
	char *text;

	if (file_bytes < sizeof(length))
		return corrupt(file->name, "it is shorter than 8 bytes", NULL);
	TN_TRY(tn_file_read_at(file->fd, file->name, 0, &length, sizeof(length)));
	if (length > TN_ST_HEADER_MAX || length > file_bytes - sizeof(length))
		return corrupt(file->name, "the length of its header is impossible", NULL);
	text = malloc(length + 1);
	if (!text)
		return tn_fail(TERN_E_NOMEM, "no memory for the header of %s", file->name);
	status = tn_file_read_at(file->fd, file->name, sizeof(length), text, length);
	if (status == TERN_OK)
		status = tn_st_parse(file->name, text, length, file_bytes - sizeof(length) - length,
				     &file->tensors, &file->count);
	free(text);
	return status;
}

tern_status tn_st_open(tn_st_file *file, int dir, const char *name)
{
	tern_status status;
	struct stat st;

	*file = (tn_st_file){.fd = openat(dir, name, O_RDONLY | O_CLOEXEC)};
	snprintf(file->name, sizeof(file->name), "%s", name);
	if (file->fd < 0)
		return tn_fail_errno(errno == ENOENT ? TERN_E_NOT_FOUND : TERN_E_IO, "open", "%s", name);
	if (fstat(file->fd, &st) != 0)
		status = tn_fail_errno(TERN_E_IO, "fstat", "%s", name);
	else
		status = read_header(file, (uint64_t)st.st_size);
	if (status != TERN_OK)
		tn_st_close(file);
	return status;
}

void tn_st_close(tn_st_file *file)
{
	tn_os_close(&file->fd);
	free(file->tensors);
	file->tensors = NULL;
	file->count = 0;
}

const tn_st_tensor *tn_st_find(const tn_st_file *file, const char *name)
{
	for (unsigned i = 0; i < file->count; i++)
		if (strcmp(file->tensors[i].name, name) == 0)
			return &file->tensors[i];
	return NULL;
}

tern_status tn_st_read_rows(const tn_st_file *file, const tn_st_tensor *tensor, uint64_t first,
			    uint64_t count, void *data)
{
	uint64_t rows = tensor->shape.rank ? tensor->shape.dims[0] : 1, row;

	if (first > rows || count > rows - first)
		return tn_fail(TERN_E_INVALID,
			       "rows %" PRIu64 " and %" PRIu64 " more of %s, which has %" PRIu64, first,
			       count, tensor->name, rows);
	if (count == 0)
		return TERN_OK;
	row = tensor->bytes / rows;
	return tn_file_read_at(file->fd, file->name, tensor->offset + first * row, data, count * row);
}
