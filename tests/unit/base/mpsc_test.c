/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/mpsc.h: each pusher's order is kept and nothing is lost or doubled.
 */
#include "base/mpsc.h"

#include <pthread.h>

#include "cmocka_all.h"

#define THREADS 3
#define EACH    20000

typedef struct item {
	tn_mpsc_node node; /* first */
	int thread, number;
} item;

static item items[THREADS][EACH];
static tn_mpsc queue;

static void *push_all(void *arg)
{
	item *mine = arg;

	for (int i = 0; i < EACH; i++)
		tn_mpsc_push(&queue, &mine[i].node);
	return NULL;
}

static void one_thread_sees_first_in_first_out(void **state)
{
	item a = {.number = 1}, b = {.number = 2};
	tn_mpsc_node *node;

	(void)state;
	assert_true(tn_mpsc_empty(&queue));
	assert_null(tn_mpsc_take(&queue));
	assert_true(tn_mpsc_push(&queue, &a.node));
	assert_false(tn_mpsc_push(&queue, &b.node));
	node = tn_mpsc_take(&queue);
	assert_ptr_equal(node, &a.node);
	assert_ptr_equal(node->next, &b.node);
	assert_null(b.node.next);
	assert_true(tn_mpsc_push(&queue, &a.node));
	assert_ptr_equal(tn_mpsc_take(&queue), &a.node);
}

static void many_pushers_lose_nothing(void **state)
{
	pthread_t threads[THREADS];
	int next[THREADS] = {0}, total = 0;

	(void)state;
	for (int t = 0; t < THREADS; t++) {
		for (int i = 0; i < EACH; i++)
			items[t][i] = (item){.thread = t, .number = i};
		assert_int_equal(pthread_create(&threads[t], NULL, push_all, items[t]), 0);
	}
	while (total < THREADS * EACH) {
		tn_mpsc_node *node = tn_mpsc_take(&queue);

		while (node) {
			item *it = (item *)node;

			/* read before anything else: a push of the same node would overwrite it */
			node = node->next;
			assert_int_equal(it->number, next[it->thread]);
			next[it->thread]++;
			total++;
		}
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	assert_true(tn_mpsc_empty(&queue));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_thread_sees_first_in_first_out),
		cmocka_unit_test(many_pushers_lose_nothing),
	};

	return RUN(tests);
}
