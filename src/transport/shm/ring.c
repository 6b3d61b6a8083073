/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the two ends of a message ring (ring.h has the drawing). Allocates only at init.
 *
 * Orders: the tag is stored with seq_cst, because the producer goes on to read the consumer's sleep word:
 * either the producer sees that the consumer sleeps, or the consumer, which re-checks after it has set the
 * word, sees the tag. The same pairing holds for consumed/returned and `wait`.
 *
 * Must not map memory or know about sockets. Threads: see ring.h. Tests: tests/unit/transport/test_shm_ring.c, test_shm_litmus.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "transport/shm/ring.h"

#define TN_SHM_FIRST_LINE 48u /* payload in the line of the tag */
#define TN_SHM_HEAD       32u /* the header of a link's frame, most messages' first piece */

static uint32_t lap_tag(const tn_shm_ring *ring, uint64_t position)
{
	return (uint32_t)(position >> ring->cell_shift) + 1;
}

static tn_shm_cell *cell_at(const tn_shm_ring *ring, uint64_t position)
{
	return &ring->cells[position & (ring->cell_count - 1)];
}

static uint8_t *buffer_at(const tn_shm_ring *ring, uint32_t index)
{
	return ring->buf_base + (uint64_t)index * ring->buf_bytes;
}

static bool bit_test(const uint64_t *bits, uint32_t i)
{
	return bits[i / 64] >> (i % 64) & 1;
}

static void bit_flip(uint64_t *bits, uint32_t i)
{
	bits[i / 64] ^= 1ull << (i % 64);
}

/* ---- producer ---- */

tern_status tn_shm_tx_init(tn_shm_tx *tx, const tn_shm_ring *ring, const tn_shm_copier *copier)
{
	memset(tx, 0, sizeof(*tx));
	tx->ring = *ring;
	tx->limit = ring->cell_count;
	tx->copier = copier;
	tx->free = calloc(ring->buf_count, sizeof(*tx->free));
	tx->in_use = calloc((ring->buf_count + 63) / 64, sizeof(*tx->in_use));
	if (!tx->free || !tx->in_use) {
		tn_shm_tx_fini(tx);
		return TERN_E_NOMEM;
	}
	/* Buffer 0 on top: few messages at a time touch few pages. */
	while (tx->free_count < ring->buf_count) {
		tx->free[tx->free_count] = (uint16_t)(ring->buf_count - 1 - tx->free_count);
		tx->free_count++;
	}
	return TERN_OK;
}

void tn_shm_tx_fini(tn_shm_tx *tx)
{
	free(tx->free);
	free(tx->in_use);
	tx->free = NULL;
	tx->in_use = NULL;
}

/* `word` of the consumer's has to move on from `value` before another try makes sense. */
static tern_status tx_again(tn_shm_tx *tx, _Atomic uint64_t *word, uint64_t value)
{
	if (++tx->waits == 0)
		tx->waits = 1;
	atomic_store_explicit(&tx->wait_word, word, memory_order_relaxed);
	atomic_store_explicit(&tx->wait_value, value, memory_order_relaxed);
	atomic_store_explicit(&tx->waiting, tx->waits, memory_order_release);
	atomic_store_explicit(&tx->ring.ctl->wait, tx->waits, memory_order_seq_cst);
	return TERN_AGAIN;
}

bool tn_shm_tx_may_retry(tn_shm_tx *tx)
{
	uint32_t waits = atomic_load_explicit(&tx->waiting, memory_order_acquire);
	_Atomic uint64_t *word;

	if (waits == 0)
		return false;
	word = atomic_load_explicit(&tx->wait_word, memory_order_relaxed);
	if (atomic_load_explicit(word, memory_order_seq_cst) ==
	    atomic_load_explicit(&tx->wait_value, memory_order_relaxed))
		return false;
	/* Said once: a caller that gave the post up is not kept awake. A newer wait stays. */
	(void)atomic_compare_exchange_strong(&tx->waiting, &waits, 0);
	return true;
}

/* The cached limit says full: look at what the consumer says. */
__attribute__((noinline)) static tern_status tx_refresh(tn_shm_tx *tx)
{
	uint64_t consumed = atomic_load_explicit(&tx->ring.ctl->consumed, memory_order_acquire);
	uint64_t known = tx->limit - tx->ring.cell_count;

	if (consumed < known || consumed > tx->head)
		return TERN_E_PROTOCOL;
	tx->limit = consumed + tx->ring.cell_count;
	return tx->head < tx->limit ? TERN_OK : tx_again(tx, &tx->ring.ctl->consumed, consumed);
}

tern_status tn_shm_tx_room(tn_shm_tx *tx)
{
	TN_ASSERT(tx->head <= tx->limit);
	if (TN_LIKELY(tx->head < tx->limit))
		return TERN_OK;
	return tx_refresh(tx);
}

/* Take the buffers that came back. False: the consumer returned what it did not have. */
static bool tx_reclaim(tn_shm_tx *tx)
{
	uint64_t returned = atomic_load_explicit(&tx->ring.ctl->returned, memory_order_acquire);
	uint32_t count = tx->ring.buf_count;

	if (returned == tx->returned)
		return true;
	if (returned - tx->returned > count - tx->free_count)
		return false;
	while (tx->returned != returned) {
		uint16_t index =
			atomic_load_explicit(&tx->ring.ret[tx->returned & (count - 1)], memory_order_relaxed);

		if (index >= count || !bit_test(tx->in_use, index))
			return false;
		bit_flip(tx->in_use, index);
		tx->free[tx->free_count++] = index;
		tx->returned++;
	}
	TN_ASSERT(tx->free_count <= count);
	return true;
}

/* Make the cell visible and go on to the next one. */
static void tx_publish(tn_shm_tx *tx, tn_shm_cell *cell)
{
	atomic_store_explicit(&cell->tag, lap_tag(&tx->ring, tx->head), memory_order_seq_cst);
	tx->head++;
	if (TN_UNLIKELY(atomic_load_explicit(&tx->waiting, memory_order_relaxed)))
		atomic_store_explicit(&tx->waiting, 0, memory_order_relaxed);
	/* Own the next line before it is needed. */
	__builtin_prefetch(cell_at(&tx->ring, tx->head), 1);
}

/* Into a buffer, which nobody looks at before its cell is full: in any order. */
static void gather_far(const tn_shm_tx *tx, uint8_t *to, const tn_iov *iov, int n)
{
	for (int i = 0; i < n; i++) {
		if (iov[i].bytes)
			tn_shm_copy_middle(tx->copier, to, iov[i].base, iov[i].bytes);
		to += iov[i].bytes;
	}
}

static void gather(uint8_t *to, const tn_iov *iov, int n)
{
	for (int i = 0; i < n; i++) {
		if (iov[i].bytes)
			memcpy(to, iov[i].base, iov[i].bytes);
		to += iov[i].bytes;
	}
}

/*
 * Into a cell, the line of the tag last: the consumer, which looks at it all the time, would take it over while the other
 * lines are fetched, and it would have to be fetched again for the tag.
 */
static TN_ALWAYS_INLINE void gather_cell(tn_shm_cell *cell, const tn_iov *iov, int n, uint64_t bytes)
{
	const uint64_t first = TN_SHM_FIRST_LINE - TN_SHM_HEAD;
	const uint8_t *body;

	if (n != 2 || iov[0].bytes != TN_SHM_HEAD || bytes < TN_SHM_FIRST_LINE) {
		gather(cell->data, iov, n);
		return;
	}
	body = iov[1].base;
	memcpy(cell->data + TN_SHM_FIRST_LINE, body + first, iov[1].bytes - first);
	atomic_signal_fence(memory_order_seq_cst); /* a plea to the compiler */
	memcpy(cell->data + TN_SHM_HEAD, body, first);
	memcpy(cell->data, iov[0].base, TN_SHM_HEAD);
}

static __attribute__((noinline)) tern_status tx_send_buffer(tn_shm_tx *tx, const tn_iov *iov, int n,
							    uint64_t bytes)
{
	tn_shm_cell *cell = cell_at(&tx->ring, tx->head);
	uint16_t index;

	if (tx->bad || (tx->free_count == 0 && !tx_reclaim(tx)))
		return TERN_E_PROTOCOL;
	if (tx->free_count == 0)
		return tx_again(tx, &tx->ring.ctl->returned, tx->returned);
	index = tx->free[--tx->free_count];
	TN_ASSERT(index < tx->ring.buf_count && !bit_test(tx->in_use, index));
	bit_flip(tx->in_use, index);
	gather_far(tx, buffer_at(&tx->ring, index), iov, n);
	atomic_store_explicit(&cell->what, TN_SHM_SEND | (uint32_t)index << 16, memory_order_relaxed);
	atomic_store_explicit(&cell->bytes, bytes, memory_order_relaxed);
	tx_publish(tx, cell);
	/* Off the path of this message: the next one reuses what is still in the cache. */
	tx->bad = !tx_reclaim(tx);
	return TERN_OK;
}

TN_ALWAYS_INLINE tern_status tn_shm_tx_send(tn_shm_tx *tx, const tn_iov *iov, int n, uint64_t bytes)
{
	tern_status status = tn_shm_tx_room(tx);
	tn_shm_cell *cell;

	TN_ASSERT(bytes <= tx->ring.buf_bytes);
	if (TN_UNLIKELY(status != TERN_OK))
		return status;
	if (bytes > TN_SHM_INLINE_BYTES)
		return tx_send_buffer(tx, iov, n, bytes);
	cell = cell_at(&tx->ring, tx->head);
	gather_cell(cell, iov, n, bytes);
	atomic_store_explicit(&cell->what, TN_SHM_SEND | TN_SHM_NO_BUF << 16, memory_order_relaxed);
	atomic_store_explicit(&cell->bytes, bytes, memory_order_relaxed);
	tx_publish(tx, cell);
	return TERN_OK;
}

void tn_shm_tx_imm(tn_shm_tx *tx, uint32_t imm, uint64_t bytes)
{
	tn_shm_cell *cell = cell_at(&tx->ring, tx->head);

	TN_ASSERT(tx->head < tx->limit);
	memcpy(cell->data, &imm, sizeof(imm));
	atomic_store_explicit(&cell->what, TN_SHM_IMM | TN_SHM_NO_BUF << 16, memory_order_relaxed);
	atomic_store_explicit(&cell->bytes, bytes, memory_order_relaxed);
	tx_publish(tx, cell);
}

/* ---- consumer ---- */

tern_status tn_shm_rx_init(tn_shm_rx *rx, const tn_shm_ring *ring)
{
	memset(rx, 0, sizeof(*rx));
	rx->ring = *ring;
	rx->free_slots = calloc(ring->buf_count, sizeof(*rx->free_slots));
	rx->slot_buf = calloc(ring->buf_count, sizeof(*rx->slot_buf));
	rx->slot_held = calloc((ring->buf_count + 63) / 64, sizeof(*rx->slot_held));
	rx->slot_data = aligned_alloc(64, (uint64_t)ring->buf_count * TN_SHM_CELL_BYTES);
	if (!rx->free_slots || !rx->slot_buf || !rx->slot_held || !rx->slot_data) {
		tn_shm_rx_fini(rx);
		return TERN_E_NOMEM;
	}
	while (rx->free_slot_count < ring->buf_count) {
		rx->free_slots[rx->free_slot_count] = (uint16_t)(ring->buf_count - 1 - rx->free_slot_count);
		rx->free_slot_count++;
	}
	return TERN_OK;
}

void tn_shm_rx_fini(tn_shm_rx *rx)
{
	free(rx->free_slots);
	free(rx->slot_buf);
	free(rx->slot_held);
	free(rx->slot_data);
	rx->free_slots = NULL;
	rx->slot_buf = NULL;
	rx->slot_held = NULL;
	rx->slot_data = NULL;
}

/* A message: its payload goes to a private slot (inline) or stays in its buffer. */
static tern_status rx_take(tn_shm_rx *rx, const tn_shm_cell *cell, uint32_t buf, tn_shm_msg *msg)
{
	uint32_t slot;

	if (buf == TN_SHM_NO_BUF ? msg->bytes > TN_SHM_INLINE_BYTES
				 : buf >= rx->ring.buf_count || msg->bytes > rx->ring.buf_bytes)
		return TERN_E_PROTOCOL;
	if (rx->free_slot_count == 0) {
		rx->stalled = true;
		return TERN_AGAIN;
	}
	slot = rx->free_slots[--rx->free_slot_count];
	TN_ASSERT(!bit_test(rx->slot_held, slot));
	bit_flip(rx->slot_held, slot);
	rx->slot_buf[slot] = (uint16_t)buf;
	msg->slot = slot;
	if (buf == TN_SHM_NO_BUF) {
		uint8_t *copy = rx->slot_data + (uint64_t)slot * TN_SHM_CELL_BYTES;

		memcpy(copy, cell->data, msg->bytes);
		msg->data = copy;
	} else {
		msg->data = buffer_at(&rx->ring, buf);
	}
	return TERN_OK;
}

static inline void rx_advance(tn_shm_rx *rx)
{
	rx->stalled = false;
	rx->tail++;
	if (rx->tail - rx->published >= rx->ring.cell_count / 4) {
		/* Never the last word: the empty ring that follows publishes again and looks at `wait`. */
		atomic_store_explicit(&rx->ring.ctl->consumed, rx->tail, memory_order_release);
		rx->published = rx->tail;
		rx->dirty = true;
	}
}

tern_status tn_shm_rx_next(tn_shm_rx *rx, tn_shm_msg *msg)
{
	const tn_shm_cell *cell = cell_at(&rx->ring, rx->tail);
	uint32_t what;

	if (atomic_load_explicit(&cell->tag, memory_order_acquire) != lap_tag(&rx->ring, rx->tail))
		return TERN_AGAIN;
	/* Copied once, then checked: the producer may go on writing. */
	what = atomic_load_explicit(&cell->what, memory_order_relaxed);
	msg->bytes = atomic_load_explicit(&cell->bytes, memory_order_relaxed);
	msg->kind = (tn_shm_kind)(what & 0xffff);
	msg->slot = TN_SHM_NO_SLOT;
	msg->data = NULL;
	msg->imm = 0;
	if (msg->kind == TN_SHM_SEND) {
		tern_status status = rx_take(rx, cell, what >> 16, msg);

		if (status != TERN_OK)
			return status;
	} else if (msg->kind == TN_SHM_IMM) {
		memcpy(&msg->imm, cell->data, sizeof(msg->imm));
	} else {
		return TERN_E_PROTOCOL;
	}
	rx_advance(rx);
	return TERN_OK;
}

TN_ALWAYS_INLINE int tn_shm_rx_take(tn_shm_rx *rx, uint8_t room[TN_SHM_INLINE_BYTES])
{
	const tn_shm_cell *cell = cell_at(&rx->ring, rx->tail);
	uint64_t bytes;

	if (atomic_load_explicit(&cell->tag, memory_order_acquire) != lap_tag(&rx->ring, rx->tail))
		return 0;
	bytes = atomic_load_explicit(&cell->bytes, memory_order_relaxed);
	if (TN_UNLIKELY(atomic_load_explicit(&cell->what, memory_order_relaxed) !=
				(TN_SHM_SEND | TN_SHM_NO_BUF << 16) ||
			bytes - 1 >= TN_SHM_INLINE_BYTES))
		return -1;
	memcpy(room, cell->data, bytes);
	rx_advance(rx);
	return (int)bytes;
}

bool tn_shm_rx_done(tn_shm_rx *rx, uint32_t slot)
{
	uint32_t count = rx->ring.buf_count;

	if (slot == TN_SHM_NO_SLOT)
		return true;
	if (slot >= count || !bit_test(rx->slot_held, slot))
		return false;
	bit_flip(rx->slot_held, slot);
	rx->free_slots[rx->free_slot_count++] = (uint16_t)slot;
	TN_ASSERT(rx->free_slot_count <= count);
	if (rx->slot_buf[slot] != TN_SHM_NO_BUF) {
		atomic_store_explicit(&rx->ring.ret[rx->returned & (count - 1)], rx->slot_buf[slot],
				      memory_order_relaxed);
		rx->returned++;
		atomic_store_explicit(&rx->ring.ctl->returned, rx->returned, memory_order_release);
		rx->dirty = true;
	}
	return true;
}

bool tn_shm_rx_publish(tn_shm_rx *rx)
{
	tn_shm_ctl *ctl = rx->ring.ctl;
	uint32_t waits;

	rx->published = rx->tail;
	rx->dirty = false;
	atomic_store_explicit(&ctl->returned, rx->returned, memory_order_seq_cst);
	atomic_store_explicit(&ctl->consumed, rx->tail, memory_order_seq_cst);
	waits = atomic_load_explicit(&ctl->wait, memory_order_seq_cst);
	if (TN_LIKELY(waits == rx->wait_seen))
		return false;
	rx->wait_seen = waits;
	return true;
}
