/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between oneDNN's C API of 2.x and that of 3.x, and nothing else: how memory descriptors are
 * held and how primitive descriptors are made. kern_dnnl_v2.c and kern_dnnl_v3.c implement the same functions;
 * the build takes the one that fits the header it finds. All data is f32.
 *
 * All functions return oneDNN's status; on failure nothing has to be freed but what existed before.
 * Thread story: see kern.h. Tests: tests/unit/graph/nn_conv_test.c on both versions.
 */
#ifndef TN_GRAPH_KERN_DNNL_API_H
#define TN_GRAPH_KERN_DNNL_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdint.h>

/* A memory descriptor that is only looked at, as both versions' queries return it. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t tn_md_ref;
#define TN_BNORM_BACKWARD_SHIFT 0
#else
typedef const dnnl_memory_desc_t *tn_md_ref;
#define TN_BNORM_BACKWARD_SHIFT 1 /* the shift counts among its inputs, though it has no use for it */
#endif

/* A memory descriptor that is owned. All zero: none. */
typedef struct tn_md {
	dnnl_memory_desc_t d;
	bool set;
} tn_md;

/* strides in elements; NULL: the primitive chooses the layout. */
dnnl_status_t tn_md_make(tn_md *md, uint32_t rank, const int64_t *dims, const int64_t *strides);
void tn_md_free(tn_md *md);
/* NULL for none. */
tn_md_ref tn_md_look(const tn_md *md);

/* A window: convolution and pooling. dilates as oneDNN counts them: 0 is a dense kernel. */
typedef struct tn_window {
	dnnl_dims_t kernel; /* pooling only */
	dnnl_dims_t strides, dilates, pad_l, pad_r;
} tn_window;

typedef enum tn_pd_kind { TN_PD_FORWARD, TN_PD_BACKWARD_DATA, TN_PD_BACKWARD_WEIGHTS } tn_pd_kind;

/* Attributes with a scratchpad of the caller's; `accumulate`: the result is added to what is there. */
dnnl_status_t tn_pd_attr(dnnl_primitive_attr_t *attr, bool accumulate);

/* bias may be none. */
dnnl_status_t tn_pd_conv(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tn_pd_kind kind, const tn_md *src,
			 const tn_md *weights, const tn_md *bias, const tn_md *dst, const tn_window *window,
			 dnnl_primitive_attr_t attr);
/* FORWARD (as for inference: no workspace) or BACKWARD_DATA (averages only). */
dnnl_status_t tn_pd_pool(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tn_pd_kind kind,
			 dnnl_alg_kind_t alg, const tn_md *src, const tn_md *dst, const tn_window *window,
			 dnnl_primitive_attr_t attr);
dnnl_status_t tn_pd_lrn(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const tn_md *src, int64_t size,
			float alpha, float beta, float bias, dnnl_primitive_attr_t attr);
/* With scale and shift. FORWARD: `global`, the statistics are given, else computed. */
dnnl_status_t tn_pd_bnorm(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tn_pd_kind kind, bool global,
			  const tn_md *src, float epsilon, dnnl_primitive_attr_t attr);
dnnl_status_t tn_pd_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const tn_md *a, const tn_md *b,
			   const tn_md *c, dnnl_primitive_attr_t attr);

#endif
