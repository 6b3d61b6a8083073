/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between kern_plain.c and kern_reduce.c: the prepared form of a plain kernel.
 *
 * A reduction sees its large operand as up to TERN_RANK_MAX groups of adjacent dims that are either all
 * reduced or all kept: (2,3,5) over axes 0,1 is the groups {6 reduced, 5 kept}.
 */
#ifndef TN_GRAPH_KERN_PLAIN_H
#define TN_GRAPH_KERN_PLAIN_H

#include "graph/kern.h"

typedef struct tn_plain {
	tn_kern base;
	const char *name;
	uint64_t n;                 /* elements = rows * cols */
	uint64_t rows, cols, depth; /* depth: MatMul only */
	float scale;
	bool trans_a, trans_b;
	uint32_t n_groups;
	uint64_t group[TERN_RANK_MAX];
	bool reduced[TERN_RANK_MAX];
	uint64_t n_large, n_small;
	float factor; /* on the small operand: 1, or 1 / reduced elements for means */
} tn_plain;

void tn_reduce_fill(tn_plain *k, const tn_kern_desc *desc, const tern_shape *large, bool mean);
tern_status tn_run_reduce(tn_kern *kern, const tn_kern_io *io);
tern_status tn_run_expand(tn_kern *kern, const tn_kern_io *io);

#endif
