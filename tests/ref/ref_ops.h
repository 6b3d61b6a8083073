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

/* ref_grad.c: false if the op is none of the unary gradients. */
bool ref_unary_grad(const ref_graph *ref, const tn_node *node);

#endif
