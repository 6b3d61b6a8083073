/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs: what a reader may hold is not free before it left; readers, removers and reuse at once. */
#include "cmocka_all.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/epoch.h"

static void a_reader_holds_back_what_it_may_see(void **state)
{
	tn_epoch e;
	unsigned in;
	uint64_t stamp;

	(void)state;
	tn_epoch_init(&e);
	assert_true(tn_epoch_passed(&e, tn_epoch_stamp(&e)));
	in = tn_epoch_enter(&e);
	stamp = tn_epoch_stamp(&e);
	for (int i = 0; i < 10; i++)
		assert_false(tn_epoch_passed(&e, stamp));
	/* Those who come later do not hold it back, nor does it hold back others for good. */
	tn_epoch_leave(&e, in);
	assert_true(tn_epoch_passed(&e, stamp));
	in = tn_epoch_enter(&e);
	assert_true(tn_epoch_passed(&e, stamp));
	tn_epoch_leave(&e, in);
	tn_epoch_wait(&e);
}

static void all_places_can_be_taken(void **state)
{
	tn_epoch e;
	unsigned in[TN_EPOCH_SLOTS];
	uint64_t stamp;

	(void)state;
	tn_epoch_init(&e);
	for (unsigned i = 0; i < TN_EPOCH_SLOTS; i++) {
		in[i] = tn_epoch_enter(&e);
		for (unsigned k = 0; k < i; k++)
			assert_int_not_equal(in[i], in[k]);
	}
	stamp = tn_epoch_stamp(&e);
	for (unsigned i = 0; i < TN_EPOCH_SLOTS; i++) {
		assert_false(tn_epoch_passed(&e, stamp));
		tn_epoch_leave(&e, in[i]);
	}
	assert_true(tn_epoch_passed(&e, stamp));
}

#define THINGS 8
#define ROUNDS 20000

static struct {
	tn_epoch e;
	_Atomic(uint64_t *) shown;
	uint64_t things[THINGS]; /* plain: the thread sanitizer sees a reuse that is too early */
	_Atomic int stop, wrong;
} job;

static void *read_it(void *arg)
{
	while (!atomic_load(&job.stop)) {
		unsigned in = tn_epoch_enter(&job.e);
		uint64_t *thing = atomic_load(&job.shown);

		for (int i = 0; i < 20; i++) {
			if (*(volatile uint64_t *)thing == 0)
				atomic_store(&job.wrong, 1);
		}
		tn_epoch_leave(&job.e, in);
	}
	return arg;
}

static void things_are_not_reused_under_readers(void **state)
{
	pthread_t readers[3];

	(void)state;
	tn_epoch_init(&job.e);
	job.things[0] = 1;
	atomic_store(&job.shown, &job.things[0]);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&readers[i], NULL, read_it, NULL), 0);
	for (uint64_t i = 1; i < ROUNDS; i++) {
		uint64_t *old = atomic_load(&job.shown), *new = &job.things[i % THINGS];

		*new = i;
		atomic_store(&job.shown, new);
		tn_epoch_wait(&job.e);
		*old = 0;
	}
	atomic_store(&job.stop, 1);
	for (int i = 0; i < 3; i++)
		pthread_join(readers[i], NULL);
	assert_int_equal(job.wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_holds_back_what_it_may_see),
		cmocka_unit_test(all_places_can_be_taken),
		cmocka_unit_test(things_are_not_reused_under_readers),
	};

	return RUN(tests);
}
