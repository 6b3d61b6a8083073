/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided access: keys as the owner's table says, extents mapped on demand and as their class allows,
 * against honest owners and against tables and extents that lie.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "shm_test.h"

typedef struct fixture {
	node a, b;
	lane_pair lanes;
} fixture;

static void set_up(fixture *f)
{
	node_open(&f->a);
	node_open(&f->b);
	lane_up(&f->a, &f->b, &f->lanes);
}

static void tear_down(fixture *f)
{
	lane_free(&f->a, f->lanes.a);
	lane_free(&f->b, f->lanes.b);
	node_close(&f->a);
	node_close(&f->b);
}

static tern_status put(fixture *f, const tn_key *key, uint64_t offset, void *local, uint64_t bytes)
{
	return access_by(&f->a, &f->b, f->lanes.a, true, key, offset, local, bytes);
}

static tern_status get(fixture *f, const tn_key *key, uint64_t offset, void *local, uint64_t bytes)
{
	return access_by(&f->a, &f->b, f->lanes.a, false, key, offset, local, bytes);
}

/* ---- honest owners ---- */

static void test_on_demand(void **state)
{
	fixture f;
	tn_key first, later;
	uint8_t *ptr, *grown;
	uint64_t word = 42;
	tn_wr wr = {.local = &word, .bytes = 8};

	(void)state;
	set_up(&f);
	ptr = block(&f.b, 4096, RW, &first);
	assert_int_equal(counter(&f.a, "shm.extents_mapped"), 0);
	/* Not mapped yet: AGAIN for as long as the owner does not poll. */
	wr.key = first;
	for (int i = 0; i < 100; i++) {
		assert_int_equal(tn_lane_write(f.lanes.a, &wr), TERN_AGAIN);
		(void)node_poll(&f.a);
	}
	assert_int_equal(counter(&f.a, "shm.again"), 100);
	assert_ok(put(&f, &first, 8, &word, 8));
	assert_int_equal(counter(&f.a, "shm.extents_mapped"), 1);
	assert_memory_equal(ptr + 8, &word, 8);
	/* An extent that came after the connect. */
	grown = block(&f.b, 64 << 20, RW, &later);
	assert_int_not_equal(later.extent, first.extent);
	assert_ok(put(&f, &later, (64 << 20) - 8, &word, 8));
	assert_memory_equal(grown + (64 << 20) - 8, &word, 8);
	assert_int_equal(counter(&f.a, "shm.extents_mapped"), 2);
	assert_ok(put(&f, &first, 0, &word, 8));
	assert_int_equal(counter(&f.a, "shm.extents_mapped"), 2);
	tear_down(&f);
}

static void test_one_copy(void **state)
{
	fixture f;
	tn_key key;
	uint64_t bytes = 20 << 20;
	uint8_t *to, *from = malloc(bytes), *back = calloc(1, bytes);
	tn_rand rand = {8};

	(void)state;
	assert_true(from && back);
	for (uint64_t i = 0; i < bytes; i++)
		from[i] = (uint8_t)tn_rand_next(&rand);
	set_up(&f);
	to = block(&f.b, bytes, RW, &key);
	assert_ok(put(&f, &key, 0, from, bytes));
	assert_memory_equal(to, from, bytes);
	assert_int_equal(counter(&f.a, "shm.copies"), 1);
	assert_int_equal(counter(&f.a, "shm.copy_bytes"), bytes);
	assert_ok(get(&f, &key, 0, back, bytes));
	assert_memory_equal(back, from, bytes);
	assert_int_equal(counter(&f.a, "shm.copies"), 2);
	/* In parts, across chunks that are mapped when they are touched. */
	memset(to, 0, bytes);
	for (uint64_t at = 0; at < bytes;) {
		uint64_t part = TN_MIN(bytes - at, 1 + tn_rand_below(&rand, 3 << 20));

		assert_ok(put(&f, &key, at, from + at, part));
		at += part;
	}
	assert_memory_equal(to, from, bytes);
	assert_int_equal(counter(&f.b, "shm.copies"), 0);
	assert_ok(put(&f, &key, 0, NULL, 0)); /* no bytes, no copy */
	assert_int_equal(counter(&f.a, "shm.copy_bytes"), 3 * bytes);
	tear_down(&f);
	free(from);
	free(back);
}

/* Revocation takes effect at once, for cached keys too, and only for the one key. */
static void test_revoked(void **state)
{
	fixture f;
	tn_key keys[20];
	tern_key wires[20];
	void *ptr;
	uint64_t word = 7;

	(void)state;
	set_up(&f);
	assert_ok(tern_mem_alloc(f.b.mem, 4096, 0, RW, TERN_MEM_HOST, &ptr));
	for (int i = 0; i < 20; i++) {
		assert_ok(tern_mem_export(f.b.mem, (uint8_t *)ptr + 8 * i, 8, RW, &wires[i]));
		assert_true(tn_key_decode(&wires[i], &keys[i]));
	}
	for (int round = 0; round < 3; round++) { /* through the cache and around it */
		for (int i = 0; i < 20; i++)
			assert_ok(put(&f, &keys[i], 0, &word, 8));
	}
	for (int i = 0; i < 20; i += 3) {
		assert_ok(put(&f, &keys[i], 0, &word, 8));
		assert_ok(tern_mem_revoke(f.b.mem, &wires[i]));
		assert_status(put(&f, &keys[i], 0, &word, 8), TERN_E_STALE_KEY);
		assert_status(get(&f, &keys[i], 0, &word, 8), TERN_E_STALE_KEY);
	}
	for (int i = 0; i < 20; i++)
		assert_status(put(&f, &keys[i], 0, &word, 8), i % 3 ? TERN_OK : TERN_E_STALE_KEY);
	tern_mem_free(f.b.mem, ptr);
	for (int i = 0; i < 20; i++)
		assert_status(put(&f, &keys[i], 0, &word, 8), TERN_E_STALE_KEY);
	tear_down(&f);
}

static void test_bounds_and_access(void **state)
{
	fixture f;
	tn_key key, read_key, other;
	tern_key wire;
	uint8_t *ptr;
	uint64_t words[2] = {1, 2};

	(void)state;
	set_up(&f);
	ptr = block(&f.b, 4096, RW, NULL);
	assert_ok(tern_mem_export(f.b.mem, ptr, 100, RW, &wire));
	assert_true(tn_key_decode(&wire, &key));
	assert_ok(tern_mem_export(f.b.mem, ptr, 100, TERN_ACCESS_READ, &wire));
	assert_true(tn_key_decode(&wire, &read_key));
	for (int round = 0; round < 2; round++) { /* the second time cached */
		assert_ok(put(&f, &key, 92, words, 8));
		assert_status(put(&f, &key, 93, words, 8), TERN_E_BOUNDS);
		assert_status(put(&f, &key, 101, words, 0), TERN_E_BOUNDS);
		assert_status(put(&f, &key, UINT64_MAX, words, 8), TERN_E_BOUNDS);
		assert_status(put(&f, &key, 8, words, UINT64_MAX - 4), TERN_E_BOUNDS);
		assert_status(put(&f, &key, UINT64_MAX - 3, words, 8), TERN_E_BOUNDS);
		assert_ok(put(&f, &key, 100, words, 0));
		assert_ok(get(&f, &read_key, 0, words, 8));
		assert_status(put(&f, &read_key, 0, words, 8), TERN_E_ACCESS);
	}
	/* What the key's holder claims beside index and generation counts for nothing. */
	other = read_key;
	other.access = RW;
	other.length = 1 << 20;
	other.extent_offset = 0;
	assert_status(put(&f, &other, 0, words, 8), TERN_E_ACCESS);
	assert_status(get(&f, &other, 100, words, 8), TERN_E_BOUNDS);
	other = key;
	other.node_tag ^= 1;
	assert_status(put(&f, &other, 0, words, 8), TERN_E_STALE_KEY);
	other = key;
	other.generation += 2;
	assert_status(put(&f, &other, 0, words, 8), TERN_E_STALE_KEY);
	other.generation = 0;
	assert_status(put(&f, &other, 0, words, 8), TERN_E_STALE_KEY);
	other = key;
	other.index = UINT32_MAX;
	assert_status(put(&f, &other, 0, words, 8), TERN_E_STALE_KEY);
	tear_down(&f);
}

static bool at_once(fixture *f, const tern_key *key, uint64_t offset, void *local, uint64_t bytes, bool read)
{
	return tn_lane_access(f->lanes.a, key, offset, local, bytes, read);
}

/* An access without wr and status takes what a write has just taken, and nothing else. */
static void test_at_once(void **state)
{
	fixture f;
	tn_key key;
	tern_key wire, read_wire, other;
	uint64_t words[2] = {5, 6}, back = 0;
	uint8_t *ptr;

	(void)state;
	set_up(&f);
	ptr = block(&f.b, 4096, RW, NULL);
	assert_ok(tern_mem_export(f.b.mem, ptr, 100, TERN_ACCESS_READ, &read_wire));
	assert_true(tn_key_decode(&read_wire, &key));
	assert_ok(get(&f, &key, 0, &back, 8));
	assert_ok(tern_mem_export(f.b.mem, ptr, 100, RW, &wire));
	assert_false(at_once(&f, &wire, 0, words, 8, false)); /* never seen before */
	assert_true(tn_key_decode(&wire, &key));
	assert_ok(put(&f, &key, 0, &back, 8));
	assert_true(at_once(&f, &wire, 92, words, 8, false));
	assert_memory_equal(ptr + 92, words, 8);
	assert_true(at_once(&f, &wire, 92, &back, 8, true));
	assert_int_equal(back, 5);
	assert_int_equal(counter(&f.a, "shm.writes"), 2);
	assert_int_equal(counter(&f.a, "shm.reads"), 2);
	assert_int_equal(counter(&f.a, "shm.copies"), 4);

	assert_false(at_once(&f, &wire, 93, words, 8, false));
	assert_false(at_once(&f, &wire, UINT64_MAX, words, 8, false));
	assert_false(at_once(&f, &wire, 8, words, UINT64_MAX - 4, false));
	assert_false(at_once(&f, &read_wire, 0, words, 8, false));
	assert_true(at_once(&f, &read_wire, 0, &back, 8, true));
	for (unsigned at = 0; at < 60; at += at == 4 ? 52 : 4) { /* index, generation, node tag */
		other = wire;
		other.bytes[at] ^= 2;
		assert_false(at_once(&f, &other, 0, words, 8, false));
	}
	memset(&other, 0, sizeof(other));
	assert_false(at_once(&f, &other, 0, words, 8, false));

	assert_ok(tern_mem_revoke(f.b.mem, &wire));
	assert_false(at_once(&f, &wire, 0, words, 8, false));
	assert_true(at_once(&f, &read_wire, 0, &back, 8, true));
	f.a.dev->ops->lane_close(f.lanes.a);
	assert_false(at_once(&f, &read_wire, 0, &back, 8, true));
	tear_down(&f);
}

/* A class without write is mapped without write: not even a bug of ours could write there. */
static void test_read_only_class(void **state)
{
	fixture f;
	tn_key key;
	uint8_t *ptr;
	uint64_t word = 0;
	unsigned before, rw_before;

	(void)state;
	set_up(&f);
	ptr = block(&f.b, 4096, TERN_ACCESS_READ, &key);
	memset(ptr, 9, 4096);
	before = mappings("memfd:tern ", "r--s");
	rw_before = mappings("memfd:tern ", "rw-s");
	assert_ok(get(&f, &key, 0, &word, 8));
	assert_int_equal(word, 0x0909090909090909ull);
	assert_int_equal(mappings("memfd:tern ", "r--s"), before + 1);
	assert_int_equal(mappings("memfd:tern ", "rw-s"), rw_before);
	assert_status(put(&f, &key, 0, &word, 8), TERN_E_ACCESS);
	tear_down(&f);
}

/* All lanes to one device share one mapping of an extent; it lives as long as the last of them. */
static void test_lanes_share_maps(void **state)
{
	enum { LANES = 70 };
	node a, b;
	lane_pair lanes[LANES];
	tn_key key;
	uint64_t word = 3;
	unsigned before;

	(void)state;
	node_open(&a);
	node_open(&b);
	for (int i = 0; i < LANES; i++)
		lane_up(&a, &b, &lanes[i]);
	(void)block(&b, 4096, RW, &key);
	before = mappings("memfd:tern ", "s");
	for (int i = 0; i < LANES; i++)
		assert_ok(access_by(&a, &b, lanes[i].a, true, &key, 0, &word, 8));
	assert_int_equal(mappings("memfd:tern ", "s"), before + 1);
	assert_int_equal(counter(&a, "shm.extents_mapped"), 1);
	for (int i = 0; i < LANES; i++) {
		assert_ok(access_by(&a, &b, lanes[i].a, true, &key, 0, &word, 8));
		lane_free(&a, lanes[i].a);
		lane_free(&b, lanes[i].b);
	}
	node_close(&a);
	node_close(&b);
}

/* Two lanes want the same extent; the one that asked dies before the answer. */
static void test_asker_dies(void **state)
{
	node a, b;
	lane_pair one, two;
	tn_key key;
	uint64_t word = 5;
	tn_wr wr = {.local = &word, .bytes = 8};

	(void)state;
	node_open(&a);
	node_open(&b);
	lane_up(&a, &b, &one);
	lane_up(&a, &b, &two);
	(void)block(&b, 4096, RW, &key);
	wr.key = key;
	assert_int_equal(tn_lane_write(one.a, &wr), TERN_AGAIN);
	(void)node_poll(&a);
	assert_int_equal(tn_lane_write(two.a, &wr), TERN_AGAIN);
	lane_free(&a, one.a);
	assert_ok(access_by(&a, &b, two.a, true, &key, 0, &word, 8));
	lane_free(&b, one.b);
	lane_free(&a, two.a);
	lane_free(&b, two.b);
	node_close(&a);
	node_close(&b);
}

static void test_map_fails(void **state)
{
	fixture f;
	tn_key key;
	uint64_t word = 5;

	(void)state;
	set_up(&f);
	(void)block(&f.b, 4096, RW, &key);
	assert_ok(tn_fault_set("shm.segment.map", 1, 1));
	assert_true(put(&f, &key, 0, &word, 8) < 0);
	tn_fault_clear();
	assert_ok(put(&f, &key, 0, &word, 8)); /* the next use asks again */
	assert_int_equal(f.a.downs + f.b.downs, 0);
	tear_down(&f);
}

/* ---- an owner that lies: the initiator refuses, at most the lane goes ---- */

typedef struct lair {
	node n;
	evil e;
	tn_lane *lane;
	tn_key key; /* row 0 of the evil table */
	int fd;     /* of the extent that it passes */
	void *base;
} lair;

static void lair_open(lair *l)
{
	tn_blob blob;

	node_open(&l->n);
	evil_make(&l->e);
	l->lane = evil_lane(&l->e, &l->n, &blob);
	evil_up(&l->e, &l->n, &blob);
	assert_ok(tn_shm_seg_create("evil", 8192, false, &l->fd, &l->base));
	l->key = (tn_key){.index = 0, .generation = 1, .access = RW, .length = 4096, .node_tag = EVIL_TAG};
	l->e.rows[0].access = RW;
	l->e.rows[0].extent = 0;
	l->e.rows[0].extent_offset = 0;
	l->e.rows[0].length = 4096;
	l->e.rows[0].generation = 1;
}

static void lair_close(lair *l)
{
	lane_free(&l->n, l->lane);
	tn_shm_seg_unmap(l->base, 8192);
	tn_os_close(&l->fd);
	evil_free(&l->e);
	node_close(&l->n);
}

/* Answer the node's request for an extent; returns the index that it asked for. */
static uint32_t lair_answer(lair *l, tern_status status, uint32_t access, uint64_t bytes, int fd)
{
	tn_shm_any msg;
	int fds[TN_SHM_FDS_MAX];
	uint32_t index;

	assert_ok(evil_recv(&l->e, &l->n, &msg, fds));
	assert_int_equal(msg.head.type, TN_SHM_EXTENT_ASK);
	index = msg.ask.index;
	memset(&msg, 0, sizeof(msg));
	msg.extent = (tn_shm_extent){.index = index, .status = status, .access = access, .bytes = bytes};
	evil_send(&l->e, TN_SHM_EXTENT, &msg, &fd, status == TERN_OK ? 1 : 0);
	polls(&l->n, 200);
	return index;
}

static tern_status lair_put(lair *l, uint64_t offset, uint64_t bytes)
{
	static uint8_t data[8192];
	tn_wr wr = {.local = data, .bytes = bytes, .key = l->key, .offset = offset};

	return tn_lane_write(l->lane, &wr);
}

static void test_honest_lair(void **state)
{
	lair l;

	(void)state;
	lair_open(&l);
	assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
	(void)node_poll(&l.n);
	assert_int_equal(lair_answer(&l, TERN_OK, RW, 8192, l.fd), 0);
	assert_ok(lair_put(&l, 0, 8));
	/* Its key table moves under the cached key. */
	l.e.rows[0].generation = 2;
	assert_status(lair_put(&l, 0, 8), TERN_E_STALE_KEY);
	l.key.generation = 3;
	l.e.rows[0].extent_offset = 8192 - 100;
	l.e.rows[0].generation = 3;
	assert_ok(lair_put(&l, 0, 100));
	assert_status(lair_put(&l, 0, 101), TERN_E_BOUNDS);
	assert_status(lair_put(&l, 4000, 8), TERN_E_BOUNDS);
	l.key.generation = 5;
	l.e.rows[0].extent_offset = UINT64_MAX - 3;
	l.e.rows[0].length = UINT64_MAX;
	l.e.rows[0].generation = 5;
	assert_status(lair_put(&l, 0, 8), TERN_E_BOUNDS);
	assert_status(lair_put(&l, 4, 8),
		      TERN_OK); /* wraps to the start: inside of the extent all the same */
	assert_status(lair_put(&l, 8192, 8), TERN_E_BOUNDS);
	/* Another extent in the place of one that is mapped: an honest owner never does that. */
	l.key.generation = 7;
	l.e.rows[0].extent = TN_MEM_EXTENTS_MAX;
	l.e.rows[0].generation = 7;
	assert_status(lair_put(&l, 0, 8), TERN_E_STALE_KEY);
	assert_int_equal(l.n.downs, 0);
	lair_close(&l);
}

/* Places are taken again by other extents: indices go past TN_MEM_EXTENTS_MAX. */
static void test_high_index(void **state)
{
	lair l;

	(void)state;
	lair_open(&l);
	l.e.rows[0].extent = ~TN_MEM_REGION;
	assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
	assert_int_equal(lair_answer(&l, TERN_OK, RW, 8192, l.fd), ~TN_MEM_REGION);
	assert_ok(lair_put(&l, 0, 8));
	lair_close(&l);
}

/* The table says write, the extent was passed for reading. */
static void test_row_says_more_than_the_extent(void **state)
{
	lair l;

	(void)state;
	lair_open(&l);
	assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
	(void)lair_answer(&l, TERN_OK, TERN_ACCESS_READ, 8192, l.fd);
	for (int i = 0; i < 3; i++)
		assert_status(lair_put(&l, 0, 8), TERN_E_ACCESS);
	assert_int_equal(l.n.downs, 0);
	lair_close(&l);
}

/* A descriptor opened read-only, said to be for writing: the map fails, nothing else. */
static void test_unwritable_extent(void **state)
{
	lair l;
	int ro;

	(void)state;
	lair_open(&l);
	assert_ok(tn_shm_seg_read_only(l.fd, &ro));
	assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
	(void)lair_answer(&l, TERN_OK, RW, 8192, ro);
	assert_true(lair_put(&l, 0, 8) < 0);
	assert_int_equal(l.n.downs, 0);
	tn_os_close(&ro);
	lair_close(&l);
}

static void test_refused_extents(void **state)
{
	lair l;

	(void)state;
	lair_open(&l);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
		(void)lair_answer(&l, i ? TERN_E_ACCESS : TERN_E_NOT_FOUND, 0, 0, -1);
		assert_status(lair_put(&l, 0, 8), i ? TERN_E_ACCESS : TERN_E_STALE_KEY);
	}
	assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN); /* said once, asked again */
	(void)lair_answer(&l, TERN_OK, RW, 8192, l.fd);
	assert_ok(lair_put(&l, 0, 8));
	assert_int_equal(l.n.downs, 0);
	lair_close(&l);
}

static void lying_extent(uint32_t access, uint64_t bytes, bool sealed)
{
	lair l;
	int fd;

	lair_open(&l);
	fd = sealed ? dup(l.fd) : memfd_create("unsealed", MFD_CLOEXEC);
	assert_true(fd >= 0 && (sealed || ftruncate(fd, 8192) == 0));
	assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
	(void)lair_answer(&l, TERN_OK, access, bytes, fd);
	wait_down(&l.n, 1, TERN_E_PROTOCOL);
	assert_status(lair_put(&l, 0, 8), TERN_E_LANE);
	tn_os_close(&fd);
	lair_close(&l);
}

static void test_lying_extents(void **state)
{
	(void)state;
	lying_extent(RW, 8193, true);
	lying_extent(RW, 0, true);
	lying_extent(RW, UINT64_MAX, true);
	lying_extent(RW, TN_MEM_EXTENT_BYTES_MAX + 4096, true);
	lying_extent(0, 8192, true);
	lying_extent(4, 8192, true);
	lying_extent(RW, 8192, false);
}

/* Never answers: TERN_AGAIN, nothing worse, and the lane ends in order. */
static void test_silent_owner(void **state)
{
	lair l;

	(void)state;
	lair_open(&l);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(lair_put(&l, 0, 8), TERN_AGAIN);
		(void)node_poll(&l.n);
	}
	lair_close(&l);
}

/* ---- an initiator that asks for everything ---- */

static void test_ask_for_all(void **state)
{
	lair l;
	tn_key read_key, write_key;
	uint8_t *none;
	const tn_extent *none_ext;
	unsigned passed = 0;

	(void)state;
	lair_open(&l);
	none = block(&l.n, 4096, TERN_ACCESS_NONE, NULL);
	(void)block(&l.n, 4096, TERN_ACCESS_READ, &read_key);
	(void)block(&l.n, 4096, RW, &write_key);
	none_ext = tn_mem_extent_of(l.n.mem, none);
	assert_non_null(none_ext);
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX + 10; i++) {
		uint32_t index = i < TN_MEM_EXTENTS_MAX + 9 ? i : UINT32_MAX;
		tn_shm_any msg = {.ask = {.index = index}};
		int fds[TN_SHM_FDS_MAX];

		evil_send(&l.e, TN_SHM_EXTENT_ASK, &msg, NULL, 0);
		assert_ok(evil_recv(&l.e, &l.n, &msg, fds));
		assert_int_equal(msg.head.type, TN_SHM_EXTENT);
		assert_int_equal(msg.extent.index, index);
		if (index == read_key.extent) {
			assert_int_equal(fcntl(fds[0], F_GETFL) & O_ACCMODE, O_RDONLY);
			assert_int_equal(msg.extent.access, TERN_ACCESS_READ);
		} else if (index == write_key.extent) {
			assert_int_equal(msg.extent.access, RW);
		} else if (index == none_ext->index) {
			assert_int_equal(msg.extent.status, TERN_E_ACCESS);
		} else {
			assert_int_equal(msg.extent.status, TERN_E_NOT_FOUND);
		}
		passed += fds[0] >= 0;
		tn_os_close(&fds[0]);
	}
	assert_int_equal(passed, 2);
	lair_close(&l);
}

/* Asks and never reads: the node stores one answer, not thousands; other lanes go on; it ends in order. */
static void test_deaf_asker(void **state)
{
	lair l;
	node b;
	lane_pair lanes;
	tn_key key;
	uint64_t word = 1;
	unsigned asked = 0;

	(void)state;
	lair_open(&l);
	node_open(&b);
	(void)block(&l.n, 4096, RW, &key);
	for (int i = 0; i < 20000; i++) {
		tn_shm_any msg = {.ask = {.index = key.extent}};

		evil_head(&msg, TN_SHM_EXTENT_ASK);
		if (tn_shm_sock_send(l.e.fd, &msg, sizeof(msg.ask), NULL, 0) != TERN_OK)
			break;
		asked++;
		(void)node_poll(&l.n);
	}
	assert_true(asked > 10 && asked < 20000);
	lane_up(&b, &l.n, &lanes);
	assert_ok(access_by(&b, &l.n, lanes.a, true, &key, 0, &word, 8));
	lane_free(&b, lanes.a);
	lane_free(&l.n, lanes.b);
	node_close(&b);
	lair_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_on_demand),
		cmocka_unit_test(test_one_copy),
		cmocka_unit_test(test_revoked),
		cmocka_unit_test(test_bounds_and_access),
		cmocka_unit_test(test_at_once),
		cmocka_unit_test(test_read_only_class),
		cmocka_unit_test(test_lanes_share_maps),
		cmocka_unit_test(test_asker_dies),
		cmocka_unit_test(test_map_fails),
		cmocka_unit_test(test_honest_lair),
		cmocka_unit_test(test_high_index),
		cmocka_unit_test(test_row_says_more_than_the_extent),
		cmocka_unit_test(test_unwritable_extent),
		cmocka_unit_test(test_refused_extents),
		cmocka_unit_test(test_lying_extents),
		cmocka_unit_test(test_silent_owner),
		cmocka_unit_test(test_ask_for_all),
		cmocka_unit_test(test_deaf_asker),
	};

	return RUN(tests);
}
