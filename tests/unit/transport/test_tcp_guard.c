/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory whose key was revoked while the device was inside of an access to it is given to nobody until that has
 * ended: the words of the guard are moved by hand. Threads: main.
 */
#include "base/options.h"
#include "cmocka_all.h"
#include "transport/tcp/tcp.h"

typedef struct rig {
	tern_mem *mem;
	tn_dev *base;
	tn_tcp_dev *dev;
} rig;

static void rig_open(rig *r)
{
	tn_mem_params mem_params = {.reserve_bytes = 1ull << 30};
	tn_dev_params params = {0};

	assert_ok(tn_mem_create(&mem_params, &r->mem));
	params.mem = r->mem;
	assert_ok(tn_provider_find("tcp")->open(&params, &r->base));
	r->dev = tn_tcp_dev_of(r->base);
}

static void rig_close(rig *r)
{
	r->base->ops->close(r->base);
	tn_mem_destroy(r->mem);
}

static void *keyed_block(rig *r, tern_key *key)
{
	void *ptr;

	assert_ok(tern_mem_alloc(r->mem, 64 << 10, 0, 3, TERN_MEM_HOST, &ptr));
	assert_ok(tern_mem_export(r->mem, ptr, 64 << 10, 3, key));
	return ptr;
}

/* Bytes in blocks that live or wait, after mem looked at what waits. */
static uint64_t used(rig *r)
{
	tern_mem_stats stats;
	void *ptr;

	assert_ok(tern_mem_alloc(r->mem, 64 << 10, 0, 0, TERN_MEM_HOST, &ptr));
	tern_mem_free(r->mem, ptr);
	tern_mem_stats_get(r->mem, &stats);
	return stats.used_bytes;
}

static void test_receiving(void **state)
{
	tern_key key;
	void *ptr;
	rig r;

	(void)state;
	rig_open(&r);
	ptr = keyed_block(&r, &key);
	tn_tcp_rx_access(r.dev);
	tern_mem_free(r.mem, ptr);
	assert_int_equal(used(&r), 64 << 10);
	/* the next access began after the revocation: it does not matter */
	tn_tcp_rx_access(r.dev);
	tn_tcp_rx_access(r.dev);
	assert_int_equal(used(&r), 0);
	tn_tcp_rx_access(r.dev);
	ptr = keyed_block(&r, &key);
	tern_mem_free(r.mem, ptr);
	assert_int_equal(used(&r), 0);
	rig_close(&r);
}

static void test_sending(void **state)
{
	tern_key key;
	void *ptr;
	rig r;

	(void)state;
	rig_open(&r);
	ptr = keyed_block(&r, &key);
	tn_tcp_tx_access_begin(r.dev);
	tn_tcp_tx_access_begin(r.dev);
	tern_mem_free(r.mem, ptr);
	assert_int_equal(used(&r), 64 << 10);
	tn_tcp_tx_access_end(r.dev);
	assert_int_equal(used(&r), 64 << 10);
	tn_tcp_tx_access_end(r.dev);
	assert_int_equal(used(&r), 0);
	rig_close(&r);
}

/* A single key: its owner goes on to use the memory, so revocation waits, and says so when in vain. */
static void test_revoke_waits(void **state)
{
	tern_key key;
	rig r;

	(void)state;
	rig_open(&r);
	(void)keyed_block(&r, &key);
	tn_tcp_rx_access(r.dev);
	assert_status(tern_mem_revoke(r.mem, &key), TERN_E_INDETERMINATE);
	tn_tcp_rx_access(r.dev);
	(void)keyed_block(&r, &key);
	assert_ok(tern_mem_revoke(r.mem, &key));
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_receiving),
		cmocka_unit_test(test_sending),
		cmocka_unit_test(test_revoke_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
