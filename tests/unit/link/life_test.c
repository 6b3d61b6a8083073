/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's life: configuration, hello and who may talk, wiring over the providers, keepalive, orderly close,
 * and its end at each moment. Virtual time; two links over pair.h.
 */
#include "cmocka_all.h"
#include "link/wire.h"
#include "unit/link/pair.h"

static pair_world world;

static void fresh(void)
{
	pair_init(&world, 42);
}

static void until_down(void)
{
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
}

static void until_up(void)
{
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
}

static void assert_ends(int side, tern_status status, const char *words)
{
	if (world.node[side].status != status || !strstr(world.node[side].detail, words))
		fail_msg("node %d ended with %s '%s', expected %s '%s'", side,
			 tern_status_name(world.node[side].status), world.node[side].detail,
			 tern_status_name(status), words);
}

/* ---- configuration ---- */

static void config_errors(void **state)
{
	_Alignas(64) static uint8_t memory[4 << 20];
	tn_link_config good, bad;
	tn_link *link;

	(void)state;
	fresh();
	good = world.node[0].config;
	assert_ok(tn_link_init(memory, sizeof(memory), &good, 0, &link));
	assert_true(tn_link_memory_bytes(&good) < sizeof(memory));
#define BAD(field, value)                                                                    \
	bad = good;                                                                          \
	bad.field = value;                                                                   \
	assert_status(tn_link_init(memory, sizeof(memory), &bad, 0, &link), TERN_E_INVALID); \
	assert_null(link)
	BAD(channels_max, 0);
	BAD(channels_max, 70000);
	BAD(ops_max, 0);
	BAD(wrs_max, 3);
	BAD(data_lanes, TN_LINK_LANES_MAX);
	BAD(window_bytes, 0);
	BAD(channel_window_bytes, 100);
	BAD(keepalive_misses, 0);
	BAD(provider_count, 0);
	BAD(provider_count, 9);
	BAD(secret_next_bytes, 1); /* without a first */
#undef BAD
	bad = good;
	memset(bad.incarnation, 0, sizeof(bad.incarnation));
	assert_status(tn_link_init(memory, sizeof(memory), &bad, 0, &link), TERN_E_INVALID);
	assert_status(tn_link_init(memory, 1000, &good, 0, &link), TERN_E_INVALID);
	assert_status(tn_link_init(memory + 8, sizeof(memory) - 8, &good, 0, &link), TERN_E_INVALID);
	world.node[0].providers[0].send_bytes_max = 100;
	assert_status(tn_link_init(memory, sizeof(memory), &good, 0, &link), TERN_E_INVALID);
}

/* ---- up and close ---- */

static void up_and_close(void **state)
{
	char text[4096];
	size_t n;

	(void)state;
	for (int closer = 0; closer < 2; closer++) {
		fresh();
		pair_start(&world);
		until_up();
		assert_int_equal(tn_link_get_state(world.node[0].link), TN_LINK_UP);
		assert_string_equal(tn_link_get_peer(world.node[0].link)->name, "bob");
		assert_string_equal(tn_link_get_peer(world.node[1].link)->name, "alice");
		assert_int_equal(tn_link_caps(world.node[0].link), PAIR_CAPS);
		assert_int_equal(tn_link_provider_index(world.node[1].link), 0);
		n = tn_link_print(world.node[0].link, text, sizeof(text));
		assert_int_equal(n, strlen(text));
		assert_non_null(strstr(text, "lane 2"));
		assert_true(tn_link_print(world.node[0].link, text, 20) == n && strlen(text) == 19);
		tn_link_close(world.node[closer].link, world.now);
		tn_link_close(world.node[closer].link, world.now);
		pair_pump(&world, closer);
		until_down();
		assert_ends(closer, TERN_OK, "");
		assert_ends(!closer, TERN_E_PEER_CLOSED, "the peer closed the link");
		assert_int_equal(tn_link_next_wake(world.node[0].link), UINT64_MAX);
		pair_fini(&world);
	}
}

static void close_both_at_once(void **state)
{
	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	tn_link_close(world.node[0].link, world.now);
	tn_link_close(world.node[1].link, world.now);
	pair_pump(&world, 0);
	pair_pump(&world, 1);
	until_down();
	assert_ends(0, TERN_OK, "");
	assert_ends(1, TERN_OK, "");
	pair_fini(&world);
}

/* A peer that stands still can't stop a close. */
static void close_is_bounded(void **state)
{
	uint64_t began;

	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	world.mute = true;
	began = world.now;
	tn_link_close(world.node[0].link, world.now);
	pair_pump(&world, 0);
	assert_true(PAIR_UNTIL(&world, world.node[0].down, 1000));
	assert_true(world.now - began <= 2 * world.node[0].config.close_timeout_ns);
	assert_ends(0, TERN_OK, "too long");
	pair_fini(&world);
}

static void close_before_up(void **state)
{
	(void)state;
	for (unsigned steps = 0; steps < 40; steps++) {
		fresh();
		world.rand.state = steps;
		pair_start(&world);
		for (unsigned i = 0; i < steps && !pair_both_up(&world); i++)
			pair_step(&world);
		tn_link_close(world.node[1].link, world.now);
		pair_pump(&world, 1);
		until_down();
		assert_int_equal(world.node[1].status, TERN_OK);
		/* Its lanes may be seen to go before its words come. */
		assert_true(world.node[0].status == TERN_E_PEER_CLOSED ||
			    world.node[0].status == TERN_E_UNREACHABLE);
		pair_fini(&world);
	}
}

/* ---- who may talk ---- */

static void hello_with(const char *a, const char *b)
{
	const char *secrets[] = {a, b};

	fresh();
	for (int i = 0; i < 2; i++) {
		world.node[i].config.secret = secrets[i];
		world.node[i].config.secret_bytes = secrets[i] ? (uint32_t)strlen(secrets[i]) : 0;
	}
	pair_start(&world);
}

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

/* A stranger hears neither devices nor a MAC before it has proved the secret. */
static void acceptor_says_little(void **state)
{
	tn_wire_hello hello = {.version = 1, .version_min = 1, .flags = TN_HELLO_SECRET, .name = "eve"};
	uint8_t buf[1024];
	tn_writer w;

	(void)state;
	hello_with("s", "s");
	memset(hello.incarnation, 7, sizeof(hello.incarnation));
	/* SHA-256("") begins like this. */
	memcpy(hello.job, "\xe3\xb0\xc4\x42\x98\xfc\x1c\x14\x9a\xfb\xf4\xc8\x99\x6f\xb9\x24", 16);
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_hello(&w, &hello);
	world.node[0].ctrl_bytes = 0;
	tn_link_on_ctrl_bytes(world.node[1].link, buf, w.at, world.now);
	pair_pump(&world, 1);
	assert_int_equal(tn_link_get_state(world.node[1].link), TN_LINK_AUTH);
	assert_int_equal(world.node[0].ctrl[4], TN_CTRL_HELLO);
	assert_int_equal(world.node[0].ctrl_bytes, TN_CTRL_HEAD_BYTES + world.node[0].ctrl[0]);
	/* Its own MAC sent back is not one. */
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
	static const uint64_t bits[] = {
		TN_FEATURE_RESUME, TN_FEATURE_ROTATE, TN_FEATURE_MOVE,  TN_FEATURE_SUMS,
		TN_FEATURE_GRANTS, TN_FEATURE_REJOIN, TN_WIRE_FEATURES, 0};

	(void)state;
	for (unsigned i = 0; i < 2 * TN_COUNT_OF(bits); i++) {
		uint64_t off = bits[i / 2], have;

		fresh();
		for (int s = 0; s < 2; s++) {
			tn_link_config *c = &world.node[s].config;

			c->checksum = true;
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
	tn_wire_hello hello = {.version = 1, .version_min = 1, .flags = TN_HELLO_SECRET, .name = "eve"};
	static const uint8_t head[8] = {1, 2, 0, 0, TN_CTRL_AUTH}; /* 513 bytes are to come */
	uint8_t buf[1024];
	tn_writer w;

	(void)state;
	hello_with("s", "s");
	memset(hello.incarnation, 7, sizeof(hello.incarnation));
	memcpy(hello.job, "\xe3\xb0\xc4\x42\x98\xfc\x1c\x14\x9a\xfb\xf4\xc8\x99\x6f\xb9\x24", 16);
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_hello(&w, &hello);
	tn_link_on_ctrl_bytes(world.node[1].link, buf, w.at, world.now);
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
	for (int i = 0; i < 4; i++)
		free(memories[i]);
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

/* ---- wiring ---- */

static void two_providers(void)
{
	fresh();
	for (int i = 0; i < 2; i++)
		world.node[i].config.provider_count = 2;
}

static void falls_back(void **state)
{
	static const char *const words[] = {"not from here", "limit", "the wire was cut"};

	(void)state;
	for (unsigned how = 0; how < 3; how++) {
		two_providers();
		world.reach_fails[0] = how == 0;
		world.create_fails = how == 1;
		world.connect_fails = how == 2;
		pair_start(&world);
		until_up();
		for (int i = 0; i < 2; i++) {
			assert_int_equal(tn_link_provider_index(world.node[i].link), 1);
			if (!strstr(tn_link_provider_reason(world.node[i].link), words[how]))
				fail_msg("node %d: '%s' lacks '%s'", i,
					 tn_link_provider_reason(world.node[i].link), words[how]);
		}
		pair_fini(&world);
	}
}

static void no_way(void **state)
{
	(void)state;
	two_providers();
	world.reach_fails[0] = world.reach_fails[1] = true;
	pair_start(&world);
	until_down();
	assert_ends(0, TERN_E_UNREACHABLE,
		    "mem: the peer says: not from here; alt: the peer says: not from here");
	assert_ends(1, TERN_E_UNREACHABLE, "no transport");
	pair_fini(&world);
	fresh();
	snprintf(world.node[1].providers[0].name, TN_LINK_PROVIDER_NAME, "else");
	pair_start(&world);
	until_down();
	assert_ends(0, TERN_E_UNREACHABLE, "mem: the peer does not have it");
	pair_fini(&world);
}

/* perftest PR#381, TF#14489, #45088: the peer falls silent while lanes are wired: bounded. */
static void wiring_is_bounded(void **state)
{
	(void)state;
	two_providers();
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, tn_link_get_state(world.node[0].link) == TN_LINK_WIRING, 100));
	world.mute = true;
	assert_true(PAIR_UNTIL(&world, world.node[0].down && world.node[1].down, 5000));
	assert_true(world.now < 1000000 + 5 * world.node[0].config.lane_timeout_ns);
	pair_fini(&world);
}

/*
 * Each lane, epoch and session has a secret of its own, the same on both sides (pair.h holds them equal).
 * Mooncake PR#3584: a late reply of the handshake bound the wrong queue pair; here it would not know the secret.
 */
static void tokens(void **state)
{
	(void)state;
	hello_with("k", "k");
	until_up();
	for (uint32_t i = 0; i < world.path_count; i++)
		for (uint32_t k = 0; k < i; k++)
			if (world.paths[i].used && world.paths[k].used)
				assert_memory_not_equal(world.paths[i].end[0].token,
							world.paths[k].end[0].token, TN_LINK_TOKEN_BYTES);
	pair_fini(&world);
}

/* ---- the end ---- */

static void keepalive(void **state)
{
	uint64_t silent;

	(void)state;
	fresh();
	pair_start(&world);
	until_up();
	/* Idle for a long time: pings keep it up. */
	for (int i = 0; i < 2000; i++)
		pair_step(&world);
	assert_true(world.now > 100 * world.node[0].config.keepalive_ns);
	assert_false(world.node[0].down || world.node[1].down);
	assert_true(tn_counter_read(&tn_link_get_counters(world.node[0].link)->pings) > 50);
	world.mute = true;
	silent = world.now;
	assert_true(PAIR_UNTIL(&world, world.node[0].down && world.node[1].down, 1000));
	assert_ends(0, TERN_E_PEER_LOST, "keepalive");
	assert_ends(1, TERN_E_PEER_LOST, "keepalive");
	assert_true(world.now - silent <=
		    (world.node[0].config.keepalive_misses + 1) * world.node[0].config.keepalive_ns);
	pair_fini(&world);
}

static void no_recovery(void)
{
	for (int i = 0; i < 2; i++)
		world.node[i].config.recover_ns = 0;
}

static void lane_dies(void **state)
{
	(void)state;
	/* The peer lives: its words or the time decide for LANE. */
	fresh();
	no_recovery();
	pair_start(&world);
	until_up();
	pair_break(&world, &world.paths[TN_LINK_LANES_MAX + 1]);
	until_down();
	assert_ends(0, TERN_E_LANE, "");
	assert_ends(1, TERN_E_LANE, "");
	pair_fini(&world);
	/* The peer died with it: the control connection tells a moment later. */
	fresh();
	no_recovery();
	pair_start(&world);
	until_up();
	pair_break(&world, &world.paths[TN_LINK_LANES_MAX]);
	tn_link_on_lane_down(world.node[0].link, world.paths[TN_LINK_LANES_MAX].end[0].handle, TERN_E_LANE,
			     "gone", world.now);
	pair_pump(&world, 0);
	assert_int_equal(tn_link_get_state(world.node[0].link), TN_LINK_DRAINING);
	tn_link_on_ctrl_down(world.node[0].link, TERN_E_PEER_LOST, "reset by peer", world.now);
	world.node[0].ctrl_closed = true;
	pair_pump(&world, 0);
	assert_true(PAIR_UNTIL(&world, world.node[0].down, 1000));
	assert_ends(0, TERN_E_PEER_LOST, "reset by peer");
	pair_fini(&world);
}

/* The control connection ends at each moment from the first byte on. */
static void ctrl_dies_anywhere(void **state)
{
	(void)state;
	for (unsigned steps = 0; steps < 60; steps++) {
		two_providers();
		world.node[0].config.redial_ns = 0; /* else it may come back: rejoin_test.c */
		world.rand.state = steps * 7 + 1;
		world.connect_fails = steps % 2;
		pair_start(&world);
		for (unsigned i = 0; i < steps; i++)
			pair_step(&world);
		for (int i = 0; i < 2; i++) {
			world.node[i].ctrl_bytes = 0;
			tn_link_on_ctrl_down(world.node[i].link, TERN_E_PEER_LOST, NULL, world.now);
			tn_link_on_ctrl_down(world.node[i].link, TERN_E_PEER_LOST, NULL, world.now);
			pair_pump(&world, i);
		}
		until_down();
		assert_int_equal(world.node[0].status, TERN_E_PEER_LOST);
		pair_fini(&world);
	}
}

static void dial_fails(void **state)
{
	tn_link_action act;
	tn_link_config c;

	(void)state;
	fresh();
	c = world.node[0].config;
	world.node[0].memory = aligned_alloc(64, tn_link_memory_bytes(&c));
	assert_ok(tn_link_init(world.node[0].memory, tn_link_memory_bytes(&c), &c, 0, &world.node[0].link));
	assert_int_equal(tn_link_get_state(world.node[0].link), TN_LINK_DIAL);
	assert_false(tn_link_pending(world.node[0].link));
	tn_link_on_ctrl_down(world.node[0].link, TERN_E_REFUSED, "connect: refused", 5);
	assert_true(tn_link_next_action(world.node[0].link, 5, &act));
	assert_int_equal(act.type, TN_ACT_LINK_DOWN);
	assert_int_equal(act.link.status, TERN_E_REFUSED);
	assert_string_equal(act.link.detail, "connect: refused");
	assert_false(tn_link_next_action(world.node[0].link, 5, &act));
	pair_fini(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(config_errors),
		cmocka_unit_test(up_and_close),
		cmocka_unit_test(close_both_at_once),
		cmocka_unit_test(close_is_bounded),
		cmocka_unit_test(close_before_up),
		cmocka_unit_test(secrets),
		cmocka_unit_test(two_secrets),
		cmocka_unit_test(older_features),
		cmocka_unit_test(acceptor_says_little),
		cmocka_unit_test(jobs),
		cmocka_unit_test(versions),
		cmocka_unit_test(strangers),
		cmocka_unit_test(silent_stranger),
		cmocka_unit_test(slow_stranger),
		cmocka_unit_test(long_stranger),
		cmocka_unit_test(shell_refuses),
		cmocka_unit_test(rivals),
		cmocka_unit_test(rivals_agree),
		cmocka_unit_test(restarted),
		cmocka_unit_test(falls_back),
		cmocka_unit_test(no_way),
		cmocka_unit_test(wiring_is_bounded),
		cmocka_unit_test(tokens),
		cmocka_unit_test(keepalive),
		cmocka_unit_test(lane_dies),
		cmocka_unit_test(ctrl_dies_anywhere),
		cmocka_unit_test(dial_fails),
	};

	return RUN(tests);
}
