/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/list.h: order, removal of any node, splicing.
 */
#include "base/list.h"

#include "cmocka_all.h"

typedef struct item {
	int value;
	tn_list node;
} item;

static void assert_values(const tn_list *head, const char *expected)
{
	char got[32];
	unsigned n = 0;

	TN_LIST_FOREACH(node, head)
		got[n++] = (char)('0' + TN_LIST_ENTRY(node, item, node)->value);
	got[n] = 0;
	assert_string_equal(got, expected);
}

static void order_and_removal(void **state)
{
	item items[5] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}, {.value = 4}};
	tn_list head, more;

	(void)state;
	tn_list_init(&head);
	tn_list_init(&more);
	assert_true(tn_list_empty(&head));
	assert_null(tn_list_pop_front(&head));
	assert_null(TN_LIST_FIRST(&head, item, node));
	assert_false(tn_list_linked(&items[0].node));
	tn_list_push_back(&head, &items[1].node);
	tn_list_push_back(&head, &items[2].node);
	tn_list_push_front(&head, &items[0].node);
	assert_values(&head, "012");
	assert_true(tn_list_linked(&items[0].node));
	tn_list_insert_before(&items[1].node, &items[3].node);
	assert_values(&head, "0312");
	tn_list_remove(&items[1].node);
	tn_list_remove(&items[1].node);
	assert_values(&head, "032");
	tn_list_push_back(&more, &items[1].node);
	tn_list_push_back(&more, &items[4].node);
	tn_list_splice(&head, &more);
	assert_values(&head, "03214");
	assert_true(tn_list_empty(&more));
	tn_list_splice(&head, &more);
	assert_ptr_equal(TN_LIST_FIRST(&head, item, node), &items[0]);
	assert_ptr_equal(tn_list_pop_front(&head), &items[0].node);
	assert_values(&head, "3214");
}

static void a_loop_may_remove_its_node(void **state)
{
	item items[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
	tn_list head;

	(void)state;
	tn_list_init(&head);
	for (int i = 0; i < 4; i++)
		tn_list_push_back(&head, &items[i].node);
	TN_LIST_FOREACH_SAFE(node, &head) {
		if (TN_LIST_ENTRY(node, item, node)->value % 2)
			tn_list_remove(node);
	}
	assert_values(&head, "02");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order_and_removal),
		cmocka_unit_test(a_loop_may_remove_its_node),
	};

	return RUN(tests);
}
