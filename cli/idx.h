/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets: images in the IDX format (Fashion-MNIST, MNIST), gzip'd or plain, and sequences of tokens (sequences.h). Memory:
 * the whole set. Threads: load in one, read from any.
 */
#ifndef CLI_IDX_H
#define CLI_IDX_H

#include <stdbool.h>
#include <stdint.h>

/* What a port of a model of sequences is fed with. */
typedef struct dataset_port {
	const char *name;
	int32_t *rows; /* (count, steps) */
	bool at_end;   /* padding is in front */
} dataset_port;

#define DATASET_PORTS   3
#define DATASET_NOTHING (-1) /* in "targets": nothing is to be predicted */

typedef struct dataset {
	uint64_t count;    /* images or sequences */
	uint64_t features; /* rows x columns of one image; tokens of the source language, 0 without one */
	uint8_t *images;   /* (count, features) */
	uint8_t *labels;   /* (count) */
	unsigned classes;  /* largest label + 1; tokens that can be predicted */
	/* sequences; steps 0: images */
	uint64_t steps;
	unsigned ports;
	dataset_port port[DATASET_PORTS]; /* the last one is "targets" */
	uint16_t *length;                 /* (count): steps that a row needs; NULL: all of them */
} dataset;

/*
 * Load DIR/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]. On failure prints nothing, returns false
 * and puts one line with the remedy into error.
 */
bool dataset_load(const char *dir, bool train, dataset *set, char *error, unsigned long error_bytes);
void dataset_free(dataset *set);

#endif
