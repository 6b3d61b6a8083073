/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message ring against a model in one thread, and with each word corrupted. Between threads and processes:
 * test_shm_litmus.c.
 */
#include <string.h>

#include "base/rand.h"
#include "shm_ring_rig.h"

/* ---- one thread, against a model ---- */

typedef struct model_msg {
	uint64_t bytes, seed;
	tn_shm_msg msg;
} model_msg;

static uint64_t pick_bytes(tn_rand *rand)
{
	static const uint64_t edges[] = {0, 1, 47, 48, 49, 239, 240, 241, BUF - 1, BUF};

	return tn_rand_below(rand, 2) ? edges[tn_rand_below(rand, TN_COUNT_OF(edges))]
				      : tn_rand_below(rand, BUF + 1);
}

typedef struct model {
	rig r;
	tn_rand rand;
	model_msg sent[1 << 12], held[SLOTS];
	uint64_t head, tail; /* sent, received */
	uint32_t held_count;
} model;

static void model_send(model *m)
{
	uint64_t bytes = pick_bytes(&m->rand);
	bool imm = tn_rand_below(&m->rand, 4) == 0;
	tern_status status;

	if (imm) {
		status = tn_shm_tx_room(&m->r.tx);
		if (status == TERN_OK)
			tn_shm_tx_imm(&m->r.tx, (uint32_t)m->head, ~m->head);
	} else {
		status = send_one(&m->r.tx, bytes, m->head);
	}
	/* Up to SLOTS messages that were not given back always find room. */
	if (m->head - m->tail + m->held_count < SLOTS && !tn_shm_rx_unpublished(&m->r.rx))
		assert_int_equal(status, TERN_OK);
	assert_true(status == TERN_OK || status == TERN_AGAIN);
	if (status == TERN_OK) {
		m->sent[m->head % TN_COUNT_OF(m->sent)] =
			(model_msg){.bytes = imm ? UINT64_MAX : bytes, .seed = m->head};
		m->head++;
	}
}

/* Without a slot. False: it is not one of those, or there is none. */
static bool model_take(model *m)
{
	const model_msg *want = &m->sent[m->tail % TN_COUNT_OF(m->sent)];
	bool there = m->head != m->tail, fits = there && want->bytes - 1 < TN_SHM_INLINE_BYTES;
	uint8_t room[TN_TAKE_BYTES];
	int bytes = tn_shm_rx_take(&m->r.rx, room);

	if (!fits) {
		assert_int_equal(bytes, there ? -1 : 0);
		return false;
	}
	assert_true(bytes > 0);
	assert_true(same(&(tn_shm_msg){.data = room, .bytes = (uint64_t)bytes}, want->bytes, want->seed));
	m->tail++;
	return true;
}

static void model_receive(model *m)
{
	const model_msg *want;
	tern_status status;
	tn_shm_msg msg;

	if (tn_rand_below(&m->rand, 2) && model_take(m))
		return;
	want = &m->sent[m->tail % TN_COUNT_OF(m->sent)];
	status = tn_shm_rx_next(&m->r.rx, &msg);
	if (m->head == m->tail) {
		assert_int_equal(status, TERN_AGAIN);
		if (tn_rand_below(&m->rand, 2))
			(void)tn_shm_rx_publish(&m->r.rx);
		return;
	}
	if (status == TERN_AGAIN) {
		assert_true(m->r.rx.stalled && m->held_count == SLOTS);
		return;
	}
	assert_int_equal(status, TERN_OK);
	m->tail++;
	if (want->bytes == UINT64_MAX) {
		assert_int_equal(msg.kind, TN_SHM_IMM);
		assert_int_equal(msg.imm, (uint32_t)want->seed);
		assert_true(msg.bytes == ~want->seed);
		assert_true(tn_shm_rx_done(&m->r.rx, msg.slot));
	} else {
		assert_true(same(&msg, want->bytes, want->seed));
		assert_true(m->held_count < SLOTS);
		m->held[m->held_count] = *want;
		m->held[m->held_count++].msg = msg;
	}
}

/* In any order, and what is still held has not changed. */
static void model_give_back(model *m)
{
	uint32_t i;

	if (m->held_count == 0)
		return;
	i = (uint32_t)tn_rand_below(&m->rand, m->held_count);
	assert_true(same(&m->held[i].msg, m->held[i].bytes, m->held[i].seed));
	assert_true(tn_shm_rx_done(&m->r.rx, m->held[i].msg.slot));
	assert_false(tn_shm_rx_done(&m->r.rx, m->held[i].msg.slot));
	m->held[i] = m->held[--m->held_count];
}

static void test_model(void **state)
{
	static model m;

	(void)state;
	m.rand.state = 7;
	rig_make(&m.r, SLOTS);
	for (unsigned step = 0; step < MANY(400000u); step++) {
		uint64_t what = tn_rand_below(&m.rand, 5);

		if (what < 2)
			model_send(&m);
		else if (what < 4)
			model_receive(&m);
		else
			model_give_back(&m);
	}
	assert_true(m.head > 1000);
	rig_free(&m.r);
}

/* The lap's tag wraps after 2^32 laps: nothing special happens there. */
static void test_tag_wraps(void **state)
{
	rig r;
	tn_shm_msg msg;

	(void)state;
	rig_make(&r, SLOTS);
	r.tx.head = r.rx.tail = r.rx.published = ((1ull << 32) - 2) * r.tx.ring.cell_count;
	r.tx.limit = r.tx.head + r.tx.ring.cell_count;
	atomic_store(&r.tx.ring.ctl->consumed, r.tx.head);
	for (uint32_t i = 0; i < r.tx.ring.cell_count; i++) /* as the lap before left them */
		atomic_store(&r.tx.ring.cells[i].tag, UINT32_MAX - 1);
	for (uint64_t i = 0; i < 5ull * r.tx.ring.cell_count; i++) {
		assert_int_equal(tn_shm_rx_next(&r.rx, &msg), TERN_AGAIN);
		(void)tn_shm_rx_publish(&r.rx);
		assert_int_equal(send_one(&r.tx, 100, i), TERN_OK);
		assert_int_equal(tn_shm_rx_next(&r.rx, &msg), TERN_OK);
		assert_true(same(&msg, 100, i));
		assert_true(tn_shm_rx_done(&r.rx, msg.slot));
	}
	rig_free(&r);
}

static void test_full_wakes_once(void **state)
{
	rig r;
	tn_shm_msg msg;
	uint64_t n = 0;

	(void)state;
	rig_make(&r, SLOTS);
	assert_false(tn_shm_tx_may_retry(&r.tx));
	while (send_one(&r.tx, 8, n) == TERN_OK)
		n++;
	assert_int_equal(n, 2 * SLOTS);
	assert_false(tn_shm_tx_may_retry(&r.tx));
	assert_true(tn_shm_rx_publish(&r.rx)); /* the producer waits */
	assert_false(tn_shm_rx_publish(&r.rx));
	assert_false(tn_shm_tx_may_retry(&r.tx)); /* nothing was consumed */
	assert_int_equal(tn_shm_rx_next(&r.rx, &msg), TERN_OK);
	assert_int_equal(send_one(&r.tx, 8, n), TERN_AGAIN); /* consumed, not published */
	assert_true(tn_shm_rx_publish(&r.rx));
	assert_true(tn_shm_tx_may_retry(&r.tx));
	assert_false(tn_shm_tx_may_retry(&r.tx)); /* said once */
	assert_int_equal(send_one(&r.tx, 8, n), TERN_OK);
	assert_false(tn_shm_tx_may_retry(&r.tx));
	/* The same for buffers. */
	while (tn_shm_rx_next(&r.rx, &msg) == TERN_OK)
		assert_true(tn_shm_rx_done(&r.rx, msg.slot));
	(void)tn_shm_rx_publish(&r.rx);
	for (n = 0; send_one(&r.tx, 500, n) == TERN_OK; n++)
		;
	assert_int_equal(n, SLOTS);
	/* Cells that come back are no help when buffers lack. */
	assert_int_equal(tn_shm_rx_next(&r.rx, &msg), TERN_OK);
	assert_true(tn_shm_rx_publish(&r.rx));
	assert_false(tn_shm_tx_may_retry(&r.tx));
	assert_true(tn_shm_rx_done(&r.rx, msg.slot));
	assert_true(tn_shm_tx_may_retry(&r.tx));
	assert_int_equal(send_one(&r.tx, 500, n), TERN_OK);
	assert_int_equal(send_one(&r.tx, 500, n), TERN_AGAIN);
	assert_int_equal(tn_shm_rx_next(&r.rx, &msg), TERN_OK);
	assert_true(tn_shm_rx_done(&r.rx, msg.slot));
	assert_true(tn_shm_rx_publish(&r.rx));
	assert_true(tn_shm_tx_may_retry(&r.tx));
	assert_int_equal(send_one(&r.tx, 500, n), TERN_OK);
	rig_free(&r);
}

/* ---- a producer or a consumer that writes nonsense ---- */

static tern_status next_of(uint32_t what, uint64_t bytes)
{
	rig r;
	tn_shm_msg msg;
	tern_status status;

	rig_make(&r, SLOTS);
	assert_int_equal(send_one(&r.tx, 8, 0), TERN_OK);
	atomic_store(&r.tx.ring.cells[0].what, what);
	atomic_store(&r.tx.ring.cells[0].bytes, bytes);
	status = tn_shm_rx_next(&r.rx, &msg);
	if (status == TERN_OK && msg.kind == TN_SHM_SEND) {
		volatile uint8_t sum = 0;

		for (uint64_t i = 0; i < msg.bytes; i++)
			sum = (uint8_t)(sum + ((const uint8_t *)msg.data)[i]);
		assert_true(tn_shm_rx_done(&r.rx, msg.slot));
	}
	rig_free(&r);
	return status;
}

static void test_bad_cells(void **state)
{
	const uint32_t inl = TN_SHM_NO_BUF << 16;

	(void)state;
	assert_int_equal(next_of(TN_SHM_SEND | inl, 240), TERN_OK);
	assert_int_equal(next_of(TN_SHM_SEND | inl, 241), TERN_E_PROTOCOL);
	assert_int_equal(next_of(TN_SHM_SEND | inl, UINT64_MAX), TERN_E_PROTOCOL);
	assert_int_equal(next_of(TN_SHM_SEND | (SLOTS - 1) << 16, BUF), TERN_OK);
	assert_int_equal(next_of(TN_SHM_SEND | (SLOTS - 1) << 16, BUF + 1), TERN_E_PROTOCOL);
	assert_int_equal(next_of(TN_SHM_SEND | SLOTS << 16, 1), TERN_E_PROTOCOL);
	assert_int_equal(next_of(TN_SHM_SEND | 0xfffeu << 16, 1), TERN_E_PROTOCOL);
	assert_int_equal(next_of(TN_SHM_IMM | 5u << 16, UINT64_MAX), TERN_OK);
	assert_int_equal(next_of(0, 0), TERN_E_PROTOCOL);
	assert_int_equal(next_of(3, 0), TERN_E_PROTOCOL);
	assert_int_equal(next_of(UINT32_MAX, 0), TERN_E_PROTOCOL);
}

static tern_status fill_with(uint64_t consumed)
{
	rig r;
	tern_status status = TERN_OK;

	rig_make(&r, SLOTS);
	atomic_store(&r.tx.ring.ctl->consumed, consumed);
	for (unsigned i = 0; i < 3 * r.tx.ring.cell_count && status == TERN_OK; i++)
		status = send_one(&r.tx, 8, i);
	rig_free(&r);
	return status;
}

static void test_bad_consumed(void **state)
{
	(void)state;
	assert_int_equal(fill_with(0), TERN_AGAIN);
	assert_int_equal(fill_with(1), TERN_AGAIN);
	assert_int_equal(fill_with(2 * SLOTS + 1), TERN_E_PROTOCOL);
	assert_int_equal(fill_with(UINT64_MAX), TERN_E_PROTOCOL);
	assert_int_equal(fill_with(1ull << 63), TERN_E_PROTOCOL);
}

/* Send `out` long messages, then return `returned` buffers with the given first two indices. */
static tern_status give_back(uint32_t out, uint64_t returned, uint16_t first, uint16_t second)
{
	rig r;
	tern_status status = TERN_OK;

	rig_make(&r, SLOTS);
	for (uint32_t i = 0; i < out; i++)
		assert_int_equal(send_one(&r.tx, 500, i), TERN_OK);
	atomic_store(&r.tx.ring.ret[0], first);
	atomic_store(&r.tx.ring.ret[1], second);
	atomic_store(&r.tx.ring.ctl->returned, returned);
	for (unsigned i = 0; i < 2 * SLOTS && status == TERN_OK; i++)
		status = send_one(&r.tx, 500, i);
	rig_free(&r);
	return status;
}

static void test_bad_returns(void **state)
{
	(void)state;
	assert_int_equal(give_back(2, 2, 0, 1), TERN_AGAIN);
	assert_int_equal(give_back(2, 2, 1, 0), TERN_AGAIN);
	assert_int_equal(give_back(2, 2, 0, 0), TERN_E_PROTOCOL);
	assert_int_equal(give_back(2, 1, 9, 0), TERN_E_PROTOCOL);
	assert_int_equal(give_back(2, 1, SLOTS, 0), TERN_E_PROTOCOL);
	assert_int_equal(give_back(2, 1, 0xffff, 0), TERN_E_PROTOCOL);
	assert_int_equal(give_back(2, UINT64_MAX, 0, 1), TERN_E_PROTOCOL);
}

/* Any bytes anywhere in the segment: an error or a message, never a step outside. ASan judges. */
static void test_scribble(void **state)
{
	tn_rand rand = {99};

	(void)state;
	for (unsigned round = 0; round < MANY(3000u); round++) {
		rig r;
		uint32_t held[SLOTS], held_count = 0;
		uint64_t meta;

		rig_make(&r, SLOTS);
		meta = (uint64_t)(r.tx.ring.buf_base - (uint8_t *)r.base);
		for (unsigned step = 0; step < 60; step++) {
			tn_shm_msg msg;

			(void)send_one(&r.tx, pick_bytes(&rand), step);
			if (tn_rand_below(&rand, 3) == 0)
				((volatile uint8_t *)r.base)[tn_rand_below(&rand, meta)] =
					(uint8_t)tn_rand_next(&rand);
			if (tn_rand_below(&rand, 8) == 0) {
				tn_shm_cell *cell = &r.rx.ring.cells[r.rx.tail % r.rx.ring.cell_count];

				atomic_store(&cell->what, (uint32_t)tn_rand_next(&rand));
			}
			if (tn_shm_rx_next(&r.rx, &msg) == TERN_OK && msg.slot != TN_SHM_NO_SLOT) {
				volatile uint8_t sum = 0;

				assert_true(held_count < SLOTS && msg.bytes <= BUF);
				for (uint64_t i = 0; i < msg.bytes; i++)
					sum = (uint8_t)(sum + ((const uint8_t *)msg.data)[i]);
				held[held_count++] = msg.slot;
			}
			if (held_count == SLOTS || (held_count > 0 && tn_rand_below(&rand, 2)))
				assert_true(tn_shm_rx_done(&r.rx, held[--held_count]));
			(void)tn_shm_rx_publish(&r.rx);
			(void)tn_shm_tx_may_retry(&r.tx);
		}
		rig_free(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),           cmocka_unit_test(test_tag_wraps),
		cmocka_unit_test(test_full_wakes_once), cmocka_unit_test(test_bad_cells),
		cmocka_unit_test(test_bad_consumed),    cmocka_unit_test(test_bad_returns),
		cmocka_unit_test(test_scribble),
	};

	return RUN(tests);
}
