/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of servers and coordinators: golden bytes, what comes back, every cut, junk. */
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "cluster/wire.h"
#include "cmocka_all.h"

static void message_golden(void **state)
{
	static const uint8_t want[] = {1, 2, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0,  0, 0, 5, 0, 0, 0, 0,
				       0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0,  0, 0, 0, 0, 0, 1, 0,
				       0, 0, 1, 0, 0, 0, 9, 0, 3, 8, 0, 0, 0, 10, 0, 0, 1, 0, 0};
	tn_cl_msg msg = {.op = TN_CL_RENEW,
			 .server = 3,
			 .incarnation = 4,
			 .seen = 5,
			 .version = 6,
			 .wait_ns = 7,
			 .fact_count = 1,
			 .load_count = 1},
		  got;
	tn_coord_fact fact = {.slot = 9, .what = TN_REPORT_LOST, .epoch = 8};
	tn_cl_load load = {.slot = 10, .keys = 256};
	uint8_t out[100];

	(void)state;
	assert_int_equal(tn_cl_msg_encode(out, sizeof(out), &msg, &fact, &load), sizeof(want));
	assert_memory_equal(out, want, sizeof(want));
	assert_true(tn_cl_msg_decode(want, sizeof(want), &got));
	assert_int_equal(tn_cl_msg_fact(&got, 0).epoch, 8);
	assert_int_equal(tn_cl_msg_load(&got, 0).keys, 256);
	for (uint64_t n = 0; n < sizeof(want); n++) {
		uint8_t *cut = malloc(n + 1);

		memcpy(cut, want, n);
		assert_false(tn_cl_msg_decode(cut, n, &got));
		free(cut);
	}
	memcpy(out, want, sizeof(want));
	out[50] = TN_REPORTS;
	assert_false(tn_cl_msg_decode(out, sizeof(want), &got));
	out[50] = 1;
	out[49] = 0x10; /* slot 4105 */
	assert_false(tn_cl_msg_decode(out, sizeof(want), &got));
}

static void join_and_answer(void **state)
{
	tn_cl_msg msg = {.op = TN_CL_JOIN, .server = TN_CL_NONE, .incarnation = 1, .address = "10.0.0.1:4"},
		  got;
	tn_cl_answer a = {.status = TERN_AGAIN, .server = 2, .now = 3, .version = 4, .load_count = 1}, b;
	uint8_t out[400];
	uint64_t n = tn_cl_msg_encode(out, sizeof(out), &msg, NULL, NULL);

	(void)state;
	assert_true(tn_cl_msg_decode(out, n, &got));
	assert_string_equal(got.address, msg.address);
	assert_int_equal(tn_cl_msg_encode(out, n - 1, &msg, NULL, NULL), 0);
	memset(out, 0, sizeof(out));
	tn_cl_answer_encode(out, &a);
	assert_true(tn_cl_answer_decode(out, TN_CL_ANSWER_HEAD + 8, &b));
	assert_int_equal(b.status, TERN_AGAIN);
	assert_int_equal(b.version, 4);
	assert_null(b.map);
	assert_false(tn_cl_answer_decode(out, TN_CL_ANSWER_HEAD + 7, &b));
	assert_false(tn_cl_answer_decode(out, TN_CL_ANSWER_HEAD + 9, &b));
}

static void junk(void **state)
{
	tn_rand rand = {4};

	(void)state;
	for (int round = 0; round < 20000; round++) {
		uint64_t n = tn_rand_below(&rand, 120);
		uint8_t *p = malloc(n + 1);
		tn_cl_answer answer;
		tn_cl_msg msg;

		for (uint64_t i = 0; i < n; i++)
			p[i] = (uint8_t)(i < 8 || tn_rand_below(&rand, 3) ? tn_rand_below(&rand, 3)
									  : tn_rand_next(&rand));
		if (tn_cl_msg_decode(p, n, &msg) && msg.fact_count)
			assert_true(msg.facts + TN_CL_FACT * (uint64_t)msg.fact_count <= p + n);
		(void)tn_cl_answer_decode(p, n, &answer);
		free(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(message_golden),
					   cmocka_unit_test(join_and_answer), cmocka_unit_test(junk)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
