/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message ring between threads and between processes, and the two store-load pairings (sleep word, wait word).
 */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rand.h"
#include "shm_ring_rig.h"
#include "transport/shm/fence.h"

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
		tn_shm_copier copier;
		tn_shm_tx tx;
		stream p = {.tx = &tx, .count = MANY(500000u)};

		/* Mappings are not inherited: the child makes its own, at another address. */
		if (tn_shm_seg_map(fd, bytes, TN_SHM_RW, &again) != TERN_OK)
			_exit(2);
		p.total = total_of(again);
		tn_shm_lane_ring(again, SLOTS, BUF, 0, &ring);
		tn_shm_copier_init(&copier, 0);
		if (tn_shm_tx_init(&tx, &ring, &copier) != TERN_OK)
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
		cmocka_unit_test(test_threads), cmocka_unit_test(test_processes),
		cmocka_unit_test(test_sleeper), cmocka_unit_test(test_waiter),
		cmocka_unit_test(test_forbid),
	};

	return RUN(tests);
}
