/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what happens to pools in a forked child: extents are shared memory, so without help a child's writes
 * would reach the parent and its peers. In the child each extent is mapped again, private: reads work, writes
 * stay in the child, and every handle answers TERN_E_FORKED (tn_mem_here). The view is not frozen: pages that
 * the child has not written show the parent's later writes. posix_spawn and vfork run no handlers.
 *
 * Must not log or allocate in the child. Threads: a lock of its own around the list of pools.
 * Tests: tests/unit/mem/test_fork.c.
 */
#include "mem/os_mem.h"
#include "mem/pool.h"

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_list pools = {&pools, &pools};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&pools_lock);
}

static void after_in_parent(void)
{
	pthread_mutex_unlock(&pools_lock);
}

static void after_in_child(void)
{
	TN_LIST_FOREACH(node, &pools) {
		tern_mem *mem = TN_LIST_ENTRY(node, tern_mem, all);

		/* An extent that was in the making in another thread is nobody's yet. */
		for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
			tn_ext *ext = &mem->ext[i];

			if (atomic_load_explicit(&ext->live, memory_order_acquire))
				tn_os_mem_unshare(ext->pub.base, ext->pub.bytes, ext->pub.fd);
		}
	}
	/* The child's own pools start a list of their own; a grandchild keeps the private mappings. */
	tn_list_init(&pools);
	pthread_mutex_unlock(&pools_lock);
}

static void install(void)
{
	pthread_atfork(before_fork, after_in_parent, after_in_child);
}

void tn_mem_fork_add(tern_mem *mem)
{
	pthread_once(&once, install);
	pthread_mutex_lock(&pools_lock);
	tn_list_push_back(&pools, &mem->all);
	pthread_mutex_unlock(&pools_lock);
}

void tn_mem_fork_remove(tern_mem *mem)
{
	pthread_mutex_lock(&pools_lock);
	tn_list_remove(&mem->all);
	pthread_mutex_unlock(&pools_lock);
}
