/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided transfers: put, get, put with notification, put with flag; keys that do not allow it; deadlines
 * and cancel. Threads: helpers; asserts in the main thread.
 */
#include "chan_test.h"

#define REGION (8u << 20)

typedef struct xfer {
	pair p;
	uint8_t *src, *dst; /* src at dial, dst at serve */
	tern_key key;       /* of dst */
	tern_op op;
} xfer;

static void open_xfer(xfer *x, uint32_t access)
{
	memset(x, 0, sizeof(*x));
	pair_open(&x->p);
	assert_ok(tern_mem_alloc(tern_ctx_mem(x->p.dial.ctx), REGION, 0, TERN_ACCESS_NONE, TERN_MEM_HOST,
				 (void **)&x->src));
	assert_ok(tern_mem_alloc(tern_ctx_mem(x->p.serve.ctx), REGION, 0, access, TERN_MEM_HOST,
				 (void **)&x->dst));
	assert_ok(tern_mem_export(tern_ctx_mem(x->p.serve.ctx), x->dst, REGION, access, &x->key));
}

static void close_xfer(xfer *x)
{
	pair_close(&x->p);
}

static const uint64_t sizes[] = {0, 1, 8, 64, 1000, 8192, 8193, 65536, 1000001, 1 << 20, REGION};

static void test_put(void **state)
{
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		uint64_t offset = sizes[i] < REGION - 100 ? i * 9 : 0;

		fill(x.src, sizes[i], i);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_put(x.p.dial.channel, x.src, sizes[i], &x.key, offset, &x.op)));
		assert_int_equal(x.op.length, sizes[i]);
		assert_true(filled(x.dst + offset, sizes[i], i)); /* REMOTE: placed and visible */
	}
	close_xfer(&x);
}

static void test_get(void **state)
{
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ);
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		fill(x.dst, sizes[i], i);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_get(x.p.dial.channel, x.src, sizes[i], &x.key, 0, &x.op)));
		assert_int_equal(x.op.length, sizes[i]);
		assert_true(filled(x.src, sizes[i], i));
	}
	close_xfer(&x);
}

static void test_notify(void **state)
{
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		uint32_t value = (uint32_t)(i * 1234567) & ((1u << TERN_NOTIFY_BITS) - 1);

		fill(x.src, sizes[i], i + 50);
		assert_ok(complete(
			x.p.dial.ctx, &x.op,
			tern_put_notify(x.p.dial.channel, x.src, sizes[i], &x.key, 0, value, &x.op)));
		assert_comes(&x.p.serve, notifies, (int)i + 1);
		assert_int_equal(last_value(&x.p.serve), value);
		assert_true(filled(x.dst, sizes[i], i + 50));
	}
	assert_status(tern_put_notify(x.p.dial.channel, x.src, 0, &x.key, 0, 1u << TERN_NOTIFY_BITS, &x.op),
		      TERN_E_INVALID);
	close_xfer(&x);
}

/* Notifications of many puts in flight: each comes, in order. */
static void test_many_notifies(void **state)
{
	enum { COUNT = 2000, FLIGHT = 32 };
	tern_op ops[FLIGHT] = {0};
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_WRITE);
	for (uint32_t i = 0; i < COUNT; i++) {
		tern_op *op = &ops[i % FLIGHT];

		if (i >= FLIGHT)
			assert_ok(tern_op_wait(x.p.dial.ctx, op, PATIENCE));
		assert_ok(submit(x.p.dial.ctx, tern_put_notify(x.p.dial.channel, x.src, (i * 331) % 40000,
							       &x.key, 0, i, op)));
	}
	for (uint32_t i = 0; i < FLIGHT; i++)
		assert_ok(tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE));
	assert_comes(&x.p.serve, notifies, COUNT);
	assert_int_equal(last_value(&x.p.serve), COUNT - 1);
	close_xfer(&x);
}

static void test_flag(void **state)
{
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	if (!(tern_link_caps(x.p.dial.link) & TERN_LINK_CAN_FLAG)) {
		assert_status(tern_put_flag(x.p.dial.channel, x.src, 8, &x.key, 0, 1, &x.key, 64, &x.op),
			      TERN_E_UNSUPPORTED);
		close_xfer(&x);
		skip();
	}
	for (uint64_t i = 1; i < 200; i++) {
		_Atomic uint64_t *flag = (_Atomic uint64_t *)(void *)(x.dst + REGION - 64);
		uint64_t bytes = sizes[i % (TN_COUNT_OF(sizes) - 1)];
		uint64_t end = tn_now() + PATIENCE;

		fill(x.src, bytes, i);
		assert_ok(submit(x.p.dial.ctx, tern_put_flag(x.p.dial.channel, x.src, bytes, &x.key, 0, i,
							     &x.key, REGION - 64, &x.op)));
		while (atomic_load_explicit(flag, memory_order_acquire) != i && tn_now() < end)
			tern_ctx_progress(x.p.dial.ctx);
		assert_int_equal(atomic_load(flag), i);
		assert_true(filled(x.dst, bytes, i));
		assert_ok(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE));
	}
	close_xfer(&x);
}

/* ---- keys ---- */

static tern_status try_put(xfer *x, const tern_key *key, uint64_t bytes, uint64_t offset)
{
	return complete(x->p.dial.ctx, &x->op,
			tern_put(x->p.dial.channel, x->src, bytes, key, offset, &x->op));
}

static tern_status try_get(xfer *x, const tern_key *key, uint64_t bytes, uint64_t offset)
{
	return complete(x->p.dial.ctx, &x->op,
			tern_get(x->p.dial.channel, x->src, bytes, key, offset, &x->op));
}

static void still_works(xfer *x)
{
	tern_op op = {.flags = TERN_OP_REMOTE};

	assert_int_equal(tern_link_get_state(x->p.dial.link), TERN_LINK_UP);
	assert_ok(complete(x->p.dial.ctx, &op, tern_send(x->p.dial.channel, "alive", 5, &op)));
}

/* A put that was over at once says nothing of the next one: the other channel's has its turn, an end ends them. */
static void test_ends(void **state)
{
	tern_channel_params params = {0};
	tern_channel *other;
	tern_status status;
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	assert_ok(tern_channel_open(x.p.dial.link, SERVICE, &params, &other));
	for (uint64_t i = 0; i < 200; i++) {
		tern_channel *channel = i % 3 ? x.p.dial.channel : other;

		fill(x.src, 64, i);
		assert_ok(complete(x.p.dial.ctx, &x.op, tern_put(channel, x.src, 64, &x.key, i, &x.op)));
		assert_true(filled(x.dst + i, 64, i));
	}
	tern_channel_close(other);
	still_works(&x);
	tern_channel_close(x.p.serve.channel); /* the latest: other's */
	still_works(&x);
	tern_link_close(x.p.dial.link);
	tern_op_init(&x.op, NULL, NULL);
	status = complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.src, 64, &x.key, 0, &x.op));
	assert_true(status != TERN_OK);
	close_xfer(&x);
}

static void test_keys(void **state)
{
	tern_key narrow, read_only, revoked, junk;
	tern_mem *mem;
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	mem = tern_ctx_mem(x.p.serve.ctx);
	memset(x.dst, 0x11, REGION);
	assert_ok(tern_mem_export(mem, x.dst + 4096, 1000, TERN_ACCESS_WRITE, &narrow));
	assert_ok(tern_mem_export(mem, x.dst, 1000, TERN_ACCESS_READ, &read_only));
	assert_ok(tern_mem_export(mem, x.dst, 1000, TERN_ACCESS_WRITE, &revoked));
	assert_ok(tern_mem_revoke(mem, &revoked));
	memset(&junk, 0xff, sizeof(junk));
	memset(x.src, 0x22, REGION);

	assert_ok(try_put(&x, &narrow, 1000, 0));
	assert_status(try_put(&x, &narrow, 1001, 0), TERN_E_BOUNDS);
	assert_status(try_put(&x, &narrow, 1, 1000), TERN_E_BOUNDS);
	assert_status(try_put(&x, &narrow, 8, UINT64_MAX - 3), TERN_E_BOUNDS);
	assert_status(try_put(&x, &narrow, 100000, 500), TERN_E_BOUNDS);
	assert_status(try_get(&x, &narrow, 8, 0), TERN_E_ACCESS);
	assert_status(try_put(&x, &read_only, 8, 0), TERN_E_ACCESS);
	assert_ok(try_get(&x, &read_only, 8, 0));
	/* A NIC knows extents, not keys: see docs/protocol/verbs.md. */
	if (strcmp(transport, "verbs") != 0)
		assert_status(try_put(&x, &revoked, 8, 0), TERN_E_STALE_KEY);
	assert_int_not_equal(try_put(&x, &revoked, 500000, 0), TERN_OK); /* which of its two faults is open */
	assert_int_not_equal(try_put(&x, &junk, 8, 0), TERN_OK);
	for (uint64_t i = 0; i < REGION; i++) {
		bool inside = i >= 4096 && i < 4096 + 1000;

		if (x.dst[i] != (inside ? 0x22 : 0x11))
			fail_msg("byte %llu is %02x", (unsigned long long)i, x.dst[i]);
	}
	still_works(&x);
	close_xfer(&x);
}

/* ---- many at once, deadlines, cancel ---- */

static void test_in_flight(void **state)
{
	enum { OPS = 200 };
	tern_op ops[OPS] = {0};
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	fill(x.src, REGION, 3);
	for (int round = 0; round < 5; round++) {
		memset(x.dst, 0, REGION);
		for (uint64_t i = 0; i < OPS; i++) {
			uint64_t at = i * (REGION / OPS), bytes = REGION / OPS;

			if (i == OPS - 1)
				bytes = REGION - at;
			assert_ok(submit(x.p.dial.ctx,
					 tern_put(x.p.dial.channel, x.src + at, bytes, &x.key, at, &ops[i])));
		}
		for (int i = 0; i < OPS; i++)
			assert_ok(tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE));
		assert_true(filled(x.dst, REGION, 3));
	}
	close_xfer(&x);
}

/* Random deadlines and cancels: each operation ends once, well or as asked. */
static void test_deadlines_and_cancel(void **state)
{
	enum { OPS = 64 };
	tern_op ops[OPS] = {0};
	unsigned ok = 0, ended = 0;
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	for (int round = 0; round < 10; round++) {
		int n = 0;

		for (; n < OPS; n++) {
			ops[n].timeout_ns = n % 3 == 0 ? 1 + (uint64_t)n * 20000 : 0;
			if (tern_put(x.p.dial.channel, x.src, n % 2 ? 1 << 20 : 100, &x.key, 0, &ops[n]) !=
			    TERN_OK)
				break;
		}
		for (int i = 1; i < n; i += 3)
			tern_cancel(x.p.dial.channel, &ops[i]);
		for (int i = 0; i < n; i++) {
			tern_status status = tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE);

			if (status == TERN_OK)
				ok++;
			else if (i % 3 == 0)
				assert_status(status, TERN_E_DEADLINE);
			else
				assert_status(status, TERN_E_CANCELED);
			ended++;
		}
	}
	assert_true(ok > 0 && ended >= ok);
	still_works(&x);
	close_xfer(&x);
}

/* Foreign memory works as well: the device copies or the link stages it. */
static void test_foreign_memory(void **state)
{
	uint8_t *buf = malloc(300000);
	xfer x;

	(void)state;
	open_xfer(&x, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	fill(buf, 300000, 77);
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, buf, 300000, &x.key, 5, &x.op)));
	assert_true(filled(x.dst + 5, 300000, 77));
	memset(buf, 0, 300000);
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_get(x.p.dial.channel, buf, 300000, &x.key, 5, &x.op)));
	assert_true(filled(buf, 300000, 77));
	close_xfer(&x);
	free(buf);
}

static void chained(tern_op *op, void *arg);

typedef struct chain {
	xfer x;
	atomic_int done;
	_Atomic int status;
} chain;

/* Callbacks submit: a thousand puts, each from the completion of the one before. */
static void chained(tern_op *op, void *arg)
{
	chain *c = arg;
	tern_status status = op->status;

	if (status == TERN_OK && atomic_fetch_add(&c->done, 1) < 999)
		status = tern_put(c->x.p.dial.channel, c->x.src, 64, &c->x.key, 0, op);
	if (status != TERN_OK)
		atomic_store(&c->status, status);
}

static void test_chain(void **state)
{
	chain *c = calloc(1, sizeof(*c));

	(void)state;
	open_xfer(&c->x, TERN_ACCESS_WRITE);
	tern_op_init(&c->x.op, chained, c);
	assert_ok(tern_put(c->x.p.dial.channel, c->x.src, 64, &c->x.key, 0, &c->x.op));
	assert_true(wait_for(c->x.p.dial.ctx, &c->done, 1000));
	assert_int_equal(atomic_load(&c->status), TERN_OK);
	close_xfer(&c->x);
	free(c);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_put),
		cmocka_unit_test(test_get),
		cmocka_unit_test(test_notify),
		cmocka_unit_test(test_many_notifies),
		cmocka_unit_test(test_flag),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_in_flight),
		cmocka_unit_test(test_deadlines_and_cancel),
		cmocka_unit_test(test_foreign_memory),
		cmocka_unit_test(test_chain),
	};

	test_transport(argc, argv);
	return RUN(tests);
}
