/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Senders that give up before they are bound, and what a receiver makes of peers that lie about it: raw messages
 * on a channel of the tensor service, over every transport that works between two contexts of one process.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/fault.h"
#include "support/nodes.h"
#include "tensor/tensor.h"

#define BYTES 64u

typedef struct world {
	nodes n;
	tern_tensor_rx *rx;
	tern_channel *channel; /* raw, from a */
	pthread_mutex_t lock;
	tn_tensor_msg answer; /* lock: the last one */
	_Atomic unsigned answers;
	_Atomic bool stop;
} world;

static world w = {.lock = PTHREAD_MUTEX_INITIALIZER};
static const char *transport;
static tern_notify_mode mode;

static tern_tensor_params params(const char *name)
{
	return (tern_tensor_params){
		.name = name, .dtype = TERN_F32, .shape = {.rank = 1, .dims = {16}}, .notify = mode};
}

static void on_answer(tern_channel *channel, const void *bytes, uint64_t length, void *arg)
{
	tn_tensor_msg msg;

	(void)channel, (void)arg;
	if (!tn_tensor_decode(bytes, length, &msg) || msg.type != TN_TENSOR_OPENED)
		return;
	pthread_mutex_lock(&w.lock);
	w.answer = msg;
	pthread_mutex_unlock(&w.lock);
	atomic_fetch_add(&w.answers, 1);
}

static int setup(void **state)
{
	tern_channel_params raw = {.on_message = on_answer};

	(void)state;
	w.rx = NULL;
	atomic_store(&w.answers, 0);
	atomic_store(&w.stop, false);
	nodes_start(&w.n, transport);
	assert_ok(tern_channel_open(w.n.ab, TN_TENSOR_SERVICE, &raw, &w.channel));
	return 0;
}

static int setup_passive(void **state)
{
	(void)state;
	w.rx = NULL;
	w.channel = NULL;
	atomic_store(&w.stop, false);
	nodes_start_passive(&w.n, transport);
	return 0;
}

static int teardown_passive(void **state)
{
	(void)state;
	tern_tensor_rx_destroy(w.rx);
	tern_link_release(w.n.ab);
	tern_link_release(w.n.ba);
	tern_ctx_destroy(w.n.b);
	tern_ctx_destroy(w.n.a);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tn_fault_clear();
	tern_channel_close(w.channel);
	tern_tensor_rx_destroy(w.rx);
	nodes_stop(&w.n);
	return 0;
}

static void send_raw(const tn_tensor_msg *msg)
{
	uint8_t buf[TN_TENSOR_MSG_MAX];
	uint64_t n = tn_tensor_encode(buf, msg);
	tern_status status;
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	while ((status = tern_send(w.channel, buf, n, &op)) == TERN_AGAIN)
		tern_ctx_wait(w.n.a, 1000000);
	assert_ok(status);
	assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
}

static void open_raw(uint32_t tx, const char *name)
{
	tern_tensor_params p = params(name);
	tn_tensor_msg msg = {
		.type = TN_TENSOR_OPEN, .tx_id = tx, .dtype = p.dtype, .shape = p.shape, .notify = p.notify};

	snprintf(msg.text, sizeof(msg.text), "%s", name);
	send_raw(&msg);
}

static void withdraw_raw(uint32_t tx)
{
	tn_tensor_msg msg = {.type = TN_TENSOR_WITHDRAW, .tx_id = tx};

	send_raw(&msg);
}

/* The answer number `count`, with the status. */
static tn_tensor_msg await_answer(unsigned count, uint32_t tx, tern_status status)
{
	tn_tensor_msg msg;

	for (int i = 0; i < 20000 && atomic_load(&w.answers) < count; i++)
		tern_ctx_wait(w.n.a, 1000000);
	assert_int_equal(atomic_load(&w.answers), count);
	pthread_mutex_lock(&w.lock);
	msg = w.answer;
	pthread_mutex_unlock(&w.lock);
	assert_int_equal(msg.tx_id, tx);
	assert_status(msg.status, status);
	return msg;
}

static tern_status await_rx(const void **data)
{
	tern_status status = TERN_AGAIN;

	for (int i = 0; i < 20000 && status == TERN_AGAIN; i++) {
		status = tern_tensor_rx_poll(w.rx, data);
		if (status == TERN_AGAIN)
			tern_ctx_wait(w.n.b, 1000000);
	}
	return status;
}

static void publish(const char *name)
{
	tern_tensor_params p = params(name);

	assert_ok(tern_tensor_rx_create(w.n.b, &p, &w.rx));
}

/* ---- cases ---- */

/* A sender whose deadline passed while the name was missing does not stand in the way of the next one. */
static void given_up_while_waiting(void **state)
{
	tern_tensor_params p = params("t"), other = params("kept");
	tern_tensor_rx *kept_rx;
	tern_tensor_tx *kept, *tx;

	(void)state;
	/* another sender keeps the connection, so that the order of messages says what comes first */
	assert_ok(tern_tensor_rx_create(w.n.b, &other, &kept_rx));
	assert_ok(tern_tensor_tx_open(w.n.ab, &other, NODES_WAIT_NS, &kept));
	for (unsigned i = 0; i < 3; i++)
		assert_status(tern_tensor_tx_open(w.n.ab, &p, 5000000, &tx), TERN_E_DEADLINE);
	publish("t");
	assert_ok(tern_tensor_tx_open(w.n.ab, &p, NODES_WAIT_NS, &tx));
	tern_tensor_tx_close(tx);
	tern_tensor_tx_close(kept);
	tern_tensor_rx_destroy(kept_rx);
}

/* The receiver had bound the sender; new keys replace those that it was given. */
static void withdrawn_after_binding(void **state)
{
	tn_tensor_msg first, second;
	uint8_t data[BYTES] = {0};
	tern_status status;
	const void *got;
	tern_op op;

	(void)state;
	publish("t");
	open_raw(1, "t");
	first = await_answer(1, 1, TERN_OK);
	open_raw(2, "t");
	await_answer(2, 2, TERN_E_IN_USE);
	withdraw_raw(2); /* was not bound: nothing */
	open_raw(3, "t");
	await_answer(3, 3, TERN_E_IN_USE);
	withdraw_raw(1);
	open_raw(4, "t");
	second = await_answer(4, 4, TERN_OK);
	tern_op_init(&op, NULL, NULL);
	status = tern_put(w.channel, data, BYTES, &first.slot_key, 0, &op);
	if (status == TERN_OK) /* else this side looked at the key already */
		status = tern_op_wait(w.n.a, &op, NODES_WAIT_NS);
	assert_status(status, TERN_E_STALE_KEY);
	memset(data, 7, BYTES);
	tern_op_init(&op, NULL, NULL);
	if (mode == TERN_NOTIFY_FLAG)
		assert_ok(tern_put_flag(w.channel, data, BYTES, &second.slot_key, 0, 1, &second.flag_key, 0,
					&op));
	else
		assert_ok(tern_put_notify(w.channel, data, BYTES, &second.slot_key, 0,
					  tn_tensor_value(second.rx_id, 1), &op));
	assert_ok(await_rx(&got));
	assert_memory_equal(got, data, BYTES);
	assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
}

/* WITHDRAW from a sender that wrote all the same ends the receiver, after what came. */
static void lying_withdraw(void **state)
{
	uint8_t data[BYTES];
	tn_tensor_msg opened;
	const void *got;
	tern_op op;

	(void)state;
	memset(data, 9, BYTES);
	publish("t");
	open_raw(1, "t");
	opened = await_answer(1, 1, TERN_OK);
	tern_op_init(&op, NULL, NULL);
	if (mode == TERN_NOTIFY_FLAG)
		assert_ok(tern_put_flag(w.channel, data, BYTES, &opened.slot_key, 0, 1, &opened.flag_key, 0,
					&op));
	else
		assert_ok(tern_put_notify(w.channel, data, BYTES, &opened.slot_key, 0,
					  tn_tensor_value(opened.rx_id, 1), &op));
	assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
	assert_ok(await_rx(&got));
	withdraw_raw(1);
	open_raw(2, "t");
	await_answer(2, 2, TERN_E_IN_USE); /* it has had its sender */
	assert_ok(tern_tensor_rx_release(w.rx));
	assert_status(await_rx(&got), TERN_E_PEER_CLOSED);
}

/* As long as the receiver that is gone waits for its sender's last word, WITHDRAW is one. */
static void withdrawn_from_a_destroyed_receiver(void **state)
{
	tern_mem_stats stats;
	uint64_t used;

	(void)state;
	tern_mem_stats_get(tern_ctx_mem(w.n.b), &stats);
	used = stats.used_bytes;
	publish("t");
	open_raw(1, "t");
	await_answer(1, 1, TERN_OK);
	tern_tensor_rx_destroy(w.rx);
	w.rx = NULL;
	withdraw_raw(1);
	for (int i = 0; i < 20000; i++) {
		tern_mem_stats_get(tern_ctx_mem(w.n.b), &stats);
		if (stats.used_bytes == used)
			break;
		tern_ctx_wait(w.n.b, 1000000);
	}
	assert_int_equal(stats.used_bytes, used);
}

static void waiting_opens_are_bounded(void **state)
{
	char name[16];

	(void)state;
	for (uint32_t i = 0; i < TN_TENSOR_WAITERS_MAX; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		open_raw(i, name);
	}
	open_raw(5000, "one too many");
	await_answer(1, 5000, TERN_E_LIMIT);
	withdraw_raw(17);
	open_raw(5001, "fits again");
	open_raw(5002, "does not");
	await_answer(2, 5002, TERN_E_LIMIT);
	publish("fits again");
	await_answer(3, 5001, TERN_OK);
}

static void no_memory_to_wait(void **state)
{
	(void)state;
	assert_ok(tn_fault_set("tensor.waiter.alloc", 1, 1));
	open_raw(1, "t");
	await_answer(1, 1, TERN_E_NOMEM);
	open_raw(2, "t");
	publish("t");
	await_answer(2, 2, TERN_OK);
}

static void *publish_again_and_again(void *arg)
{
	static char unpublished[] = "could not publish", stray[] = "a tensor that nobody sent";
	tern_tensor_params p = params("race");

	while (!atomic_load(&w.stop)) {
		tern_tensor_rx *rx;
		const void *data;

		if (tern_tensor_rx_create(w.n.b, &p, &rx) != TERN_OK)
			return unpublished;
		for (int i = 0; i < 4; i++) {
			tern_ctx_wait(w.n.b, 200000);
			if (tern_tensor_rx_poll(rx, &data) == TERN_OK && *(const uint8_t *)data != 3)
				return stray;
		}
		tern_tensor_rx_destroy(rx);
	}
	(void)arg;
	return NULL;
}

/* Deadlines that pass while the receiver binds, receivers that go meanwhile: whatever wins, the next one works. */
static void opens_and_ends_race(void **state)
{
	tern_tensor_params p = params("race"), after = params("after");
	unsigned opened = 0;
	pthread_t thread;
	tern_tensor_tx *tx;
	void *data, *failure;

	(void)state;
	assert_ok(tern_mem_alloc(tern_ctx_mem(w.n.a), BYTES, 64, TERN_ACCESS_NONE, TERN_MEM_HOST, &data));
	memset(data, 3, BYTES);
	assert_int_equal(pthread_create(&thread, NULL, publish_again_and_again, NULL), 0);
	for (unsigned i = 0; i < 300; i++) {
		tern_status status = tern_tensor_tx_open(w.n.ab, &p, 20000 * (1 + i % 40), &tx);
		tern_op op;

		if (status != TERN_OK) {
			assert_true(status == TERN_E_DEADLINE || status == TERN_E_IN_USE ||
				    status == TERN_E_PEER_CLOSED);
			continue;
		}
		opened++;
		tern_op_init(&op, NULL, NULL);
		if (tern_tensor_send(tx, data, &op) == TERN_OK)
			tern_op_wait(w.n.a, &op, NODES_WAIT_NS); /* may fail: the receiver may be gone */
		tern_tensor_tx_close(tx);
	}
	atomic_store(&w.stop, true);
	pthread_join(thread, &failure);
	assert_null(failure);
	assert_true(opened > 0);
	publish("after");
	assert_ok(tern_tensor_tx_open(w.n.ab, &after, NODES_WAIT_NS, &tx));
	tern_tensor_tx_close(tx);
	tern_mem_free(tern_ctx_mem(w.n.a), data);
}

static void *drive_b(void *arg)
{
	(void)arg;
	while (!atomic_load(&w.stop))
		tern_ctx_wait(w.n.b, 1000000);
	return NULL;
}

/* The receiver's node looks at nothing while senders give up: their OPENs and what takes them back keep their order. */
static void given_up_at_a_sleeping_node(void **state)
{
	tern_tensor_params p = params("t");
	pthread_t thread;
	tern_tensor_tx *tx;
	tern_status status;

	(void)state;
	publish("t");
	for (unsigned i = 0; i < 3; i++)
		assert_status(tern_tensor_tx_open(w.n.ab, &p, 5000000, &tx), TERN_E_DEADLINE);
	assert_int_equal(pthread_create(&thread, NULL, drive_b, NULL), 0);
	status = tern_tensor_tx_open(w.n.ab, &p, NODES_WAIT_NS, &tx);
	assert_ok(status);
	tern_tensor_tx_close(tx);
	atomic_store(&w.stop, true);
	pthread_join(thread, NULL);
}

int main(void)
{
	static const char *const transports[] = {"shm", "tcp", "loop"};
	int failed = 0;

	for (unsigned i = 0; i < 6; i++) {
#define CASE(f)                              \
	{                                    \
#f, f, setup, teardown, NULL \
	}
		const struct CMUnitTest tests[] = {
			CASE(given_up_while_waiting),
			CASE(withdrawn_after_binding),
			CASE(lying_withdraw),
			CASE(withdrawn_from_a_destroyed_receiver),
			CASE(waiting_opens_are_bounded),
			CASE(no_memory_to_wait),
			CASE(opens_and_ends_race),
			{"given_up_at_a_sleeping_node", given_up_at_a_sleeping_node, setup_passive,
			 teardown_passive, NULL},
		};
		char name[32];

		transport = transports[i / 2];
		mode = i % 2 ? TERN_NOTIFY_FLAG : TERN_NOTIFY_IMM;
		snprintf(name, sizeof(name), "%s %s", transport, i % 2 ? "flag" : "imm");
		printf("--- %s ---\n", name);
		failed += cmocka_run_group_tests_name(name, tests, NULL, NULL);
	}
	return failed;
}
