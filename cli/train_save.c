/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a job: DIR/step-N/NAME.safetensors, one file for each process that holds variables. A step is complete
 * when all its files are there; each file is whole or not there.
 *
 * Threads: main. Tests: tests/e2e/train_resume_test.py.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train.h"

#define KEPT 3 /* of each process: servers are at most a save apart, so the oldest of them is complete */

static void step_dir(const char *dir, uint64_t step, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/step-%010llu", dir, (unsigned long long)step);
}

void train_save_path(const char *dir, uint64_t step, const char *name, char *path, size_t bytes)
{
	char folder[4096];
	size_t n;

	step_dir(dir, step, folder, sizeof(folder));
	n = strlen(folder) + 1;
	snprintf(path, bytes, "%s/%s.safetensors", folder, name);
	for (char *slash = n < bytes ? strchr(path + n, '/') : NULL; slash; slash = strchr(slash, '/'))
		*slash = '.';
}

/* Does the step hold a file of everybody who has variables? */
static bool is_complete(const train_options *o, const char *dir, uint64_t step)
{
	char name[TRAIN_NAME_MAX], path[4300];

	for (uint64_t i = 0; i < (o->servers ? o->servers : o->stages); i++) {
		train_name(o, !o->servers, o->servers ? i : 0, i, name);
		train_save_path(dir, step, name, path, sizeof(path));
		if (access(path, R_OK) != 0)
			return false;
	}
	return true;
}

bool train_newest(const train_options *o, const char *path, uint64_t *step)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	bool found = false;

	while (dir && (entry = readdir(dir))) {
		uint64_t n;

		if (strncmp(entry->d_name, "step-", 5) != 0)
			continue;
		n = strtoull(entry->d_name + 5, NULL, 10);
		if ((!found || n > *step) && is_complete(o, path, n)) {
			*step = n;
			found = true;
		}
	}
	if (dir)
		closedir(dir);
	return found;
}

bool train_resume_step(const train_options *o, uint64_t *step)
{
	if (access(o->resume, R_OK | X_OK) != 0)
		fprintf(stderr, "tern train: --resume %s: %s\n", o->resume, strerror(errno));
	else if (!train_newest(o, o->resume, step))
		fprintf(stderr,
			"tern train: --resume %s: no complete checkpoint of a job with %llu servers is "
			"there\n",
			o->resume, (unsigned long long)o->servers);
	else
		return true;
	return false;
}

/* What this process no longer needs; a directory goes with the last file in it. */
static void forget(const char *dir, uint64_t step, const char *name)
{
	char path[4300];

	train_save_path(dir, step, name, path, sizeof(path));
	if (unlink(path) != 0)
		return;
	step_dir(dir, step, path, sizeof(path));
	rmdir(path);
}

tern_status train_save(const train_options *o, tern_session *session, const char *name, uint64_t step)
{
	char path[4300];
	tern_status status;

	mkdir(o->save, 0777);
	step_dir(o->save, step, path, sizeof(path));
	if (mkdir(path, 0777) != 0 && errno != EEXIST) {
		fprintf(stderr, "%s: --save: %s: %s\n", name, path, strerror(errno));
		return TERN_E_IO;
	}
	train_save_path(o->save, step, name, path, sizeof(path));
	status = tern_session_save(session, path);
	if (status == TERN_OK && o->save_every && step > KEPT * o->save_every)
		forget(o->save, step - KEPT * o->save_every, name);
	return status;
}

uint64_t train_save_next(const train_options *o, uint64_t step, uint64_t steps)
{
	uint64_t next = o->save_every ? (step / o->save_every + 1) * o->save_every : steps;

	return o->save && next < steps ? next : steps;
}
