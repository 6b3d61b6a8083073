/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of a node (share.h): blocks by classes of sizes, cut from slabs that stay; longer ones come and go by
 * themselves. Must not: ask an OS for memory, the shell gives it.
 * Threads: any, the lock. Tests: tests/unit/link/store_test.c.
 */
#include "link/internal.h"

#define SLAB_BYTES (16u << 10)

/* What links borrow most lies closely below one of these. */
static const uint32_t class_bytes[TN_STORE_CLASSES] = {
	64, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4160, 8192,
};

typedef struct slab {
	struct slab *next;
	size_t bytes;
} slab;
_Static_assert(sizeof(slab) <= TN_CACHE_LINE, "the blocks behind it are aligned");

typedef struct shared {
	tn_list node;
	size_t bytes;
	uint32_t refs;
	_Alignas(16) uint8_t copy[];
} shared;

static uint32_t class_of(size_t bytes)
{
	uint32_t i = 0;

	while (i < TN_STORE_CLASSES && class_bytes[i] < bytes)
		i++;
	return i;
}

static size_t whole(size_t bytes)
{
	return (bytes + TN_CACHE_LINE - 1) & ~(size_t)(TN_CACHE_LINE - 1);
}

static void *get(tn_link_store *store, size_t bytes)
{
	void *memory = store->source.get(bytes, store->source.arg);

	TN_ASSERT((uintptr_t)memory % TN_CACHE_LINE == 0);
	store->held += memory ? bytes : 0;
	return memory;
}

static void put(tn_link_store *store, void *memory, size_t bytes)
{
	TN_ASSERT(store->held >= bytes);
	store->held -= bytes;
	store->source.put(memory, bytes, store->source.arg);
}

void tn_link_store_init(tn_link_store *store, const tn_store_source *source, const tn_share_lock *lock)
{
	memset(store, 0, sizeof(*store));
	store->source = *source;
	if (lock)
		store->lock = *lock;
	tn_list_init(&store->shared);
}

void tn_link_store_fini(tn_link_store *store)
{
	slab *next;

	TN_ASSERT(store->lent == 0 && tn_list_empty(&store->shared));
	for (slab *s = store->slabs; s; s = next) {
		next = s->next;
		put(store, s, s->bytes);
	}
	TN_ASSERT(store->held == 0);
}

/* The next block of the last slab, or of a new one. */
static void *cut(tn_link_store *store, tn_store_class *c, size_t bytes)
{
	if (c->rest_bytes < bytes) {
		size_t room = TN_CACHE_LINE + TN_MAX((size_t)SLAB_BYTES / bytes, (size_t)1) * bytes;
		slab *s = get(store, room);

		if (!s)
			return NULL;
		*s = (slab){.next = store->slabs, .bytes = room};
		store->slabs = s;
		c->rest = (uint8_t *)s + TN_CACHE_LINE;
		c->rest_bytes = room - TN_CACHE_LINE;
	}
	c->rest += bytes;
	c->rest_bytes -= bytes;
	return c->rest - bytes;
}

static void *take(tn_link_store *store, uint32_t class)
{
	tn_store_class *c = &store->classes[class];
	void *block = c->free;

	if (!block)
		return cut(store, c, class_bytes[class]);
	memcpy(&c->free, block, sizeof(c->free));
	return block;
}

void *tn_store_lend(tn_link_store *store, size_t bytes)
{
	uint32_t class = class_of(bytes);
	bool alone = class == TN_STORE_CLASSES || store->source.each;
	size_t room = alone ? whole(bytes) : class_bytes[class];
	void *block;

	tn_share_take(&store->lock);
	block = alone ? get(store, room) : take(store, class);
	store->lent += block ? room : 0;
	tn_share_drop(&store->lock);
	return block;
}

void tn_store_back(tn_link_store *store, void *block, size_t bytes)
{
	uint32_t class = class_of(bytes);
	bool alone = class == TN_STORE_CLASSES || store->source.each;
	size_t room = alone ? whole(bytes) : class_bytes[class];

	if (!block)
		return;
	tn_share_take(&store->lock);
	TN_ASSERT(store->lent >= room);
	store->lent -= room;
	if (alone) {
		put(store, block, room);
	} else {
		memcpy(block, &store->classes[class].free, sizeof(void *));
		store->classes[class].free = block;
	}
	tn_share_drop(&store->lock);
}

static shared *find(tn_link_store *store, const void *bytes, size_t n)
{
	TN_LIST_FOREACH(node, &store->shared) {
		shared *s = TN_LIST_ENTRY(node, shared, node);

		if (s->bytes == n && !memcmp(s->copy, bytes, n))
			return s;
	}
	return NULL;
}

const void *tn_store_share(tn_link_store *store, const void *bytes, size_t n)
{
	shared *s;

	tn_share_take(&store->lock);
	s = find(store, bytes, n);
	if (!s) {
		s = get(store, whole(sizeof(*s) + n));
		if (s) {
			memset(s, 0, sizeof(*s));
			memcpy(s->copy, bytes, n);
			s->bytes = n;
			tn_list_push_back(&store->shared, &s->node);
		}
	}
	if (s)
		s->refs++;
	tn_share_drop(&store->lock);
	return s ? s->copy : NULL;
}

void tn_store_unshare(tn_link_store *store, const void *copy)
{
	shared *s;

	if (!copy)
		return;
	s = TN_CONTAINER_OF((const uint8_t(*)[])copy, shared, copy);
	tn_share_take(&store->lock);
	TN_ASSERT(s->refs > 0);
	if (--s->refs == 0) {
		tn_list_remove(&s->node);
		put(store, s, whole(sizeof(*s) + s->bytes));
	}
	tn_share_drop(&store->lock);
}
