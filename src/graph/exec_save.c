/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's variables and optimiser state as a safetensors file, between steps, and back. Names are those of the plan's
 * variables, so that a file says what it holds; a plan that shards otherwise does not find its names and says which.
 *
 * Blocks on the disk. Threads: the executor's. Tests: tests/e2e/train_resume_test.py.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/exec_int.h"
#include "store/safetensors.h"

/* The directory and the last part of a path. False: too long. */
static bool split(const char *path, char *dir, size_t bytes, const char **name)
{
	const char *slash = strrchr(path, '/');
	size_t n = slash ? (size_t)(slash - path) : 1;

	*name = slash ? slash + 1 : path;
	if (n + 1 > bytes)
		return false;
	memcpy(dir, slash ? path : ".", n);
	dir[n] = '\0';
	if (n == 0)
		memcpy(dir, "/", 2);
	return true;
}

static tern_status open_dir(const char *path, int *fd, const char **name)
{
	char dir[4096];

	if (!split(path, dir, sizeof(dir), name))
		return tn_fail(TERN_E_INVALID, "%.64s...: a path of more than %zu bytes", path,
			       sizeof(dir) - 1);
	*fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *fd >= 0 ? TERN_OK : tn_fail_errno(TERN_E_IO, "open", "%s", dir);
}

typedef struct table {
	tn_st_tensor *tensors;
	const void **data;
	unsigned count;
} table;

static void table_free(table *t)
{
	free(t->tensors);
	free(t->data);
}

/* Every variable of the device. */
static tern_status list(const tn_exec *e, table *t)
{
	*t = (table){.tensors = calloc(e->graph->n_nodes + 1, sizeof(*t->tensors)),
		     .data = calloc(e->graph->n_nodes + 1, sizeof(*t->data))};
	if (!t->tensors || !t->data)
		return tn_fail(TERN_E_NOMEM, "no memory for a checkpoint of %s", e->graph->name);
	for (uint32_t i = 0; i < e->graph->n_nodes; i++) {
		const tn_node *n = &e->graph->nodes[i];
		tn_st_tensor *to = &t->tensors[t->count];

		if (n->op != TN_OP_VARIABLE)
			continue;
		if (strlen(n->name) >= sizeof(to->name))
			return tn_fail(TERN_E_LIMIT, "'%s': a checkpoint's names have up to %zu bytes",
				       n->name, sizeof(to->name) - 1);
		memcpy(to->name, n->name, strlen(n->name) + 1);
		to->dtype = e->graph->tensors[n->out[0]].dtype;
		to->shape = e->graph->tensors[n->out[0]].shape;
		t->data[t->count++] = e->fixed[n->out[0]];
	}
	return TERN_OK;
}

static tern_status write_file(const tn_exec *e, int dir, const char *name, const table *t)
{
	char step[24], temp[96];
	tn_st_note notes[] = {{"graph", e->graph->name}, {"steps", step}};
	tern_status status;
	tn_file file;

	if (snprintf(temp, sizeof(temp), ".%s.new", name) >= (int)sizeof(temp))
		return tn_fail(TERN_E_INVALID, "'%.64s...': a name of more than 90 bytes", name);
	snprintf(step, sizeof(step), "%" PRIu64,
		 e->progs[TN_PROG_TRAIN].n_chains ? e->progs[TN_PROG_TRAIN].chains[0].step : 0);
	unlinkat(dir, temp, 0); /* of a process that was killed */
	TN_TRY(tn_file_create(&file, dir, temp, NULL, NULL));
	status = tn_st_write(&file, t->tensors, t->data, t->count, notes, TN_COUNT_OF(notes));
	if (status != TERN_OK) {
		tn_file_give_up(&file);
		return status;
	}
	TN_TRY(tn_file_finish(&file));
	if (renameat(dir, temp, dir, name) != 0) {
		status = tn_fail_errno(TERN_E_IO, "rename", "%s", name);
		unlinkat(dir, temp, 0);
		return status;
	}
	return tn_dir_sync(dir, name);
}

tern_status tn_exec_save(tn_exec *e, const char *path)
{
	const char *name;
	tern_status status;
	table t;
	int dir;

	if (e->broken || e->progs[TN_PROG_TRAIN].open_chains)
		return tn_fail(TERN_E_STATE, "%s: a checkpoint is made between steps", e->graph->name);
	TN_TRY(open_dir(path, &dir, &name));
	status = list(e, &t);
	if (status == TERN_OK)
		status = write_file(e, dir, name, &t);
	table_free(&t);
	close(dir);
	return status;
}

static tern_status read_one(const tn_st_file *file, const tn_st_tensor *want, void *data)
{
	const tn_st_tensor *have = tn_st_find(file, want->name);

	if (!have)
		return tn_fail(TERN_E_NOT_FOUND,
			       "%s does not hold '%s': saved by a job with other servers or another model?",
			       file->name, want->name);
	if (have->dtype != want->dtype || have->shape.rank != want->shape.rank ||
	    memcmp(have->shape.dims, want->shape.dims, want->shape.rank * sizeof(*want->shape.dims)) != 0)
		return tn_fail(TERN_E_SHAPE, "%s: '%s' has another type or shape", file->name, want->name);
	return tn_st_read_rows(file, have, 0, have->shape.rank ? have->shape.dims[0] : 1, data);
}

tern_status tn_exec_load(tn_exec *e, const char *path, uint64_t steps)
{
	exec_prog *p = &e->progs[TN_PROG_TRAIN];
	tn_st_file file;
	const char *name;
	tern_status status;
	table t;
	int dir;

	if (e->started)
		return tn_fail(TERN_E_STATE, "%s: started already", e->graph->name);
	TN_TRY(list(e, &t));
	status = t.count ? open_dir(path, &dir, &name) : TERN_OK;
	if (status == TERN_OK && t.count) {
		status = tn_st_open(&file, dir, name);
		for (unsigned i = 0; i < t.count && status == TERN_OK; i++)
			status = read_one(&file, &t.tensors[i], (void *)(uintptr_t)t.data[i]);
		tn_st_close(&file);
		close(dir);
	}
	table_free(&t);
	for (uint32_t i = 0; i < p->n_chains && status == TERN_OK; i++)
		p->chains[i].step = p->chains[i].target = steps;
	return status;
}
