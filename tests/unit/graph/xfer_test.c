/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfer interface as the local transfer and the stub implement it: slots and credits, order, waking,
 * closing, and what goes wrong at opening. A torture run with two threads.
 */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "graph/xfer.h"

static tn_local_hub *hub;
static tn_xfer *x[2];
static tn_xfer_end *tx, *rx;

static tn_edge_desc desc_of(uint32_t id, uint32_t peer)
{
	return (tn_edge_desc){.id = id,
			      .name = "t",
			      .dtype = TERN_F32,
			      .shape = {.rank = 1, .dims = {4}},
			      .bytes = 16,
			      .peer = peer,
			      .peer_name = "peer",
			      .one_sided = true};
}

static void open_pair(uint32_t slots, uint64_t lazy_seed)
{
	tn_edge_desc to = desc_of(0, 1), from = desc_of(0, 0);

	assert_ok(tn_local_hub_create(
		&(tn_local_params){.devices = 2, .slots = slots, .lazy_seed = lazy_seed}, &hub));
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(tn_local_open(hub, i, &x[i]));
	assert_ok(x[0]->ops->send_open(x[0], &to, &tx));
	assert_ok(x[1]->ops->recv_open(x[1], &from, &rx));
	for (uint32_t i = 0; i < 2; i++)
		assert_ok(x[i]->ops->start(x[i], TN_TIME_NEVER));
}

static void close_pair(void)
{
	for (uint32_t i = 0; i < 2; i++)
		x[i]->ops->close(x[i]);
	tn_local_hub_destroy(hub);
}

static void slots_are_credits(void **state)
{
	int32_t data[4] = {0};
	const void *got;

	(void)state;
	open_pair(2, 0);
	assert_int_equal(x[1]->ops->recv_poll(rx, &got), TERN_AGAIN);
	for (int round = 0; round < 5; round++) {
		data[0] = 10 * round;
		assert_ok(x[0]->ops->send_post(tx, data, 16, 0));
		assert_ok(x[0]->ops->send_test(tx));
		data[0]++;
		assert_ok(x[0]->ops->send_post(tx, data, 16, 0));
		assert_int_equal(x[0]->ops->send_post(tx, data, 16, 0), TERN_AGAIN);
		for (int k = 0; k < 2; k++) {
			assert_ok(x[1]->ops->recv_poll(rx, &got));
			assert_int_equal(((const int32_t *)got)[0], 10 * round + k);
			/* a held slot is no credit */
			assert_int_equal(x[0]->ops->send_post(tx, data, 16, 0), k ? TERN_OK : TERN_AGAIN);
			assert_ok(x[1]->ops->recv_release(rx));
		}
		assert_ok(x[1]->ops->recv_poll(rx, &got));
		assert_ok(x[1]->ops->recv_release(rx));
		assert_int_equal(x[1]->ops->recv_poll(rx, &got), TERN_AGAIN);
	}
	close_pair();
}

/* What happens between a poll and the wait must end the wait. */
static void nothing_is_lost_before_a_wait(void **state)
{
	int32_t data[4] = {0};
	const void *got;

	(void)state;
	open_pair(2, 0);
	assert_ok(x[1]->ops->wait(x[1], tn_now() + TN_NS_PER_MS));
	assert_int_equal(x[1]->ops->recv_poll(rx, &got), TERN_AGAIN);
	assert_ok(x[0]->ops->send_post(tx, data, 16, 0));
	assert_ok(x[1]->ops->wait(x[1], TN_TIME_NEVER));
	assert_ok(x[1]->ops->recv_poll(rx, &got));
	x[1]->ops->wake(x[1]);
	assert_ok(x[1]->ops->wait(x[1], TN_TIME_NEVER));
	assert_ok(x[1]->ops->wait(x[1], 0));
	close_pair();
}

static void closing_is_seen_after_the_data(void **state)
{
	int32_t data[4] = {7};
	const void *got;

	(void)state;
	open_pair(2, 0);
	assert_ok(x[0]->ops->send_post(tx, data, 16, 0));
	x[0]->ops->close(x[0]);
	assert_ok(x[1]->ops->wait(x[1], TN_TIME_NEVER));
	assert_ok(x[1]->ops->recv_poll(rx, &got));
	assert_int_equal(((const int32_t *)got)[0], 7);
	assert_ok(x[1]->ops->recv_release(rx));
	assert_status(x[1]->ops->recv_poll(rx, &got), TERN_E_PEER_CLOSED);
	x[1]->ops->close(x[1]);
	tn_local_hub_destroy(hub);
	open_pair(2, 0);
	x[1]->ops->close(x[1]);
	assert_status(x[0]->ops->send_post(tx, data, 16, 0), TERN_E_PEER_CLOSED);
	x[0]->ops->close(x[0]);
	tn_local_hub_destroy(hub);
}

static void lazy_reads_late(void **state)
{
	int32_t data[4] = {1};
	const void *got;
	bool late = false;

	(void)state;
	for (uint64_t seed = 1; seed < 40; seed++) {
		open_pair(2, seed);
		data[0] = 1;
		assert_ok(x[0]->ops->send_post(tx, data, 16, 0));
		data[0] = 2; /* too early, unless send_test says so */
		while (x[1]->ops->recv_poll(rx, &got) == TERN_AGAIN)
			assert_ok(x[1]->ops->wait(x[1], TN_TIME_NEVER));
		late |= ((const int32_t *)got)[0] == 2;
		assert_ok(x[0]->ops->send_test(tx));
		close_pair();
	}
	assert_true(late);
}

static void bad_openings(void **state)
{
	tn_edge_desc d = desc_of(3, 1), wrong = desc_of(3, 0);
	tn_xfer *again;

	(void)state;
	open_pair(2, 0);
	assert_status(tn_local_open(hub, 0, &again), TERN_E_EXISTS);
	assert_status(tn_local_open(hub, 2, &again), TERN_E_INVALID);
	assert_ok(x[0]->ops->send_open(x[0], &d, &tx));
	assert_status(x[0]->ops->send_open(x[0], &d, &tx), TERN_E_EXISTS);
	wrong.bytes = 32;
	assert_status(x[1]->ops->recv_open(x[1], &wrong, &rx), TERN_E_SHAPE);
	assert_status(x[0]->ops->start(x[0], tn_now() + TN_NS_PER_MS), TERN_E_DEADLINE);
	x[1]->ops->close(x[1]);
	assert_status(x[0]->ops->start(x[0], TN_TIME_NEVER), TERN_E_PEER_CLOSED);
	x[0]->ops->close(x[0]);
	tn_local_hub_destroy(hub);
}

enum { TORTURE = 20000 };

static void *torture_sender(void *arg)
{
	static int32_t data[4];

	(void)arg;
	for (int32_t i = 0; i < TORTURE; i++) {
		while (x[0]->ops->send_test(tx) == TERN_AGAIN)
			x[0]->ops->wait(x[0], TN_TIME_NEVER);
		data[0] = data[1] = data[2] = data[3] = i;
		while (x[0]->ops->send_post(tx, data, 16, (uint64_t)i) == TERN_AGAIN)
			x[0]->ops->wait(x[0], TN_TIME_NEVER);
	}
	while (x[0]->ops->send_test(tx) == TERN_AGAIN)
		x[0]->ops->wait(x[0], TN_TIME_NEVER);
	return NULL;
}

static void torture(void **state)
{
	(void)state;
	for (int lazy = 0; lazy < 2; lazy++) {
		pthread_t thread;
		int32_t bad = 0;

		open_pair(lazy ? 3 : 2, (uint64_t)lazy);
		assert_int_equal(pthread_create(&thread, NULL, torture_sender, NULL), 0);
		for (int32_t i = 0; i < TORTURE; i++) {
			const int32_t *got = NULL;

			while (x[1]->ops->recv_poll(rx, (const void **)&got) == TERN_AGAIN)
				x[1]->ops->wait(x[1], TN_TIME_NEVER);
			bad += got[0] != i || got[3] != i;
			x[1]->ops->recv_release(rx);
		}
		pthread_join(thread, NULL);
		assert_int_equal(bad, 0);
		close_pair();
	}
}

static void fill_ones(const tn_edge_desc *desc, void *data, void *arg)
{
	(void)arg;
	for (uint64_t i = 0; i < desc->bytes / 4; i++)
		((float *)data)[i] = 1.0f;
}

static void the_stub_is_always_ready(void **state)
{
	tn_edge_desc d = desc_of(0, 1);
	tn_xfer_counters counters;
	tn_xfer *stub;
	const float *got;
	void *memory;

	(void)state;
	for (int filled = 0; filled < 2; filled++) {
		assert_ok(tn_stub_open(filled ? fill_ones : NULL, NULL, &stub));
		assert_ok(stub->ops->send_open(stub, &d, &tx));
		assert_ok(stub->ops->recv_open(stub, &d, &rx));
		assert_ok(stub->ops->start(stub, 0));
		assert_ok(stub->ops->alloc(stub, 100, &memory));
		for (int i = 0; i < 3; i++) {
			assert_ok(stub->ops->send_post(tx, memory, 16, 0));
			assert_ok(stub->ops->send_test(tx));
			assert_ok(stub->ops->recv_poll(rx, (const void **)&got));
			assert_true(filled ? got[3] == 1.0f : got[3] != 0.0f && got[3] < 1e-3f);
			assert_ok(stub->ops->recv_release(rx));
		}
		assert_ok(stub->ops->wait(stub, TN_TIME_NEVER));
		stub->ops->counters(stub, &counters);
		assert_int_equal(counters.bytes_sent, 48);
		assert_int_equal(counters.recvs, 3);
		stub->ops->free(stub, memory);
		stub->ops->close(stub);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_are_credits),
		cmocka_unit_test(nothing_is_lost_before_a_wait),
		cmocka_unit_test(closing_is_seen_after_the_data),
		cmocka_unit_test(lazy_reads_late),
		cmocka_unit_test(bad_openings),
		cmocka_unit_test(torture),
		cmocka_unit_test(the_stub_is_always_ready),
	};

	return RUN(tests);
}
