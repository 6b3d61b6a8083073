/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helper thread: extents made ahead, waiting for one in the making, shrinking after a while and not before, no
 * thread in small pools, faults in the background. Waits for events, never for a time to have passed.
 */
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "mem_test.h"

static tern_mem *pool(bool ahead, uint64_t shrink_ns, uint64_t limit)
{
	tn_mem_params params;
	tern_mem *mem = NULL;

	tn_mem_params_load(&params, NULL);
	params.reserve_bytes = 8 * GiB;
	params.limit_bytes = limit;
	params.grow_ahead = ahead;
	params.shrink_ns = shrink_ns;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	return mem;
}

static int threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	int n = -2;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Until the condition holds; the test's own time limit ends it otherwise. */
#define WAIT_FOR(condition)                        \
	do {                                       \
		while (!(condition))               \
			tn_sleep_ns(TN_NS_PER_MS); \
	} while (0)

/* Byteps and brpc#2459 (default pool of 1 GiB fails in a small VM): small start, growth on demand, no helper. */
static void brpc_2459_small_start(void **state)
{
	tern_mem *mem = pool(true, TN_NS_PER_MS, 0);
	int before = threads();

	(void)state;
	assert_int_equal(stats_of(mem).committed_bytes, 0);
	for (int i = 0; i < 100; i++)
		get(mem, 1000, 0, 3);
	assert_int_equal(stats_of(mem).committed_bytes, 2 * MiB);
	for (int i = 0; i < 100; i++)
		tern_mem_free(mem, get(mem, MiB, 0, 3));
	assert_true(stats_of(mem).committed_bytes <= 4 * MiB);
	assert_int_equal(threads(), before);
	tn_mem_destroy(mem);
}

static void grows_before_it_must(void **state)
{
	tern_mem *mem = pool(true, 0, 0);

	(void)state;
	WAIT_FOR((get(mem, 30000, 0, 3), stats_of(mem).grows_ahead >= 3));
	tn_mem_check(mem);
	assert_int_equal(stats_of(mem).extents, stats_of(mem).grows_ahead + stats_of(mem).grows_waited);
	tn_mem_destroy(mem);
}

/* With a device: what is made in the background is registered before anybody sees it. */
static void ahead_is_registered(void **state)
{
	fake_device dev = {.tag = 500};
	tern_mem *mem = pool(true, 0, 0);
	uint32_t slot;

	(void)state;
	assert_int_equal(tn_mem_attach(mem, &fake_registrar, &dev, &slot), TERN_OK);
	while (stats_of(mem).grows_ahead < 2) {
		void *ptr = get(mem, 30000, 0, 3);
		const tn_extent *ext = tn_mem_extent_of(mem, ptr);

		assert_int_equal(ext->lkey[slot], 500 + ext->index);
	}
	pthread_mutex_lock(&mem->grow); /* the helper stands still */
	assert_int_equal(dev.live, (int)mem->registrations);
	pthread_mutex_unlock(&mem->grow);
	tn_mem_detach(mem, slot);
	assert_int_equal(dev.live, 0);
	tn_mem_destroy(mem);
}

/* The background never takes the last of a budget. */
static void budget_is_for_those_who_wait(void **state)
{
	tern_mem *mem = pool(true, 0, 64 * MiB);
	uint64_t bytes = 0;
	void *ptr;

	(void)state;
	while (tern_mem_alloc(mem, 30000, 0, 3, TERN_MEM_HOST, &ptr) == TERN_OK)
		bytes += tern_mem_usable(mem, ptr);
	assert_true(bytes >= 64 * MiB / 100 * 95);
	assert_true(stats_of(mem).committed_bytes <= 64 * MiB);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

static void shrinks_after_a_while(void **state)
{
	tern_mem *mem = pool(false, TN_NS_PER_MS, 0);
	void *ptr[40], *small = get(mem, 100, 0, 3);

	(void)state;
	for (int i = 0; i < 40; i++)
		ptr[i] = get(mem, 5 * MiB, 0, 3);
	assert_true(stats_of(mem).committed_bytes >= 200 * MiB);
	for (int i = 0; i < 40; i++)
		tern_mem_free(mem, ptr[i]);
	WAIT_FOR(stats_of(mem).committed_bytes <= 32 * MiB);
	/* Some room stays, twice what makes it grow. */
	assert_true(stats_of(mem).free_bytes >= 4 * MiB);
	assert_true(stats_of(mem).shrinks > 0);
	tn_mem_check(mem);
	assert_int_equal(tern_mem_usable(mem, small), 128);
	tn_mem_destroy(mem);
}

/* What threads and slabs keep does not hold an extent for ever. */
static void idle_caches_let_go(void **state)
{
	enum { N = 2000 };
	static void *ptr[N];
	tern_mem *mem = pool(false, TN_NS_PER_MS, 0);

	(void)state;
	for (int i = 0; i < N; i++)
		ptr[i] = get(mem, 32000, 0, 3);
	for (int i = 0; i < N; i++)
		tern_mem_free(mem, ptr[i]);
	WAIT_FOR(stats_of(mem).committed_bytes <= 32 * MiB);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* Exported once: a peer may reach it late, it stays. */
static void exported_extents_stay(void **state)
{
	tern_mem *mem = pool(false, TN_NS_PER_MS, 0);
	void *a = get(mem, 64 * MiB, 0, 3), *b = get(mem, 64 * MiB, 0, 3), *c = get(mem, 64 * MiB, 0, 3);
	tern_key key;

	(void)state;
	assert_int_equal(tern_mem_export(mem, a, 100, 1, &key), TERN_OK);
	tern_mem_free(mem, a);
	tern_mem_free(mem, b);
	tern_mem_free(mem, c);
	WAIT_FOR(stats_of(mem).shrinks > 0);
	assert_non_null(tn_mem_extent_of(mem, a));
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* Allocating and freeing as fast as it goes while everything may come and go under it. */
static void *churn(void *arg)
{
	tern_mem *mem = arg;
	void *ptr[64] = {0};

	for (int i = 0; i < 3000; i++) {
		void **p = &ptr[i * 7 % 64];

		tern_mem_free(mem, *p);
		if (tern_mem_alloc(mem, i % 10 ? 20000 : 4 * MiB, 0, 3, TERN_MEM_HOST, p) == TERN_OK)
			((uint8_t *)*p)[i % 20000] = 1;
	}
	for (int i = 0; i < 64; i++)
		tern_mem_free(mem, ptr[i]);
	return NULL;
}

static void comes_and_goes_under_load(void **state)
{
	tern_mem *mem = pool(true, 1000, 0);
	pthread_t thread[3];

	(void)state;
	get(mem, 40 * MiB, 0, 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, churn, mem), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(stats_of(mem).blocks, 1);
	assert_int_equal(stats_of(mem).refused_frees, 0);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

/* No thread, no memory in the background: allocations do it themselves. */
static void faults_in_the_background(void **state)
{
	static const char *const points[] = {"mem.ahead.thread", "mem.extent.commit", "mem.extent.meta"};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(points); i++) {
		tern_mem *mem = pool(true, 0, 0);

		get(mem, 40 * MiB, 0, 3); /* from here on the helper may start */
		assert_int_equal(tn_fault_set(points[i], 1, 1), TERN_OK);
		for (int k = 0; k < 200; k++) {
			void *ptr;
			tern_status status = tern_mem_alloc(mem, 30000, 0, 3, TERN_MEM_HOST, &ptr);

			assert_true(status == TERN_OK || status == TERN_E_NOMEM);
		}
		tn_fault_clear();
		for (int k = 0; k < 2000; k++)
			get(mem, 30000, 0, 3);
		tn_mem_check(mem);
		tn_mem_destroy(mem);
	}
}

/* fork() while the helper is at work: the child is inert and ends, the parent goes on. */
static void fork_in_the_middle(void **state)
{
	tern_mem *mem = pool(true, 1000, 0);
	pthread_t thread;

	(void)state;
	get(mem, 40 * MiB, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, churn, mem), 0);
	for (int i = 0; i < 20; i++) {
		int status;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			void *ptr;
			tern_mem *own;

			if (tern_mem_alloc(mem, 100, 0, 3, TERN_MEM_HOST, &ptr) != TERN_E_FORKED)
				_exit(1);
			tn_mem_destroy(mem);
			if (tn_mem_create(&(tn_mem_params){.reserve_bytes = GiB, .cache_bytes = MiB}, &own) !=
				    TERN_OK ||
			    tern_mem_alloc(own, 100, 0, 3, TERN_MEM_HOST, &ptr) != TERN_OK)
				_exit(2);
			tern_mem_free(own, ptr);
			tn_mem_destroy(own);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	pthread_join(thread, NULL);
	assert_int_equal(stats_of(mem).blocks, 1);
	tn_mem_check(mem);
	tn_mem_destroy(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(brpc_2459_small_start),    cmocka_unit_test(grows_before_it_must),
		cmocka_unit_test(ahead_is_registered),      cmocka_unit_test(budget_is_for_those_who_wait),
		cmocka_unit_test(shrinks_after_a_while),    cmocka_unit_test(idle_caches_let_go),
		cmocka_unit_test(exported_extents_stay),    cmocka_unit_test(comes_and_goes_under_load),
		cmocka_unit_test(faults_in_the_background), cmocka_unit_test(fork_in_the_middle),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
