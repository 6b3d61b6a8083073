/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: bytes. Every size arrives unharmed and nothing beside it is touched; what the two completion
 * levels and a notification promise holds at the moment they are seen. Main thread only.
 */
#include "conf.h"

#include <stdlib.h>
#include <string.h>

#define CANARY 64u

static const uint64_t sizes[] = {
	1,     2,     3,     7,      8,      9,       15,      16,      31,      63,      64,
	65,    127,   255,   256,    511,    1000,    4095,    4096,    4097,    16383,   16384,
	16385, 65535, 65536, 100003, 262144, 1048575, 1048576, 1048579, 5000011, 8388608, 67108864,
};

/* Is this size for the device, and for a sanitizer's patience? */
static bool fits(const conf_pair *pair, uint64_t bytes)
{
	return bytes <= pair->a->caps.write_bytes_max &&
	       (bytes <= 1u << 20 || conf_rounds(100) == 100 || bytes == 5000011);
}

static void one_size(conf_pair *pair, conf_lane *lane, conf_verb verb, uint64_t bytes)
{
	uint64_t from_at = tn_rand_below(&pair->rand, 64), to_at = CANARY + tn_rand_below(&pair->rand, 64);
	uint64_t room = to_at + bytes + CANARY;
	conf_region here, there;
	bool read = verb == CONF_READ;
	conf_region *from = read ? &there : &here, *to = read ? &here : &there;
	conf_req req = {
		.verb = verb, .level = conf_best_level(pair->a), .bytes = bytes, .imm = (uint32_t)bytes};
	tn_event event;

	conf_region_make(&here, pair->a, room, TERN_ACCESS_NONE);
	conf_region_make(&there, pair->b, room, read ? TERN_ACCESS_READ : TERN_ACCESS_WRITE);
	memset(to->ptr, 0xcc, room);
	conf_fill(from->ptr + from_at, bytes, bytes);
	req.local = here.ptr + (read ? to_at : from_at);
	req.key = there.key;
	req.offset = read ? from_at : to_at;
	CONF_OK(conf_do(pair, &lane->a, &req));
	if (verb == CONF_WRITE_IMM) {
		event = conf_inbox_wait(pair, pair->b);
		assert_int_equal(event.type, TN_EV_IMM);
		assert_int_equal(event.imm, (uint32_t)bytes);
		assert_true(event.bytes == bytes);
		conf_recv_done(pair->b, &event);
	} else if (req.level == TN_LEVEL_LOCAL && !read) {
		conf_lane_works(pair, lane); /* its message says that all before it is placed */
	}
	conf_expect(to->ptr + to_at, bytes, bytes, "data");
	CONF_CHECK(conf_all(to->ptr, to_at, 0xcc) && conf_all(to->ptr + to_at + bytes, CANARY, 0xcc),
		   "bytes beside a transfer of %llu changed", (unsigned long long)bytes);
	conf_region_free(&here);
	conf_region_free(&there);
}

static void all_sizes(conf_verb verb)
{
	conf_pair pair;
	conf_lane lane;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		if (fits(&pair, sizes[i]))
			one_size(&pair, &lane, verb, sizes[i]);
	}
	conf_pair_close(&pair);
}

static void write_sizes(void)
{
	all_sizes(CONF_WRITE);
}

static void write_imm_sizes(void)
{
	all_sizes(CONF_WRITE_IMM);
}

static void read_sizes(void)
{
	all_sizes(CONF_READ);
}

/* At a REMOTE completion the bytes lie in the target, without any help of the target's later polls. */
static void remote_means_placed(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	const uint64_t room = 300000;
	conf_req req = {.verb = CONF_WRITE, .level = TN_LEVEL_REMOTE};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, room, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, room, TERN_ACCESS_WRITE);
	req.key = to.key;
	for (unsigned i = 1; i <= conf_rounds(200); i++) {
		uint32_t op;

		req.bytes = 1 + tn_rand_below(&pair.rand, i % 10 ? 5000 : room);
		req.offset = tn_rand_below(&pair.rand, room - req.bytes + 1);
		req.local = from.ptr + tn_rand_below(&pair.rand, room - req.bytes + 1);
		conf_fill(req.local, req.bytes, i);
		op = conf_post(&pair, &lane.a, &req);
		/* The check comes between the completion and the next poll of anybody. */
		CONF_UNTIL(&pair, conf_op_done(pair.a, op));
		CONF_OK(conf_op_status(pair.a, op));
		conf_expect(to.ptr + req.offset, req.bytes, i, "placed at REMOTE");
	}
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* At a LOCAL completion the source may be scribbled over: the target gets what it held before. */
static void local_frees_the_source(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	enum { WINDOW = 8, ROOM = 40000 };
	conf_req req = {.verb = CONF_WRITE, .level = TN_LEVEL_LOCAL};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, WINDOW * ROOM, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, WINDOW * ROOM, TERN_ACCESS_WRITE);
	req.key = to.key;
	for (unsigned round = 0; round < conf_rounds(100); round++) {
		uint32_t ops[WINDOW];
		uint64_t bytes[WINDOW];
		bool wiped[WINDOW] = {false};
		unsigned left = WINDOW;

		for (unsigned i = 0; i < WINDOW; i++) {
			bytes[i] = 1 + tn_rand_below(&pair.rand, i % 2 ? 100 : ROOM);
			req.local = from.ptr + i * ROOM;
			req.bytes = bytes[i];
			req.offset = i * ROOM;
			conf_fill(req.local, req.bytes, round * WINDOW + i);
			ops[i] = conf_post(&pair, &lane.a, &req);
			if (conf_op_done(pair.a, ops[i]))
				memset(req.local, 0x11, req.bytes);
		}
		while (left > 0) {
			left = WINDOW;
			for (unsigned i = 0; i < WINDOW; i++) {
				if (conf_op_done(pair.a, ops[i])) {
					if (!wiped[i])
						memset(from.ptr + i * ROOM, 0x11, bytes[i]);
					wiped[i] = true;
					left--;
				}
			}
			CONF_HERE();
			(void)conf_pump(&pair);
		}
		conf_lane_works(&pair, &lane);
		for (unsigned i = 0; i < WINDOW; i++)
			conf_expect(to.ptr + i * ROOM, bytes[i], round * WINDOW + i,
				    "written before the wipe");
	}
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/*
 * Notification orders: pieces are written to an area, then its number is notified; at the notification all
 * of it is there. Several areas are under way at a time, on one lane.
 */
enum { AREAS = 8, PIECES = 5, AREA_BYTES = 30000 };

static void check_area(conf_region *to, uint32_t round)
{
	conf_expect(to->ptr + (uint64_t)(round % AREAS) * AREA_BYTES, AREA_BYTES, round,
		    "at its notification");
}

static void post_area(conf_pair *pair, conf_lane *lane, conf_region *from, conf_region *to, uint32_t round,
		      bool by_message)
{
	uint64_t base = (uint64_t)(round % AREAS) * AREA_BYTES, at = 0;
	conf_req req = {.verb = CONF_WRITE, .key = to->key, .more = true};

	conf_fill(from->ptr + base, AREA_BYTES, round);
	for (unsigned i = 0; i < PIECES; i++) {
		uint64_t end =
			i == PIECES - 1 ? AREA_BYTES : at + tn_rand_below(&pair->rand, AREA_BYTES - at + 1);

		req.level = i % 2 ? conf_best_level(pair->a) : TN_LEVEL_LOCAL;
		req.local = from->ptr + base + at;
		req.offset = base + at;
		req.bytes = end - at;
		if (i == PIECES - 1 && !by_message) {
			req.verb = CONF_WRITE_IMM;
			req.imm = round;
			req.more = false;
		}
		conf_must(pair, &lane->a, &req);
		at = end;
	}
	if (by_message) {
		/* The message's bytes have to stay until its completion, so they lie beside their area. */
		uint8_t *text = from->ptr + (uint64_t)AREAS * AREA_BYTES + 4ull * (round % AREAS);

		memcpy(text, &round, 4);
		req = (conf_req){.verb = CONF_SEND, .local = text, .bytes = 4};
		conf_must(pair, &lane->a, &req);
	}
}

static void notification_orders(bool by_message)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	uint32_t posted = 0, seen = 0, rounds = conf_rounds(1000);

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, AREAS * AREA_BYTES + 64, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, AREAS * AREA_BYTES, TERN_ACCESS_WRITE);
	while (seen < rounds) {
		tn_event event;
		uint32_t number;

		/* A source is free only when its ops are done, too: the ledger says so for all. */
		if (posted < rounds && posted - seen < AREAS && (posted % AREAS || conf_ledger_done(pair.a)))
			post_area(&pair, &lane, &from, &to, posted++, by_message);
		CONF_HERE();
		(void)conf_pump(&pair);
		if (!conf_inbox_take(pair.b, &event))
			continue;
		number = event.imm;
		if (by_message)
			memcpy(&number, event.buf, 4);
		CONF_CHECK(event.type == (by_message ? TN_EV_RECV : TN_EV_IMM) && number == seen,
			   "notification %u instead of %u", number, seen);
		check_area(&to, seen);
		conf_recv_done(pair.b, &event);
		seen++;
	}
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

static void immediate_orders_writes(void)
{
	notification_orders(false);
}

static void message_orders_writes(void)
{
	notification_orders(true);
}

/* With the capability, a flag word is never seen before the data that was written ahead of it. */
static void flag_word_follows_data(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	conf_req data = {.verb = CONF_WRITE}, flag = {.verb = CONF_WRITE, .bytes = 8};

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 65536, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 65536, TERN_ACCESS_WRITE);
	data.key = flag.key = to.key;
	data.local = from.ptr + 64;
	data.offset = 64;
	flag.local = from.ptr;
	for (uint64_t i = 1; i <= conf_rounds(500); i++) {
		_Atomic uint64_t *word = (_Atomic uint64_t *)(void *)to.ptr;

		data.bytes = 1 + tn_rand_below(&pair.rand, 60000);
		conf_fill(data.local, data.bytes, i);
		memcpy(flag.local, &i, 8);
		conf_must(&pair, &lane.a, &data);
		conf_must(&pair, &lane.a, &flag);
		CONF_UNTIL(&pair, atomic_load_explicit(word, memory_order_acquire) == i);
		conf_expect(to.ptr + 64, data.bytes, i, "before its flag");
		CONF_UNTIL(&pair, conf_ledger_done(pair.a));
		conf_ledger_settle(pair.a);
	}
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* Messages arrive whole, in order, unchanged, however they are cut into pieces of memory. */
static void messages_arrive_whole(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from;
	enum { N = 16 };
	uint64_t bytes[N];

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	uint64_t room = pair.a->caps.send_bytes_max;
	conf_region_make(&from, pair.a, N * room, TERN_ACCESS_NONE);
	for (unsigned i = 0, got = 0; got < conf_rounds(1000); i++) {
		tn_iov iov[TN_IOV_MAX];
		conf_req req = {.verb = CONF_SEND,
				.iov = iov,
				.iov_count = 1 + (int)tn_rand_below(&pair.rand, TN_IOV_MAX)};
		uint64_t at = 0;
		unsigned in_flight = pair.a->caps.lane_recv_slots < N ? pair.a->caps.lane_recv_slots : N;
		tn_event event;

		bytes[i % N] = i % 7 == 0 ? room : tn_rand_below(&pair.rand, i % 2 ? 100 : room + 1);
		conf_fill(from.ptr + (i % N) * room, bytes[i % N], i);
		for (int p = 0; p < req.iov_count; p++) {
			uint64_t left = bytes[i % N] - at;

			iov[p].base = from.ptr + (i % N) * room + at;
			iov[p].bytes = p == req.iov_count - 1 ? left : tn_rand_below(&pair.rand, left + 1);
			at += iov[p].bytes;
		}
		conf_must(&pair, &lane.a, &req);
		while (i + 1 - got >= in_flight) {
			event = conf_inbox_wait(&pair, pair.b);
			assert_int_equal(event.type, TN_EV_RECV);
			assert_true(event.bytes == bytes[got % N]);
			conf_expect(event.buf, event.bytes, got, "message");
			conf_recv_done(pair.b, &event);
			got++;
		}
		CONF_UNTIL(&pair, conf_ledger_done(pair.a) || i % N);
	}
	CONF_UNTIL(&pair, conf_ledger_done(pair.a));
	conf_region_free(&from);
	conf_pair_close(&pair);
}

/* Memory that the library did not allocate works or is refused at once; verbs needs it registered. */
static void foreign_memory(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region to;
	uint8_t *foreign = malloc(5000);
	conf_req req = {.verb = CONF_WRITE, .local = foreign, .bytes = 5000};
	tern_status status;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&to, pair.b, 5000, TERN_ACCESS_WRITE);
	conf_fill(foreign, 5000, 3);
	req.key = to.key;
	req.level = conf_best_level(pair.a);
	status = conf_do(&pair, &lane.a, &req);
	if (status == TERN_OK) {
		conf_lane_works(&pair, &lane);
		conf_expect(to.ptr, 5000, 3, "from foreign memory");
	} else {
		assert_int_equal(status, TERN_E_INVALID);
	}
	conf_region_free(&to);
	conf_pair_close(&pair);
	free(foreign);
}

const conf_case conf_cases_data[] = {
	{.name = "write_sizes", .run = write_sizes, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "write_imm_sizes", .run = write_imm_sizes, .needs = TN_CAP_WRITE_IMM},
	{.name = "read_sizes", .run = read_sizes, .needs = TN_CAP_READ},
	{.name = "remote_means_placed",
	 .run = remote_means_placed,
	 .needs = TN_CAP_WRITE | TN_CAP_REMOTE_DONE},
	{.name = "local_frees_the_source",
	 .run = local_frees_the_source,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "immediate_orders_writes",
	 .run = immediate_orders_writes,
	 .needs = TN_CAP_WRITE | TN_CAP_WRITE_IMM},
	{.name = "message_orders_writes", .run = message_orders_writes, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "flag_word_follows_data",
	 .run = flag_word_follows_data,
	 .needs = TN_CAP_WRITE | TN_CAP_ORDERED_WRITES},
	{.name = "messages_arrive_whole", .run = messages_arrive_whole, .needs = TN_CAP_SEND},
	{.name = "foreign_memory", .run = foreign_memory, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{0},
};
