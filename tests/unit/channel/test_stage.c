/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any pointer works: transfers from and to memory that is not registered, over the fake NIC, which takes
 * registered memory alone. Also regions of foreign memory: no copy, kept while the NIC works on them, their keys
 * over verbs and tcp, and refused in words over shm. Threads: helpers; asserts in the main thread.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "chan_test.h"
#include "fake_ibverbs/fake.h"
#include "mem/foreign.h"

#define REGION (8u << 20)

typedef struct stage_pair {
	pair p;
	uint8_t *foreign; /* plain memory of this process */
	uint8_t *dst;     /* registered, at serve */
	tern_key key;     /* of dst */
	tern_op op;
} stage_pair;

static void begin(stage_pair *x, const char *provider)
{
	memset(x, 0, sizeof(*x));
	transport = provider;
	fake_install();
	pair_open(&x->p);
	/* what devices may pin here is not the question */
	tern_ctx_mem(x->p.dial.ctx)->regions->pin_limit = UINT64_MAX;
	tern_ctx_mem(x->p.serve.ctx)->regions->pin_limit = UINT64_MAX;
	x->foreign = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(x->foreign != MAP_FAILED);
	assert_ok(
		tern_mem_alloc(tern_ctx_mem(x->p.serve.ctx), REGION, 0, 3, TERN_MEM_HOST, (void **)&x->dst));
	assert_ok(tern_mem_export(tern_ctx_mem(x->p.serve.ctx), x->dst, REGION, 3, &x->key));
}

static void end(stage_pair *x)
{
	fake_counts counts;

	pair_close(&x->p);
	munmap(x->foreign, REGION);
	counts = fake_counts_get();
	if (counts.faults)
		fail_msg("the fake NIC: %s", fake_fault_text());
	assert_int_equal(counts.mrs, 0);
	assert_int_equal(counts.qps, 0);
}

static uint64_t count_of(const side *s, const char *name)
{
	return tern_ctx_counter(s->ctx, name);
}

static const uint64_t sizes[] = {0, 1, 101, 102, 4096, 16384, 16385, 65536, 1 << 20, 1000001, REGION - 3};

/* brpc#2944: memory allocated before init "is not registered". */
static void test_any_pointer_works(void **state)
{
	uint8_t stack[300];
	stage_pair x;

	(void)state;
	begin(&x, "verbs");
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		uint8_t *from = x.foreign + 3;

		fill(from, sizes[i], i);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_put(x.p.dial.channel, from, sizes[i], &x.key, 1, &x.op)));
		assert_int_equal(x.op.length, sizes[i]);
		assert_true(filled(x.dst + 1, sizes[i], i));
		memset(from, 0, sizes[i]);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_get(x.p.dial.channel, from, sizes[i], &x.key, 1, &x.op)));
		assert_true(filled(from, sizes[i], i));
	}
	fill(stack, sizeof(stack), 99);
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put_notify(x.p.dial.channel, stack, sizeof(stack), &x.key, 0, 7, &x.op)));
	assert_comes(&x.p.serve, notifies, 1);
	assert_true(filled(x.dst, sizeof(stack), 99));
	assert_true(count_of(&x.p.dial, "mem.staging_copies") > 0);
	assert_int_equal(count_of(&x.p.dial, "mem.staging_copies"), count_of(&x.p.dial, "channel.staged"));
	assert_true(count_of(&x.p.dial, "channel.staged_bytes") > 2ull * REGION);
	end(&x);
}

/* Messages too; the provider copies them into buffers of its own. */
static void test_messages_from_anywhere(void **state)
{
	stage_pair x;
	int n = 0;

	(void)state;
	begin(&x, "verbs");
	for (uint64_t bytes = 1; bytes <= 3 << 20; bytes = bytes * 5 + 1) {
		fill(x.foreign, bytes, bytes);
		assert_ok(
			complete(x.p.dial.ctx, &x.op, tern_send(x.p.dial.channel, x.foreign, bytes, &x.op)));
		assert_comes(&x.p.serve, messages, ++n);
		assert_true(last_is(&x.p.serve, bytes, bytes));
	}
	end(&x);
}

/* Registered memory is never copied. */
static void test_no_copy_of_registered_memory(void **state)
{
	tern_region *region;
	stage_pair x;
	tern_mem *mem;
	uint8_t *own;

	(void)state;
	begin(&x, "verbs");
	mem = tern_ctx_mem(x.p.dial.ctx);
	assert_ok(tern_mem_alloc(mem, 100000, 0, 0, TERN_MEM_HOST, (void **)&own));
	fill(own, 100000, 1);
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, own, 100000, &x.key, 0, &x.op)));
	assert_true(filled(x.dst, 100000, 1));
	assert_ok(tern_mem_register(mem, x.foreign + 100, REGION - 100, TERN_ACCESS_NONE, &region));
	fill(x.foreign + 100, REGION - 100, 2);
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put(x.p.dial.channel, x.foreign + 100, REGION - 100, &x.key, 0, &x.op)));
	assert_true(filled(x.dst, REGION - 100, 2));
	fill(x.dst, REGION - 100, 3);
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_get(x.p.dial.channel, x.foreign + 100, REGION - 100, &x.key, 0, &x.op)));
	assert_true(filled(x.foreign + 100, REGION - 100, 3));
	assert_int_equal(count_of(&x.p.dial, "channel.staged"), 0);
	/* a range that only begins in the region goes through chunks */
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put(x.p.dial.channel, x.foreign + 90, 4000, &x.key, 0, &x.op)));
	assert_int_equal(count_of(&x.p.dial, "channel.staged"), 1);
	assert_ok(tern_mem_unregister(region));
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put(x.p.dial.channel, x.foreign + 100, 4000, &x.key, 0, &x.op)));
	assert_int_equal(count_of(&x.p.dial, "channel.staged"), 2);
	end(&x);
}

/* Far more in flight than chunks: everything arrives, memory stays bounded. */
static void test_back_pressure(void **state)
{
	enum { FLIGHT = 64, ROUNDS = 10 };
	tern_op ops[FLIGHT] = {0};
	uint64_t before;
	stage_pair x;

	(void)state;
	begin(&x, "verbs");
	before = count_of(&x.p.dial, "mem.used_bytes");
	fake_hold_sends(true);
	fill(x.foreign, REGION, 5);
	for (int i = 0; i < FLIGHT; i++)
		assert_ok(submit(x.p.dial.ctx, tern_put(x.p.dial.channel, x.foreign + i * (REGION / FLIGHT),
							REGION / FLIGHT, &x.key,
							(uint64_t)i * (REGION / FLIGHT), &ops[i])));
	for (int i = 0; i < FLIGHT; i++)
		assert_int_equal(tern_op_test(&ops[i]), TERN_AGAIN);
	fake_hold_sends(false);
	for (int i = 0; i < FLIGHT; i++)
		assert_ok(tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE));
	assert_true(filled(x.dst, REGION, 5));
	for (int round = 0; round < ROUNDS; round++) {
		memset(x.foreign, 0, REGION);
		for (int i = 0; i < FLIGHT; i++)
			assert_ok(submit(x.p.dial.ctx,
					 tern_get(x.p.dial.channel, x.foreign + i * (REGION / FLIGHT),
						  REGION / FLIGHT, &x.key, (uint64_t)i * (REGION / FLIGHT),
						  &ops[i])));
		for (int i = 0; i < FLIGHT; i++)
			assert_ok(tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE));
		assert_true(filled(x.foreign, REGION, 5));
	}
	assert_true(count_of(&x.p.dial, "channel.stage_waits") > 0);
	assert_true(count_of(&x.p.dial, "mem.used_bytes") - before <= 8 << 20);
	end(&x);
}

/* The NIC works on a region: it stays. libfabric PR#6474, UCX#4016: nothing goes stale under a request. */
static void test_region_stays_while_the_nic_works(void **state)
{
	tern_region *region;
	uint64_t before;
	stage_pair x;
	tern_mem *mem;

	(void)state;
	begin(&x, "verbs");
	mem = tern_ctx_mem(x.p.dial.ctx);
	assert_ok(tern_mem_register(mem, x.foreign, REGION, TERN_ACCESS_NONE, &region));
	fake_hold_sends(true);
	fill(x.foreign, 50000, 5);
	before = count_of(&x.p.dial, "verbs.writes") + count_of(&x.p.dial, "verbs.write_imms");
	assert_ok(submit(x.p.dial.ctx, tern_put(x.p.dial.channel, x.foreign, 50000, &x.key, 0, &x.op)));
	/* the link may have it wait a little */
	while (count_of(&x.p.dial, "verbs.writes") + count_of(&x.p.dial, "verbs.write_imms") == before)
		tern_ctx_wait(x.p.dial.ctx, TN_NS_PER_MS);
	assert_status(tern_mem_unregister(region), TERN_E_IN_USE);
	fake_hold_sends(false);
	assert_ok(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE));
	assert_true(filled(x.dst, 50000, 5));
	assert_ok(tern_mem_unregister(region));
	end(&x);
}

/* A key to a region: over verbs and tcp the peer reaches it, to the byte; over shm it hears why not. */
static void key_to_region(const char *provider, bool reaches)
{
	tern_region *region;
	stage_pair x;
	tern_mem *mem;
	tern_key key;
	uint8_t *src;

	begin(&x, provider);
	mem = tern_ctx_mem(x.p.serve.ctx);
	assert_ok(tern_mem_alloc(tern_ctx_mem(x.p.dial.ctx), 100000, 0, 0, TERN_MEM_HOST, (void **)&src));
	assert_ok(tern_mem_register(mem, x.foreign, REGION, 3, &region));
	assert_ok(tern_mem_export(mem, x.foreign + 10, 100000, 3, &key));
	fill(src, 100000, 4);
	assert_status(complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, src, 100000, &key, 0, &x.op)),
		      reaches ? TERN_OK : TERN_E_UNSUPPORTED);
	if (reaches) {
		assert_true(filled(x.foreign + 10, 100000, 4));
		memset(src, 0, 100000);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_get(x.p.dial.channel, src, 100000, &key, 0, &x.op)));
		assert_true(filled(src, 100000, 4));
		assert_status(complete(x.p.dial.ctx, &x.op,
				       tern_put(x.p.dial.channel, src, 100000, &key, 1, &x.op)),
			      TERN_E_BOUNDS);
	} else {
		assert_non_null(strstr(tern_detail(), "tern_mem_alloc"));
		/* the link lives: memory of the pool is reached as ever */
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_put(x.p.dial.channel, src, 100000, &x.key, 0, &x.op)));
	}
	assert_status(tern_mem_unregister(region), TERN_E_IN_USE);
	assert_ok(tern_mem_revoke(mem, &key));
	assert_ok(tern_mem_unregister(region));
	if (strcmp(provider, "tcp") == 0)
		assert_status(complete(x.p.dial.ctx, &x.op,
				       tern_put(x.p.dial.channel, src, 100000, &key, 0, &x.op)),
			      TERN_E_STALE_KEY);
	end(&x);
}

static void test_key_to_region_verbs(void **state)
{
	(void)state;
	key_to_region("verbs", true);
}

static void test_key_to_region_tcp(void **state)
{
	(void)state;
	key_to_region("tcp", true);
}

static void test_key_to_region_loop(void **state)
{
	(void)state;
	key_to_region("loop", true);
}

static void test_key_to_region_shm(void **state)
{
	(void)state;
	key_to_region("shm", false);
}

/*
 * A revocation is the end: what was under way has ended when it returns, so that the owner may write to the
 * memory, or unmap it. Over and over with large puts and gets in flight.
 */
static void revoked_in_flight(const char *provider, bool get)
{
	enum { BYTES = 4 << 20 };
	stage_pair x;
	tern_mem *mem;
	uint8_t *src;
	int stale = 0;

	begin(&x, provider);
	mem = tern_ctx_mem(x.p.serve.ctx);
	assert_ok(tern_mem_alloc(tern_ctx_mem(x.p.dial.ctx), BYTES, 0, 0, TERN_MEM_HOST, (void **)&src));
	fill(src, BYTES, 1);
	for (int round = 0; round < 60; round++) {
		uint8_t *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		tern_region *region;
		tern_status status;
		tern_key key;

		assert_ok(tern_mem_register(mem, at, BYTES, 3, &region));
		assert_ok(tern_mem_export(mem, at, BYTES, 3, &key));
		assert_ok(submit(x.p.dial.ctx, get ? tern_get(x.p.dial.channel, src, BYTES, &key, 0, &x.op)
						   : tern_put(x.p.dial.channel, src, BYTES, &key, 0, &x.op)));
		for (int i = 0; i < round % 7; i++)
			tern_ctx_wait(x.p.dial.ctx, 1);
		assert_ok(tern_mem_revoke(mem, &key));
		assert_ok(tern_mem_unregister(region));
		munmap(at, BYTES);
		status = tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE);
		stale += status == TERN_E_STALE_KEY;
		assert_true(status == TERN_OK || status == TERN_E_STALE_KEY);
	}
	print_message("%s: %d of 60 were stale\n", provider, stale);
	assert_int_equal(atomic_load(&x.p.dial.downs) + atomic_load(&x.p.serve.downs), 0);
	end(&x);
}

static void test_revoked_in_flight(void **state)
{
	(void)state;
	revoked_in_flight("tcp", false);
	revoked_in_flight("tcp", true);
	revoked_in_flight("loop", false);
}

/* byteps#282, Mooncake#3639: thousands of buffers of the application, and registrations and mappings stay few. */
static void test_many_buffers_few_registrations(void **state)
{
	uint64_t before;
	stage_pair x;

	(void)state;
	begin(&x, "verbs");
	fill(x.foreign, 3000, 1);
	assert_ok(
		complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.foreign, 3000, &x.key, 0, &x.op)));
	before = fake_counts_get().regs;
	for (int i = 0; i < 4000; i++) {
		uint8_t *buffer = malloc(3000);

		memcpy(buffer, x.foreign, 3000);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_put(x.p.dial.channel, buffer, 3000, &x.key, 0, &x.op)));
		free(buffer);
	}
	assert_int_equal(fake_counts_get().regs, before);
	end(&x);
}

/* The link dies with chunks in requests: all come back, nothing is copied to a buffer that was given back. */
static void test_death_gives_chunks_back(void **state)
{
	enum { FLIGHT = 16 };
	tern_op ops[FLIGHT] = {0};
	tern_region *region;
	stage_pair x;

	(void)state;
	begin(&x, "verbs");
	assert_ok(tern_mem_register(tern_ctx_mem(x.p.dial.ctx), x.foreign + REGION / 2, REGION / 2, 0,
				    &region));
	fake_hold_sends(true);
	for (int i = 0; i < FLIGHT; i++)
		assert_ok(submit(x.p.dial.ctx, tern_get(x.p.dial.channel, x.foreign + i * (REGION / FLIGHT),
							100000, &x.key, 0, &ops[i])));
	fake_hold_sends(false);
	fake_cut(true);
	tern_link_close(x.p.serve.incoming);
	for (int i = 0; i < FLIGHT; i++)
		(void)tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE);
	fake_cut(false);
	assert_comes(&x.p.dial, downs, 1);
	for (int i = 0; i < FLIGHT; i++)
		assert_int_not_equal(tern_op_test(&ops[i]), TERN_AGAIN);
	assert_ok(tern_mem_unregister(region));
	end(&x); /* asserts in the context: no chunk is out */
}

/* No chunk can be made: an error that says so, and it works again later. */
static void test_no_memory_for_chunks(void **state)
{
	stage_pair x;

	(void)state;
	begin(&x, "verbs");
	assert_ok(tn_fault_set("channel.stage.tags", 1, 1));
	assert_status(
		complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.foreign, 5000, &x.key, 0, &x.op)),
		TERN_E_NOMEM);
	tn_fault_clear();
	assert_ok(tn_fault_set("channel.stage.chunk", 1, 1000000));
	assert_status(
		complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.foreign, 5000, &x.key, 0, &x.op)),
		TERN_E_NOMEM);
	tn_fault_clear();
	assert_ok(
		complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.foreign, 5000, &x.key, 0, &x.op)));
	end(&x);
}

/* sglang#6894, Mooncake#454: a device refuses memory with EINVAL; an error in words, and staging goes on. */
static void test_device_refuses_a_region(void **state)
{
	tern_region *region;
	stage_pair x;
	tern_mem *mem;

	(void)state;
	begin(&x, "verbs");
	mem = tern_ctx_mem(x.p.dial.ctx);
	fake_fail("reg_mr", 1, EINVAL);
	assert_status(tern_mem_register(mem, x.foreign, REGION, 0, &region), TERN_E_DEVICE);
	assert_non_null(strstr(tern_detail(), "ibv_reg_mr"));
	fake_fail("reg_mr", 1, ENOMEM);
	assert_status(tern_mem_register(mem, x.foreign, REGION, 0, &region), TERN_E_NOMEM);
	fill(x.foreign, 100000, 8);
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put(x.p.dial.channel, x.foreign, 100000, &x.key, 0, &x.op)));
	assert_true(filled(x.dst, 100000, 8));
	end(&x);
}

/* Several threads stage at once. */
typedef struct stager {
	stage_pair *x;
	int number;
	_Atomic int bad;
} stager;

static void *stage_many(void *arg)
{
	stager *s = arg;
	uint8_t *at = s->x->foreign + s->number * (1 << 20);
	uint64_t offset = (uint64_t)s->number << 20;
	tern_op op = {0};

	for (uint64_t i = 0; i < 60; i++) {
		uint64_t bytes = 1 + (i * 7919) % (1 << 20);

		fill(at, bytes, i);
		if (complete(s->x->p.dial.ctx, &op,
			     tern_put(s->x->p.dial.channel, at, bytes, &s->x->key, offset, &op)) != TERN_OK)
			s->bad++;
		memset(at, 0, bytes);
		if (complete(s->x->p.dial.ctx, &op,
			     tern_get(s->x->p.dial.channel, at, bytes, &s->x->key, offset, &op)) != TERN_OK)
			s->bad++;
		s->bad += !filled(at, bytes, i);
	}
	return NULL;
}

static void test_threads(void **state)
{
	stager stagers[4];
	pthread_t threads[4];
	stage_pair x;

	(void)state;
	begin(&x, "verbs");
	for (int i = 0; i < 4; i++) {
		stagers[i] = (stager){.x = &x, .number = i};
		assert_int_equal(pthread_create(&threads[i], NULL, stage_many, &stagers[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(stagers[i].bad, 0);
	}
	end(&x);
}

static int fork_child(stage_pair *x, tern_region *region)
{
	tern_region *own;

	x->foreign[0] ^= 1; /* its own copy */
	if (tern_mem_unregister(region) != TERN_E_FORKED)
		return 1;
	if (tern_put(x->p.dial.channel, x->foreign, 9, &x->key, 0, &x->op) != TERN_E_FORKED)
		return 2;
	if (tern_mem_register(tern_ctx_mem(x->p.dial.ctx), x->foreign, 9, 0, &own) != TERN_E_FORKED)
		return 3;
	return 0;
}

/* rdma-core PR#1222, byteps#54, gloo#340: a forked child can neither use nor end what its parent registered, and the
   parent goes on. */
static void fork_over(const char *provider)
{
	tern_region *region;
	stage_pair x;
	int status;
	pid_t pid;

	begin(&x, provider);
	assert_ok(tern_mem_register(tern_ctx_mem(x.p.dial.ctx), x.foreign, REGION, 0, &region));
	fill(x.foreign, 100000, 6);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(fork_child(&x, region));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put(x.p.dial.channel, x.foreign, 100000, &x.key, 0, &x.op)));
	assert_true(filled(x.dst, 100000, 6));
	assert_ok(tern_mem_unregister(region));
	end(&x);
}

static void test_fork(void **state)
{
	(void)state;
	fork_over("loop");
	fork_over("shm");
	fork_over("tcp");
	fork_over("verbs");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_pointer_works),
		cmocka_unit_test(test_messages_from_anywhere),
		cmocka_unit_test(test_no_copy_of_registered_memory),
		cmocka_unit_test(test_back_pressure),
		cmocka_unit_test(test_region_stays_while_the_nic_works),
		cmocka_unit_test(test_key_to_region_verbs),
		cmocka_unit_test(test_key_to_region_tcp),
		cmocka_unit_test(test_key_to_region_loop),
		cmocka_unit_test(test_key_to_region_shm),
		cmocka_unit_test(test_revoked_in_flight),
		cmocka_unit_test(test_many_buffers_few_registrations),
		cmocka_unit_test(test_death_gives_chunks_back),
		cmocka_unit_test(test_no_memory_for_chunks),
		cmocka_unit_test(test_device_refuses_a_region),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_fork),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
