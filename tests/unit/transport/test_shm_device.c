/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device: who is within reach, options, what happens when any call to the kernel fails.
 * Threads: the main thread alone.
 */
#include "shm_test.h"

#include "base/options.h"

static void test_probe(void **state)
{
	char reason[200] = "";

	(void)state;
	assert_ok(tn_provider_find("shm")->probe(reason, sizeof(reason)));
	assert_true(reason[0] != 0);
	assert_ok(tn_provider_find("shm")->probe(NULL, 0));
	assert_ok(tn_fault_set("shm.memfd.create", 1, 1));
	assert_true(tn_provider_find("shm")->probe(reason, sizeof(reason)) < 0);
	assert_non_null(strstr(reason, "memfd"));
	tn_fault_clear();
}

static void reach_of(node *n, const tn_shm_address *address, tern_status status, const char *word)
{
	tn_blob blob = n->addr;

	memcpy(blob.bytes, address, sizeof(*address));
	assert_status(n->dev->ops->reach(n->dev, &blob), status);
	if (word)
		assert_non_null(strstr(tern_detail(), word));
}

static void test_reach(void **state)
{
	node n;
	tn_shm_address good, bad;
	tn_blob blob;

	(void)state;
	node_open(&n);
	memcpy(&good, n.addr.bytes, sizeof(good));
	reach_of(&n, &good, TERN_OK, NULL);
	bad = good;
	bad.boot_id[3] ^= 1;
	reach_of(&n, &bad, TERN_E_UNREACHABLE, "host");
	bad = good;
	bad.netns_ino++;
	reach_of(&n, &bad, TERN_E_UNREACHABLE, "namespace");
	bad = good;
	bad.uid++;
	reach_of(&n, &bad, TERN_E_UNREACHABLE, "uid");
	bad = good;
	bad.version++;
	reach_of(&n, &bad, TERN_E_VERSION, "version");
	bad = good;
	bad.magic++;
	reach_of(&n, &bad, TERN_E_UNREACHABLE, NULL);
	for (uint16_t length = 0; length < sizeof(good); length++) {
		blob = n.addr;
		blob.length = length;
		assert_status(n.dev->ops->reach(n.dev, &blob), TERN_E_UNREACHABLE);
	}
	node_close(&n);
}

static tern_status open_with(const char *const *pairs, tn_dev_caps *caps)
{
	node n = {0};
	tn_mem_params mem = {0};
	tn_options *options;
	tn_dev_params params = {0};
	tern_status status;

	assert_ok(tn_mem_create(&mem, &n.mem));
	assert_ok(tn_options_load(pairs, &options));
	params.mem = n.mem;
	params.options = options;
	status = tn_provider_find("shm")->open(&params, &n.dev);
	if (status == TERN_OK) {
		n.dev->ops->caps(n.dev, caps);
		n.dev->ops->close(n.dev);
	} else {
		assert_null(n.dev);
	}
	tn_options_free(options);
	tn_mem_destroy(n.mem);
	return status;
}

static void test_options(void **state)
{
	tn_dev_caps caps;

	(void)state;
	assert_ok(open_with(
		(const char *[]){"shm.slots=1024", "shm.send_bytes=64KiB", "shm.membarrier=off", NULL},
		&caps));
	assert_int_equal(caps.lane_recv_slots, 1024);
	assert_int_equal(caps.send_bytes_max, 65536);
	assert_ok(open_with(NULL, &caps));
	assert_true(caps.lane_recv_slots >= 256 && caps.send_bytes_max >= 8192);
	assert_int_equal(caps.flags & (TN_CAP_REMOTE_DONE | TN_CAP_ORDERED_WRITES | TN_CAP_PASSIVE_TARGET |
				       TN_CAP_SAME_HOST),
			 TN_CAP_REMOTE_DONE | TN_CAP_ORDERED_WRITES | TN_CAP_PASSIVE_TARGET |
				 TN_CAP_SAME_HOST);
	assert_false(caps.incast);
	assert_status(open_with((const char *[]){"shm.slots=300", NULL}, &caps), TERN_E_OPTION);
	assert_status(open_with((const char *[]){"shm.send_bytes=5000", NULL}, &caps), TERN_E_OPTION);
}

/* Lanes between devices of other sizes: the dialler's sizes are the lane's. */
static void test_sizes_differ(void **state)
{
	node a, b = {0};
	lane_pair lanes;
	tn_mem_params mem = {0};
	tn_options *options;
	tn_dev_params params = {0};
	uint8_t data[16384] = {1};
	const tn_iov big = {.base = data, .bytes = sizeof(data)};
	const tn_iov small = {.base = data, .bytes = 2048};
	bool done;

	(void)state;
	node_open(&a);
	assert_ok(tn_mem_create(&mem, &b.mem));
	assert_ok(tn_options_load((const char *[]){"shm.slots=32", "shm.send_bytes=2KiB", NULL}, &options));
	params.mem = b.mem;
	params.options = options;
	assert_ok(tn_provider_find("shm")->open(&params, &b.dev));
	b.dev->ops->address(b.dev, &b.addr);
	lane_up(&a, &b, &lanes);
	assert_ok(tn_lane_send(lanes.a, &big, 1, 0, &done));
	assert_ok(tn_lane_send(lanes.b, &big, 1, 0, &done));
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	lane_up(&b, &a, &lanes);
	assert_status(tn_lane_send(lanes.a, &big, 1, 0, &done), TERN_E_TOO_LARGE);
	assert_ok(tn_lane_send(lanes.b, &small, 1, 0, &done));
	assert_status(tn_lane_send(lanes.b, &big, 1, 0, &done), TERN_E_TOO_LARGE);
	polls(&b, 10);
	lane_free(&b, lanes.a);
	lane_free(&a, lanes.b);
	node_close(&a);
	node_close(&b);
	tn_options_free(options);
}

/* Each call that can fail does so once, at opening: an error with a text, nothing left. */
static void test_open_faults(void **state)
{
	tn_mem_params mem_params = {0};
	tern_mem *mem;
	tn_dev_params params = {0};
	unsigned fds, failures = 0;

	(void)state;
	assert_ok(tn_mem_create(&mem_params, &mem));
	params.mem = mem;
	fds = descriptors();
	for (uint64_t nth = 1; nth < 100; nth++) {
		tn_dev *dev;
		tern_status status;

		assert_ok(tn_fault_set("*", nth, 1));
		status = tn_provider_find("shm")->open(&params, &dev);
		tn_fault_clear();
		if (status == TERN_OK) {
			dev->ops->close(dev);
			assert_int_equal(descriptors(), fds);
			if (nth > failures + 3)
				break;
			continue;
		}
		assert_null(dev);
		assert_true(tern_detail()[0] != 0);
		assert_int_equal(descriptors(), fds);
		failures++;
	}
	assert_true(failures >= 5);
	tn_mem_destroy(mem);
}

/* The same for a connect: the lane comes up or both ends say LANE_DOWN; nothing leaks; the next one works. */
static void test_connect_faults(void **state)
{
	node a, b;
	lane_pair lanes;
	unsigned fds, failures = 0, successes = 0;

	(void)state;
	node_open(&a);
	node_open(&b);
	fds = descriptors();
	for (uint64_t nth = 1; successes < 5; nth++) {
		tn_blob blob_a, blob_b;
		tn_lane_params params = {.connect_timeout_ns = 100 * TN_NS_PER_MS};

		a.ups = b.ups = a.downs = b.downs = 0;
		memcpy(params.token, test_token, sizeof(test_token));
		assert_ok(b.dev->ops->lane_create(b.dev, &params, &lanes.b, &blob_b));
		params.active = true;
		assert_ok(a.dev->ops->lane_create(a.dev, &params, &lanes.a, &blob_a));
		assert_ok(tn_fault_set("*", nth, 1));
		assert_ok(b.dev->ops->lane_connect(lanes.b, &a.addr, &blob_a));
		assert_ok(a.dev->ops->lane_connect(lanes.a, &b.addr, &blob_b));
		while (!((a.ups && b.ups) || (a.downs && b.downs))) {
			(void)node_poll(&a);
			(void)node_poll(&b);
		}
		tn_fault_clear();
		if (a.downs) {
			assert_true(a.last_down.status < 0 && b.last_down.status < 0);
			failures++;
		} else {
			successes++;
		}
		lane_free(&a, lanes.a);
		lane_free(&b, lanes.b);
		polls(&a, 200);
		polls(&b, 200);
		assert_int_equal(descriptors(), fds);
	}
	assert_true(failures >= 5);
	node_close(&a);
	node_close(&b);
}

/* Without membarrier all fences are full; everything else is the same. */
static void test_without_membarrier(void **state)
{
	node a, b;
	lane_pair lanes;
	tn_key key;
	uint64_t word = 77;
	uint8_t *target;

	(void)state;
	assert_ok(tn_fault_set("shm.membarrier.register", 1, 1));
	node_open(&a);
	tn_fault_clear();
	node_open(&b);
	lane_up(&a, &b, &lanes);
	assert_false(((tn_shm_lane *)lanes.a)->light);
	assert_false(((tn_shm_lane *)lanes.b)->light);
	target = block(&b, 4096, RW, &key);
	assert_ok(access_by(&a, &b, lanes.a, true, &key, 0, &word, 8));
	assert_memory_equal(target, &word, 8);
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	node_close(&a);
	node_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_reach),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_sizes_differ),
		cmocka_unit_test(test_open_faults),
		cmocka_unit_test(test_connect_faults),
		cmocka_unit_test(test_without_membarrier),
	};

	return RUN(tests);
}
