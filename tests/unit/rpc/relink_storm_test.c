/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of calls while their links die at random moments: each call is executed once, answered once, and what it
 * placed is whole. The scripted cases: relink_test.c.
 *
 * FIELD-BUGS: Mooncake#3299, a local error starts an endless storm of reconnects; mercury#267 and #308, a call completes
 * twice or never; NCCL#1557, a failover must not duplicate.
 *
 * The program's arguments: so many kills (30 without one); one transport instead of all.
 */
#include "base/rand.h"
#include "unit/rpc/relink.h"

static unsigned kills = 30;

typedef struct stream {
	one o;
	bool flying;
	bool sinks, placed;
	uint8_t *memory;
	tern_rpc_sink sink;
} stream;

static tern_status begin_any(stream *s, uint32_t id, unsigned k)
{
	tern_rpc_call_params call = {.method = s->placed  ? PLACE
					       : s->sinks ? FILL
							  : COUNT,
				     .args = &s->o.id,
				     .args_bytes = sizeof(s->o.id),
				     .answer = &s->o.answer,
				     .answer_capacity = sizeof(s->o.answer),
				     .sinks = &s->sink,
				     .sink_count = s->sinks,
				     .service_class = (tern_rpc_class)(k % 3)};

	s->o.id = id;
	s->o.answer = 0;
	tern_op_init(&s->o.op, NULL, NULL);
	if (s->sinks)
		memset(s->memory, 0, SINK);
	return tern_rpc_call(w.rpc, &call, &s->o.op);
}

static void judge(stream *s)
{
	tern_status status = tern_op_test(&s->o.op);

	/* A put met a dead link: the call was executed, and said so. */
	if ((status == TERN_E_REMOTE && s->sinks) || (status != TERN_OK && s->placed)) {
		assert_int_equal(w.executed[s->o.id], 1);
		memset(s->memory, 0x11, SINK); /* ours again: nothing may come later */
		s->flying = false;
		return;
	}
	if (status != TERN_OK)
		fail_msg("call %u: %s", s->o.id, tern_status_name(status));
	assert_int_equal(w.executed[s->o.id], 1);
	if (!s->sinks)
		assert_int_equal(s->o.answer, s->o.id);
	for (unsigned i = 0; s->sinks && i < SINK; i += 113)
		assert_int_equal(s->memory[i], 0x3c);
	s->flying = false;
}

static void open_sinks(stream *streams, unsigned n)
{
	for (unsigned k = 0; k < n; k++) {
		void *p;

		streams[k].sinks = k % 4 == 3;
		streams[k].placed = k % 8 == 7;
		streams[k].sink.bytes = SINK;
		assert_ok(tern_mem_alloc(tern_ctx_mem(w.a), SINK, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
		streams[k].memory = p;
		assert_ok(
			tern_mem_export(tern_ctx_mem(w.a), p, SINK, TERN_ACCESS_WRITE, &streams[k].sink.key));
	}
}

/* Streams of calls, in all classes, with and without sinks; links die at random moments in several ways. */
static void storm(void **state)
{
	enum { STREAMS = 24 };
	static stream streams[STREAMS];
	tn_rand rng = {.state = 20260101};
	uint64_t done = 0, next_kill = 20;
	uint32_t id = 0;

	(void)state;
	memset(streams, 0, sizeof(streams));
	start(hasty, hasty);
	open_sinks(streams, STREAMS);
	for (unsigned killed = 0; killed < kills || done < next_kill;) {
		bool flying = false;

		for (unsigned k = 0; k < STREAMS; k++) {
			stream *s = &streams[k];

			if (s->flying && tern_op_test(&s->o.op) != TERN_AGAIN) {
				judge(s);
				done++;
			}
			if (!s->flying) {
				tern_status status = begin_any(s, (id + 1) % IDS, k);

				if (status == TERN_AGAIN)
					continue;
				assert_ok(status);
				id = (id + 1) % IDS;
				s->flying = true;
			}
			flying |= s->flying;
		}
		if (flying)
			tern_ctx_wait(w.a, 1000000);
		if (done < next_kill || killed == kills)
			continue;
		killed++;
		next_kill = done + 10 + tn_rand_below(&rng, 90);
		if (id > IDS / 2) { /* ids are used once */
			for (unsigned i = 0; i < IDS; i++)
				if (i < id - 1000)
					atomic_store(&w.executed[i], 0);
		}
		if (tn_rand_below(&rng, 4) == 0)
			lose_link();
		else
			assert_ok(tn_fault_set("channel.lane.break", 1 + tn_rand_below(&rng, 40), 1));
	}
	tn_fault_clear();
	for (unsigned k = 0; k < STREAMS; k++) {
		if (!streams[k].flying)
			continue;
		tern_op_wait(w.a, &streams[k].o.op, WAIT_NS);
		judge(&streams[k]);
	}
	printf("%s: %u kills, %u calls, %llu dials, %llu replays, %llu duplicates\n", transport, kills, id,
	       (unsigned long long)counter_of(w.a, "rpc.dials"),
	       (unsigned long long)counter_of(w.a, "rpc.replays"),
	       (unsigned long long)counter_of(w.b, "rpc.duplicates"));
	assert_int_equal(counter_of(w.b, "rpc.unknown"), 0);
	assert_true(counter_of(w.a, "rpc.dials") > kills / 2);
	stop();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(storm),
	};

	if (argc > 1)
		kills = (unsigned)atoi(argv[1]);
	return RELINK_RUN(tests, argc > 2 ? argv[2] : NULL);
}
