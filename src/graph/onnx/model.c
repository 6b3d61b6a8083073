/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening ONNX models: see model.h. Reads files; must not look into nodes.
 *
 * Thread story: see model.h. Tests: tests/unit/graph/onnx_test.c, fuzz/onnx_model.c.
 */
#include "graph/onnx/model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fail.h"

/* ---- files ---- */

static tern_status read_all(int fd, const char *path, void *data, uint64_t bytes)
{
	uint64_t at = 0;

	while (at < bytes) {
		ssize_t n = read(fd, (char *)data + at, bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tn_fail_errno(TERN_E_IO, path, "read %" PRIu64 " of %" PRIu64 " bytes", at,
					     bytes);
		if (n == 0)
			return tn_fail(TERN_E_IO, "%s: it became shorter while it was read", path);
		at += (uint64_t)n;
	}
	return TERN_OK;
}

tern_status tn_ox_read_file(const char *path, void **data, uint64_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	tern_status st = TERN_OK;
	struct stat info;

	if (fd < 0)
		return tn_fail_errno(errno == ENOENT ? TERN_E_NOT_FOUND : TERN_E_IO, path, "cannot open it");
	if (fstat(fd, &info) != 0)
		st = tn_fail_errno(TERN_E_IO, path, "cannot look at it");
	else if (!S_ISREG(info.st_mode))
		st = tn_fail(TERN_E_INVALID, "%s is not a file", path);
	else if ((uint64_t)info.st_size > TN_OX_FILE_MAX)
		st = tn_fail(TERN_E_TOO_LARGE,
			     "%s has %" PRIu64 " bytes; protobuf messages end at 2 GiB: save the model with "
			     "external data",
			     path, (uint64_t)info.st_size);
	*data = st == TERN_OK ? malloc((size_t)info.st_size + 1) : NULL;
	if (st == TERN_OK && !*data)
		st = tn_fail(TERN_E_NOMEM, "no memory for the %" PRIu64 " bytes of %s",
			     (uint64_t)info.st_size, path);
	if (st == TERN_OK)
		st = read_all(fd, path, *data, (uint64_t)info.st_size);
	close(fd);
	if (st == TERN_OK) {
		*bytes = (uint64_t)info.st_size;
	} else {
		free(*data);
		*data = NULL;
	}
	return st;
}

/* ---- scanning ---- */

typedef struct scan {
	const uint8_t *at, *end;
} scan;

static bool scan_varint(scan *s, uint64_t *value)
{
	*value = 0;
	for (unsigned shift = 0; shift < 64 && s->at < s->end; shift += 7) {
		uint8_t byte = *s->at++;

		*value |= (uint64_t)(byte & 127) << shift;
		if (!(byte & 128))
			return true;
	}
	return false;
}

static bool scan_skip(scan *s, uint64_t n)
{
	if ((uint64_t)(s->end - s->at) < n)
		return false;
	s->at += n;
	return true;
}

static tern_status scan_message(const ProtobufCMessageDescriptor *kind, scan s, unsigned depth)
{
	if (depth > TN_OX_DEPTH_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "messages are nested more than %u deep", TN_OX_DEPTH_MAX);
	while (s.at < s.end) {
		const ProtobufCFieldDescriptor *field;
		uint64_t key, n = 0;
		bool ok = scan_varint(&s, &key) && key >> 3 != 0 && key >> 3 < UINT32_MAX >> 3;
		const uint8_t *begin;

		if (ok && (key & 7) == 0)
			ok = scan_varint(&s, &n);
		else if (ok && (key & 7) == 1)
			ok = scan_skip(&s, 8);
		else if (ok && (key & 7) == 5)
			ok = scan_skip(&s, 4);
		else
			ok = ok && (key & 7) == 2 && scan_varint(&s, &n);
		begin = s.at;
		if (ok && (key & 7) == 2)
			ok = scan_skip(&s, n);
		if (!ok)
			return tn_fail(TERN_E_CORRUPT, "this is no ONNX file: a field of %s is cut or broken",
				       kind->short_name);
		field = (key & 7) == 2 ? protobuf_c_message_descriptor_get_field(kind, (unsigned)(key >> 3))
				       : NULL;
		if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
			TN_TRY(scan_message(field->descriptor, (scan){begin, begin + n}, depth + 1));
	}
	return TERN_OK;
}

tern_status tn_ox_scan(const ProtobufCMessageDescriptor *kind, const uint8_t *data, uint64_t bytes)
{
	return scan_message(kind, (scan){data, data + bytes}, 1);
}

/* ---- unpacking ---- */

typedef struct budget {
	uint64_t used, allowed;
	bool spent, no_memory;
} budget;

static void *budget_alloc(void *arg, size_t n)
{
	budget *b = arg;
	void *p;

	b->spent |= n > b->allowed - b->used;
	if (b->spent)
		return NULL;
	b->used += n;
	p = malloc(n);
	b->no_memory |= !p;
	return p;
}

static void budget_free(void *arg, void *p)
{
	(void)arg;
	free(p);
}

tern_status tn_ox_unpack(const ProtobufCMessageDescriptor *kind, const void *data, uint64_t bytes,
			 ProtobufCMessage **message)
{
	budget b = {.allowed = TN_OX_SLACK + TN_OX_GROWTH * bytes};
	ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &b};

	TN_ASSERT(bytes <= TN_OX_FILE_MAX);
	TN_TRY(tn_ox_scan(kind, data, bytes));
	*message = protobuf_c_message_unpack(kind, &allocator, bytes, data);
	if (*message)
		return TERN_OK;
	if (b.no_memory)
		return tn_fail(TERN_E_NOMEM, "no memory to unpack %" PRIu64 " bytes", bytes);
	if (b.spent)
		return tn_fail(TERN_E_TOO_LARGE,
			       "%" PRIu64 " bytes of messages need more than %" PRIu64
			       " bytes of memory: this is no model",
			       bytes, b.allowed);
	return tn_fail(TERN_E_CORRUPT, "this is no ONNX file: %s does not unpack", kind->short_name);
}

void tn_ox_release(ProtobufCMessage *message)
{
	budget b = {0};
	ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &b};

	if (message)
		protobuf_c_message_free_unpacked(message, &allocator);
}

static tern_status unpack_model(tn_ox_model *m, const void *bytes, uint64_t n)
{
	ProtobufCMessage *message;

	TN_TRY(tn_ox_unpack(&onnx__model_proto__descriptor, bytes, n, &message));
	m->proto = (Onnx__ModelProto *)message;
	if (!m->proto->graph)
		return tn_fail(TERN_E_CORRUPT, "the model has no graph");
	return TERN_OK;
}

static char *folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("./");
}

tern_status tn_ox_model_open(tn_ox_model *model, const char *path, const void *bytes, uint64_t n)
{
	void *file = NULL;
	tern_status st = TERN_OK;

	*model = (tn_ox_model){0};
	if (path) {
		st = tn_ox_read_file(path, &file, &n);
		bytes = file;
		if (st == TERN_OK && !(model->folder = folder_of(path)))
			st = tn_fail(TERN_E_NOMEM, "no memory for a path");
	} else if (n > TN_OX_FILE_MAX) {
		st = tn_fail(TERN_E_TOO_LARGE, "a model of %" PRIu64 " bytes: protobuf messages end at 2 GiB",
			     n);
	}
	if (st == TERN_OK) {
		st = unpack_model(model, bytes, n);
		if (st != TERN_OK && path)
			tn_detail_prefix("%s", path);
	}
	free(file);
	if (st != TERN_OK)
		tn_ox_model_close(model);
	return st;
}

void tn_ox_model_close(tn_ox_model *model)
{
	tn_ox_release(model->proto ? &model->proto->base : NULL);
	free(model->folder);
	*model = (tn_ox_model){0};
}
