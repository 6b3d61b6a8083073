/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets in the IDX format (Fashion-MNIST, MNIST), gzip'd or plain. Memory: the whole set, as bytes.
 * Threads: load in one, read from any.
 */
#ifndef CLI_IDX_H
#define CLI_IDX_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dataset {
	uint64_t count;    /* images */
	uint64_t features; /* rows x columns of one image */
	uint8_t *images;   /* (count, features) */
	uint8_t *labels;   /* (count) */
	unsigned classes;  /* largest label + 1 */
} dataset;

/*
 * Load DIR/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]. On failure prints nothing, returns false
 * and puts one line with the remedy into error.
 */
bool dataset_load(const char *dir, bool train, dataset *set, char *error, unsigned long error_bytes);
void dataset_free(dataset *set);

#endif
