/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels whose output element (i, j, ...) is the input element (map0[i], map1[j], ...), or a fixed value
 * where one of the maps says TN_MAP_NONE: Pad, and Resize to the nearest.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_moves_test.c.
 */
#ifndef TN_GRAPH_KERN_MAP_H
#define TN_GRAPH_KERN_MAP_H

#include "graph/kern_walk.h"

#define TN_MAP_NONE (-1)

/*
 * The kernel of a node whose maps fill(arg, d, map) gives: map[i] for each i below the output's dim d. value:
 * as an element of the output.
 */
typedef void (*tn_map_fill)(const void *arg, uint32_t d, int64_t *map);
tern_status tn_map_kern_create(const tn_kern_desc *desc, tn_map_fill fill, const void *arg, double value,
			       tn_kern **made);

#endif
