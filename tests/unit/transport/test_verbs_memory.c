/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory under verbs: devices that refuse, memory that is foreign, what is registered how often.
 * Each test names the report of the field that it is about.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "verbs_test.h"

static const char *const first[] = {"verbs.device=rail0", NULL}, *const second[] = {"verbs.device=rail1",
										    NULL};

/* Two devices of one process, which share its memory. */
static void two_devices(fake_device dev[2])
{
	dev[0] = dev[1] = fake_card_mlx5();
	dev[0].name = "rail0";
	dev[1].name = "rail1";
	dev[1].fabric = 1;
}

/* Mooncake#1382: 80 GiB on two NICs ended in a bare ENOMEM. The text says what was wanted, where, of what. */
static void refusal_names_limit_and_remedy(void **state)
{
	fake_device dev[2];
	void *ptr = NULL;
	side a, b;

	(void)state;
	two_devices(dev);
	dev[1].reg_refused_bytes = 64u << 20;
	fake_reset(dev, 2);
	assert_ok(side_open(&a, first));
	assert_ok(side_open_with(&b, a.mem, second));
	assert_int_equal(tern_mem_alloc(a.mem, 80u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr),
			 TERN_E_NOMEM);
	assert_non_null(strstr(tern_detail(), "ibv_reg_mr"));
	assert_non_null(strstr(tern_detail(), "rail1"));
	assert_non_null(strstr(tern_detail(), "MiB"));
	assert_true(strstr(tern_detail(), "ulimit -l") || strstr(tern_detail(), "the device's limit is"));
	/* Less fits. */
	assert_ok(tern_mem_alloc(a.mem, 1u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr));
	side_close(&b, NULL);
	side_close(&a, NULL);
	nothing_left();
}

/* Mooncake#1754: one of two devices refuses; the other's registration goes back, and nothing is half known. */
static void one_of_two_refuses(void **state)
{
	fake_device dev[2];

	(void)state;
	two_devices(dev);
	for (int nth = 1; nth <= 2; nth++) {
		void *ptr = NULL;
		uint64_t before;
		side a, b;

		fake_reset(dev, 2);
		assert_ok(side_open(&a, first));
		assert_ok(side_open_with(&b, a.mem, second));
		before = fake_counts_get().mrs;
		fake_fail("reg_mr", nth, ENOMEM);
		assert_int_equal(tern_mem_alloc(a.mem, 10u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr),
				 TERN_E_NOMEM);
		assert_int_equal(fake_counts_get().mrs, before);
		assert_ok(tern_mem_alloc(a.mem, 10u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr));
		assert_int_equal(fake_counts_get().mrs, before + 2);
		side_close(&b, NULL);
		side_close(&a, NULL);
		nothing_left();
	}
}

/* Mooncake#1754, the other way round: a device that comes later refuses what is there. It stays out whole. */
static void late_device_refuses(void **state)
{
	fake_device dev[2];

	(void)state;
	two_devices(dev);
	for (uint32_t from = 1; from <= 4; from++) {
		uint64_t before;
		void *ptr;
		side a, b;

		dev[1].reg_refused_from = from;
		fake_reset(dev, 2);
		assert_ok(side_open(&a, first));
		for (uint32_t access = 0; access < 3; access++)
			assert_ok(tern_mem_alloc(a.mem, 1u << 20, 0, access, TERN_MEM_HOST, &ptr));
		before = fake_counts_get().mrs;
		assert_int_equal(side_open_with(&b, a.mem, second), TERN_E_NOMEM);
		assert_non_null(strstr(tern_detail(), "rail1"));
		assert_int_equal(fake_counts_get().mrs, before);
		assert_ok(tern_mem_alloc(a.mem, 20u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr));
		side_close(&a, NULL);
		nothing_left();
	}
}

/* sglang#6894, Mooncake#454: a driver that knows not the memory says EINVAL or ERANGE: a status, no abort. */
static void odd_refusals_are_statuses(void **state)
{
	static const int errors[] = {EINVAL, ERANGE, EFAULT, EOPNOTSUPP, EAGAIN};
	uint8_t message[100] = {1};
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	for (unsigned i = 0; i < TN_COUNT_OF(errors); i++) {
		uint32_t before = b.recvs;
		void *ptr;
		bool done;

		fake_fail("reg_mr", 1, errors[i]);
		assert_int_equal(tern_mem_alloc(a.mem, 10u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr),
				 TERN_E_DEVICE);
		assert_non_null(strstr(tern_detail(), strerror(errors[i])));
		assert_ok(send_bytes(&a, message, sizeof(message), 0, &done));
		UNTIL(&a, &b, b.recvs > before);
	}
	assert_int_equal(a.downs + b.downs, 0);
	pair_close(&a, &b);
}

#define PEERS 64

/*
 * byteps#282, #372, #365: thousands of small registrations per connection. Here: none per lane, and receive
 * buffers by what the device has in all.
 */
static void add_registrations(const char *name, uint64_t value, void *arg)
{
	if (strncmp(name, "verbs.registrations.", 20) == 0)
		*(uint64_t *)arg += value;
}

static void lanes_register_nothing(void **state)
{
	uint64_t counted = 0;
	tn_lane *lanes[PEERS][2];
	uint64_t regs;
	side a, b;
	bool done;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	regs = fake_counts_get().regs;
	assert_in_range(regs, 2, 12);
	for (int i = 0; i < PEERS; i++) {
		lanes[i][0] = a.lane;
		lanes[i][1] = b.lane;
		assert_ok(send_bytes(&a, &regs, sizeof(regs), 0, &done));
		UNTIL(&a, &b, b.recvs == (uint32_t)i + 1);
		if (i + 1 < PEERS)
			lane_up(&a, &b);
	}
	assert_int_equal(fake_counts_get().regs, regs);
	assert_int_equal(fake_counts_get().srqs, 2);
	assert_int_equal(fake_counts_get().rnr, 0);
	/* and the counters of the devices say the same */
	a.dev->ops->counters(a.dev, add_registrations, &counted);
	b.dev->ops->counters(b.dev, add_registrations, &counted);
	assert_int_equal(counted, fake_counts_get().mrs);
	for (int i = 0; i < PEERS; i++) {
		a.lane = lanes[i][0];
		b.lane = lanes[i][1];
		lane_free(&a, &b);
		lane_free(&b, &a);
	}
	pair_close(&a, &b);
}

static unsigned mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned n = 0;
	int c;

	assert_non_null(maps);
	while ((c = fgetc(maps)) != EOF)
		n += c == '\n';
	(void)fclose(maps);
	return n;
}

/* Mooncake#3639: no registration and no mapping per request, however often memory comes and goes. */
static void requests_register_nothing(void **state)
{
	uint64_t regs = 0;
	unsigned maps = 0;
	region to;
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	to = region_make(&b, 40000, TERN_ACCESS_WRITE);
	for (uint32_t i = 0; i < 5000; i++) {
		tn_wr wr = {.bytes = 1000 + i % 30000, .key = to.key};
		void *ptr;

		if (i == 500) {
			regs = fake_counts_get().regs;
			maps = mappings();
		}
		assert_ok(tern_mem_alloc(a.mem, wr.bytes, 0, 0, TERN_MEM_HOST, &ptr));
		wr.local = ptr;
		assert_ok(tn_lane_write(a.lane, &wr));
		UNTIL(&a, &b, a.dones == i + 1);
		tern_mem_free(a.mem, ptr);
	}
	assert_int_equal(fake_counts_get().regs, regs);
	assert_true(mappings() <= maps + 4);
	pair_close(&a, &b);
}

static uint8_t before_init[3000] = {42};

/*
 * brpc#2944: memory from before the library "is not registered". Any pointer makes a message, through a
 * registered copy that is counted; a one-sided request from it is refused before the NIC sees it, so that
 * the link stages it.
 */
static void any_pointer_makes_a_message(void **state)
{
	uint8_t stack[3000] = {43}, *heap = malloc(3000);
	const uint8_t *from[] = {before_init, stack, heap};
	region to;
	side a, b;

	(void)state;
	heap[0] = 44;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	to = region_make(&b, 3000, TERN_ACCESS_WRITE);
	for (uint32_t i = 0; i < TN_COUNT_OF(from); i++) {
		tn_wr wr = {.local = (void *)(uintptr_t)from[i], .bytes = 3000, .key = to.key};
		bool done;

		assert_ok(send_bytes(&a, from[i], 3000, 0, &done));
		assert_true(done);
		UNTIL(&a, &b, b.recvs == i + 1);
		assert_int_equal(tn_lane_write(a.lane, &wr), TERN_E_INVALID);
		assert_non_null(strstr(tern_detail(), "tern_mem_alloc"));
	}
	assert_int_equal(counter(&a, "verbs.bounced_sends"), 3);
	assert_int_equal(a.downs, 0);
	free(heap);
	pair_close(&a, &b);
}

/*
 * libfabric-cray#1000, libfabric PR#6474, UCX#4016: a cache by address gave stale registrations. A key whose
 * block was freed and taken again does not name the new one, and its NIC key is still the extent's own.
 */
static void memory_that_comes_again_is_not_stale(void **state)
{
	side a, b;

	(void)state;
	fake_reset(NULL, 0);
	pair_open(&a, &b, NULL);
	for (uint32_t i = 0; i < 200; i++) {
		region from = region_make(&a, 20000, 0), to = region_make(&b, 20000, TERN_ACCESS_WRITE);
		tn_wr wr = {.local = from.ptr, .bytes = 20000, .key = to.key};

		memset(from.ptr, (int)i, 20000);
		memset(to.ptr, 0xff, 20000);
		assert_ok(tn_lane_write(a.lane, &wr));
		UNTIL(&a, &b, a.dones == i + 1);
		assert_int_equal(a.done[i].status, TERN_OK);
		assert_memory_equal(from.ptr, to.ptr, 20000);
		tern_mem_free(a.mem, from.ptr);
		tern_mem_free(b.mem, to.ptr);
	}
	pair_close(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refusal_names_limit_and_remedy),
		cmocka_unit_test(one_of_two_refuses),
		cmocka_unit_test(late_device_refuses),
		cmocka_unit_test(odd_refusals_are_statuses),
		cmocka_unit_test(lanes_register_nothing),
		cmocka_unit_test(requests_register_nothing),
		cmocka_unit_test(any_pointer_makes_a_message),
		cmocka_unit_test(memory_that_comes_again_is_not_stale),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
