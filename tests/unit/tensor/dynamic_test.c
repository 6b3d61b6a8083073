/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dynamic tensor channels between two nodes of one process, over every transport that works there: shapes that change,
 * memory that is used again, sources that stay the sender's until the receiver has read them, ends in every order, lanes
 * that break.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tern/tensor.h>

#include "base/fault.h"
#ifdef TN_HAVE_VERBS
#include "fake_ibverbs/fake.h"
#endif
#include "support/nodes.h"
#include "tensor/dynamic_wire.h"

enum { BYTES_MAX = 1 << 20 };

typedef struct world {
	nodes n;
	tern_mem *mem; /* of a, which sends */
	tern_dynamic_tx *tx;
	tern_dynamic_rx *rx;
} world;

static world w;
static const char *transport;

static tern_dynamic_params params(void)
{
	return (tern_dynamic_params){.name = "d", .dtype = TERN_I32, .rank = 2, .bytes_max = BYTES_MAX};
}

static int setup(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	nodes_start(&w.n, transport);
	w.mem = tern_ctx_mem(w.n.a);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tn_fault_clear();
	tern_dynamic_tx_close(w.tx);
	tern_dynamic_rx_destroy(w.rx);
	nodes_stop(&w.n);
	return 0;
}

static void open_pair(void)
{
	tern_dynamic_params p = params();

	assert_ok(tern_dynamic_rx_create(w.n.b, &p, &w.rx));
	assert_ok(tern_dynamic_tx_open(w.n.ab, &p, NODES_WAIT_NS, &w.tx));
}

static int32_t *source(uint64_t bytes, uint32_t access)
{
	void *p;

	assert_ok(tern_mem_alloc(w.mem, bytes, 64, access, TERN_MEM_HOST, &p));
	return p;
}

static tern_shape matrix(uint64_t rows, uint64_t columns)
{
	return (tern_shape){.rank = 2, .dims = {rows, columns}};
}

static void fill(int32_t *data, const tern_shape *shape, int32_t seed)
{
	for (uint64_t i = 0; i < shape->dims[0] * shape->dims[1]; i++)
		data[i] = seed * 7919 + (int32_t)i;
}

static void check(const int32_t *data, const tern_shape *shape, int32_t seed)
{
	for (uint64_t i = 0; i < shape->dims[0] * shape->dims[1]; i++)
		assert_int_equal(data[i], seed * 7919 + (int32_t)i);
}

static tern_status send_soon(const void *data, const tern_shape *shape, tern_op *op)
{
	tern_status status = TERN_AGAIN;

	tern_op_init(op, NULL, NULL);
	for (int i = 0; i < 2000 && status == TERN_AGAIN; i++) {
		status = tern_dynamic_send(w.tx, data, shape, op);
		if (status == TERN_AGAIN)
			tern_ctx_wait(w.n.a, 10000000);
	}
	return status;
}

static tern_status poll_soon(const int32_t **data, tern_shape *shape)
{
	const void *p = NULL;
	tern_status status = TERN_AGAIN;

	for (int i = 0; i < 2000 && status == TERN_AGAIN; i++) {
		status = tern_dynamic_rx_poll(w.rx, &p, shape);
		if (status == TERN_AGAIN)
			tern_ctx_wait(w.n.b, 10000000);
	}
	*data = p;
	return status;
}

static void shapes_change(void **state)
{
	enum { N = 300 };
	int32_t *data = source(BYTES_MAX, TERN_ACCESS_READ);
	uint64_t grown = 0;
	uint32_t x = 1;

	(void)state;
	open_pair();
	for (int32_t i = 0; i < N; i++) {
		tern_shape shape, got_shape;
		const int32_t *got;
		tern_op op;

		x = x * 1664525u + 1013904223u;
		shape = matrix(x >> 24, x >> 16 & 0xff);
		fill(data, &shape, i);
		assert_ok(send_soon(data, &shape, &op));
		assert_ok(poll_soon(&got, &got_shape));
		assert_int_equal(got_shape.rank, 2);
		assert_memory_equal(got_shape.dims, shape.dims, 2 * sizeof(*shape.dims));
		check(got, &shape, i);
		assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS)); /* acknowledged while it is looked at */
		fill(data, &shape, -1);
		check(got, &shape, i);
		assert_ok(tern_dynamic_rx_release(w.rx));
		if (i == N / 2)
			grown = tern_ctx_counter(w.n.b, "tensor.grown");
	}
	/* Memory grows by half at least: from 64 bytes to 254 KiB in two places at most 2 x 21 times, and not for ever. */
	assert_in_range(tern_ctx_counter(w.n.b, "tensor.grown"), 2, 42);
	assert_true(tern_ctx_counter(w.n.b, "tensor.grown") - grown <= 2);
	assert_int_equal(tern_ctx_counter(w.n.a, "tensor.staged"), 0);
	tern_mem_free(w.mem, data);
}

/* Sizes that were there before cost no memory, in whatever order they come. */
static void no_memory_for_known_sizes(void **state)
{
	int32_t *data = source(4096, TERN_ACCESS_READ);
	uint64_t grown = 0;

	(void)state;
	open_pair();
	for (int32_t i = 0; i < 60; i++) {
		tern_shape shape = matrix((uint64_t)(i < 2 ? 32 : i % 32), 32), got_shape;
		const int32_t *got;
		tern_op op;

		fill(data, &shape, i);
		assert_ok(send_soon(data, &shape, &op));
		assert_ok(poll_soon(&got, &got_shape));
		check(got, &shape, i);
		assert_ok(tern_dynamic_rx_release(w.rx));
		assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
		if (i == 1)
			grown = tern_ctx_counter(w.n.b, "tensor.grown");
	}
	assert_int_equal(tern_ctx_counter(w.n.b, "tensor.grown"), grown);
	tern_mem_free(w.mem, data);
}

/* Nobody has read it: it is still being sent. At most `slots` are. */
static void sources_are_held(void **state)
{
	int32_t *data = source(3 * 4096, TERN_ACCESS_READ);
	tern_shape shape = matrix(32, 32), got_shape;
	const int32_t *got;
	tern_op ops[3];

	(void)state;
	open_pair();
	for (int i = 0; i < 2; i++) {
		fill(data + i * 1024, &shape, i);
		assert_ok(send_soon(data + i * 1024, &shape, &ops[i]));
	}
	tern_op_init(&ops[2], NULL, NULL);
	for (int i = 0; i < 20; i++) {
		assert_status(tern_dynamic_send(w.tx, data + 2048, &shape, &ops[2]), TERN_AGAIN);
		assert_status(tern_op_test(&ops[0]), TERN_AGAIN);
		tern_ctx_wait(w.n.a, 5000000);
	}
	assert_ok(poll_soon(&got, &got_shape));
	check(got, &shape, 0);
	assert_ok(tern_op_wait(w.n.a, &ops[0], NODES_WAIT_NS));
	assert_ok(tern_dynamic_rx_release(w.rx));
	assert_status(tern_dynamic_rx_release(w.rx), TERN_E_STATE);
	assert_ok(poll_soon(&got, &got_shape));
	check(got, &shape, 1);
	assert_ok(tern_op_wait(w.n.a, &ops[1], NODES_WAIT_NS));
	tern_mem_free(w.mem, data);
}

/* Memory that peers may not read is copied, and can be written again at once only after the end all the same. */
static void foreign_memory_is_staged(void **state)
{
	int32_t plain[64], *closed = source(256, TERN_ACCESS_NONE);
	tern_shape shape = matrix(8, 8), got_shape;
	const int32_t *got;
	tern_op op;

	(void)state;
	open_pair();
	for (int32_t i = 0; i < 6; i++) {
		int32_t *data = i % 2 ? closed : plain;

		fill(data, &shape, i);
		assert_ok(send_soon(data, &shape, &op));
		assert_ok(poll_soon(&got, &got_shape));
		check(got, &shape, i);
		assert_ok(tern_dynamic_rx_release(w.rx));
		assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
	}
	assert_int_equal(tern_ctx_counter(w.n.a, "tensor.staged"), 6);
	tern_mem_free(w.mem, closed);
}

static void empty_tensors(void **state)
{
	tern_shape shape = matrix(0, 1ull << 40), got_shape;
	const int32_t *got;
	tern_op op;

	(void)state;
	open_pair();
	for (int i = 0; i < 5; i++) {
		assert_ok(send_soon(NULL, &shape, &op));
		assert_ok(poll_soon(&got, &got_shape));
		assert_non_null(got);
		assert_int_equal(got_shape.dims[0], 0);
		assert_true(got_shape.dims[1] == 1ull << 40);
		assert_ok(tern_dynamic_rx_release(w.rx));
		assert_ok(tern_op_wait(w.n.a, &op, NODES_WAIT_NS));
	}
}

static void what_was_not_agreed(void **state)
{
	tern_dynamic_params p = params(), other = p;
	tern_shape vector = {.rank = 1, .dims = {4}}, large = matrix(1 << 10, 1 << 9), got_shape;
	int32_t *data = source(4ull << 19, TERN_ACCESS_READ);
	const int32_t *got;
	tern_op op;

	(void)state;
	other.bytes_max = 4ull << 20;
	assert_ok(tern_dynamic_rx_create(w.n.b, &p, &w.rx));
	assert_status(tern_dynamic_rx_create(w.n.b, &p, &(tern_dynamic_rx *){NULL}), TERN_E_EXISTS);
	assert_ok(tern_dynamic_tx_open(w.n.ab, &other, NODES_WAIT_NS, &w.tx));
	tern_op_init(&op, NULL, NULL);
	assert_status(tern_dynamic_send(w.tx, data, &vector, &op), TERN_E_SHAPE);
	large.dims[0] = 1 << 20;
	assert_status(tern_dynamic_send(w.tx, data, &large, &op), TERN_E_TOO_LARGE);
	large.dims[0] = 1 << 10;
	assert_ok(send_soon(data, &large, &op)); /* the sender may, the receiver does not want it */
	assert_status(poll_soon(&got, &got_shape), TERN_E_TOO_LARGE);
	assert_status(tern_op_test(&op), TERN_AGAIN);
	tern_dynamic_rx_destroy(w.rx);
	w.rx = NULL;
	assert_status(tern_op_wait(w.n.a, &op, NODES_WAIT_NS), TERN_E_PEER_CLOSED);
	tern_mem_free(w.mem, data);
}

static void sender_closes(void **state)
{
	int32_t *data = source(4096, TERN_ACCESS_READ);
	tern_shape shape = matrix(32, 32), got_shape;
	const int32_t *got;
	tern_op op[2];

	(void)state;
	open_pair();
	fill(data, &shape, 1);
	assert_ok(send_soon(data, &shape, &op[0]));
	assert_ok(poll_soon(&got, &got_shape));
	check(got, &shape, 1);
	assert_ok(send_soon(data, &shape, &op[1]));
	tern_dynamic_tx_close(w.tx);
	w.tx = NULL;
	assert_ok(tern_op_wait(w.n.a, &op[0], NODES_WAIT_NS));
	for (int i = 0; i < 10; i++) {
		assert_status(tern_op_test(&op[1]), TERN_AGAIN); /* it may still be read: not ours to write */
		tern_ctx_wait(w.n.a, 5000000);
	}
	assert_ok(tern_dynamic_rx_release(w.rx));
	assert_ok(poll_soon(&got, &got_shape));
	check(got, &shape, 1);
	assert_ok(tern_op_wait(w.n.a, &op[1], NODES_WAIT_NS));
	assert_ok(tern_dynamic_rx_release(w.rx));
	assert_status(poll_soon(&got, &got_shape), TERN_E_PEER_CLOSED);
	tern_mem_free(w.mem, data);
}

static void link_ends(void **state)
{
	int32_t *data = source(4096, TERN_ACCESS_READ);
	tern_shape shape = matrix(32, 32), got_shape;
	const int32_t *got;
	tern_op op;

	(void)state;
	open_pair();
	assert_ok(send_soon(data, &shape, &op));
	tern_link_close(w.n.ab);
	assert_true(tern_op_wait(w.n.a, &op, NODES_WAIT_NS) != TERN_OK);
	assert_true(poll_soon(&got, &got_shape) != TERN_AGAIN);
	assert_true(send_soon(data, &shape, &op) != TERN_OK);
	tern_mem_free(w.mem, data);
}

/* Whatever breaks at the n-th write or read: each tensor once, in order, whole; or an end with a reason. */
static void broken_under_way(void **state)
{
	enum { N = 12 };
	int32_t *data = source(BYTES_MAX, TERN_ACCESS_READ);
	int32_t last = 0;

	(void)state;
	open_pair();
	for (unsigned nth = 1; nth < 30 && tern_link_get_state(w.n.ab) != TERN_LINK_DOWN; nth += 3) {
		assert_ok(tn_fault_set("channel.lane.break", nth, 1));
		for (int32_t i = 0; i < N; i++) {
			tern_shape shape = matrix(64 + 13 * nth, 64), got_shape;
			const int32_t *got;
			tern_op op;

			fill(data, &shape, last + 1);
			if (send_soon(data, &shape, &op) != TERN_OK)
				break;
			if (poll_soon(&got, &got_shape) != TERN_OK) {
				tern_op_wait(w.n.a, &op, NODES_WAIT_NS);
				break;
			}
			check(got, &got_shape, ++last);
			assert_ok(tern_dynamic_rx_release(w.rx));
			if (tern_op_wait(w.n.a, &op, NODES_WAIT_NS) != TERN_OK)
				break;
		}
		tn_fault_clear();
	}
	assert_true(last >= 1);
	tern_dynamic_tx_close(w.tx);
	w.tx = NULL;
	tern_mem_free(w.mem, data);
}

/* A peer that announces nonsense on the static channel below. */
static void lies(void **state)
{
	static const tn_meta good = {
		.dtype = TERN_I32, .shape = {.rank = 2, .dims = {2, 2}}, .bytes = 16, .generation = 1};
	tern_tensor_params below = {
		.name = TN_META_PREFIX "d", .dtype = TERN_U8, .shape = {.rank = 1, .dims = {TN_META_BYTES}}};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		tern_dynamic_params p = params();
		uint8_t *block = (uint8_t *)source(TN_META_BYTES, TERN_ACCESS_NONE);
		tn_meta meta = good;
		tern_tensor_tx *tx;
		const int32_t *got;
		tern_shape shape;
		tern_op op;

		assert_ok(tern_dynamic_rx_create(w.n.b, &p, &w.rx));
		assert_ok(tern_tensor_tx_open(w.n.ab, &below, NODES_WAIT_NS, &tx));
		meta.generation = i == 0 ? 5 : 1;
		tn_meta_encode(block, &meta);
		if (i == 1)
			block[0] = 99; /* a version that is none */
		if (i == 2)
			block[16] = 17; /* a size that does not follow; else a key that is none */
		tern_op_init(&op, NULL, NULL);
		assert_ok(tern_tensor_send(tx, block, &op));
		assert_status(poll_soon(&got, &shape), TERN_E_PROTOCOL);
		tern_op_wait(w.n.a, &op, NODES_WAIT_NS);
		tern_tensor_tx_close(tx);
		tern_dynamic_rx_destroy(w.rx);
		w.rx = NULL;
		tern_mem_free(w.mem, block);
	}
}

int main(void)
{
	static const char *const transports[] = {"shm", "tcp", "loop", "verbs"};
	unsigned count = 3;
	int failed = 0;

#ifdef TN_HAVE_VERBS
	fake_install_judged();
	fake_reset(NULL, 0);
	count = 4;
#endif
	for (unsigned i = 0; i < count; i++) {
#define CASE(f)                              \
	{                                    \
#f, f, setup, teardown, NULL \
	}
		const struct CMUnitTest tests[] = {
			CASE(shapes_change),    CASE(no_memory_for_known_sizes),
			CASE(sources_are_held), CASE(foreign_memory_is_staged),
			CASE(empty_tensors),    CASE(what_was_not_agreed),
			CASE(sender_closes),    CASE(link_ends),
			CASE(broken_under_way), CASE(lies),
		};

		transport = transports[i];
		printf("--- %s ---\n", transport);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}
