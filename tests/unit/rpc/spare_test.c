/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept buffers: what is given is taken again, nothing has two owners, too large ones are not kept.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include <tern/types.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "rpc/spare.h"

static unsigned kept(tn_rpc_spare *spare)
{
	unsigned n = 0;

	for (unsigned i = 0; i < TN_RPC_SPARES; i++)
		n += atomic_load(&spare->at[i]) != NULL;
	return n;
}

static void taken_again(void **state)
{
	static tn_rpc_spare spare;
	void *p, *q[TN_RPC_SPARES + 1];

	(void)state;
	p = tn_rpc_spare_take(&spare, 5000);
	assert_non_null(p);
	assert_int_equal((uintptr_t)p % 16, 0);
	memset(p, 1, 5000);
	tn_rpc_spare_give(&spare, p);
	assert_int_equal(kept(&spare), TN_RPC_KEEP_SPARES);
	q[0] = tn_rpc_spare_take(&spare, 8192); /* it was rounded up */
	if (TN_RPC_KEEP_SPARES)
		assert_ptr_equal(q[0], p);
	memset(q[0], 2, 8192);
	tn_rpc_spare_give(&spare, q[0]);
	p = tn_rpc_spare_take(&spare, TN_RPC_SPARE_BYTES); /* it makes way */
	memset(p, 3, TN_RPC_SPARE_BYTES);
	assert_int_equal(kept(&spare), 0);
	tn_rpc_spare_give(&spare, p);
	tn_rpc_spare_give(&spare, NULL);
	p = tn_rpc_spare_take(&spare, TN_RPC_SPARE_BYTES + 1);
	memset(p, 4, TN_RPC_SPARE_BYTES + 1);
	tn_rpc_spare_give(&spare, p);
	assert_int_equal(kept(&spare), TN_RPC_KEEP_SPARES);
	for (unsigned i = 0; i <= TN_RPC_SPARES; i++)
		q[i] = tn_rpc_spare_take(&spare, 1);
	for (unsigned i = 0; i <= TN_RPC_SPARES; i++)
		tn_rpc_spare_give(&spare, q[i]);
	assert_int_equal(kept(&spare), TN_RPC_KEEP_SPARES * TN_RPC_SPARES);
	tn_rpc_spare_end(&spare);
	assert_int_equal(kept(&spare), 0);
}

static tn_rpc_spare shared;
static _Atomic unsigned wrong;

static void *use(void *arg)
{
	uint8_t mark = (uint8_t)(uintptr_t)arg;
	tn_rand rng = {.state = mark};

	for (unsigned n = 0; n < 20000; n++) {
		uint64_t bytes = 1 + tn_rand_below(&rng, 4096);
		uint8_t *p = tn_rpc_spare_take(&shared, bytes);

		if (!p)
			continue;
		memset(p, mark, bytes);
		for (unsigned i = 0; i < bytes; i += 64)
			wrong += p[i] != mark;
		tn_rpc_spare_give(&shared, p);
	}
	return NULL;
}

static void one_owner(void **state)
{
	pthread_t threads[4];

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, use, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	tn_rpc_spare_end(&shared);
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(taken_again), cmocka_unit_test(one_owner)};

	return RUN(tests);
}
