/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops of a link, step by step: what ends them and when, order and lanes of transfers, small before bulk, and
 * the fast path beside the ordinary one.
 */
#include "link/wire.h"
#include "unit/link/record.h"

static uint8_t data[4 << 20];

/* Ends of paths at side 0 hold what they are given until let_go. */
static void hold(void)
{
	world.mute = true;
}

static void let_go(void)
{
	world.mute = false;
	run();
}

/* ---- cancel and deadline ---- */

static void cancel_queued(void **state)
{
	uint32_t channel, far;
	record_op first, second;

	(void)state;
	record_init();
	world.node[1].config.channel_window_bytes = 4096;
	record_start();
	channel = open_channel("c", &far);
	tn_link_channel_pause(link_of(1), far);
	assert_ok(send_at(0, channel, data, 9000, TN_LINK_LOCAL, &first));
	assert_ok(send_at(0, channel, data, 100, TN_LINK_LOCAL, &second));
	run();
	assert_false(second.done);
	assert_ok(tn_link_cancel(link_of(0), second.handle, world.now));
	assert_status(tn_link_cancel(link_of(0), second.handle, world.now), TERN_E_NOT_FOUND);
	pump(0);
	assert_true(second.done && second.status == TERN_E_CANCELED);
	/* One that is half-way: the peer is told to forget it. */
	assert_ok(tn_link_cancel(link_of(0), first.handle, world.now));
	run();
	assert_true(first.done && first.status == TERN_E_CANCELED);
	assert_int_equal(rec.side[1].aborts, 1);
	tn_link_channel_resume(link_of(1), far);
	assert_ok(send_at(0, channel, data, 3000, TN_LINK_LOCAL, &first));
	run();
	assert_int_equal(rec.side[1].messages, 1);
	pair_fini(&world);
}

/* A buffer that a device holds comes back with its completion, never before. */
static void posted_ends_when_done(void **state)
{
	static const struct {
		bool deadline;
		tern_status wanted;
	} cases[] = {{false, TERN_OK}, {true, TERN_E_DEADLINE}};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(cases); i++) {
		uint32_t channel;
		record_op op;

		record_init();
		record_start();
		channel = open_channel("c", NULL);
		hold();
		assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, 1000, 0, &op));
		pump(0);
		if (cases[i].deadline) {
			/* As its own timer would. */
			record_op timed;
			tn_link_op_params params = {.user = &timed, .deadline_ns = world.now + 1000};
			uint8_t key[TN_LINK_KEY_BYTES] = {0};
			tn_link_xfer xfer = {.type = TN_XFER_PUT, .local = data, .bytes = 100, .key = key};

			memset(&timed, 0, sizeof(timed));
			assert_ok(tn_link_transfer(link_of(0), channel, &xfer, &params, &timed.handle));
			pump(0);
			world.now += 2000;
			tn_link_on_time(link_of(0), world.now);
			pump(0);
			assert_false(timed.done);
			let_go();
			assert_true(timed.done && timed.status == cases[i].wanted);
		} else {
			assert_ok(tn_link_cancel(link_of(0), op.handle, world.now));
			pump(0);
			assert_false(op.done);
			let_go();
			assert_true(op.status == cases[i].wanted); /* it got through */
		}
		assert_true(op.done);
		pair_fini(&world);
	}
}

static void deadline_while_waiting(void **state)
{
	uint32_t channel, far;
	tn_link_op_params params = {.deadline_ns = 0};
	tn_link_iov iov = {data, 9000};
	record_op op = {0};

	(void)state;
	record_init();
	world.node[1].config.channel_window_bytes = 2048;
	record_start();
	channel = open_channel("c", &far);
	tn_link_channel_pause(link_of(1), far);
	params.user = &op;
	params.deadline_ns = world.now + 5000;
	assert_ok(tn_link_send(link_of(0), channel, &iov, 1, &params, &op.handle));
	run();
	assert_true(tn_link_next_wake(link_of(0)) <= world.now + 5000);
	world.now += 5000;
	tn_link_on_time(link_of(0), world.now);
	run();
	assert_true(op.done && op.status == TERN_E_DEADLINE && op.length == 0);
	pair_fini(&world);
}

/* ---- failures of pieces ---- */

static void refused_by_the_target(void **state)
{
	uint32_t channel;
	record_op put, notify, flag, get, good;

	(void)state;
	record_init();
	record_start();
	channel = open_channel("c", NULL);
	rec.access_status = TERN_E_STALE_KEY;
	assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, 3 << 20, 0, &put));
	assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, data, 3 << 20, 1, &notify));
	assert_ok(xfer_at(0, channel, TN_XFER_PUT_FLAG, data, 100, 1, &flag));
	assert_ok(xfer_at(0, channel, TN_XFER_GET, data, 100, 1, &get));
	run();
	assert_true(put.done && put.status == TERN_E_STALE_KEY && put.length == 0);
	assert_true(notify.status == TERN_E_STALE_KEY && flag.status == TERN_E_STALE_KEY &&
		    get.status == TERN_E_STALE_KEY);
	/* No notification of data that is not there; the link goes on. */
	assert_int_equal(rec.side[1].notifies, 0);
	rec.access_status = TERN_OK;
	assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, data, 100, 7, &good));
	run();
	assert_true(good.status == TERN_OK);
	assert_int_equal(rec.side[1].notifies, 1);
	pair_fini(&world);
}

static void path_breaks(void **state)
{
	uint32_t channel;
	record_op put, get, message, queued[4];

	(void)state;
	record_init();
	world.node[0].config.recover_ns = 0; /* of one side is enough */
	world.node[0].config.window_bytes = 1 << 20;
	record_start();
	channel = open_channel("c", NULL);
	hold();
	assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, 1 << 20, 0, &put));
	pump(0);
	assert_ok(send_at(0, channel, data, 100, TN_LINK_REMOTE, &message));
	for (int i = 0; i < 4; i++)
		assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, 1 << 20, 0, &queued[i]));
	assert_ok(xfer_at(0, channel, TN_XFER_GET, data, 100000, 0, &get));
	pump(0);
	world.mute = false;
	pair_break(&world, &world.paths[TN_LINK_LANES_MAX + 1]);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
	/* Only the put that was on its way is unknown. */
	assert_string_equal(tern_status_name(put.status), "TERN_E_INDETERMINATE");
	assert_true(queued[3].status == TERN_E_LANE && get.status == TERN_E_LANE);
	assert_true(message.done);
	pair_fini(&world);
}

/* ---- order and lanes ---- */

static void small_before_bulk(void **state)
{
	uint32_t bulk, small;
	record_op ops[4], op;
	uint32_t at;

	(void)state;
	record_init();
	world.node[0].config.window_bytes = 2 << 20;
	record_start();
	bulk = open_channel("bulk", NULL);
	small = open_channel("small", NULL);
	hold();
	for (int i = 0; i < 4; i++)
		assert_ok(xfer_at(0, bulk, TN_XFER_PUT, data, 4 << 20, 0, &ops[i]));
	pump(0);
	/* The window is full of bulk; a small put and a get go all the same, over lane 0. */
	assert_ok(xfer_at(0, small, TN_XFER_PUT, data, 4096, 0, &op));
	pump(0);
	at = world.paths[TN_LINK_LANES_MAX].end[0].queue_count;
	assert_true(at > 0);
	assert_int_equal(world.paths[TN_LINK_LANES_MAX].end[0].queue[at - 1].post.bytes, 4096);
	let_go();
	assert_true(op.done && ops[3].done);
	pair_fini(&world);
}

static void pieces_and_windows(void **state)
{
	uint32_t channel;
	record_op op, get;
	uint64_t sum = 0;

	(void)state;
	record_init();
	world.node[0].config.chunk_bytes = 100000;
	record_start();
	channel = open_channel("c", NULL);
	assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, data, 1234567, 99, &op));
	run();
	assert_true(op.status == TERN_OK && op.length == 1234567);
	for (uint32_t i = 0; i < rec.accesses; i++) {
		assert_int_equal(rec.access[i].offset, sum);
		assert_true(rec.access[i].bytes <= 100000);
		assert_ptr_equal(rec.access[i].local, data + sum);
		sum += rec.access[i].bytes;
		assert_int_equal(rec.access[i].last, sum == 1234567);
		assert_int_equal(rec.access[i].whole, 1234567);
	}
	assert_int_equal(sum, 1234567);
	assert_int_equal(rec.side[1].rx[0].value, 99);
	assert_int_equal(rec.side[1].rx[0].bytes, 1234567);
	/* Nobody is told of these. */
	rec.accesses = 0;
	assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, 234567, 0, &op));
	assert_ok(xfer_at(0, channel, TN_XFER_GET, data, 234567, 0, &get));
	run();
	assert_true(op.done && get.done && rec.accesses == 6);
	for (uint32_t i = 0; i < rec.accesses; i++)
		assert_false(rec.access[i].last);
	pair_fini(&world);
}

/* Nothing to move still notifies, writes its flag, ends. */
static void zero_bytes(void **state)
{
	static const tn_link_xfer_type types[] = {TN_XFER_PUT, TN_XFER_GET, TN_XFER_PUT_NOTIFY,
						  TN_XFER_PUT_FLAG};
	uint32_t channel;
	record_op op;

	(void)state;
	record_init();
	record_start();
	channel = open_channel("c", NULL);
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(xfer_at(0, channel, types[i], NULL, 0, 5, &op));
		run();
		assert_true(op.done && op.status == TERN_OK);
	}
	assert_int_equal(rec.side[1].notifies, 1);
	assert_int_equal(rec.accesses, 1);
	assert_int_equal(rec.access[0].bytes, 8);
	assert_ok(send_at(0, channel, NULL, 0, TN_LINK_REMOTE, &op));
	run();
	assert_true(op.status == TERN_OK && rec.side[1].messages == 1);
	pair_fini(&world);
}

static void unsupported(void **state)
{
	uint32_t channel;
	record_op op;

	(void)state;
	record_init();
	for (int i = 0; i < 2; i++)
		world.node[i].providers[0].caps = TN_LINK_CAP_WRITE | TN_LINK_CAP_SEND;
	record_start();
	channel = open_channel("c", NULL);
	assert_status(xfer_at(0, channel, TN_XFER_GET, data, 8, 0, &op), TERN_E_UNSUPPORTED);
	assert_status(xfer_at(0, channel, TN_XFER_PUT_FLAG, data, 8, 0, &op), TERN_E_UNSUPPORTED);
	assert_status(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, data, 8, 1u << 24, &op), TERN_E_INVALID);
	/* Without immediates and without completion at the remote level: by frames. */
	assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, data, 8, 77, &op));
	run();
	assert_true(op.status == TERN_OK && rec.side[1].notifies == 1 && rec.side[1].rx[0].value == 77);
	assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, 100000, 0, &op));
	run();
	assert_true(op.status == TERN_OK);
	pair_fini(&world);
}

/* REMOTE waits for the peer's word; LOCAL does not. */
static void levels(void **state)
{
	uint32_t channel;
	record_op local, remote;
	pair_end *end;

	(void)state;
	record_init();
	world.sync = 100; /* the device copies at the post */
	record_start();
	channel = open_channel("c", NULL);
	assert_ok(send_at(0, channel, data, 50, TN_LINK_LOCAL, &local));
	assert_ok(send_at(0, channel, data, 50, TN_LINK_REMOTE, &remote));
	pump(0);
	assert_true(local.done && local.status == TERN_OK);
	assert_false(remote.done);
	end = &world.paths[TN_LINK_LANES_MAX].end[1];
	assert_int_equal(end->event_count, 2);
	run();
	assert_true(remote.done && remote.status == TERN_OK);
	pair_fini(&world);
}

/* ---- the fast path ---- */

static tn_link_fast fast;

static tn_link_fast_result go_fast(tern_status status, bool done, uint64_t *op)
{
	return tn_link_fast_posted(link_of(0), &fast, status, done, op);
}

static void fast_paths(void **state)
{
	uint8_t key[TN_LINK_KEY_BYTES] = {0};
	record_op op = {0}, slow;
	tn_link_op_params params = {.user = &op, .deadline_ns = UINT64_MAX};
	tn_link_xfer xfer = {.type = TN_XFER_PUT_NOTIFY,
			     .local = data,
			     .bytes = 8,
			     .key = key,
			     .value = 3,
			     .flag_key = key};
	tn_link_iov iov = {data, 8};
	uint32_t channel;
	bool done;

	(void)state;
	record_init();
	world.sync = 100;
	record_start();
	assert_ok(tn_link_channel_open(link_of(0), "c", NULL, 0, &channel));
	assert_false(tn_link_fast_send(link_of(0), channel, &iov, 1, &params, &fast)); /* no answer yet */
	run();

	/* AGAIN leaves no trace. */
	assert_true(tn_link_fast_xfer(link_of(0), channel, &xfer, &params, &fast));
	assert_int_equal(fast.post.type, TN_POST_WRITE_IMM);
	assert_int_equal(go_fast(TERN_AGAIN, false, &op.handle), TN_FAST_AGAIN);
	assert_true(tn_link_fast_send(link_of(0), channel, &iov, 1, &params, &fast));
	assert_int_equal(go_fast(TERN_E_INVALID, false, &op.handle), TN_FAST_FAILED);
	tn_link_check(link_of(0), 2);

	/* Complete at once. */
	assert_true(tn_link_fast_xfer(link_of(0), channel, &xfer, &params, &fast));
	assert_ok(pair_post(&world, 0, &fast.post, &done));
	assert_int_equal(go_fast(TERN_OK, done, &op.handle), TN_FAST_COMPLETE);
	assert_true(tn_link_fast_send(link_of(0), channel, &iov, 1, &params, &fast));
	assert_ok(pair_post(&world, 0, &fast.post, &done));
	assert_int_equal(go_fast(TERN_OK, done, &op.handle), TN_FAST_COMPLETE);
	run();
	assert_true(rec.side[1].notifies == 1 && rec.side[1].messages == 1 && !op.done);

	/* Kept by the device: the ordinary end. Meanwhile order holds. */
	world.sync = 0;
	assert_true(tn_link_fast_xfer(link_of(0), channel, &xfer, &params, &fast));
	assert_ok(pair_post(&world, 0, &fast.post, &done));
	assert_int_equal(go_fast(TERN_OK, done, &op.handle), TN_FAST_PENDING);
	run();
	assert_true(op.done && op.status == TERN_OK && rec.side[1].notifies == 2);

	/* Data, then the flag; the flag is refused for now: the op waits with its data behind it. */
	world.sync = 100;
	xfer.type = TN_XFER_PUT_FLAG;
	op.done = false;
	assert_true(tn_link_fast_xfer(link_of(0), channel, &xfer, &params, &fast));
	assert_ok(pair_post(&world, 0, &fast.post, &done));
	assert_int_equal(go_fast(TERN_OK, done, &op.handle), TN_FAST_MORE);
	assert_int_equal(fast.post.bytes, 8);
	assert_int_equal(go_fast(TERN_AGAIN, false, &op.handle), TN_FAST_PENDING);
	run();
	assert_true(op.done && op.status == TERN_OK);

	/* Never past what waits. */
	assert_ok(send_at(0, channel, data, 100, TN_LINK_LOCAL, &slow));
	assert_false(tn_link_fast_send(link_of(0), channel, &iov, 1, &params, &fast));
	run();
	assert_true(slow.done);
	pair_fini(&world);
}

/* Over a stream a frame that the link owes is ahead of a message that follows, and both leave together: the fast path knows
   of one post alone. */
static void owed_frames_first(void **state)
{
	static const uint8_t types[] = {TN_FRAME_WINDOW, TN_FRAME_DATA};
	tn_link_op_params params = {.deadline_ns = UINT64_MAX};
	tn_link_iov iov = {data, 8};
	uint32_t channel, far;
	record_op op, next, answer;
	tn_link_action act;
	bool done;

	(void)state;
	record_init();
	for (unsigned side = 0; side < 2; side++) {
		world.node[side].config.channel_window_bytes = 4096;
		world.node[side].providers[0].streams = true;
		world.node[side].providers[0].caps |= TN_LINK_CAP_REMOTE_DONE | TN_LINK_CAP_ORDERED_WRITES;
	}
	record_start();
	channel = open_channel("c", &far);
	tn_link_channel_pause(link_of(1), far);
	assert_ok(send_at(0, channel, data, 1500, TN_LINK_LOCAL, &op));
	assert_ok(send_at(0, channel, data, 1500, TN_LINK_LOCAL, &next));
	run();
	assert_true(tn_link_fast_send(link_of(1), far, &iov, 1, &params, &fast));
	tn_link_fast_posted(link_of(1), &fast, TERN_AGAIN, false, &op.handle);
	tn_link_channel_resume(link_of(1), far);
	assert_false(tn_link_fast_send(link_of(1), far, &iov, 1, &params, &fast));
	assert_ok(send_at(1, far, data, 8, TN_LINK_LOCAL, &answer));
	for (unsigned i = 0; i < TN_COUNT_OF(types); i++) {
		assert_true(tn_link_next_action(link_of(1), world.now, &act));
		assert_int_equal(act.type, TN_ACT_POST);
		assert_int_equal(*(const uint8_t *)act.post.iov[0].base, types[i]);
		assert_ok(pair_post(&world, 1, &act.post, &done));
		tn_link_posted(link_of(1), &act.post, TERN_OK, done, world.now);
	}
	run();
	assert_true(answer.done && rec.side[0].messages == 1);
	assert_true(tn_link_fast_send(link_of(1), far, &iov, 1, &params, &fast));
	tn_link_fast_posted(link_of(1), &fast, TERN_AGAIN, false, &op.handle);
	pair_fini(&world);
}

static uint64_t copied;

static tern_status counting_copy(void *to, const void *from, uint64_t bytes, void *arg)
{
	(void)arg;
	memcpy(to, from, bytes);
	copied += bytes;
	return TERN_OK;
}

/* The log has a copy of a long payload when its post is over, of a short one before. */
static void late_copies(void **state)
{
	uint32_t channel;
	record_op op;

	(void)state;
	record_init();
	world.sync = 0; /* no post is over when it returns */
	world.node[0].config.copy = counting_copy;
	record_start();
	channel = open_channel("c", NULL);
	for (unsigned i = 0; i < 2; i++) {
		uint64_t bytes = i ? 100000 : 100;

		copied = 0;
		hold();
		assert_ok(send_at(0, channel, data, bytes, TN_LINK_LOCAL, &op));
		pump(0);
		assert_int_equal(copied, i ? 0 : bytes);
		assert_false(op.done);
		let_go();
		assert_true(op.done);
		assert_in_range(copied, i ? 1 : bytes, bytes); /* less if the peer said sooner that it came */
	}
	pair_fini(&world);
}

/* Over when it is posted: no op, no wr, and what the device did not take leaves no trace. */
static void brief_messages(void **state)
{
	uint8_t bytes[100] = {1, 2, 3};
	tn_link_iov iov = {bytes, sizeof(bytes)};
	tn_link_brief brief;
	uint32_t channel;
	record_op slow;

	(void)state;
	record_init();
	record_start();
	assert_ok(tn_link_channel_open(link_of(0), "c", NULL, 0, &channel));
	assert_false(tn_link_brief_send(link_of(0), channel, iov.bytes, &brief)); /* no answer yet */
	run();
	assert_true(tn_link_brief_send(link_of(0), channel, iov.bytes, &brief));
	assert_false(tn_link_pending(link_of(0)));
	tn_link_check(link_of(0), 2);
	for (int i = 0; i < 3; i++) {
		assert_true(tn_link_brief_send(link_of(0), channel, iov.bytes, &brief));
		assert_true(pair_post_brief(&world, 0, &brief, &iov, 1));
		tn_link_brief_sent(link_of(0), channel, &brief, &iov, 1, iov.bytes);
		tn_link_check(link_of(0), 2);
	}
	run();
	assert_int_equal(rec.side[1].messages, 3);

	/* Never past what waits, nor longer than a frame, nor over a channel that is closed. */
	assert_ok(send_at(0, channel, bytes, 100, TN_LINK_LOCAL, &slow));
	assert_false(tn_link_brief_send(link_of(0), channel, iov.bytes, &brief));
	run();
	assert_true(slow.done);
	assert_false(tn_link_brief_send(link_of(0), channel, UINT32_MAX, &brief));
	tn_link_channel_close(link_of(0), channel, true);
	assert_false(tn_link_brief_send(link_of(0), channel, iov.bytes, &brief));
	run();
	assert_int_equal(rec.side[1].messages, 4);
	pair_fini(&world);
}

static bool may_access(const tn_link *link, uint32_t channel, uint64_t bytes, uint32_t caps)
{
	tn_link_way way;

	return tn_link_access(link, channel, &way) && bytes <= way.bytes_max && (way.caps & caps) == caps;
}

/* What is over when its post returns: allowed where nothing stands before it, and nothing is kept of it. */
static void accesses(void **state)
{
	tn_link *link = NULL;
	record_op slow;
	uint32_t channel, other;
	tn_link_way way;
	uint64_t small = 8 << 10;

	(void)state;
	record_init();
	record_start();
	link = link_of(0);
	assert_ok(tn_link_channel_open(link, "c", NULL, 0, &channel));
	assert_false(may_access(link, channel, 8, 0)); /* no answer yet */
	run();
	assert_true(may_access(link, channel, 8, 0));
	tn_link_accessed(link, false);
	assert_true(may_access(link, channel, 8, TN_LINK_CAP_READ));
	tn_link_accessed(link, true);
	tn_link_check(link, 2);

	assert_true(tn_link_access(link, channel, &way));
	assert_true(way.bytes_max > small); /* what is over at once needs no window */
	assert_ok(tn_link_channel_open(link, "d", NULL, 0, &other));
	run();
	assert_ok(xfer_at(0, other, TN_XFER_PUT, data, sizeof(data), 0, &slow));
	assert_true(tn_link_access(link, channel, &way));
	assert_int_equal(way.bytes_max, small); /* but passes no bulk that waits */
	run();
	assert_true(slow.done && slow.status == TERN_OK);
	assert_true(tn_link_access(link, channel, &way));
	assert_true(way.bytes_max > small);
	assert_false(may_access(link, channel + (1u << 16), 8, 0));
	assert_false(may_access(link, channel + 2, 8, 0));

	assert_ok(xfer_at(0, channel, TN_XFER_PUT, data, sizeof(data), 0, &slow)); /* never past what waits */
	assert_false(may_access(link, channel, 8, 0));
	run();
	assert_true(slow.done && slow.status == TERN_OK);
	assert_true(may_access(link, channel, 8, 0));

	tn_link_channel_close(link, channel, false);
	assert_false(may_access(link, channel, 8, 0));
	pair_fini(&world);
}

static void no_access_without(uint32_t cap, uint32_t wanted)
{
	uint32_t channel;

	record_init();
	for (int i = 0; i < 2; i++)
		world.node[i].providers[0].caps &= ~cap;
	record_start();
	channel = open_channel("c", NULL);
	assert_false(may_access(link_of(0), channel, 8, wanted));
	pair_fini(&world);
}

/* A device whose completion says nothing of the target has no such accesses, nor one that lacks what they need. */
static void accesses_need_caps(void **state)
{
	(void)state;
	no_access_without(TN_LINK_CAP_REMOTE_DONE, 0);
	no_access_without(TN_LINK_CAP_READ, TN_LINK_CAP_READ);
	no_access_without(TN_LINK_CAP_ORDERED_WRITES, TN_LINK_CAP_ORDERED_WRITES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cancel_queued),
		cmocka_unit_test(posted_ends_when_done),
		cmocka_unit_test(deadline_while_waiting),
		cmocka_unit_test(refused_by_the_target),
		cmocka_unit_test(path_breaks),
		cmocka_unit_test(small_before_bulk),
		cmocka_unit_test(pieces_and_windows),
		cmocka_unit_test(zero_bytes),
		cmocka_unit_test(unsupported),
		cmocka_unit_test(levels),
		cmocka_unit_test(fast_paths),
		cmocka_unit_test(owed_frames_first),
		cmocka_unit_test(late_copies),
		cmocka_unit_test(brief_messages),
		cmocka_unit_test(accesses),
		cmocka_unit_test(accesses_need_caps),
	};

	return RUN(tests);
}
