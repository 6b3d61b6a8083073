/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work requests of loop: accept, place, notify, and the adversary that delays all of it. The key of every
 * piece is checked when that piece is placed, at the target's own table, as a NIC does it.
 * Everything runs under tn_loop_lock. Tests: tests/conformance, tests/unit/transport/test_loop.c.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "transport/loop/loop.h"

#define WRS_MASK   (TN_LOOP_LANE_WRS - 1)
#define SLOTS_MASK (TN_LOOP_LANE_SLOTS - 1)

static tn_loop_dev *dev_of(const tn_loop_lane *lane)
{
	return (tn_loop_dev *)lane->base.dev;
}

static bool notifies(tn_loop_kind kind)
{
	return kind == TN_LOOP_WRITE_IMM || kind == TN_LOOP_SEND;
}

/* ---- slots ---- */

static uint32_t slot_reserve(tn_loop_lane *receiver)
{
	tn_loop_dev *dev = dev_of(receiver);
	uint32_t slot;

	if (dev->free_count == 0 || receiver->slots_used == TN_LOOP_LANE_SLOTS)
		return TN_LOOP_NO_SLOT;
	slot = dev->free_slots[--dev->free_count];
	TN_ASSERT(!dev->slots[slot].busy);
	dev->slots[slot].busy = true;
	dev->slots[slot].lane = receiver;
	receiver->slots_used++;
	return slot;
}

void tn_loop_slot_free(tn_loop_dev *dev, uint32_t slot)
{
	tn_loop_slot *s = &dev->slots[slot];

	TN_ASSERT(s->busy && dev->free_count < TN_LOOP_RECV_SLOTS);
	if (s->lane) {
		TN_ASSERT(s->lane->slots_used > 0);
		s->lane->slots_used--;
	}
	s->lane = NULL;
	s->busy = false;
	dev->free_slots[dev->free_count++] = slot;
	for (tn_loop_lane *lane = dev->lanes; lane; lane = lane->next) {
		if (lane->peer && lane->peer->again) {
			lane->peer->again = false;
			dev_of(lane->peer)->retry = true; /* it may be between its post and its arm */
			tn_loop_signal(dev_of(lane->peer));
		}
	}
}

/* ---- placing ---- */

/*
 * Flag words and doorbells are polled by other threads while they are written, so a small aligned
 * piece is one atomic store, as a NIC's write of one word is.
 */
static void copy_bytes(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	if (bytes == 8 && ((uintptr_t)to & 7) == 0) {
		uint64_t word;

		memcpy(&word, from, 8);
		atomic_store_explicit((_Atomic uint64_t *)(void *)to, word, memory_order_release);
	} else if (bytes == 4 && ((uintptr_t)to & 3) == 0) {
		uint32_t word;

		memcpy(&word, from, 4);
		atomic_store_explicit((_Atomic uint32_t *)(void *)to, word, memory_order_release);
	} else if (bytes > 0) {
		memcpy(to, from, bytes);
	}
}

static void gather(uint8_t *to, const tn_loop_op *op)
{
	if (op->kind != TN_LOOP_SEND) {
		copy_bytes(to, op->local, op->bytes);
		return;
	}
	for (int i = 0; i < op->iov_count; i++) {
		if (op->iov[i].bytes > 0)
			memcpy(to, op->iov[i].base, op->iov[i].bytes);
		to += op->iov[i].bytes;
	}
}

/* Address of the first byte at the target, or an error. The key is looked at anew for every piece. */
static tern_status target_address(tn_loop_lane *lane, const tn_loop_op *op, uint8_t **address)
{
	tern_mem *mem = lane->peer->base.dev->mem;
	uint32_t access = op->kind == TN_LOOP_READ ? TERN_ACCESS_READ : TERN_ACCESS_WRITE;
	uint64_t at;
	uint32_t index;
	const tn_extent *ext;
	tern_status status =
		tn_key_check(tn_mem_keys(mem), &op->key, op->offset, op->bytes, access, &index, &at);

	if (status)
		return status;
	ext = tn_mem_extent(mem, index);
	if (!ext || at > ext->bytes || op->bytes > ext->bytes - at)
		return TERN_E_STALE_KEY;
	if (ext->gpu)
		return TERN_E_UNSUPPORTED;
	*address = (uint8_t *)ext->base + at;
	return TERN_OK;
}

static void place_piece(tn_loop_lane *lane, tn_loop_op *op, uint32_t piece)
{
	uint64_t from = op->cut[piece];
	uint64_t bytes = op->cut[piece + 1] - from;
	tn_loop_counters *counters = &dev_of(lane)->counters;
	uint8_t *target = NULL;

	if (op->status || op->bytes == 0)
		return; /* failed before, or nothing to place: an RDMA device checks no key for zero bytes */
	if (op->kind == TN_LOOP_SEND) {
		gather(dev_of(lane->peer)->slots[op->slot].buf, op);
		return;
	}
	op->status = target_address(lane, op, &target);
	if (op->status)
		return;
	tn_count_own(&counters->copies, 1);
	tn_count_own(&counters->copy_bytes, bytes);
	if (op->kind == TN_LOOP_READ)
		copy_bytes(op->local + from, target + from, bytes);
	else
		copy_bytes(target + from, op->local + from, bytes);
}

static void count_placed(tn_loop_lane *lane, const tn_loop_op *op)
{
	tn_loop_counters *here = &dev_of(lane)->counters, *there = &dev_of(lane->peer)->counters;

	if (op->status)
		return;
	tn_count_own(op->kind == TN_LOOP_READ ? &here->rx_bytes : &here->tx_bytes, op->bytes);
	tn_count_own(op->kind == TN_LOOP_READ ? &there->tx_bytes : &there->rx_bytes, op->bytes);
}

/* Place up to n of the remaining pieces. */
static void place_some(tn_loop_lane *lane, tn_loop_op *op, uint32_t n)
{
	while (n-- > 0 && op->next < op->pieces)
		place_piece(lane, op, op->order[op->next++]);
	if (op->next < op->pieces)
		return;
	op->placed = true;
	count_placed(lane, op);
}

/* Deliver the notifications of all ops that are placed and have only placed ones before them. */
static void notify(tn_loop_lane *lane)
{
	tn_loop_lane *peer = lane->peer;

	while (lane->notified != lane->tail) {
		tn_loop_op *op = &lane->ops[lane->notified & WRS_MASK];

		if (!op->placed)
			return;
		lane->notified++;
		if (op->slot == TN_LOOP_NO_SLOT)
			continue;
		if (op->status) {
			tn_loop_slot_free(dev_of(peer), op->slot);
		} else {
			tn_loop_slot *slot = &dev_of(peer)->slots[op->slot];

			slot->is_imm = op->kind == TN_LOOP_WRITE_IMM;
			slot->imm = op->imm;
			slot->bytes = op->bytes;
			TN_ASSERT(peer->arrived_tail - peer->arrived_head < TN_LOOP_LANE_SLOTS);
			peer->arrived[peer->arrived_tail++ & SLOTS_MASK] = op->slot;
			tn_count_own(&dev_of(peer)->counters.recvs, 1);
			tn_loop_signal(dev_of(peer));
		}
		op->slot = TN_LOOP_NO_SLOT;
	}
}

void tn_loop_fail_ops(tn_loop_lane *lane, tern_status status)
{
	for (; lane->notified != lane->tail; lane->notified++) {
		tn_loop_op *op = &lane->ops[lane->notified & WRS_MASK];

		if (op->slot != TN_LOOP_NO_SLOT)
			tn_loop_slot_free(dev_of(lane->peer), op->slot);
		op->slot = TN_LOOP_NO_SLOT;
		op->placed = true;
		if (!op->status)
			op->status = status;
	}
	for (uint32_t i = lane->head; i != lane->tail; i++)
		lane->ops[i & WRS_MASK].delay = 0;
}

/* ---- the adversary ---- */

static uint64_t random_below(tn_loop_dev *dev, uint64_t n)
{
	return tn_rand_below(&dev->rand, n);
}

static void cut_whole(tn_loop_op *op)
{
	op->pieces = 1;
	op->cut[0] = 0;
	op->cut[1] = op->bytes;
	op->order[0] = 0;
}

static void cut_randomly(tn_loop_dev *dev, tn_loop_op *op)
{
	uint32_t n = 1 + (uint32_t)random_below(dev, TN_LOOP_PIECES_MAX);

	if (op->kind == TN_LOOP_SEND)
		n = 1; /* nobody can see a message before its notification */
	op->pieces = n;
	op->cut[0] = 0;
	op->cut[n] = op->bytes;
	for (uint32_t i = 1; i < n; i++) {
		uint64_t at = random_below(dev, op->bytes + 1);
		uint32_t j = i;

		for (; j > 1 && op->cut[j - 1] > at; j--)
			op->cut[j] = op->cut[j - 1];
		op->cut[j] = at;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = (uint32_t)random_below(dev, i + 1);

		op->order[i] = op->order[j];
		op->order[j] = i;
	}
	op->delay = (uint32_t)random_below(dev, 6);
}

void tn_loop_step(tn_loop_lane *lane)
{
	tn_loop_dev *dev = dev_of(lane);

	if (!dev->adversary || lane->head == lane->tail)
		return;
	for (uint32_t i = lane->notified; i != lane->tail; i++) {
		tn_loop_op *op = &lane->ops[i & WRS_MASK];

		if (!op->placed && random_below(dev, 3) == 0)
			place_some(lane, op, 1 + (uint32_t)random_below(dev, 3));
	}
	if (lane->peer && random_below(dev, 2))
		notify(lane);
	for (uint32_t i = lane->head; i != lane->notified; i++) {
		tn_loop_op *op = &lane->ops[i & WRS_MASK];

		if (op->delay > 0)
			op->delay--;
	}
	if (lane->peer && dev->break_ppm && random_below(dev, 1000000) < dev->break_ppm)
		tn_loop_break(lane, TERN_E_LANE);
}

/* ---- post ---- */

static tern_status check_post(tn_loop_lane *lane, tn_loop_kind kind, const void *local, uint64_t bytes)
{
	if (lane->state != TN_LOOP_UP) {
		if (lane->state == TN_LOOP_DOWN)
			return tn_fail(TERN_E_LANE, "loop: the lane is down: make a new one");
		return tn_fail(TERN_E_STATE, "loop: the lane is not up: post after TN_EV_LANE_UP");
	}
	if (kind != TN_LOOP_SEND && bytes > 0 && !local)
		return tn_fail(TERN_E_INVALID, "loop: %llu bytes at NULL", (unsigned long long)bytes);
	if (kind == TN_LOOP_SEND && bytes > TN_LOOP_SEND_BYTES)
		return tn_fail(TERN_E_TOO_LARGE, "loop: a message of %llu bytes; the limit is %u: cut it",
			       (unsigned long long)bytes, TN_LOOP_SEND_BYTES);
	if (bytes > TN_LOOP_WRITE_BYTES_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "loop: a request of %llu bytes; the limit is %llu: cut it",
			       (unsigned long long)bytes, (unsigned long long)TN_LOOP_WRITE_BYTES_MAX);
	return TERN_OK;
}

/* Is there room? Counts and remembers a refusal, so that the poster is woken when a post can work again. */
static tern_status take_room(tn_loop_lane *lane, tn_loop_kind kind, uint32_t *slot)
{
	tn_loop_dev *dev = dev_of(lane);

	*slot = TN_LOOP_NO_SLOT;
	if (dev->adversary && random_below(dev, 16) == 0) {
		dev->retry = true;
		tn_loop_signal(dev);
		goto again;
	}
	if (lane->tail - lane->head == TN_LOOP_LANE_WRS)
		goto again; /* completions are due: they wake */
	if (notifies(kind)) {
		*slot = slot_reserve(lane->peer);
		if (*slot == TN_LOOP_NO_SLOT) {
			lane->again = true;
			goto again;
		}
	}
	return TERN_OK;
again:
	tn_count_own(&dev->counters.again, 1);
	return TERN_AGAIN;
}

/* A small source may be copied now: the post completes at once, whatever the wire does with it. */
static bool take_copy(tn_loop_lane *lane, tn_loop_op *op, tn_level level)
{
	if (op->kind == TN_LOOP_READ || op->bytes > TN_LOOP_INLINE_BYTES || level != TN_LEVEL_LOCAL)
		return false;
	if (random_below(dev_of(lane), 2) == 0)
		return false;
	gather(op->inlined, op);
	op->local = op->inlined;
	op->iov[0] = (tn_iov){.base = op->inlined, .bytes = op->bytes};
	op->iov_count = 1;
	return true;
}

static void count_post(tn_loop_counters *counters, tn_loop_kind kind)
{
	tn_counter *const of[] = {&counters->writes, &counters->write_imms, &counters->reads,
				  &counters->sends};

	tn_count_own(of[kind], 1);
}

tern_status tn_loop_post(tn_loop_lane *lane, tn_loop_kind kind, tn_wr *wr, const tn_iov *iov, int n)
{
	tn_loop_dev *dev = dev_of(lane);
	tn_loop_op *op = &lane->ops[lane->tail & WRS_MASK];
	uint32_t slot;
	tern_status status = check_post(lane, kind, wr->local, wr->bytes);

	wr->done = false;
	if (!status)
		status = take_room(lane, kind, &slot);
	if (status)
		return status;
	*op = (tn_loop_op){.kind = kind,
			   .cookie = wr->cookie,
			   .local = wr->local,
			   .bytes = wr->bytes,
			   .offset = wr->offset,
			   .key = wr->key,
			   .imm = wr->imm,
			   .slot = slot,
			   .iov_count = n};
	for (int i = 0; i < n; i++)
		op->iov[i] = iov[i];
	lane->tail++;
	count_post(&dev->counters, kind);
	if (dev->adversary) {
		cut_randomly(dev, op);
		op->silent = take_copy(lane, op, wr->level);
		wr->done = op->silent;
		tn_loop_signal(dev);
		tn_loop_signal(dev_of(lane->peer));
		return TERN_OK;
	}
	cut_whole(op);
	place_some(lane, op, 1);
	notify(lane);
	if (op->status) {
		tn_loop_signal(dev);
	} else {
		lane->tail--;
		lane->notified--;
		wr->done = true;
	}
	return TERN_OK;
}
