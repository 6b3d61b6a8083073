/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message ring: against a model in one thread, between threads, between processes, with each word
 * corrupted, and the two store-load pairings (sleep word, wait word).
 */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/os.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "transport/shm/fence.h"
#include "transport/shm/segment.h"

#define SLOTS 16u
#define BUF   1024u

typedef struct rig {
	void *base;
	uint64_t bytes;
	tn_shm_tx tx;
	tn_shm_rx rx;
} rig;

#ifdef TN_SANITIZED
#define MANY(n) ((n) / 10)
#else
#define MANY(n) (n)
#endif

/* Litmus tests run for a count or for this long, whichever is less: the host may be busy. */
#define BUDGET_NS (2 * TN_NS_PER_SEC)

/* One turn of a wait for another thread, which may need this very core. */
static void rest(void)
{
	static _Thread_local unsigned spins;

	if (++spins % 128 == 0)
		sched_yield();
	else
		tn_cpu_relax();
}

static void rig_make(rig *r, uint32_t slots)
{
	tn_shm_ring ring;
	int fd;

	memset(r, 0, sizeof(*r));
	r->bytes = tn_shm_lane_bytes(slots, BUF);
	assert_ok(tn_shm_seg_create("test", r->bytes, false, &fd, &r->base));
	tn_os_close(&fd);
	tn_shm_lane_ring(r->base, slots, BUF, 0, &ring);
	assert_ok(tn_shm_tx_init(&r->tx, &ring));
	assert_ok(tn_shm_rx_init(&r->rx, &ring));
}

static void rig_free(rig *r)
{
	tn_shm_tx_fini(&r->tx);
	tn_shm_rx_fini(&r->rx);
	tn_shm_seg_unmap(r->base, r->bytes);
}

static void fill(uint8_t *to, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)(seed * 131 + i * 7);
}

static tern_status send_one(tn_shm_tx *tx, uint64_t bytes, uint64_t seed)
{
	uint8_t data[BUF];
	tn_iov iov[3];

	fill(data, bytes, seed);
	if (seed % 2 && bytes >= 32) { /* as a link's frames are: a header, and what it is of */
		iov[0] = (tn_iov){.base = data, .bytes = 32};
		iov[1] = (tn_iov){.base = data + 32, .bytes = bytes - 32};
		return tn_shm_tx_send(tx, iov, 2, bytes);
	}
	iov[0] = (tn_iov){.base = data, .bytes = bytes / 3};
	iov[1] = (tn_iov){.base = NULL, .bytes = 0};
	iov[2] = (tn_iov){.base = data + bytes / 3, .bytes = bytes - bytes / 3};
	return tn_shm_tx_send(tx, iov, 3, bytes);
}

static bool same(const tn_shm_msg *msg, uint64_t bytes, uint64_t seed)
{
	uint8_t want[BUF];

	fill(want, bytes, seed);
	return msg->bytes == bytes && memcmp(msg->data, want, bytes) == 0;
}

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

/* ---- litmus ---- */

/* Producer and consumer run freely; every message arrives whole, once, in order. */
typedef struct stream {
	tn_shm_tx *tx;
	tn_shm_rx *rx;
	_Atomic uint64_t *total; /* in the segment: what the producer sent in all, once it knows; else 0 */
	uint64_t count;
	uint64_t bad;
} stream;

static _Atomic uint64_t *total_of(void *segment)
{
	return &((tn_shm_head *)segment)->probe[0];
}

static void *produce(void *arg)
{
	stream *s = arg;
	tn_rand rand = {11};
	uint64_t until = tn_now() + BUDGET_NS;
	uint64_t i;

	for (i = 0; i < s->count && tn_now() < until; i++) {
		uint64_t bytes =
			tn_rand_below(&rand, 4) ? tn_rand_below(&rand, 64) : tn_rand_below(&rand, BUF + 1);
		tern_status status;

		while ((status = send_one(s->tx, bytes, i)) == TERN_AGAIN)
			sched_yield();
		if (status != TERN_OK)
			s->bad++;
	}
	atomic_store(s->total, i);
	return NULL;
}

static void *consume(void *arg)
{
	stream *s = arg;
	tn_rand rand = {11};
	tn_shm_msg held[SLOTS / 2];
	uint32_t held_count = 0;

	for (uint64_t i = 0;; i++) {
		uint64_t bytes =
			tn_rand_below(&rand, 4) ? tn_rand_below(&rand, 64) : tn_rand_below(&rand, BUF + 1);
		tn_shm_msg msg;
		tern_status status;

		while ((status = tn_shm_rx_next(s->rx, &msg)) == TERN_AGAIN) {
			if (atomic_load(s->total) == i && i > 0)
				return NULL;
			(void)tn_shm_rx_publish(s->rx);
			sched_yield();
		}
		if (status != TERN_OK || !same(&msg, bytes, i)) {
			s->bad++;
			return NULL;
		}
		held[held_count++] = msg;
		while (held_count == SLOTS / 2 || (held_count > 0 && i % 3 == 0))
			(void)tn_shm_rx_done(s->rx, held[--held_count].slot);
	}
	return NULL;
}

static void test_threads(void **state)
{
	rig r;
	stream p, c;
	pthread_t producer, consumer;

	(void)state;
	rig_make(&r, SLOTS);
	p = (stream){.tx = &r.tx, .total = total_of(r.base), .count = MANY(1000000u)};
	c = (stream){.rx = &r.rx, .total = total_of(r.base)};
	assert_int_equal(pthread_create(&producer, NULL, produce, &p), 0);
	assert_int_equal(pthread_create(&consumer, NULL, consume, &c), 0);
	pthread_join(producer, NULL);
	pthread_join(consumer, NULL);
	assert_int_equal(p.bad + c.bad, 0);
	rig_free(&r);
}

static void test_processes(void **state)
{
	tn_shm_ring ring;
	uint64_t bytes = tn_shm_lane_bytes(SLOTS, BUF);
	void *base, *again;
	tn_shm_rx rx;
	stream c;
	int fd, status;
	pid_t pid;

	(void)state;
	assert_ok(tn_shm_seg_create("test", bytes, false, &fd, &base));
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		tn_shm_tx tx;
		stream p = {.tx = &tx, .count = MANY(500000u)};

		/* Mappings are not inherited: the child makes its own, at another address. */
		if (tn_shm_seg_map(fd, bytes, TN_SHM_RW, &again) != TERN_OK)
			_exit(2);
		p.total = total_of(again);
		tn_shm_lane_ring(again, SLOTS, BUF, 0, &ring);
		if (tn_shm_tx_init(&tx, &ring) != TERN_OK)
			_exit(3);
		produce(&p);
		_exit(p.bad ? 4 : 0);
	}
	tn_shm_lane_ring(base, SLOTS, BUF, 0, &ring);
	assert_ok(tn_shm_rx_init(&rx, &ring));
	c = (stream){.rx = &rx, .total = total_of(base)};
	consume(&c);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(c.bad, 0);
	tn_shm_rx_fini(&rx);
	tn_shm_seg_unmap(base, bytes);
	tn_os_close(&fd);
}

/*
 * The sleeper: sets its word, looks again, sleeps. The producer publishes, looks at the word, wakes. If the
 * pairing failed, both would miss and the sleeper would wait for ever; poll's time-out turns that into a
 * failure.
 */
typedef struct sleeper {
	rig *r;
	_Atomic uint32_t sleep;
	_Atomic uint64_t got;
	int fd;
	_Atomic uint64_t total; /* UINT64_MAX until the producer knows */
	uint64_t lost;
} sleeper;

static void *sleep_and_consume(void *arg)
{
	sleeper *s = arg;
	uint32_t seq = 0;
	tn_shm_msg msg;

	while (atomic_load(&s->got) < atomic_load(&s->total)) {
		if (tn_shm_rx_next(&s->r->rx, &msg) == TERN_OK) {
			(void)tn_shm_rx_done(&s->r->rx, msg.slot);
			(void)tn_shm_rx_publish(&s->r->rx);
			atomic_fetch_add(&s->got, 1);
			continue;
		}
		atomic_store_explicit(&s->sleep, ++seq, memory_order_seq_cst);
		if (!tn_shm_rx_ready(&s->r->rx)) {
			struct pollfd pfd = {.fd = s->fd, .events = POLLIN};

			if (poll(&pfd, 1, 20000) != 1)
				s->lost++;
			(void)tn_os_event_drain(s->fd);
		}
		atomic_store_explicit(&s->sleep, 0, memory_order_relaxed);
	}
	return NULL;
}

static void test_sleeper(void **state)
{
	rig r;
	sleeper s = {.total = UINT64_MAX};
	uint64_t until = tn_now() + BUDGET_NS, i;
	pthread_t thread;
	uint32_t kicked = 0;
	tn_rand rand = {5};

	(void)state;
	rig_make(&r, SLOTS);
	s.r = &r;
	assert_ok(tn_os_event_create(&s.fd));
	assert_int_equal(pthread_create(&thread, NULL, sleep_and_consume, &s), 0);
	for (i = 0; i < MANY(200000u); i++) {
		uint32_t word;

		/* The last one sends the sleeper home. */
		if (i + 1 == MANY(200000u) || tn_now() > until)
			atomic_store(&s.total, i + 1);
		while (send_one(&r.tx, 8, i) != TERN_OK)
			sched_yield();
		word = atomic_load_explicit(&s.sleep, memory_order_seq_cst);
		if (word != 0 && word != kicked) {
			kicked = word;
			tn_os_event_signal(s.fd);
		}
		/* Wait for the reader to run dry, more or less exactly: the race is there. */
		if (i % 2)
			while (atomic_load(&s.got) <= i)
				rest();
		for (uint64_t k = tn_rand_below(&rand, 50); k > 0; k--)
			tn_cpu_relax();
		if (atomic_load(&s.total) == i + 1)
			break;
	}
	pthread_join(thread, NULL);
	assert_int_equal(s.lost, 0);
	tn_os_close(&s.fd);
	rig_free(&r);
}

/*
 * The other pairing: the producer finds no buffer, says that it waits, looks again, sleeps. The consumer gives
 * one back, publishes, looks whether somebody waits, wakes. All buffers but one are held for good, so that
 * the two meet at each message.
 */
typedef struct waiter {
	rig *r;
	int fd;
	_Atomic bool end;
	uint64_t lost;
} waiter;

static void *consume_and_kick(void *arg)
{
	waiter *w = arg;
	tn_rand rand = {6};
	tn_shm_msg msg;

	for (uint64_t got = 0; !atomic_load(&w->end);) {
		if (tn_shm_rx_next(&w->r->rx, &msg) == TERN_OK) {
			got++;
			for (uint64_t k = tn_rand_below(&rand, 8); k > 0; k--)
				tn_cpu_relax();
			if (got >= SLOTS)
				(void)tn_shm_rx_done(&w->r->rx, msg.slot);
		} else if (tn_shm_rx_unpublished(&w->r->rx) && tn_shm_rx_publish(&w->r->rx)) {
			tn_os_event_signal(w->fd);
		} else {
			rest();
		}
	}
	return NULL;
}

static void test_waiter(void **state)
{
	rig r;
	waiter w = {0};
	pthread_t thread;
	uint64_t until = tn_now() + BUDGET_NS;

	(void)state;
	rig_make(&r, SLOTS);
	w.r = &r;
	assert_ok(tn_os_event_create(&w.fd));
	assert_int_equal(pthread_create(&thread, NULL, consume_and_kick, &w), 0);
	for (uint64_t i = 0; i < MANY(50000u) && w.lost == 0 && tn_now() < until;) {
		struct pollfd pfd = {.fd = w.fd, .events = POLLIN};

		if (send_one(&r.tx, 300, i) == TERN_OK) {
			i++;
		} else if (!tn_shm_tx_may_retry(&r.tx)) {
			if (poll(&pfd, 1, 20000) != 1)
				w.lost++;
			(void)tn_os_event_drain(w.fd);
		}
	}
	atomic_store(&w.end, true);
	pthread_join(thread, NULL);
	assert_int_equal(w.lost, 0);
	tn_os_close(&w.fd);
	rig_free(&r);
}

/*
 * The initiator writes to memory while the owner forbids it and takes the memory back: after the owner saw
 * an even access word behind its stop, the memory keeps what the owner wrote.
 */
typedef struct forbid {
	tn_shm_ctl ctl;
	_Atomic uint64_t target[8];
	_Atomic uint32_t go;
	_Atomic uint32_t ready;
	bool light;
	bool end;
} forbid;

static void *initiate(void *arg)
{
	forbid *f = arg;
	uint32_t turn = 0;

	for (;;) {
		while (atomic_load(&f->go) == turn)
			rest();
		turn++;
		if (f->end)
			return NULL;
		for (uint32_t mark = 1;; mark += 2) {
			bool stop;

			atomic_store_explicit(&f->ctl.access, mark, memory_order_relaxed);
			tn_shm_fence_light(f->light);
			stop = atomic_load_explicit(&f->ctl.stop, memory_order_relaxed) != 0;
			for (int i = 0; i < 8 && !stop; i++)
				atomic_store_explicit(&f->target[i], 1, memory_order_relaxed);
			atomic_store_explicit(&f->ctl.access, mark + 1, memory_order_release);
			if (stop)
				break;
		}
		atomic_store(&f->ready, turn);
	}
}

static void forbid_rounds(bool light, unsigned rounds)
{
	forbid *f = aligned_alloc(TN_SHM_LINE, sizeof(*f));
	pthread_t thread;
	tn_rand rand = {3};
	uint64_t until = tn_now() + BUDGET_NS;
	uint32_t turn;

	assert_non_null(f);
	memset(f, 0, sizeof(*f));
	f->light = light;
	assert_int_equal(pthread_create(&thread, NULL, initiate, f), 0);
	for (turn = 1; turn <= rounds && tn_now() < until; turn++) {
		uint32_t word;

		atomic_store(&f->ctl.stop, 0);
		atomic_store(&f->go, turn);
		for (uint64_t k = tn_rand_below(&rand, 200); k > 0; k--)
			tn_cpu_relax();
		atomic_store_explicit(&f->ctl.stop, 1, memory_order_seq_cst);
		if (light)
			tn_shm_fence_heavy();
		word = atomic_load_explicit(&f->ctl.access, memory_order_seq_cst);
		while (word % 2 != 0 && atomic_load_explicit(&f->ctl.access, memory_order_acquire) == word)
			rest();
		for (int i = 0; i < 8; i++)
			atomic_store_explicit(&f->target[i], 2, memory_order_relaxed);
		for (uint64_t k = tn_rand_below(&rand, 100); k > 0; k--)
			tn_cpu_relax();
		while (atomic_load(&f->ready) != turn)
			rest();
		for (int i = 0; i < 8; i++)
			assert_int_equal(atomic_load_explicit(&f->target[i], memory_order_relaxed), 2);
	}
	f->end = true;
	atomic_store(&f->go, turn);
	pthread_join(thread, NULL);
	free(f);
}

static void test_forbid(void **state)
{
	(void)state;
	forbid_rounds(false, MANY(50000u));
	if (tn_shm_membarrier_register())
		forbid_rounds(true, MANY(50000u));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),           cmocka_unit_test(test_tag_wraps),
		cmocka_unit_test(test_full_wakes_once), cmocka_unit_test(test_bad_cells),
		cmocka_unit_test(test_bad_consumed),    cmocka_unit_test(test_bad_returns),
		cmocka_unit_test(test_scribble),        cmocka_unit_test(test_threads),
		cmocka_unit_test(test_processes),       cmocka_unit_test(test_sleeper),
		cmocka_unit_test(test_waiter),          cmocka_unit_test(test_forbid),
	};

	return RUN(tests);
}
