/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading IDX files through zlib, which reads plain files as well. Every size is checked against what the
 * file holds: a truncated, corrupt or foreign file gets one clear line. Tests: tests/e2e/cli_test.py.
 */
#include "idx.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define IDX_BYTES_MAX (4ull << 30)

typedef struct idx_file {
	char path[4096];
	uint32_t dims[3];
	unsigned rank;
	uint8_t *data;
	uint64_t bytes;
} idx_file;

typedef struct err {
	char *text;
	unsigned long bytes;
} err;

__attribute__((format(printf, 2, 3))) static bool fail(err *e, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(e->text, e->bytes, fmt, args);
	va_end(args);
	return false;
}

static gzFile open_file(const char *dir, const char *name, idx_file *file)
{
	gzFile gz;

	snprintf(file->path, sizeof(file->path), "%s/%s.gz", dir, name);
	gz = gzopen(file->path, "rb");
	if (gz)
		return gz;
	snprintf(file->path, sizeof(file->path), "%s/%s", dir, name);
	return gzopen(file->path, "rb");
}

static bool read_fully(gzFile gz, idx_file *file, void *buf, uint64_t bytes, err *e)
{
	uint8_t *p = buf;

	while (bytes) {
		int n = gzread(gz, p, (unsigned)(bytes < (1u << 30) ? bytes : 1u << 30));
		int code;

		if (n < 0)
			return fail(e, "%s: corrupt gzip data (%s): fetch or install the data set again",
				    file->path, gzerror(gz, &code));
		if (n == 0)
			return fail(
				e,
				"%s: truncated, %llu bytes are missing: fetch or install the data set again",
				file->path, (unsigned long long)bytes);
		p += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static bool read_header(gzFile gz, idx_file *file, unsigned rank, err *e)
{
	uint8_t head[4 + 3 * 4];
	uint64_t bytes = 1;

	if (!read_fully(gz, file, head, 4 + rank * 4, e))
		return false;
	if (head[0] != 0 || head[1] != 0 || head[2] != 8 || head[3] != rank)
		return fail(e,
			    "%s: wrong magic %02x%02x%02x%02x, an IDX file of bytes with %u dimensions "
			    "begins 000008%02x",
			    file->path, head[0], head[1], head[2], head[3], rank, rank);
	file->rank = rank;
	for (unsigned i = 0; i < rank; i++) {
		const uint8_t *p = head + 4 + i * 4;

		file->dims[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
		if (file->dims[i] == 0 || bytes > IDX_BYTES_MAX / file->dims[i])
			return fail(e, "%s: dimension %u is %u: an empty or impossible data set", file->path,
				    i, file->dims[i]);
		bytes *= file->dims[i];
	}
	file->bytes = bytes;
	return true;
}

static bool load(const char *dir, const char *name, unsigned rank, idx_file *file, err *e)
{
	gzFile gz = open_file(dir, name, file);
	uint8_t more;
	bool ok;

	file->data = NULL;
	if (!gz)
		return fail(e,
			    "no data set: cannot open %s[.gz] (%s); install it with `apt install "
			    "dataset-fashion-mnist`"
			    " or say where it is with --data DIR",
			    file->path, strerror(errno));
	gzbuffer(gz, 1u << 18);
	ok = read_header(gz, file, rank, e);
	if (ok) {
		file->data = malloc(file->bytes);
		ok = file->data ? read_fully(gz, file, file->data, file->bytes, e)
				: fail(e, "%s: no memory for %llu bytes", file->path,
				       (unsigned long long)file->bytes);
	}
	/* Reading to the end also checks gzip's checksum. */
	if (ok) {
		int n = gzread(gz, &more, 1);
		int code;

		if (n < 0)
			ok = fail(e, "%s: corrupt gzip data (%s): fetch or install the data set again",
				  file->path, gzerror(gz, &code));
		else if (n > 0)
			ok = fail(e, "%s: longer than its header says: not this data set", file->path);
	}
	if (gzclose(gz) != Z_OK && ok)
		ok = fail(e, "%s: corrupt gzip data: fetch or install the data set again", file->path);
	if (!ok) {
		free(file->data);
		file->data = NULL;
	}
	return ok;
}

bool dataset_load(const char *dir, bool train, dataset *set, char *error, unsigned long error_bytes)
{
	err e = {error, error_bytes};
	idx_file images, labels;

	memset(set, 0, sizeof(*set));
	if (!load(dir, train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", 3, &images, &e))
		return false;
	if (!load(dir, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte", 1, &labels, &e)) {
		free(images.data);
		return false;
	}
	set->count = images.dims[0];
	set->features = (uint64_t)images.dims[1] * images.dims[2];
	set->images = images.data;
	set->labels = labels.data;
	if (labels.dims[0] != images.dims[0]) {
		fail(&e, "%s: %u labels for %u images: files of different data sets", labels.path,
		     labels.dims[0], images.dims[0]);
		dataset_free(set);
		return false;
	}
	for (uint64_t i = 0; i < set->count; i++)
		if (set->labels[i] >= set->classes)
			set->classes = set->labels[i] + 1u;
	return true;
}

void dataset_free(dataset *set)
{
	free(set->images);
	free(set->labels);
	free(set->length);
	for (unsigned i = 0; i < set->ports; i++)
		free(set->port[i].rows);
	memset(set, 0, sizeof(*set));
}
