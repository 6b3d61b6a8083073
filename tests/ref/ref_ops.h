/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the files of the twin: what ref_graph.c dispatches to.
 */
#ifndef TERN_TESTS_REF_OPS_H
#define TERN_TESTS_REF_OPS_H

#include "ref/ref_graph.h"

/* ref_apply.c */
void ref_apply(const ref_graph *ref, const tn_node *node);
void ref_norm(const ref_graph *ref, const tn_node *node);

/* ref_loss.c */
void ref_label_loss(const ref_graph *ref, const tn_node *node);
void ref_label_loss_grad(const ref_graph *ref, const tn_node *node);
void ref_pair_loss(const ref_graph *ref, const tn_node *node);
void ref_pair_loss_grad(const ref_graph *ref, const tn_node *node);
void ref_matmul_rows(const ref_graph *ref, const tn_node *node);

/* ref_nodes.c, ref_moves.c: false if the op is none of theirs. */
bool ref_nodes(const ref_graph *ref, const tn_node *node);
bool ref_moves(const ref_graph *ref, const tn_node *node);
/* Row-major index <-> one index per dim. */
void ref_unravel(const tern_shape *shape, uint64_t i, uint64_t *at);
uint64_t ref_ravel(const tern_shape *shape, const uint64_t *at);

/* ref_grad.c: false if the op is none of the unary gradients. */
bool ref_unary_grad(const ref_graph *ref, const tn_node *node);

#endif
