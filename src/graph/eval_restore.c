/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables of an evaluator from a checkpoint of a training job: a folder with a safetensors file of each process that
 * held variables, or one such file. Servers hold big variables in parts, NAME/part0, NAME/part1, ..., which are rows one
 * after the other (shard.c), so that the parts' bytes side by side are the whole's.
 *
 * Must not: write. Threads: see eval.h; blocks on the disk. Tests: tests/unit/graph/eval_test.c, tests/e2e/weights_test.py.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/eval.h"
#include "store/safetensors.h"

#define FILES_MAX 4096u /* processes of a job, with room */
#define SUFFIX    ".safetensors"

typedef struct checkpoint {
	const char *path;
	tn_st_file *files;
	unsigned count;
} checkpoint;

/* ---- files ---- */

static tern_status open_one(checkpoint *c, int dir, const char *name)
{
	tn_st_file *more = realloc(c->files, (c->count + 1) * sizeof(*c->files));

	if (!more)
		return tn_fail(TERN_E_NOMEM, "no memory for the files of %s", c->path);
	c->files = more;
	if (c->count == FILES_MAX)
		return tn_fail(TERN_E_LIMIT, "%s has more than %u files", c->path, FILES_MAX);
	TN_TRY(tn_st_open(&c->files[c->count], dir, name));
	c->count++;
	return TERN_OK;
}

static tern_status open_folder(checkpoint *c, int fd)
{
	DIR *dir = fdopendir(fd);
	tern_status status = TERN_OK;
	const struct dirent *entry;

	if (!dir) {
		status = tn_fail_errno(TERN_E_IO, "read", "%s", c->path);
		close(fd);
		return status;
	}
	while (status == TERN_OK && (entry = readdir(dir))) {
		size_t n = strlen(entry->d_name), m = strlen(SUFFIX);

		if (entry->d_name[0] != '.' && n > m && strcmp(entry->d_name + n - m, SUFFIX) == 0)
			status = open_one(c, fd, entry->d_name);
	}
	closedir(dir);
	if (status == TERN_OK && c->count == 0)
		return tn_fail(TERN_E_NOT_FOUND,
			       "%s has no " SUFFIX " files: give the folder of a step, or a file", c->path);
	return status;
}

static tern_status open_all(checkpoint *c)
{
	int fd = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const char *slash = strrchr(c->path, '/');
	tern_status status;
	char *folder;

	if (fd >= 0)
		return open_folder(c, fd);
	if (errno != ENOTDIR)
		return tn_fail_errno(errno == ENOENT ? TERN_E_NOT_FOUND : TERN_E_IO, "open", "%s", c->path);
	folder = slash ? strndup(c->path, (size_t)(slash - c->path) + 1) : strdup(".");
	if (!folder)
		return tn_fail(TERN_E_NOMEM, "no memory for the path of %s", c->path);
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	status = fd >= 0 ? open_one(c, fd, slash ? slash + 1 : c->path)
			 : tn_fail_errno(TERN_E_IO, "open", "%s", folder);
	if (fd >= 0)
		close(fd);
	free(folder);
	return status;
}

static void close_all(checkpoint *c)
{
	for (unsigned i = 0; i < c->count; i++)
		tn_st_close(&c->files[i]);
	free(c->files);
}

/* ---- variables ---- */

static const tn_st_tensor *find(const checkpoint *c, const char *name, const tn_st_file **file)
{
	for (unsigned i = 0; i < c->count; i++) {
		const tn_st_tensor *t = tn_st_find(&c->files[i], name);

		*file = &c->files[i];
		if (t)
			return t;
	}
	return NULL;
}

/* Of a part all dims but that of the rows are the whole's. */
static bool fits(const tn_st_tensor *part, const tn_tensor *whole)
{
	uint32_t rows = 0;

	if (part->dtype != whole->dtype || part->shape.rank != whole->shape.rank)
		return false;
	while (rows + 1 < whole->shape.rank && whole->shape.dims[rows] == 1)
		rows++;
	for (uint32_t i = 0; i < whole->shape.rank; i++)
		if (i != rows && part->shape.dims[i] != whole->shape.dims[i])
			return false;
	return true;
}

static tern_status read_one(const tn_st_file *file, const tn_st_tensor *t, const tn_tensor *whole,
			    uint64_t room, uint8_t *data)
{
	if (!fits(t, whole) || t->bytes > room)
		return tn_fail(TERN_E_SHAPE, "%s: '%s' has another type or shape than '%s' of the graph",
			       file->name, t->name, whole->name);
	return tn_st_read_rows(file, t, 0, t->shape.rank ? t->shape.dims[0] : 1, data);
}

static tern_status read_variable(const checkpoint *c, const tn_tensor *v, uint64_t bytes, uint8_t *data)
{
	const tn_st_file *file;
	const tn_st_tensor *t = find(c, v->name, &file);
	char name[TN_ST_NAME_MAX + 16];
	uint64_t at = t ? t->bytes : 0;

	if (t)
		TN_TRY(read_one(file, t, v, bytes, data));
	for (unsigned part = 0; !t; part++) {
		const tn_st_tensor *p;

		snprintf(name, sizeof(name), "%s/part%u", v->name, part);
		p = find(c, name, &file);
		if (!p)
			break;
		TN_TRY(read_one(file, p, v, bytes - at, data + at));
		at += p->bytes;
	}
	if (at == 0 && bytes)
		return tn_fail(TERN_E_NOT_FOUND, "%s does not hold '%s': a checkpoint of another model?",
			       c->path, v->name);
	if (at != bytes)
		return tn_fail(TERN_E_SHAPE,
			       "%s has %" PRIu64 " of %" PRIu64 " bytes of '%s': is a server's file missing?",
			       c->path, at, bytes, v->name);
	return TERN_OK;
}

tern_status tn_eval_restore(tn_eval *eval, const tern_graph *graph, const char *path)
{
	checkpoint c = {.path = path};
	tern_status status = open_all(&c);

	for (uint32_t i = 0; i < graph->n_nodes && status == TERN_OK; i++) {
		const tn_node *n = &graph->nodes[i];
		void *data;

		if (n->op != TN_OP_VARIABLE || !tn_eval_data(eval, n->out[0]))
			continue;
		status = tn_eval_own(eval, n->out[0], &data);
		if (status == TERN_OK)
			status = read_variable(&c, &graph->tensors[n->out[0]], tn_eval_bytes(eval, n->out[0]),
					       data);
	}
	close_all(&c);
	return status;
}
