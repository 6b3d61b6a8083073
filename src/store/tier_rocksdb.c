/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier on RocksDB, by its C API; the library is loaded at run time, so that nobody needs it who has no tier. No log, no
 * compression, Bloom filters: it is a cache. See tier.h; docs/adr/0013.
 *
 * Threads: any. Tests: tests/unit/store/tier_test.c.
 */
#include "store/tier.h"

#include "base/fail.h"

#if defined(TN_HAVE_ROCKSDB)

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rocksdb/c.h>

#include "base/check.h"
#include "base/fault.h"

/* The library's number changes with each minor version; its C API only grows. */
static const char *const libraries[] = {
	"librocksdb.so",     "librocksdb.so.7.8",  "librocksdb.so.8.9",
	"librocksdb.so.9.8", "librocksdb.so.9.10", "librocksdb.so.10.2",
};

#define SYMBOLS(X)                               \
	X(block_based_options_create)            \
	X(block_based_options_destroy)           \
	X(block_based_options_set_block_cache)   \
	X(block_based_options_set_filter_policy) \
	X(cache_create_lru)                      \
	X(cache_destroy)                         \
	X(close)                                 \
	X(create_iterator)                       \
	X(delete)                                \
	X(destroy_db)                            \
	X(filterpolicy_create_bloom_full)        \
	X(free)                                  \
	X(get_pinned)                            \
	X(iter_destroy)                          \
	X(iter_get_error)                        \
	X(iter_key)                              \
	X(iter_next)                             \
	X(iter_seek)                             \
	X(iter_valid)                            \
	X(iter_value)                            \
	X(multi_get)                             \
	X(open)                                  \
	X(options_create)                        \
	X(options_destroy)                       \
	X(options_set_block_based_table_factory) \
	X(options_set_compression)               \
	X(options_set_create_if_missing)         \
	X(options_set_max_background_jobs)       \
	X(options_set_max_open_files)            \
	X(options_set_write_buffer_size)         \
	X(pinnableslice_destroy)                 \
	X(pinnableslice_value)                   \
	X(property_int)                          \
	X(put)                                   \
	X(readoptions_create)                    \
	X(readoptions_destroy)                   \
	X(readoptions_set_fill_cache)            \
	X(writeoptions_create)                   \
	X(writeoptions_destroy)                  \
	X(writeoptions_disable_WAL)

typedef struct api {
#define MEMBER(name) __typeof__(rocksdb_##name) *name;
	SYMBOLS(MEMBER)
#undef MEMBER
} api;

static api rocks;
static char load_error[256]; /* "" = loaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	const char *missing = NULL;
	void *library = NULL, *symbol;

	for (unsigned i = 0; !library && i < TN_COUNT_OF(libraries); i++)
		library = TN_FAULT("tier.dlopen") ? NULL : dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(load_error, sizeof(load_error),
			 "RocksDB can't be loaded: install librocksdb7.8 (librocksdb-dev for another "
			 "version)");
		return;
	}
#define LOOK_UP(name)                                 \
	symbol = dlsym(library, "rocksdb_" #name);    \
	memcpy(&rocks.name, &symbol, sizeof(symbol)); \
	if (!symbol)                                  \
		missing = #name;
	SYMBOLS(LOOK_UP)
#undef LOOK_UP
	if (missing)
		snprintf(load_error, sizeof(load_error), "RocksDB has no rocksdb_%s: it is too old", missing);
}

typedef struct rocks_tier {
	tn_tier tier; /* first */
	char *dir;
	rocksdb_t *db;
	rocksdb_options_t *options;
	rocksdb_block_based_table_options_t *table;
	rocksdb_cache_t *cache;
	rocksdb_readoptions_t *read, *scan;
	rocksdb_writeoptions_t *write;
} rocks_tier;

struct tn_tier_walk {
	rocks_tier *tier;
	rocksdb_iterator_t *it;
	uint64_t last;
	bool begun;
};

/* Keys sort as numbers do. */
static void encode(uint64_t place, char key[8])
{
	for (unsigned i = 0; i < 8; i++)
		key[i] = (char)(uint8_t)(place >> (56 - 8 * i));
}

static uint64_t decode(const char *key)
{
	uint64_t place = 0;

	for (unsigned i = 0; i < 8; i++)
		place = place << 8 | (uint8_t)key[i];
	return place;
}

/* Takes RocksDB's text. */
static tern_status failed(const rocks_tier *t, const char *what, char *error)
{
	tern_status status = tn_fail(TERN_E_IO, "cold tier %s: %s: %s", t->dir, what, error);

	rocks.free(error);
	return status;
}

static tern_status injected(const rocks_tier *t, const char *what)
{
	return tn_fail(TERN_E_IO, "cold tier %s: %s: injected", t->dir, what);
}

/* ---- one record ---- */

static tern_status put(tn_tier *tier, uint64_t place, const void *image)
{
	rocks_tier *t = (rocks_tier *)tier;
	char key[8], *error = NULL;

	if (TN_FAULT("tier.put"))
		return injected(t, "put");
	encode(place, key);
	rocks.put(t->db, t->write, key, sizeof(key), image, tier->image_bytes, &error);
	return error ? failed(t, "put", error) : TERN_OK;
}

static tern_status get(tn_tier *tier, uint64_t place, void *image, bool *there)
{
	rocks_tier *t = (rocks_tier *)tier;
	rocksdb_pinnableslice_t *slice;
	char key[8], *error = NULL;
	const char *value;
	size_t bytes = 0;

	*there = false;
	if (TN_FAULT("tier.get"))
		return injected(t, "get");
	encode(place, key);
	slice = rocks.get_pinned(t->db, t->read, key, sizeof(key), &error);
	if (error)
		return failed(t, "get", error);
	if (!slice)
		return TERN_OK;
	value = rocks.pinnableslice_value(slice, &bytes);
	*there = bytes == tier->image_bytes;
	if (*there && image)
		memcpy(image, value, bytes);
	rocks.pinnableslice_destroy(slice);
	return *there ? TERN_OK
		      : tn_fail(TERN_E_CORRUPT, "cold tier %s: a record of %zu bytes instead of %llu", t->dir,
				bytes, (unsigned long long)tier->image_bytes);
}

#define TOGETHER 128u

static void expect_some(rocks_tier *t, const uint64_t *places, uint32_t n)
{
	char keys[TOGETHER][8], *values[TOGETHER], *errors[TOGETHER];
	const char *list[TOGETHER];
	size_t key_bytes[TOGETHER], value_bytes[TOGETHER];

	for (uint32_t i = 0; i < n; i++) {
		encode(places[i], keys[i]);
		list[i] = keys[i];
		key_bytes[i] = sizeof(keys[i]);
	}
	rocks.multi_get(t->db, t->read, n, list, key_bytes, values, value_bytes, errors);
	for (uint32_t i = 0; i < n; i++) {
		if (values[i])
			rocks.free(values[i]);
		if (errors[i])
			rocks.free(errors[i]);
	}
}

static void expect(tn_tier *tier, const uint64_t *places, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += TOGETHER)
		expect_some((rocks_tier *)tier, places + i, TN_MIN(n - i, TOGETHER));
}

static tern_status erase(tn_tier *tier, uint64_t place)
{
	rocks_tier *t = (rocks_tier *)tier;
	char key[8], *error = NULL;

	if (TN_FAULT("tier.remove"))
		return injected(t, "delete");
	encode(place, key);
	rocks.delete(t->db, t->write, key, sizeof(key), &error);
	return error ? failed(t, "delete", error) : TERN_OK;
}

/* ---- walks ---- */

static tern_status walk_begin(tn_tier *tier, uint64_t first, uint64_t last, tn_tier_walk **out)
{
	rocks_tier *t = (rocks_tier *)tier;
	tn_tier_walk *walk = TN_FAULT("tier.walk") ? NULL : malloc(sizeof(*walk));
	char key[8];

	if (!walk)
		return tn_fail(TERN_E_NOMEM, "no memory to walk cold tier %s", t->dir);
	*walk = (tn_tier_walk){.tier = t, .last = last};
	walk->it = rocks.create_iterator(t->db, t->scan); /* as of now, implicitly */
	encode(first, key);
	rocks.iter_seek(walk->it, key, sizeof(key));
	*out = walk;
	return TERN_OK;
}

static tern_status walk_next(tn_tier_walk *walk, uint64_t *place, const void **image)
{
	const char *key;
	char *error = NULL;
	size_t bytes;

	*image = NULL;
	if (walk->begun)
		rocks.iter_next(walk->it);
	walk->begun = true;
	if (!rocks.iter_valid(walk->it)) {
		rocks.iter_get_error(walk->it, &error);
		return error ? failed(walk->tier, "walk", error) : TERN_OK;
	}
	key = rocks.iter_key(walk->it, &bytes);
	*place = decode(key);
	if (bytes != 8 || *place > walk->last)
		return TERN_OK;
	*image = rocks.iter_value(walk->it, &bytes);
	if (bytes == walk->tier->tier.image_bytes)
		return TERN_OK;
	*image = NULL;
	return tn_fail(TERN_E_CORRUPT, "cold tier %s: a record of %zu bytes", walk->tier->dir, bytes);
}

static void walk_end(tn_tier_walk *walk)
{
	rocks.iter_destroy(walk->it);
	free(walk);
}

/* ---- life ---- */

static uint64_t disk_bytes(tn_tier *tier)
{
	uint64_t bytes = 0, memory = 0;

	(void)rocks.property_int(((rocks_tier *)tier)->db, "rocksdb.total-sst-files-size", &bytes);
	(void)rocks.property_int(((rocks_tier *)tier)->db, "rocksdb.cur-size-all-mem-tables", &memory);
	return bytes + memory;
}

static void free_parts(rocks_tier *t)
{
	rocks.readoptions_destroy(t->read);
	rocks.readoptions_destroy(t->scan);
	rocks.writeoptions_destroy(t->write);
	rocks.options_destroy(t->options);
	rocks.block_based_options_destroy(t->table);
	rocks.cache_destroy(t->cache);
	free(t->dir);
	free(t);
}

static void destroy(tn_tier *tier)
{
	rocks_tier *t = (rocks_tier *)tier;
	char *error = NULL;

	rocks.close(t->db);
	rocks.destroy_db(t->options, t->dir, &error);
	if (error)
		rocks.free(error); /* files stay; they are destroyed when it is opened again */
	free_parts(t);
}

static const tn_tier_ops ops = {
	.name = "rocksdb",
	.put = put,
	.get = get,
	.expect = expect,
	.remove = erase,
	.walk = walk_begin,
	.next = walk_next,
	.walk_end = walk_end,
	.bytes = disk_bytes,
	.close = destroy,
};

static rocks_tier *make_parts(const tn_tier_params *params)
{
	rocks_tier *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->tier = (tn_tier){&ops, params->image_bytes};
	t->dir = strdup(params->dir);
	t->cache = rocks.cache_create_lru(params->cache_bytes ? params->cache_bytes : 32u << 20);
	t->table = rocks.block_based_options_create();
	rocks.block_based_options_set_block_cache(t->table, t->cache);
	rocks.block_based_options_set_filter_policy(t->table, rocks.filterpolicy_create_bloom_full(10));
	t->options = rocks.options_create();
	rocks.options_set_create_if_missing(t->options, 1);
	rocks.options_set_compression(t->options, rocksdb_no_compression);
	rocks.options_set_write_buffer_size(t->options, 16u << 20);
	rocks.options_set_max_background_jobs(t->options, 2);
	rocks.options_set_max_open_files(t->options, 256);
	rocks.options_set_block_based_table_factory(t->options, t->table);
	t->read = rocks.readoptions_create();
	t->scan = rocks.readoptions_create();
	rocks.readoptions_set_fill_cache(t->scan, 0);
	t->write = rocks.writeoptions_create();
	rocks.writeoptions_disable_WAL(t->write, 1);
	return t;
}

/* What a process that died left goes first. */
static tern_status open_empty(rocks_tier *t)
{
	char *error = NULL;

	rocks.destroy_db(t->options, t->dir, &error);
	if (!error)
		t->db = rocks.open(t->options, t->dir, &error);
	if (!error)
		return TERN_OK;
	if (strstr(error, "lock")) {
		rocks.free(error);
		return tn_fail(TERN_E_IN_USE, "cold tier %s: another server has it: give each a directory",
			       t->dir);
	}
	return failed(t, "open", error);
}

tern_status tn_tier_open_rocksdb(const tn_tier_params *params, tn_tier **tier)
{
	rocks_tier *t;
	tern_status status;

	pthread_once(&once, load);
	if (load_error[0])
		return tn_fail(TERN_E_UNSUPPORTED, "%s", load_error);
	t = make_parts(params);
	if (!t || !t->dir) {
		if (t)
			free_parts(t);
		return tn_fail(TERN_E_NOMEM, "no memory for a cold tier");
	}
	status = open_empty(t);
	if (status != TERN_OK) {
		free_parts(t);
		return status;
	}
	*tier = &t->tier;
	return TERN_OK;
}

#else

tern_status tn_tier_open_rocksdb(const tn_tier_params *params, tn_tier **tier)
{
	(void)params, (void)tier;
	return tn_fail(TERN_E_UNSUPPORTED,
		       "tern was built without cold tiers: install librocksdb-dev and build it again");
}

#endif
