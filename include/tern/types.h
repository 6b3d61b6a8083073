/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types that every part shares. Lengths, offsets and counts are 64 bits wide, on the wire too. Times are
 * nanoseconds: points on the monotonic clock of this host inside a process, durations on the wire.
 */
#ifndef TERN_TYPES_H
#define TERN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include <tern/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_VERSION_MAJOR  0
#define TERN_VERSION_MINOR  1
#define TERN_VERSION_PATCH  0
#define TERN_VERSION_STRING "0.1.0"

/* The version of the library that runs, "0.1.0"; compare with TERN_VERSION_STRING. */
const char *tern_version(void);

/* A process's context: memory, devices, links and the progress of all of them. See <tern/ctx.h>. */
typedef struct tern_ctx tern_ctx;
/* Registered memory of a context. See <tern/mem.h>. */
typedef struct tern_mem tern_mem;
/* The protocol between two nodes. See <tern/channel.h>. */
typedef struct tern_link tern_link;
/* A logical ordered stream on a link. See <tern/channel.h>. */
typedef struct tern_channel tern_channel;

/* Element types of tensors. Numbers are wire format. */
typedef enum tern_dtype {
	TERN_F32 = 1,
	TERN_F64 = 2,
	TERN_F16 = 3,
	TERN_BF16 = 4,
	TERN_I8 = 5,
	TERN_U8 = 6,
	TERN_I32 = 7,
	TERN_I64 = 8,
	TERN_U64 = 9,
	TERN_BOOL = 10, /* one byte, 0 or 1 */
} tern_dtype;

/* Bytes of one element; 0 for a number that is no dtype. */
uint64_t tern_dtype_bytes(tern_dtype dtype);
/* "f32", "bf16", ...; "?" for a number that is no dtype. */
const char *tern_dtype_name(tern_dtype dtype);

#define TERN_RANK_MAX 8

/* A tensor's shape, row-major, dense. rank 0 is a scalar; a dim of 0 makes an empty tensor. */
typedef struct tern_shape {
	uint32_t rank;
	uint64_t dims[TERN_RANK_MAX];
} tern_shape;

/*
 * A completion. The operation belongs to tern from the call that accepted it until the completion: the
 * callback runs once, from dispatch (tern_ctx_progress or a wait, in whichever thread drives progress),
 * under no lock, and may submit new operations, reuse this one included.
 */
typedef struct tern_op tern_op;
typedef void (*tern_done_fn)(tern_op *op, void *arg);

/*
 * One operation in flight: owned and placed by the caller, so that submitting allocates nothing. Zero it
 * (or call tern_op_init) before the first use. Exactly one completion follows each accepted submission;
 * a submission that returned anything but TERN_OK completes never. Buffers named by the operation are
 * the caller's again at the completion, never before, whatever its status.
 */
struct tern_op {
	/* set by the caller before submitting */
	tern_done_fn done; /* may be NULL: test or wait instead */
	void *arg;
	uint64_t timeout_ns; /* from submission; 0 = no deadline */
	uint32_t flags;      /* TERN_OP_* */
	void *stream;        /* GPU stream or event that makes the memory ready; NULL for host memory */
	/* results, valid after the completion */
	tern_status status;
	uint64_t length; /* bytes moved */
	/* private */
	uint32_t state;
	uint32_t slot;
	uint64_t priv[10];
};

/* Complete at the REMOTE level (placed and visible at the target) instead of LOCAL (source reusable). */
#define TERN_OP_REMOTE 1u
/*
 * Puts: complete at the LOCAL level where that comes earlier (verbs), without an answer of the peer's. For who
 * hears of the data's arrival in another way. If one that completed so may be lost because its lane broke, its
 * channel ends with TERN_E_INDETERMINATE.
 */
#define TERN_OP_LOCAL 2u
/* op->stream is an event (CUevent), not a stream (CUstream). */
#define TERN_OP_EVENT 4u

/* Clear an operation and set its callback. */
void tern_op_init(tern_op *op, tern_done_fn done, void *arg);
/*
 * TERN_AGAIN while in flight, else the operation's status: TERN_E_STATE if its last submission was refused. Never
 * blocks; makes no progress.
 */
tern_status tern_op_test(const tern_op *op);
/*
 * Wait for the completion. Drives progress of ctx in this thread meanwhile (the helper hands the role
 * over), spinning for the context's spin time first. timeout_ns 0 = without end. TERN_E_DEADLINE says
 * only that waiting ended: the operation is still in flight. Not from a callback.
 */
tern_status tern_op_wait(tern_ctx *ctx, tern_op *op, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif
