/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the kernels of neural-network ops: their geometry, read once from attributes and bound shapes, and
 * one matrix product in a form that both backends have.
 *
 *   window     a kernel that slides over the last 1 to 3 dims of (N,C,...); missing dims are leading ones.
 *              out[d] = (in[d] + pad[d] + pad_end[d] - ((k[d] - 1) * dil[d] + 1)) / stride[d] + 1
 *              output o sees input o * stride - pad + j * dil for j in 0..k-1, where that is in 0..in-1
 *   norm       groups of elements with one mean and one variance each
 *   recurrent  ONNX's RNN, GRU and LSTM: (T,B,I) in, (T,dirs,B,H) out
 *
 * kern_nn_body.h and kern_rnn_body.h hold the plain-C arithmetic, in float here and in double in tests/ref.
 * Thread story: see kern.h. Tests: tests/unit/graph/nn_conv_test.c, nn_pool_test.c, nn_norm_test.c, nn_grad_test.c.
 */
#ifndef TN_GRAPH_KERN_NN_H
#define TN_GRAPH_KERN_NN_H

#include "graph/kern.h"

#define TN_WINDOW_DIMS 3u

typedef struct tn_nn_window {
	uint32_t nd; /* dims that are there: 1..3 */
	int64_t n;
	int64_t c, oc, groups; /* channels of the input and of the output; pooling: c = oc = groups */
	int64_t in[TN_WINDOW_DIMS], out[TN_WINDOW_DIMS], k[TN_WINDOW_DIMS];
	int64_t stride[TN_WINDOW_DIMS], dil[TN_WINDOW_DIMS];
	int64_t pad[TN_WINDOW_DIMS], pad_end[TN_WINDOW_DIMS];
	bool count_pad;    /* averages: the padding counts */
	bool column_major; /* indices of maxima within a plane */
	int64_t p;         /* LpPool */
} tn_nn_window;

/* Of any convolution or pool, from its bound operands. */
void tn_nn_window_of(const tn_kern_desc *desc, tn_nn_window *w);

/* Of one spatial dim: what the output is, or -1 if nothing fits. */
int64_t tn_nn_out_dim(int64_t in, int64_t k, int64_t stride, int64_t dil, int64_t pads, bool ceil_mode,
		      int64_t pad_begin);

static inline int64_t tn_nn_plane(const int64_t dims[TN_WINDOW_DIMS])
{
	return dims[0] * dims[1] * dims[2];
}

/*
 * Batch and instance norm: group g has `chunks` runs of `run` elements, run i at (g + i * groups) * run; its
 * scale and shift are number g % channels. Layer norm: rows of `run` elements, scale and shift per element.
 */
typedef struct tn_nn_norm {
	int64_t groups, chunks, run, channels;
	double epsilon;
} tn_nn_norm;

void tn_nn_norm_of(const tn_kern_desc *desc, tn_nn_norm *norm);

typedef struct tn_nn_lrn {
	int64_t n, c, plane, size;
	double alpha, beta, bias;
} tn_nn_lrn;

void tn_nn_lrn_of(const tn_kern_desc *desc, tn_nn_lrn *lrn);

/* ---- one matrix product: C = op(A) op(B), or C += ---- */

typedef struct tn_mm_desc {
	int64_t m, n, k;
	int64_t a_row, a_col, b_row, b_col, c_row; /* strides in elements; a row of C is dense */
	bool add;                                  /* to what is in C */
	bool reuse; /* many products with the same B in one run: it may pay to give it another layout */
} tn_mm_desc;

typedef struct tn_mm tn_mm;
struct tn_mm {
	tn_mm_desc d;
	uint64_t scratch_bytes;
	uint64_t packed_bytes; /* B in a layout of its own; 0: it is taken as it is */
	/* b as packed, if packed_bytes */
	tern_status (*run)(tn_mm *mm, const float *a, const float *b, float *c, void *scratch);
	tern_status (*pack)(tn_mm *mm, const float *b, float *packed, void *scratch);
	void (*destroy)(tn_mm *mm);
};

/* dnnl NULL: plain C. */
tern_status tn_mm_create(tn_dnnl *dnnl, const tn_mm_desc *desc, const char *name, tn_mm **mm);
void tn_mm_destroy(tn_mm *mm);
void tn_mm_plain(const tn_mm_desc *desc, const float *a, const float *b, float *c);
/* kern_dnnl_mm.c. *mm NULL: oneDNN does not have it. */
tern_status tn_dnnl_mm_create(tn_dnnl *dnnl, const tn_mm_desc *desc, const char *name, tn_mm **mm);

/*
 * MatMul of (...,M,K) and (...,K,N): `one` per index of the batch, whose strides are 0 where an operand is
 * broadcast. Batch dims that run through both operands alike are one dim here, and none where one product
 * does it all.
 */
typedef struct tn_nn_matmul {
	tn_mm_desc one;
	uint32_t rank; /* batch dims */
	int64_t dims[TERN_RANK_MAX], a_step[TERN_RANK_MAX], b_step[TERN_RANK_MAX];
} tn_nn_matmul;

void tn_nn_matmul_of(const tn_kern_desc *desc, tn_nn_matmul *m);
tern_status tn_dnnl_matmul_create(tn_dnnl *dnnl, const tn_nn_matmul *m, const char *name, tn_kern **kern);

/* ---- recurrent ---- */

/* Which optional operands a gradient node has, in this order behind the fixed ones: attribute "given". */
#define TN_GIVEN_STATE 1 /* initial states of the forward node */
#define TN_GIVEN_DY    2
#define TN_GIVEN_DYH   4
#define TN_GIVEN_DYC   8

typedef enum tn_rnn_kind { TN_RNN_PLAIN, TN_RNN_GRU, TN_RNN_LSTM } tn_rnn_kind;

typedef struct tn_nn_rnn {
	tn_rnn_kind kind;
	int64_t dirs, steps, batch, input, hidden;
	int64_t gates;      /* 1, 3, 4: rows of W and R over hidden */
	int64_t slots;      /* of `hidden` floats in a row of the workspace */
	int64_t biases;     /* vectors of gates * hidden in B: 1, or 2 (of W, of R) */
	int64_t h0_batch;   /* rows of the initial state: batch, or 1 for all */
	tn_op activation;   /* RNN: Tanh, Relu or Sigmoid */
	bool first_reverse; /* direction 0 runs from the last step */
	bool reset_after;   /* GRU: linear_before_reset */
	bool has_state, has_peep;
	bool has_dy, has_dyh, has_dyc;
} tn_nn_rnn;

/* From bound operands of a forward or gradient node. */
void tn_nn_rnn_of(const tn_kern_desc *desc, tn_nn_rnn *r);

/* The products of a recurrent kernel. */
enum {
	TN_RNN_MM_X,   /* gates (T*B) = X W^T */
	TN_RNN_MM_H,   /* gates (B) += H R^T; GRU: of z and r */
	TN_RNN_MM_N,   /* GRU: of the new gate: += (r H) R^T, or hh = H R^T */
	TN_RNN_MM_DH,  /* dH (B) += dG R; GRU before reset: of z and r */
	TN_RNN_MM_DN,  /* GRU before reset: d(r H) = dG R of the new gate */
	TN_RNN_MM_DX,  /* dX (T*B) = dG W */
	TN_RNN_MM_DX2, /* dX += dG W of the second direction */
	TN_RNN_MM_DW,  /* dW = dG^T X */
	TN_RNN_MM_DR,  /* dR = dH^T Hprev; GRU: of z and r */
	TN_RNN_MM_DRN, /* GRU: of the new gate */
	TN_RNN_MMS
};

/* False if the kernel has no use for that product. */
bool tn_nn_rnn_mm(const tn_nn_rnn *r, bool gradient, uint32_t which, tn_mm_desc *desc);
/* Elements of scratch that kern_rnn_body.h wants. */
uint64_t tn_nn_rnn_scratch(const tn_nn_rnn *r, bool gradient);

/* ---- kern_nn.c: the plain kernels; kern_rnn.c; kern_dnnl_nn.c ---- */

tern_status tn_nn_plain_create(const tn_kern_desc *desc, tn_kern **kern);
/* kern_mm.c */
tern_status tn_nn_matmul_create(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **kern);
tern_status tn_rnn_create(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **kern);
/* TERN_OK with *kern NULL if oneDNN has nothing for this node: the plain kernel is to be taken. */
tern_status tn_dnnl_nn_create(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **kern);

#endif
