/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links over verbs whose device misbehaves (a fake of libibverbs): the way around it works. Each test names
 * the report of the field that it is about.
 */
#include <errno.h>

#include "base/log.h"
#include "chan_test.h"

/* One message; TERN_OK when it arrived. Whoever sends is told, or the link ends: nothing is lost in silence. */
static tern_status tell(side *from, tern_channel *channel, side *to, const void *msg)
{
	tern_op op = {.flags = TERN_OP_REMOTE};
	int before = atomic_load(&to->messages);
	tern_status status = complete(from->ctx, &op, tern_send(channel, msg, 5000, &op));

	if (status == TERN_OK)
		assert_comes(to, messages, before + 1);
	return status;
}

/* A message there and back, and a put of so many bytes. */
static tern_status exchange(pair *p, uint64_t bytes)
{
	uint8_t *src = malloc(bytes);
	tern_op put = {.flags = TERN_OP_REMOTE};
	tern_status status;
	tern_key key;
	void *dst;

	fill(src, bytes, 7);
	assert_ok(
		tern_mem_alloc(tern_ctx_mem(p->serve.ctx), bytes, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &dst));
	assert_ok(tern_mem_export(tern_ctx_mem(p->serve.ctx), dst, bytes, TERN_ACCESS_WRITE, &key));
	status = tell(&p->dial, p->dial.channel, &p->serve, src);
	if (status == TERN_OK)
		status = complete(p->dial.ctx, &put, tern_put(p->dial.channel, src, bytes, &key, 0, &put));
	if (status == TERN_OK) {
		assert_true(filled(dst, bytes, 7));
		status = tell(&p->serve, serve_channel(&p->serve), &p->dial, src);
	}
	tern_mem_free(tern_ctx_mem(p->serve.ctx), dst);
	free(src);
	return status;
}

static void connect_pair(pair *p)
{
	side_connect(&p->dial, &p->serve);
	side_open_channel(&p->dial);
}

static void open_nodes(pair *p)
{
	static const char *const options[] = {"verbs.recv_slots=16", "verbs.bounces=16", NULL};
	tern_ctx_params params = {.options = options};

	side_open_params(&p->serve, &params);
	side_open_params(&p->dial, &params);
}

/* A link and an exchange; where the call failed under way the next link works. */
static void live_on(pair *p, int *by_tcp, int *ended)
{
	tern_connect_params connect = {.on_down = on_down, .arg = &p->dial};
	tern_channel_params params;
	tern_status status;

	assert_ok(tern_link_connect(p->dial.ctx, tern_ctx_address(p->serve.ctx), &connect, &p->dial.link));
	/* The first frame of a link is sent when its lanes are up: it may be what fails. */
	status = tern_link_wait(p->dial.link, PATIENCE);
	if (status != TERN_OK)
		goto ended;
	if (strcmp(tern_link_transport(p->dial.link), "tcp") == 0) {
		assert_string_not_equal(tern_link_transport_reason(p->dial.link), "");
		++*by_tcp;
	}
	side_params(&p->dial, &params);
	status = tern_channel_open(p->dial.link, SERVICE, &params, &p->dial.channel);
	if (status == TERN_OK)
		status = exchange(p, 100000);
	if (status == TERN_OK)
		return;
ended:
	if (status == TERN_E_DEADLINE || status == TERN_E_INVALID)
		fail_msg("%s failed: %s", fake_failed_call(), tern_status_name(status));
	++*ended;
	connect_pair(p);
	assert_ok(exchange(p, 100000));
}

/*
 * brpc#3416: each call fails in turn once two nodes are open: the link comes up over verbs or over tcp, and
 * says why. Transfers work on it.
 */
static void falls_back_whatever_call_fails(void **state)
{
	static const char *const calls[] = {"create_qp",     "modify_qp",  "post_send",    "resize_cq",
					    "post_srq_recv", "destroy_qp", "req_notify_cq"};
	int by_tcp = 0, ended = 0;

	(void)state;
	transport = "verbs,tcp";
	for (unsigned i = 0; i < TN_COUNT_OF(calls); i++) {
		for (int nth = 1; nth <= 12; nth++) {
			pair p;

			fake_reset(NULL, 0);
			open_nodes(&p);
			fake_fail(calls[i], nth, nth % 2 ? ENOMEM : EIO);
			live_on(&p, &by_tcp, &ended);
			pair_close(&p);
		}
	}
	print_message("%d links by tcp, %d ended under way\n", by_tcp, ended);
	assert_true(by_tcp >= 4);
}

/* brpc#3416, brpc#2298: a device that does not open. Where it is not demanded a node opens without it. */
static void opens_without_it_where_it_may(void **state)
{
	static const char *const calls[] = {"get_device_list", "open_device", "query_device",
					    "query_port",      "alloc_pd",    "create_cq",
					    "create_srq",      "create_qp",   "reg_mr"};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(calls); i++) {
		tern_ctx_params params = {.transports = "auto"};
		tern_ctx *ctx = NULL;

		for (int nth = 1; nth <= 3; nth++) {
			fake_reset(NULL, 0);
			fake_fail(calls[i], nth, EACCES);
			assert_ok(tn_ctx_new(&params, &ctx));
			assert_ok(tn_ctx_start(ctx));
			tern_ctx_destroy(ctx);
		}
		/* Demanded: refused, in words. Opening asks twice, to see and to use. */
		params.transports = "verbs";
		fake_reset(NULL, 0);
		fake_fail(calls[i], 1, EACCES);
		if (tn_ctx_new(&params, &ctx) == TERN_OK)
			tern_ctx_destroy(ctx);
		else
			assert_string_not_equal(tern_detail(), "");
	}
}

/* gloo#474, nccl PR#2333, byteps PR#302: transfers longer than the device's longest message are cut. */
static void long_transfers_are_cut(void **state)
{
	fake_device card = fake_card_tiny();
	pair p;

	(void)state;
	transport = "verbs";
	fake_reset(&card, 1);
	pair_open(&p);
	assert_string_equal(tern_link_transport(p.dial.link), "verbs");
	assert_ok(exchange(&p, 20u << 20));
	assert_ok(exchange(&p, (8u << 20) + 1));
	pair_close(&p);
}

/*
 * A server with few receive slots and many peers: the first links get data lanes, the later ones one lane each, made of
 * what idle links give back, and only who finds nothing left goes over tcp.
 */
static void few_slots_mean_fewer_lanes(void **state)
{
	enum { PEERS = 28 };
	static const char *const options[] = {"verbs.recv_slots=256", NULL};
	tern_ctx_params params = {.options = options};
	int three = 0, one = 0, by_tcp = 0;
	side serve, dial[PEERS];

	(void)state;
	transport = "verbs,tcp";
	fake_reset(NULL, 0);
	side_open_params(&serve, &params);
	for (int i = 0; i < PEERS; i++) {
		uint64_t before = tern_ctx_counter(serve.ctx, "verbs.lanes");
		uint64_t lanes;

		side_open(&dial[i], 0);
		side_connect(&dial[i], &serve);
		side_open_channel(&dial[i]);
		lanes = tern_ctx_counter(serve.ctx, "verbs.lanes") - before;
		by_tcp += strcmp(tern_link_transport(dial[i].link), "tcp") == 0;
		three += lanes == 3;
		one += lanes == 1;
	}
	print_message("%d links of three lanes, %d of one, %d over tcp\n", three, one, by_tcp);
	assert_int_equal(three + one + by_tcp, PEERS);
	assert_true(three >= 1 && one >= 10 && by_tcp > 0);
	assert_true(tern_ctx_counter(serve.ctx, "link.slots_frames") > 0);
	for (int i = 0; i < PEERS; i++)
		side_close(&dial[i]);
	side_close(&serve);
}

static void until_counted(pair *p, const char *name, uint64_t least, uint64_t most)
{
	tern_ctx *ctxs[] = {p->dial.ctx, p->serve.ctx};

	for (int i = 0; i < 2; i++) {
		uint64_t end = tn_now() + PATIENCE;

		while (tern_ctx_counter(ctxs[i], name) < least || tern_ctx_counter(ctxs[i], name) > most) {
			if (tn_now() > end)
				fail_msg("%s is %llu", name,
					 (unsigned long long)tern_ctx_counter(ctxs[i], name));
			tn_sleep_ns(TN_NS_PER_MS);
		}
	}
}

/* Queue pairs that nobody uses are given up, and made again for bulk. */
static void idle_lanes_are_given_up(void **state)
{
	static const char *const options[] = {"link.lane_idle=20ms", NULL};
	tern_ctx_params params = {.options = options};
	pair p;

	(void)state;
	transport = "verbs";
	fake_reset(NULL, 0);
	side_open_params(&p.serve, &params);
	side_open_params(&p.dial, &params);
	connect_pair(&p);
	for (int round = 0; round < 3; round++) {
		until_counted(&p, "verbs.lanes", 1, 1);
		until_counted(&p, "link.lanes_given_up", (uint64_t)round + 1, UINT64_MAX);
		/* They may be given up again before anybody looks. */
		assert_ok(exchange(&p, 8u << 20));
		until_counted(&p, "link.lanes_made_again", (uint64_t)round + 1, UINT64_MAX);
	}
	pair_close(&p);
}

/* NCCL#2157, #1819: the GID table moves, the address too: the next link goes by what is there then. */
static void next_link_knows_the_new_address(void **state)
{
	(void)state;
	transport = "verbs";
	for (int moved = 0; moved < 2; moved++) {
		const char *address = moved ? "::ffff:10.0.7.7" : "::ffff:10.0.0.1";
		uint64_t events;
		pair p;

		fake_reset(NULL, 0);
		pair_open(&p);
		assert_ok(exchange(&p, 100000));
		tern_link_close(p.dial.link);
		until_counted(&p, "verbs.lanes", 0, 0);
		events = TN_MAX(tern_ctx_counter(p.dial.ctx, "verbs.async_events"),
				tern_ctx_counter(p.serve.ctx, "verbs.async_events"));
		fake_port_turns(0, 1, IBV_PORT_DOWN);
		fake_set_gid(0, 2, NULL, 0);
		fake_set_gid(0, 3, NULL, 0);
		fake_set_gid(0, 5, address, IBV_GID_TYPE_ROCE_V2);
		fake_port_turns(0, 1, IBV_PORT_ACTIVE);
		until_counted(&p, "verbs.async_events", events + 5, UINT64_MAX);
		connect_pair(&p);
		assert_ok(exchange(&p, 100000));
		pair_close(&p);
	}
}

/* A path that breaks with everything in flight: each operation ends, in words, and a new link works. */
static void broken_path_ends_operations(void **state)
{
	enum { OPS = 64 };
	static uint8_t src[65536];

	(void)state;
	transport = "verbs";
	for (int round = 0; round < 6; round++) {
		tern_op ops[OPS] = {0};
		tern_key key;
		void *dst;
		int n = 0;
		pair p;

		fake_reset(NULL, 0);
		pair_open(&p);
		assert_ok(tern_mem_alloc(tern_ctx_mem(p.serve.ctx), sizeof(src), 0, TERN_ACCESS_WRITE,
					 TERN_MEM_HOST, &dst));
		assert_ok(tern_mem_export(tern_ctx_mem(p.serve.ctx), dst, sizeof(src), TERN_ACCESS_WRITE,
					  &key));
		for (; n < OPS; n++) {
			tern_status status =
				tern_put(p.dial.channel, src, sizeof(src) >> (n % 8), &key, 0, &ops[n]);

			if (n == round * 10)
				fake_cut(true);
			if (status != TERN_OK)
				break;
		}
		fake_cut(true);
		for (int i = 0; i < n; i++)
			assert_int_not_equal(tern_op_wait(p.dial.ctx, &ops[i], PATIENCE), TERN_E_DEADLINE);
		fake_cut(false);
		connect_pair(&p);
		assert_ok(exchange(&p, 100000));
		pair_close(&p);
	}
}

/*
 * A NIC loses its place in the stream, and a request that arrived or did not ends as an invalid one (rdma_rxe after lost
 * packets), again and again: notified puts come once all the same, none fails, and the link stays.
 */
static void lost_places_lose_nothing(void **state)
{
	static const enum ibv_wc_status statuses[] = {IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
						      IBV_WC_LOC_QP_OP_ERR, IBV_WC_RETRY_EXC_ERR};
	static const uint64_t sizes[] = {401408, 5000, 100};
	enum { ROUNDS = 48 };
	void *dst, *src;
	tern_key key;
	pair p;

	(void)state;
	transport = "verbs";
	fake_reset(NULL, 0);
	pair_open(&p);
	assert_ok(tern_mem_alloc(tern_ctx_mem(p.serve.ctx), sizes[0], 0, TERN_ACCESS_WRITE, TERN_MEM_HOST,
				 &dst));
	assert_ok(tern_mem_export(tern_ctx_mem(p.serve.ctx), dst, sizes[0], TERN_ACCESS_WRITE, &key));
	assert_ok(
		tern_mem_alloc(tern_ctx_mem(p.dial.ctx), sizes[0], 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &src));
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t bytes = sizes[i % TN_COUNT_OF(sizes)];
		tern_op op = {.flags = i % 5 ? 0 : TERN_OP_REMOTE};

		fill(src, bytes, i);
		(i / 12 % 2 ? fake_fail_arrived : fake_fail_request)(0, statuses[i / 3 % 4]);
		assert_ok(complete(p.dial.ctx, &op,
				   tern_put_notify(p.dial.channel, src, bytes, &key, 0, i, &op)));
		assert_comes(&p.serve, notifies, (int)i + 1);
		assert_true(filled(dst, bytes, i));
	}
	assert_ok(exchange(&p, 100000));
	assert_int_equal(atomic_load(&p.serve.notifies), ROUNDS);
	assert_int_equal(atomic_load(&p.dial.downs) + atomic_load(&p.serve.downs), 0);
	assert_true(tern_ctx_counter(p.dial.ctx, "link.recoveries") > 0);
	tern_mem_free(tern_ctx_mem(p.dial.ctx), src);
	tern_mem_free(tern_ctx_mem(p.serve.ctx), dst);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(falls_back_whatever_call_fails),
		cmocka_unit_test(idle_lanes_are_given_up),
		cmocka_unit_test(opens_without_it_where_it_may),
		cmocka_unit_test(long_transfers_are_cut),
		cmocka_unit_test(few_slots_mean_fewer_lanes),
		cmocka_unit_test(next_link_knows_the_new_address),
		cmocka_unit_test(broken_path_ends_operations),
		cmocka_unit_test(lost_places_lose_nothing),
	};

	tn_log_set_level(TN_LOG_C_VERBS, TN_LOG_NONE);
	tn_log_set_level(TN_LOG_C_CTX, TN_LOG_NONE);
	tn_log_set_level(TN_LOG_C_LINK, TN_LOG_NONE);
	tn_log_set_level(TN_LOG_C_CHANNEL, TN_LOG_NONE);
	fake_install_judged();
	return RUN(tests);
}
