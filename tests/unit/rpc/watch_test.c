/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls as monitors see them: what waits, for whom and how long; spans of both sides once recording is on.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <tern/rpc.h>
#include <tern/watch.h>

#include "base/clock.h"
#include "cmocka_all.h"

#define METHOD 77u

typedef struct found {
	uint64_t calls, serves, waits, count, longest;
	char whom[200], what[200];
} found;

static tern_rpc_request *held[3];
static _Atomic unsigned held_count;

static void hold(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	held[atomic_load(&held_count)] = request;
	atomic_fetch_add(&held_count, 1);
}

static void on_latency(const tern_latency *latency, void *arg)
{
	found *f = arg;

	if (strcmp(latency->kind, "rpc.call") == 0)
		f->calls = latency->count;
	if (strcmp(latency->kind, "rpc.serve") == 0)
		f->serves = latency->count;
	f->longest = latency->max_ns > f->longest ? latency->max_ns : f->longest;
}

static void on_wait(const tern_wait *wait, void *arg)
{
	found *f = arg;

	f->waits++;
	f->count = wait->count;
	f->longest = wait->since_ns;
	snprintf(f->whom, sizeof(f->whom), "%s", wait->whom);
	snprintf(f->what, sizeof(f->what), "%s", wait->what);
}

static void calls_are_seen(void **state)
{
	tern_ctx *server, *client;
	tern_op ops[3] = {0};
	tern_rpc *rpc;
	found f = {0};

	(void)state;
	assert_int_equal(tern_ctx_create(&(tern_ctx_params){.listen = "127.0.0.1:0"}, &server), TERN_OK);
	assert_int_equal(tern_ctx_create(NULL, &client), TERN_OK);
	assert_int_equal(tern_ctx_record(client, 0), TERN_OK);
	assert_int_equal(tern_rpc_serve(server, METHOD, hold, NULL), TERN_OK);
	assert_int_equal(tern_rpc_connect(client, tern_ctx_address(server), NULL, &rpc), TERN_OK);
	tern_ctx_waits(client, on_wait, &f);
	assert_int_equal(f.waits, 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(tern_rpc_call(rpc, &(tern_rpc_call_params){.method = METHOD}, &ops[i]),
				 TERN_OK);
	while (atomic_load(&held_count) < 3)
		tern_ctx_wait(client, 1000000);
	tn_sleep_ns(20 * TN_NS_PER_MS);
	tern_ctx_waits(client, on_wait, &f);
	assert_int_equal(f.waits, 1);
	assert_int_equal(f.count, 3);
	assert_string_equal(f.whom, tern_ctx_address(server));
	assert_string_equal(f.what, "calls of method 0x4d");
	assert_true(f.longest >= 20 * TN_NS_PER_MS);
	tern_ctx_record(server, 0); /* only now: its three replies count */
	for (int i = 0; i < 3; i++)
		tern_rpc_reply(held[i], TERN_OK, NULL, 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(tern_op_wait(client, &ops[i], 0), TERN_OK);
	f = (found){0};
	tern_ctx_waits(client, on_wait, &f);
	assert_int_equal(f.waits, 0);
	tern_ctx_latencies(client, on_latency, &f);
	assert_int_equal(f.calls, 3);
	assert_int_equal(f.serves, 0);
	assert_true(f.longest >= 20 * TN_NS_PER_MS);
	tern_ctx_latencies(server, on_latency, &f);
	assert_int_equal(f.serves, 3);
	tern_rpc_close(rpc);
	tern_ctx_destroy(client);
	tern_ctx_destroy(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(calls_are_seen)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
