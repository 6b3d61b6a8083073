/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors format (https://github.com/huggingface/safetensors, "Format"): 8 bytes of little-endian header
 * length, a JSON header, then the tensors' bytes without gaps. Any reader of that format reads what is written here.
 *
 * A file from elsewhere is never trusted: header at most 16 MiB, names and shapes bounded, each tensor's bytes are
 * what its type and shape say, inside the file, and no two overlap.
 *
 * Threads: one per object. Blocks. Tests: tests/unit/store/safetensors_test.c; fuzz/store_safetensors.c.
 */
#ifndef TN_STORE_SAFETENSORS_H
#define TN_STORE_SAFETENSORS_H

#include <tern/types.h>

#include "store/file.h"

#define TN_ST_NAME_MAX    96
#define TN_ST_TENSORS_MAX 2048
#define TN_ST_HEADER_MAX  (16u << 20)

typedef struct tn_st_tensor {
	char name[TN_ST_NAME_MAX];
	tern_dtype dtype;
	tern_shape shape;
	uint64_t offset; /* in the file; reading only */
	uint64_t bytes;  /* reading only */
} tn_st_tensor;

/* A line of the header's __metadata__, for people. */
typedef struct tn_st_note {
	const char *key, *text;
} tn_st_note;

/*
 * Write a whole file: tensors[i] from data[i] (dense, row-major, dtype's bytes). The file must have been created and
 * be empty; finishing it is the caller's. TERN_E_INVALID (names twice, too long or empty; too many), as tn_file_write.
 */
tern_status tn_st_write(tn_file *file, const tn_st_tensor *tensors, const void *const *data, unsigned n,
			const tn_st_note *notes, unsigned n_notes);

typedef struct tn_st_file {
	int fd;
	char name[128];
	unsigned count;
	tn_st_tensor *tensors;
} tn_st_file;

/* Open and check. TERN_E_CORRUPT says what is wrong with it; TERN_E_NOT_FOUND, TERN_E_IO, TERN_E_NOMEM. */
tern_status tn_st_open(tn_st_file *file, int dir, const char *name);
void tn_st_close(tn_st_file *file);
/* NULL: no tensor of that name. */
const tn_st_tensor *tn_st_find(const tn_st_file *file, const char *name);
/* Rows first .. first + count - 1 (of the first dimension) into data. They must exist. */
tern_status tn_st_read_rows(const tn_st_file *file, const tn_st_tensor *tensor, uint64_t first,
			    uint64_t count, void *data);
/* Parse a header alone: text of `bytes` bytes, followed by data_bytes of tensors. For tn_st_open and fuzzing. */
tern_status tn_st_parse(const char *name, const char *text, uint64_t bytes, uint64_t data_bytes,
			tn_st_tensor **tensors, unsigned *count);

#endif
