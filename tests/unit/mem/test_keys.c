/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: export, check at the edges, revocation, free, reuse of rows, wire form, the table as peers see it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rand.h"
#include "mem_test.h"

static tn_key export_ok(tern_mem *mem, const void *ptr, uint64_t bytes, uint32_t access)
{
	tern_key wire;
	tn_key key;

	assert_int_equal(tern_mem_export(mem, ptr, bytes, access, &wire), TERN_OK);
	assert_true(tn_key_decode(&wire, &key));
	assert_int_equal(tern_key_length(&wire), bytes);
	return key;
}

static tern_status check(tern_mem *mem, const tn_key *key, uint64_t offset, uint64_t bytes, uint32_t access)
{
	uint32_t extent = UINT32_MAX;
	uint64_t at = UINT64_MAX;
	tern_status status = tn_key_check(tn_mem_keys(mem), key, offset, bytes, access, &extent, &at);

	if (status == TERN_OK) {
		assert_int_equal(extent, key->extent);
		assert_int_equal(at, key->extent_offset + offset);
	} else {
		assert_int_equal(extent, UINT32_MAX);
		assert_int_equal(at, UINT64_MAX);
	}
	return status;
}

static void bounds(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *ptr = get(mem, 4096, 0, 3);
	tn_key key = export_ok(mem, ptr + 100, 1000, 3);

	(void)state;
	assert_int_equal(key.address, (uintptr_t)ptr + 100);
	assert_int_equal(check(mem, &key, 0, 1000, 3), TERN_OK);
	assert_int_equal(check(mem, &key, 999, 1, 1), TERN_OK);
	assert_int_equal(check(mem, &key, 1000, 0, 2), TERN_OK);
	assert_int_equal(check(mem, &key, 0, 0, 2), TERN_OK);
	assert_int_equal(check(mem, &key, 0, 1001, 1), TERN_E_BOUNDS);
	assert_int_equal(check(mem, &key, 1000, 1, 1), TERN_E_BOUNDS);
	assert_int_equal(check(mem, &key, 1001, 0, 1), TERN_E_BOUNDS);
	assert_int_equal(check(mem, &key, UINT64_MAX, 1, 1), TERN_E_BOUNDS);
	assert_int_equal(check(mem, &key, UINT64_MAX, 0, 1), TERN_E_BOUNDS);
	assert_int_equal(check(mem, &key, 1, UINT64_MAX, 1), TERN_E_BOUNDS);
	assert_int_equal(check(mem, &key, UINT64_MAX - 10, 20, 1), TERN_E_BOUNDS);
	tn_mem_destroy(mem);
}

static void access_and_identity(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *ptr = get(mem, 4096, 0, 3);
	tn_key read = export_ok(mem, ptr, 64, TERN_ACCESS_READ);
	tn_key forged = read;

	(void)state;
	assert_int_equal(check(mem, &read, 0, 8, TERN_ACCESS_READ), TERN_OK);
	assert_int_equal(check(mem, &read, 0, 8, TERN_ACCESS_WRITE), TERN_E_ACCESS);
	assert_int_equal(check(mem, &read, 0, 8, 3), TERN_E_ACCESS);
	/* What a peer writes into a key counts for nothing: the row decides. */
	forged.access = 3;
	forged.length = 4096;
	assert_int_equal(check(mem, &forged, 0, 8, TERN_ACCESS_WRITE), TERN_E_ACCESS);
	assert_int_equal(check(mem, &forged, 0, 65, TERN_ACCESS_READ), TERN_E_BOUNDS);
	forged = read;
	forged.index = TN_KEYS_MAX;
	assert_int_equal(check(mem, &forged, 0, 8, 1), TERN_E_STALE_KEY);
	forged.index = UINT32_MAX;
	assert_int_equal(check(mem, &forged, 0, 8, 1), TERN_E_STALE_KEY);
	forged = read;
	forged.node_tag++;
	assert_int_equal(check(mem, &forged, 0, 8, 1), TERN_E_STALE_KEY);
	forged = read;
	forged.generation += 2;
	assert_int_equal(check(mem, &forged, 0, 8, 1), TERN_E_STALE_KEY);
	/* A free row has an even generation: it cannot be named. */
	forged.index = read.index + 1;
	forged.generation = 0;
	assert_int_equal(check(mem, &forged, 0, 0, 1), TERN_E_STALE_KEY);
	tn_mem_destroy(mem);
}

static void export_refuses(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *secret = get(mem, 4096, 0, 0), *readable = get(mem, 100, 0, 1), *freed = get(mem, 100, 0, 1);
	uint64_t usable = tern_mem_usable(mem, readable);
	tern_key key;
	int local;

	(void)state;
	tern_mem_free(mem, freed);
	assert_int_equal(tern_mem_export(mem, secret, 8, 1, &key), TERN_E_ACCESS);
	assert_int_equal(tern_mem_export(mem, readable, 8, 2, &key), TERN_E_ACCESS);
	assert_int_equal(tern_mem_export(mem, readable, 8, 3, &key), TERN_E_ACCESS);
	assert_int_equal(tern_mem_export(mem, readable, 8, 0, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, readable, 8, 8, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, readable, usable, 1, &key), TERN_OK);
	assert_int_equal(tern_mem_export(mem, readable, usable + 1, 1, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, readable + 1, usable, 1, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, readable + 1, UINT64_MAX, 1, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, freed, 8, 1, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, &local, 4, 1, &key), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, NULL, 0, 1, &key), TERN_E_INVALID);
	assert_int_equal(stats_of(mem).keys, 1);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void revocation(void **state)
{
	tern_mem *mem = make_pool(0), *other = make_pool(0);
	uint8_t *ptr = get(mem, 4096, 0, 3);
	tern_key wire, junk = {{0}};
	tn_key key;

	(void)state;
	assert_int_equal(tern_mem_export(mem, ptr, 10, 1, &wire), TERN_OK);
	assert_true(tn_key_decode(&wire, &key));
	assert_int_equal(tern_mem_revoke(other, &wire), TERN_E_STALE_KEY);
	assert_int_equal(tern_mem_revoke(mem, &wire), TERN_OK);
	assert_int_equal(check(mem, &key, 0, 1, 1), TERN_E_STALE_KEY);
	assert_int_equal(tern_mem_revoke(mem, &wire), TERN_E_STALE_KEY);
	assert_int_equal(tern_mem_revoke(mem, &junk), TERN_E_INVALID);
	assert_int_equal(stats_of(mem).keys, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
	tn_mem_destroy(other);
}

static void free_revokes(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *small = get(mem, 100, 0, 3), *beside = get(mem, 100, 0, 3), *large = get(mem, MiB, 0, 3);
	tn_key s[3], b, l;
	tern_key wire;

	(void)state;
	for (int i = 0; i < 3; i++)
		s[i] = export_ok(mem, small + i, 10, 1);
	b = export_ok(mem, beside, 10, 1);
	l = export_ok(mem, large + 500000, 10, 3);
	tn_key_encode(&s[1], &wire);
	assert_int_equal(tern_mem_revoke(mem, &wire), TERN_OK); /* from the middle of the chain */
	tern_mem_free(mem, small);
	for (int i = 0; i < 3; i++)
		assert_int_equal(check(mem, &s[i], 0, 1, 1), TERN_E_STALE_KEY);
	assert_int_equal(check(mem, &b, 0, 1, 1), TERN_OK);
	assert_int_equal(check(mem, &l, 0, 1, 1), TERN_OK);
	tern_mem_free(mem, large);
	assert_int_equal(check(mem, &l, 0, 1, 1), TERN_E_STALE_KEY);
	assert_int_equal(stats_of(mem).keys, 1);
	/* The same memory for somebody else: the old key stays dead. */
	assert_ptr_equal(get(mem, 100, 0, 3), small);
	export_ok(mem, small, 10, 1);
	assert_int_equal(check(mem, &s[0], 0, 1, 1), TERN_E_STALE_KEY);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void table_fills_and_recovers(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *ptr = get(mem, 4096, 0, 1);
	tern_key first, key;
	tn_key old;

	(void)state;
	assert_int_equal(tern_mem_export(mem, ptr, 8, 1, &first), TERN_OK);
	for (uint32_t i = 1; i < TN_KEYS_MAX; i++)
		assert_int_equal(tern_mem_export(mem, ptr, 8, 1, &key), TERN_OK);
	assert_int_equal(tern_mem_export(mem, ptr, 8, 1, &key), TERN_E_LIMIT);
	assert_int_equal(tern_mem_revoke(mem, &first), TERN_OK);
	assert_int_equal(tern_mem_export(mem, ptr, 8, 1, &key), TERN_OK);
	assert_true(tn_key_decode(&first, &old));
	assert_int_equal(check(mem, &old, 0, 1, 1), TERN_E_STALE_KEY); /* same row, next generation */
	tn_mem_check(mem);
	tern_mem_free(mem, ptr);
	assert_int_equal(stats_of(mem).keys, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void wire_form(void **state)
{
	const tn_key key = {.index = 0x01020304,
			    .generation = 0x11121315,
			    .access = 3,
			    .extent = 0x21222324,
			    .extent_offset = 0x3132333435363738,
			    .length = 0x41,
			    .address = 0x5152535455565758,
			    .rkey = {1, 2, 3, 4},
			    .node_tag = 0x61626364};
	static const uint8_t golden[64] = {
		4,    3,    2,    1,    0x15, 0x13, 0x12, 0x11, 3,    0, 0, 0, 0x24, 0x23, 0x22, 0x21, 0x38,
		0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 0x41, 0,    0, 0, 0, 0,    0,    0,    0x58, 0x57,
		0x56, 0x55, 0x54, 0x53, 0x52, 0x51, 1,    0,    0,    0, 2, 0, 0,    0,    3,    0,    0,
		0,    4,    0,    0,    0,    0x64, 0x63, 0x62, 0x61, 0, 0, 0, 0};
	tern_key wire, bad, again;
	tn_key back;

	(void)state;
	tn_key_encode(&key, &wire);
	assert_memory_equal(wire.bytes, golden, 64);
	assert_true(tn_key_decode(&wire, &back));
	tn_key_encode(&back, &again);
	assert_memory_equal(again.bytes, golden, 64);
	assert_int_equal(back.address, key.address);
	for (int i = 60; i < 64; i++) { /* junk in the reserved word */
		bad = wire;
		bad.bytes[i] = 1;
		assert_false(tn_key_decode(&bad, &back));
		assert_int_equal(tern_key_length(&bad), 0);
	}
	bad = wire;
	memset(bad.bytes + 4, 0, 4); /* generation 0 */
	assert_false(tn_key_decode(&bad, &back));
	bad = wire;
	bad.bytes[8] = 4; /* unknown access */
	assert_false(tn_key_decode(&bad, &back));
	bad = wire;
	memset(bad.bytes + 24, 0xff, 8); /* length overflows */
	assert_false(tn_key_decode(&bad, &back));
	memset(&bad, 0, sizeof(bad));
	assert_false(tn_key_decode(&bad, &back));
	assert_int_equal(tern_key_length(NULL), 0);
}

/* Random bytes never do more than be refused. */
static void junk_keys(void **state)
{
	tern_mem *mem = make_pool(0);
	tn_rand rand = {.state = 4711};
	tn_key key = export_ok(mem, get(mem, 4096, 0, 3), 64, 3);

	(void)state;
	for (int i = 0; i < 200000; i++) {
		tern_key wire;
		tn_key parsed;

		tn_key_encode(&key, &wire);
		for (uint64_t flips = tn_rand_below(&rand, 4) + 1; flips; flips--)
			wire.bytes[tn_rand_below(&rand, 64)] ^= (uint8_t)(1u << tn_rand_below(&rand, 8));
		if (!tn_key_decode(&wire, &parsed))
			continue;
		uint64_t offset = tn_rand_next(&rand) >> tn_rand_below(&rand, 64);
		uint64_t bytes = tn_rand_next(&rand) >> tn_rand_below(&rand, 64);
		uint32_t extent;
		uint64_t at;

		if (tn_key_check(tn_mem_keys(mem), &parsed, offset, bytes, 1, &extent, &at) == TERN_OK) {
			assert_int_equal(extent, key.extent);
			assert_true(at >= key.extent_offset && at + bytes <= key.extent_offset + 64);
		}
	}
	tn_mem_destroy(mem);
}

static void peers_map_it_read_only(void **state)
{
	tern_mem *mem = make_pool(0);
	tn_key key = export_ok(mem, get(mem, 4096, 0, 3), 64, 3);
	const tn_key_table *table = tn_mem_keys(mem);
	uint64_t bytes = table->count * sizeof(tn_key_row);
	tn_key_table peer = *table;
	uint32_t extent;
	uint64_t at;
	void *map;

	(void)state;
	assert_true(fcntl(table->fd, F_GET_SEALS) & F_SEAL_SHRINK);
	assert_true(fcntl(table->fd, F_GET_SEALS) & F_SEAL_SEAL);
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table->fd, 0);
	assert_ptr_equal(map, MAP_FAILED);
	assert_int_equal(pwrite(table->fd, "x", 1, 0), -1);
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, table->fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	peer.rows = map;
	assert_int_equal(tn_key_check(&peer, &key, 10, 54, 3, &extent, &at), TERN_OK);
	assert_int_equal(tn_key_check(&peer, &key, 10, 55, 3, &extent, &at), TERN_E_BOUNDS);
	munmap(map, bytes);
	tn_mem_destroy(mem);
}

static void keys_carry_rkeys(void **state)
{
	fake_device dev = {.tag = 100};
	tern_mem *mem = make_pool(0);
	uint32_t slot;
	tn_key key;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	key = export_ok(mem, get(mem, 64, 0, 3), 64, 3);
	assert_int_equal(key.rkey[slot], 100 + 0x10000 + key.extent);
	assert_int_equal(key.rkey[slot + 1], 0);
	tn_mem_detach(mem, slot);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bounds),
		cmocka_unit_test(access_and_identity),
		cmocka_unit_test(export_refuses),
		cmocka_unit_test(revocation),
		cmocka_unit_test(free_revokes),
		cmocka_unit_test(table_fills_and_recovers),
		cmocka_unit_test(wire_form),
		cmocka_unit_test(junk_keys),
		cmocka_unit_test(peers_map_it_read_only),
		cmocka_unit_test(keys_carry_rkeys),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
