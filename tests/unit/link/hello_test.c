/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hello: who may talk (secrets, jobs, versions, features), what strangers get, and which of two links stays.
 */
#include "unit/link/life.h"

/* ---- who may talk ---- */

static void secrets(void **state)
{
	(void)state;
	hello_with("open sesame", "open sesame");
	until_up();
	pair_fini(&world);
	hello_with("open sesame", "open sesamE");
	until_down();
	assert_ends(0, TERN_E_AUTH, "different shared secrets");
	assert_ends(1, TERN_E_AUTH, "different shared secrets");
	pair_fini(&world);
	for (int i = 0; i < 2; i++) {
		hello_with(i ? "x" : NULL, i ? NULL : "x");
		until_down();
		assert_ends(0, TERN_E_AUTH, "TERN_CTX_SECRET");
		assert_ends(1, TERN_E_AUTH, "TERN_CTX_SECRET");
		pair_fini(&world);
	}
}

/*
 * A fleet goes from one secret to another: whoever has one in common talks, whoever dials. A side without the
 * feature (an older build) has its first secret alone.
 */
static void two_secrets(void **state)
{
	static const struct {
		const char *secret[2], *next[2]; /* of dialer and acceptor */
		bool old[2];                     /* without TN_FEATURE_ROTATE */
		int used[2];                     /* -1: refused */
	} cases[] = {
		{{"A", "A"}, {NULL, "B"}, {0}, {0, 0}},
		{{"A", "A"}, {"B", NULL}, {0}, {0, 0}},
		{{"A", "B"}, {"B", "A"}, {0}, {0, 1}},
		{{"A", "B"}, {"B", NULL}, {0}, {1, 0}},
		{{"B", "A"}, {NULL, "B"}, {0}, {0, 1}},
		{{"A", "C"}, {"B", "B"}, {0}, {1, 1}},
		{{"A", "C"}, {"B", "D"}, {0}, {-1, -1}},
		{{"A", "B"}, {NULL, NULL}, {0}, {-1, -1}},
		/* fleets with older builds: the dialer's first secret counts */
		{{"A", "B"}, {"B", "A"}, {1, 0}, {0, 1}},
		{{"A", "B"}, {"B", "A"}, {0, 1}, {0, 1}},
		{{"A", "B"}, {"B", NULL}, {0, 1}, {-1, -1}},
	};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(cases); i++) {
		fresh();
		for (int s = 0; s < 2; s++) {
			tn_link_config *c = &world.node[s].config;

			c->secret = cases[i].secret[s];
			c->secret_bytes = 1;
			c->secret_next = cases[i].next[s];
			c->secret_next_bytes = cases[i].next[s] ? 1 : 0;
			c->features_off = cases[i].old[s] ? TN_FEATURE_ROTATE : 0;
		}
		pair_start(&world);
		if (cases[i].used[0] < 0) {
			until_down();
			assert_ends(0, TERN_E_AUTH, "different shared secrets");
			assert_ends(1, TERN_E_AUTH, "different shared secrets");
		} else {
			until_up(); /* and so the lanes' tokens agree */
			for (int s = 0; s < 2; s++)
				assert_int_equal(tn_link_get_peer(world.node[s].link)->secret,
						 cases[i].used[s]);
		}
		pair_fini(&world);
	}
}

/* A stranger's HELLO, as good as anybody's, to the acceptor. */
static void hello_of_eve(void)
{
	tn_wire_hello hello = {.version = 1, .version_min = 1, .flags = TN_HELLO_SECRET, .name = "eve"};
	uint8_t buf[1024];
	tn_writer w;

	hello_with("s", "s");
	memset(hello.incarnation, 7, sizeof(hello.incarnation));
	/* SHA-256("") begins like this. */
	memcpy(hello.job, "\xe3\xb0\xc4\x42\x98\xfc\x1c\x14\x9a\xfb\xf4\xc8\x99\x6f\xb9\x24", 16);
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_hello(&w, &hello);
	world.node[0].ctrl_bytes = 0;
	tn_link_on_ctrl_bytes(world.node[1].link, buf, w.at, world.now);
}

/* A stranger hears neither devices nor a MAC before it has proved the secret. */
static void acceptor_says_little(void **state)
{
	uint8_t buf[1024] = {0};
	tn_writer w;

	(void)state;
	hello_of_eve();
	pair_pump(&world, 1);
	assert_int_equal(tn_link_get_state(world.node[1].link), TN_LINK_AUTH);
	assert_int_equal(world.node[0].ctrl[4], TN_CTRL_HELLO);
	assert_int_equal(world.node[0].ctrl_bytes, TN_CTRL_HEAD_BYTES + world.node[0].ctrl[0]);
	/* Any bytes are no MAC. */
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_auth(&w, (const uint8_t(*)[32])(buf + 100), 1);
	tn_link_on_ctrl_bytes(world.node[1].link, buf, w.at, world.now);
	pair_pump(&world, 1);
	assert_int_equal(tn_link_status(world.node[1].link), TERN_E_AUTH);
	pair_fini(&world);
}

static void jobs(void **state)
{
	(void)state;
	fresh();
	world.node[0].config.job = "red";
	world.node[1].config.job = "blue";
	pair_start(&world);
	until_down();
	assert_ends(0, TERN_E_COOKIE, "different jobs");
	assert_ends(1, TERN_E_COOKIE, "different jobs");
	pair_fini(&world);
}

/* UCX#6675, libfabric#6696: of versions that have none in common both are named. */
static void versions(void **state)
{
	static const struct {
		uint16_t min, max;
		bool ok;
	} cases[] = {{1, 1, true}, {1, 2, true}, {2, 3, false}, {9, 9, false}};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(cases); i++) {
		tn_wire_hello hello = {.version = cases[i].max, .version_min = cases[i].min, .name = "newer"};
		uint8_t buf[1024];
		char both[64];
		tn_writer w;

		fresh();
		pair_start_node(&world, 1);
		memset(hello.incarnation, 7, sizeof(hello.incarnation));
		memcpy(hello.job, "\xe3\xb0\xc4\x42\x98\xfc\x1c\x14\x9a\xfb\xf4\xc8\x99\x6f\xb9\x24", 16);
		tn_writer_init(&w, buf, sizeof(buf));
		tn_wire_put_hello(&w, &hello);
		tn_link_on_ctrl_bytes(world.node[1].link, buf, w.at, world.now);
		pair_pump(&world, 1);
		if (cases[i].ok) {
			assert_int_equal(tn_link_get_state(world.node[1].link), TN_LINK_AUTH);
			assert_int_equal(tn_link_get_peer(world.node[1].link)->version, 1);
		} else {
			snprintf(both, sizeof(both), "1 to 1, its peer %u to %u", cases[i].min, cases[i].max);
			assert_true(world.node[1].down);
			assert_ends(1, TERN_E_VERSION, both);
		}
		pair_fini(&world);
	}
}

/* UCX#6675, libfabric#6696: mixed versions crash. One side lacks one feature, or all: the pair does without. */
static void older_features(void **state)
{
	static const uint64_t bits[] = {TN_FEATURE_RESUME, TN_FEATURE_ROTATE, TN_FEATURE_MOVE,
					TN_FEATURE_SUMS,   TN_FEATURE_GRANTS, TN_FEATURE_REJOIN,
					TN_FEATURE_SLOTS,  TN_FEATURE_LANES,  TN_FEATURE_NUMBERS,
					TN_FEATURE_NARROW, TN_WIRE_FEATURES,  0};

	(void)state;
	for (unsigned i = 0; i < 2 * TN_COUNT_OF(bits); i++) {
		uint64_t off = bits[i / 2], have;

		fresh();
		for (int s = 0; s < 2; s++) {
			tn_link_config *c = &world.node[s].config;

			c->checksum = true;
			c->lane_idle_ns = TN_NS_PER_SEC;
			c->recover_ns = TN_NS_PER_SEC;
			c->secret = "one";
			c->secret_next = "two";
			c->secret_bytes = c->secret_next_bytes = 3;
		}
		world.node[i % 2].config.features_off = off;
		pair_start(&world);
		until_up();
		have = tn_link_get_peer(world.node[0].link)->features;
		assert_int_equal(have, tn_link_get_peer(world.node[1].link)->features);
		assert_int_equal(have & off, 0);
		if (off == 0)
			assert_int_equal(have, TN_WIRE_FEATURES);
		tn_link_close(world.node[0].link, world.now);
		pair_pump(&world, 0);
		until_down();
		assert_ends(0, TERN_OK, "");
		pair_fini(&world);
	}
	/* Each bit is in the list above: one that is new has to be added. */
	for (unsigned i = 0; i < 64; i++) {
		bool known = false;

		for (unsigned k = 0; k < TN_COUNT_OF(bits); k++)
			known |= bits[k] == 1ull << i;
		assert_int_equal(known, (TN_WIRE_FEATURES >> i) & 1);
	}
}

static void strangers(void **state)
{
	static const char *const junk[] = {"GET / HTTP/1.1\r\n\r\n", "\0\0\0\0\0\0\0\0",
					   "\xff\xff\xff\xff\x01\0\0\0"};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(junk); i++) {
		fresh();
		pair_start_node(&world, 1);
		tn_link_on_ctrl_bytes(world.node[1].link, junk[i], 8, world.now);
		pair_pump(&world, 1);
		assert_true(world.node[1].down);
		assert_int_equal(world.node[1].status, TERN_E_PROTOCOL);
		pair_fini(&world);
	}
}

/* perftest PR#381: a handshake blocks for ever. Each step of it has a deadline, this one and those of wiring. */
static void silent_stranger(void **state)
{
	(void)state;
	fresh();
	pair_start_node(&world, 1);
	assert_true(PAIR_UNTIL(&world, world.node[1].down, 100));
	assert_ends(1, TERN_E_DEADLINE, "step HELLO");
	assert_true(world.now <= 1000000 + world.node[1].config.step_timeout_ns);
	pair_fini(&world);
}

/* Slow bytes buy no time: a step's deadline is not moved by what comes within it. */
static void slow_stranger(void **state)
{
	tn_wire_hello hello = {.version = 1, .version_min = 1, .name = "sloth"};
	uint8_t buf[1024];
	uint64_t began;
	tn_writer w;

	(void)state;
	fresh();
	pair_start_node(&world, 1);
	began = world.now;
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_hello(&w, &hello);
	for (uint64_t i = 0; i + 1 < w.at && !world.node[1].down; i++) {
		tn_link_on_ctrl_bytes(world.node[1].link, buf + i, 1, world.now);
		world.now += TN_NS_PER_SEC / 10;
		tn_link_on_time(world.node[1].link, world.now);
		pair_pump(&world, 1);
	}
	assert_true(world.node[1].down);
	assert_ends(1, TERN_E_DEADLINE, "step HELLO");
	assert_true(world.now <= began + world.node[1].config.step_timeout_ns + TN_NS_PER_SEC / 10);
	pair_fini(&world);
}

/* What a stranger may send before it has proved the secret is bounded, whatever it says its length is. */
static void long_stranger(void **state)
{
	static const uint8_t head[8] = {1, 2, 0, 0, TN_CTRL_AUTH}; /* 513 bytes are to come */

	(void)state;
	hello_of_eve();
	pair_pump(&world, 1);
	assert_int_equal(tn_link_get_state(world.node[1].link), TN_LINK_AUTH);
	tn_link_on_ctrl_bytes(world.node[1].link, head, sizeof(head), world.now);
	pair_pump(&world, 1);
	assert_int_equal(tn_link_status(world.node[1].link), TERN_E_PROTOCOL);
	assert_non_null(strstr(tn_link_detail(world.node[1].link), "before authentication"));
	pair_fini(&world);
}

static void shell_refuses(void **state)
{
	tn_link_action act;

	(void)state;
	fresh();
	pair_start(&world);
	/* The acceptor's shell sees an older link to the same peer and refuses. */
	pair_pump(&world, 0);
	while (tn_link_get_state(world.node[1].link) == TN_LINK_HELLO &&
	       !tn_link_get_peer(world.node[1].link))
		tn_link_on_ctrl_bytes(world.node[1].link, world.node[1].ctrl, world.node[1].ctrl_bytes,
				      world.now);
	assert_true(tn_link_next_action(world.node[1].link, world.now, &act));
	assert_int_equal(act.type, TN_ACT_PEER);
	tn_link_on_peer_answer(world.node[1].link, TERN_E_EXISTS, "there is a link", world.now);
	pair_pump(&world, 1);
	until_down();
	assert_ends(0, TERN_E_EXISTS, "there is a link");
	assert_ends(1, TERN_E_EXISTS, "there is a link");
	pair_fini(&world);
}

/* ---- rivals ---- */

/* Two links between the same nodes, up to where the peers are known. [link][side]; active[l]: who dialed. */
static tn_link *pool[2][2];
static void *memories[4];

static void make_rivals(const int dialer[2], const uint8_t inc[2], uint8_t node1_inc_of_second)
{
	for (int l = 0; l < 2; l++) {
		uint8_t hello[2][1024];
		uint32_t n[2] = {0};

		for (int s = 0; s < 2; s++) {
			tn_link_config c = world.node[s].config;
			size_t bytes = tn_link_memory_bytes(&c);

			c.active = dialer[l] == s;
			memset(c.incarnation, s == 1 && l == 1 ? node1_inc_of_second : inc[s],
			       TN_LINK_ID_BYTES);
			memories[l * 2 + s] = aligned_alloc(64, bytes);
			assert_ok(tn_link_init(memories[l * 2 + s], bytes, &c, 0, &pool[l][s]));
			tn_link_on_ctrl_up(pool[l][s], 0);
		}
		for (int turn = 0; turn < 2; turn++) {
			int from = turn ? !dialer[l] : dialer[l];
			tn_link_action act;

			while (tn_link_next_action(pool[l][from], 0, &act)) {
				if (act.type == TN_ACT_PEER)
					tn_link_on_peer_answer(pool[l][from], TERN_OK, NULL, 0);
				if (act.type == TN_ACT_CTRL_SEND) {
					memcpy(hello[from] + n[from], act.ctrl.bytes, act.ctrl.n);
					n[from] += act.ctrl.n;
				}
			}
			tn_link_on_ctrl_bytes(pool[l][!from], hello[from], n[from], 0);
		}
	}
}

static void drop_rivals(void)
{
	for (int i = 0; i < 4; i++) {
		tn_link_fini(pool[i / 2][i % 2]);
		free(memories[i]);
	}
}

static void rivals(void **state)
{
	static const int crossed[] = {0, 1}, same[] = {0, 0};
	const uint8_t inc[] = {1, 2};
	tern_status status = TERN_OK;

	(void)state;
	fresh();
	/* Both dialed at once: node 0 has the smaller incarnation, so its connection (link 0) stays. */
	make_rivals(crossed, inc, 2);
	assert_int_equal(tn_link_rivals(pool[0][0], pool[1][0], &status), TN_RIVALS_DROP_NEW);
	assert_int_equal(tn_link_rivals(pool[1][0], pool[0][0], &status), TN_RIVALS_DROP_OLD);
	assert_int_equal(tn_link_rivals(pool[0][1], pool[1][1], &status), TN_RIVALS_DROP_NEW);
	assert_int_equal(tn_link_rivals(pool[1][1], pool[0][1], &status), TN_RIVALS_DROP_OLD);
	assert_int_equal(status, TERN_E_EXISTS);
	drop_rivals();
	/* Two in the same direction are wanted. */
	make_rivals(same, inc, 2);
	assert_int_equal(tn_link_rivals(pool[0][0], pool[1][0], &status), TN_RIVALS_NOT);
	drop_rivals();
	/* The peer restarted: the older link goes, whoever dialed. */
	make_rivals(crossed, inc, 9);
	assert_int_equal(tn_link_rivals(pool[0][0], pool[1][0], &status), TN_RIVALS_DROP_OLD);
	assert_int_equal(status, TERN_E_PEER_RESTARTED);
	drop_rivals();
}

/*
 * libfabric#7396: "the newer replaces the older" breaks simultaneous connects. In 10,000 rounds of two links
 * between two nodes, whoever dialed, however their incarnations lie, both sides come to the same verdict, and
 * one of the two stays.
 */
static void rivals_agree(void **state)
{
	tn_rand rand = {.state = 7396};
	int dropped_old = 0, dropped_new = 0, both = 0;

	(void)state;
	fresh();
	for (int round = 0; round < 10000; round++) {
		const int dialer[] = {(int)tn_rand_below(&rand, 2), (int)tn_rand_below(&rand, 2)};
		const uint8_t inc[] = {(uint8_t)(1 + tn_rand_below(&rand, 250)),
				       (uint8_t)(1 + tn_rand_below(&rand, 250))};
		bool again = tn_rand_below(&rand, 4) == 0; /* node 1 restarted between the two */
		uint8_t second = again ? (uint8_t)(251 + tn_rand_below(&rand, 4)) : inc[1];
		tn_link_rivalry verdict[2];
		tern_status why[2] = {TERN_OK, TERN_OK};

		if (inc[0] == inc[1])
			continue;
		make_rivals(dialer, inc, second);
		for (int s = 0; s < 2; s++)
			verdict[s] = tn_link_rivals(pool[0][s], pool[1][s], &why[s]);
		if (!again) {
			/* Both nodes see both links: one verdict, or a dead end where each drops the other's. */
			assert_int_equal(verdict[0], verdict[1]);
			assert_int_equal(verdict[0] == TN_RIVALS_NOT, dialer[0] == dialer[1]);
			/* And the order in which they are met is no matter. */
			assert_int_equal(tn_link_rivals(pool[1][0], pool[0][0], &why[0]),
					 verdict[0] == TN_RIVALS_NOT        ? TN_RIVALS_NOT
					 : verdict[0] == TN_RIVALS_DROP_OLD ? TN_RIVALS_DROP_NEW
									    : TN_RIVALS_DROP_OLD);
		} else {
			/* The node that did not restart lets go of the former self. */
			assert_int_equal(verdict[0], TN_RIVALS_DROP_OLD);
			assert_int_equal(why[0], TERN_E_PEER_RESTARTED);
		}
		dropped_old += verdict[0] == TN_RIVALS_DROP_OLD;
		dropped_new += verdict[0] == TN_RIVALS_DROP_NEW;
		both += verdict[0] == TN_RIVALS_NOT;
		drop_rivals();
	}
	assert_true(dropped_old > 1000 && dropped_new > 1000 && both > 1000);
}

/* Mooncake PR#3188, PR#3755: a restarted peer is refused by the old endpoint. The new incarnation retires it. */
static void restarted(void **state)
{
	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	tn_link_abort(world.node[0].link, TERN_E_PEER_RESTARTED, "a newer incarnation connected", world.now);
	pair_pump(&world, 0);
	until_down();
	assert_ends(0, TERN_E_PEER_RESTARTED, "newer incarnation");
	assert_ends(1, TERN_E_PEER_RESTARTED, "newer incarnation");
	pair_fini(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(secrets),        cmocka_unit_test(two_secrets),
		cmocka_unit_test(older_features), cmocka_unit_test(acceptor_says_little),
		cmocka_unit_test(jobs),           cmocka_unit_test(versions),
		cmocka_unit_test(strangers),      cmocka_unit_test(silent_stranger),
		cmocka_unit_test(slow_stranger),  cmocka_unit_test(long_stranger),
		cmocka_unit_test(shell_refuses),  cmocka_unit_test(rivals),
		cmocka_unit_test(rivals_agree),   cmocka_unit_test(restarted),
	};

	return RUN(tests);
}
