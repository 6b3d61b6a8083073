/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message ring of one direction of a lane: one producer, one consumer, in memory that both map and
 * neither trusts.
 *
 *   cell    256 bytes: a header and up to 240 bytes of payload. A message of up to 48 bytes lies in one
 *           cache line, so that it costs one line transfer
 *   buffer  payload of longer messages; the producer takes one, the consumer gives it back in any order
 *   slot    the consumer's private handle of a message that was delivered and not given back
 *
 *     cells                                          buffers
 *     +------+------+------+------+---- - - --+     +--------+--------+-- - -
 *     |      | used | used |      |           |     | free   | in use |
 *     +------+------+------+------+---- - - --+     +--------+--------+-- - -
 *            ^ rx.tail     ^ tx.head                  ^ indices come back through ret[]
 *
 *     a cell:  0    4       8        16                                            256
 *              | tag| what  | bytes  | payload or immediate . . . . . . . . . . . . |
 *              `------------- first cache line (64) ------------'
 *
 * Invariants:  tx.head - consumed <= cells,   rx.tail <= tx.head,   buffers = free + in use
 * A cell is full when its tag is the lap of its position plus one; the tag is stored last. Cells are
 * never payload and payload is never a tag, so stale bytes can't be taken for a message.
 * Indices of the other side are cached and read again only when the cached one says full.
 *
 * Must not: trust a word that the other side wrote. Everything read is copied once, then checked; what is
 * wrong ends the lane (TERN_E_PROTOCOL), never more.
 * Threads: one producer and one consumer; they may be in different processes.
 * Tests: tests/unit/transport/test_shm_ring.c, test_shm_litmus.c.
 */
#ifndef TN_TRANSPORT_SHM_RING_H
#define TN_TRANSPORT_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

#include "transport/shm/copy.h"
#include "transport/transport.h"

#define TN_SHM_CELL_BYTES   256u
#define TN_SHM_INLINE_BYTES 240u
/* Two cache lines: the hardware fetches lines in pairs. */
#define TN_SHM_LINE 128u

#define TN_SHM_NO_BUF  0xffffu    /* the payload is inline */
#define TN_SHM_NO_SLOT UINT32_MAX /* an immediate holds no slot */

typedef enum tn_shm_kind { TN_SHM_SEND = 1, TN_SHM_IMM = 2 } tn_shm_kind;

typedef struct tn_shm_cell {
	_Atomic uint32_t tag;   /* lap + 1; stored last */
	_Atomic uint32_t what;  /* kind | buffer << 16 */
	_Atomic uint64_t bytes; /* of the message; IMM: of the write that it announces */
	uint8_t data[TN_SHM_INLINE_BYTES];
} tn_shm_cell;
_Static_assert(sizeof(tn_shm_cell) == TN_SHM_CELL_BYTES, "both sides see the same cells");

/*
 * Control words of one direction. Each word has one writer and its own pair of lines:
 *   access    producer: odd while it copies to or from the consumer's memory (one-sided)
 *   wait      producer: counts the times it found the ring full and wants a wake-up
 *   stop      consumer: set once; the producer may not begin another one-sided access
 *   consumed  consumer: cells read, published now and then;  returned: buffers given back, in ret[]
 */
typedef struct tn_shm_ctl {
	_Alignas(TN_SHM_LINE) _Atomic uint32_t access;
	_Alignas(TN_SHM_LINE) _Atomic uint32_t wait;
	_Alignas(TN_SHM_LINE) _Atomic uint32_t stop;
	_Alignas(TN_SHM_LINE) _Atomic uint64_t consumed;
	_Atomic uint64_t returned;
} tn_shm_ctl;
_Static_assert(sizeof(tn_shm_ctl) == 4 * TN_SHM_LINE, "both sides see the same control words");

/* Where one direction lies in this process's mapping, and its sizes as agreed in the handshake. */
typedef struct tn_shm_ring {
	tn_shm_ctl *ctl;
	tn_shm_cell *cells;
	_Atomic uint16_t *ret; /* ring of `bufs` indices */
	uint8_t *buf_base;
	uint32_t cell_count; /* power of two */
	uint32_t cell_shift; /* log2 */
	uint32_t buf_count;  /* power of two, also the number of slots */
	uint32_t buf_bytes;
} tn_shm_ring;

/* ---- the producer ---- */

typedef struct tn_shm_tx {
	tn_shm_ring ring;
	uint64_t head;     /* position of the next cell */
	uint64_t limit;    /* head stays below: consumed as last seen + cells */
	uint64_t returned; /* entries of ret[] taken */
	uint16_t *free;    /* stack: the buffer that came back last is the one in cache */
	uint32_t free_count;
	uint32_t waits;
	bool bad;                    /* the consumer returned what it did not have */
	uint64_t *in_use;            /* one bit per buffer */
	const tn_shm_copier *copier; /* for what goes into buffers */
	/* what tn_shm_tx_may_retry compares; read by the polling thread */
	_Atomic uint32_t waiting;              /* 0, or number of the wait */
	_Atomic(_Atomic uint64_t *) wait_word; /* ctl.consumed or ctl.returned: what was lacking */
	_Atomic uint64_t wait_value;           /* as it was then */
} tn_shm_tx;

/* Allocates the private state. TERN_E_NOMEM. */
tern_status tn_shm_tx_init(tn_shm_tx *tx, const tn_shm_ring *ring, const tn_shm_copier *copier);
void tn_shm_tx_fini(tn_shm_tx *tx);
/*
 * Is there a free cell? TERN_OK; TERN_AGAIN: the ring is full, and the consumer was asked for a wake-up;
 * TERN_E_PROTOCOL: the consumer wrote nonsense.
 */
tern_status tn_shm_tx_room(tn_shm_tx *tx);
/* One message of `bytes` = sum of iov, at most buf_bytes; copied. Status as tn_shm_tx_room. */
tern_status tn_shm_tx_send(tn_shm_tx *tx, const tn_iov *iov, int n, uint64_t bytes);
/* One immediate. Only after tn_shm_tx_room said TERN_OK. */
void tn_shm_tx_imm(tn_shm_tx *tx, uint32_t imm, uint64_t bytes);
/* After TERN_AGAIN: did the consumer give anything back since? Says so once. Any thread. */
bool tn_shm_tx_may_retry(tn_shm_tx *tx);

/* ---- the consumer ---- */

typedef struct tn_shm_rx {
	tn_shm_ring ring;
	uint64_t tail;      /* position of the next cell to read */
	uint64_t published; /* tail as the producer knows it */
	uint64_t returned;  /* buffers given back */
	uint32_t wait_seen;
	bool dirty;   /* buffers went back since the last publish */
	bool stalled; /* a message is there and no slot is free */
	uint16_t *free_slots;
	uint32_t free_slot_count;
	uint16_t *slot_buf;  /* per slot: its buffer, or TN_SHM_NO_BUF */
	uint64_t *slot_held; /* one bit per slot */
	uint8_t *slot_data;  /* per slot: copy of an inline payload */
} tn_shm_rx;

typedef struct tn_shm_msg {
	tn_shm_kind kind;
	uint32_t imm;
	uint32_t slot;
	uint64_t bytes;
	const void *data;
} tn_shm_msg;

tern_status tn_shm_rx_init(tn_shm_rx *rx, const tn_shm_ring *ring);
void tn_shm_rx_fini(tn_shm_rx *rx);
/* TERN_OK: *msg is the next one; TERN_AGAIN: nothing there, or no slot free; TERN_E_PROTOCOL. */
tern_status tn_shm_rx_next(tn_shm_rx *rx, tn_shm_msg *msg);
/*
 * As tn_shm_rx_next, of a message that lies in its cell: its bytes, copied to room; it holds no slot. 0: nothing is there;
 * below 0: tn_shm_rx_next takes what is there.
 */
int tn_shm_rx_take(tn_shm_rx *rx, uint8_t room[TN_SHM_INLINE_BYTES]);
/* Give a slot back. False if it was not held (a bug of the caller). */
bool tn_shm_rx_done(tn_shm_rx *rx, uint32_t slot);
/*
 * Tell the producer what was consumed. True if it waits for that and has to be woken. Called when the ring
 * was found empty and before sleeping, and by tn_shm_rx_next itself every quarter of the ring.
 */
bool tn_shm_rx_publish(tn_shm_rx *rx);

/* Is a message there? With the order that a sleeper needs: after its sleep word is visible. */
static inline bool tn_shm_rx_ready(const tn_shm_rx *rx)
{
	const tn_shm_cell *cell = &rx->ring.cells[rx->tail & (rx->ring.cell_count - 1)];

	return atomic_load_explicit(&cell->tag, memory_order_seq_cst) ==
	       (uint32_t)(rx->tail >> rx->ring.cell_shift) + 1;
}

/*
 * The ring was empty: the next message's further lines come over together with the first, which is looked at all the
 * time, instead of after it. Small ones have up to three.
 */
static inline void tn_shm_rx_expect(const tn_shm_rx *rx)
{
	const uint8_t *cell = (const uint8_t *)&rx->ring.cells[rx->tail & (rx->ring.cell_count - 1)];

	__builtin_prefetch(cell + 64);
	__builtin_prefetch(cell + 128);
}

static inline bool tn_shm_rx_unpublished(const tn_shm_rx *rx)
{
	return rx->tail != rx->published || rx->dirty;
}

#endif
