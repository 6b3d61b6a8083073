/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ten thousand channels from 32 threads over one link; a receiver that stops consuming beside one that goes on; a
 * flag behind a long put while other threads put; operations that are cancelled and whose channels close under
 * them end once. Threads note failures; the main thread asserts. Run under the thread sanitizer too.
 */
#include <sched.h>

#include "workers.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHANNELS 1600
#else
#define CHANNELS 10000
#endif
#define THREADS  32
#define MESSAGES 3
#define LONG     (1u << 20)

static const char *const roomy[] = {"link.channels_max=20100", "link.ops_max=8192", NULL};

static uint64_t count_of(const side *s, const char *name)
{
	return tern_ctx_counter(s->ctx, name);
}

static uint64_t lanes_of(const side *s)
{
	char name[64];

	snprintf(name, sizeof(name), "%s.lanes", transport);
	return count_of(s, name);
}

static void nothing_lost(const pair *p)
{
	assert_int_equal(count_of(&p->dial, "link.dropped") + count_of(&p->serve, "link.dropped"), 0);
	assert_int_equal(count_of(&p->dial, "verbs.failed_rnr") + count_of(&p->serve, "verbs.failed_rnr"), 0);
}

/* A channel's row goes just after its last callback has returned: soon, not at once. */
static void none_live(const side *s)
{
	uint64_t end = tn_now() + PATIENCE;

	while (count_of(s, "channel.live") > 0 && tn_now() < end)
		sched_yield();
	assert_int_equal(count_of(s, "channel.live"), 0);
}

static void open_pair(pair *p,
		      tern_status (*accept)(tern_channel *channel, tern_channel_params *params, void *arg))
{
	tern_ctx_params params = {.transports = transport, .options = roomy};

	memset(p, 0, sizeof(*p));
	pthread_mutex_init(&p->serve.lock, NULL);
	assert_ok(tn_ctx_new(&params, &p->serve.ctx));
	assert_ok(tern_ctx_listen(p->serve.ctx, SERVICE, accept, &p->serve));
	assert_ok(tn_ctx_start(p->serve.ctx));
	side_open_params(&p->dial, &params);
	side_connect(&p->dial, &p->serve);
}

/* ---- ten thousand ---- */

typedef struct note {
	uint32_t thread, channel, number, check;
} note;

/* What the far end knows of a channel: whose it is, and how many came. */
typedef struct far_end {
	note last;
	uint32_t seen;
} far_end;

static atomic_int far_wrong, far_complete;

static uint32_t check_of(const note *n)
{
	return n->thread * 2654435761u ^ n->channel * 40503u ^ n->number;
}

static void far_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	far_end *f = arg;
	note n;

	(void)channel;
	if (bytes != sizeof(n)) {
		atomic_fetch_add(&far_wrong, 1);
		return;
	}
	memcpy(&n, msg, sizeof(n));
	if (n.check != check_of(&n) || n.number != f->seen ||
	    (f->seen > 0 && (n.thread != f->last.thread || n.channel != f->last.channel)))
		atomic_fetch_add(&far_wrong, 1);
	f->last = n;
	if (++f->seen == MESSAGES)
		atomic_fetch_add(&far_complete, 1);
}

static atomic_int far_closed;

static void far_ended(tern_channel *channel, tern_status status, void *arg)
{
	if (status != TERN_E_PEER_CLOSED)
		atomic_fetch_add(&far_wrong, 1);
	atomic_fetch_add(&far_closed, 1);
	free(arg);
	tern_channel_close(channel);
}

static tern_status far_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel, (void)arg;
	*params = (tern_channel_params){
		.on_message = far_message, .on_closed = far_ended, .arg = calloc(1, sizeof(far_end))};
	return TERN_OK;
}

/* Rounds over all channels of the thread, so that each has an operation in flight at a time. */
static void *many(void *arg)
{
	enum { OWN = CHANNELS / THREADS, ROOM = 64 };
	worker *w = arg;
	side *d = &w->p->dial;
	tern_channel *channels[OWN + 1];
	int own = OWN + (w->index < CHANNELS % THREADS);
	tern_op ops[ROOM] = {0};
	note notes[ROOM];
	unsigned n = 0;

	for (int i = 0; i < own; i++)
		CHECK(tern_channel_open(d->link, SERVICE, NULL, &channels[i]));
	for (int number = 0; number < MESSAGES; number++) {
		for (int i = 0; i < own; i++, n++) {
			note *at = &notes[n % ROOM];

			if (n >= ROOM)
				CHECK(tern_op_wait(d->ctx, &ops[n % ROOM], PATIENCE));
			*at = (note){.thread = (uint32_t)w->index,
				     .channel = (uint32_t)i,
				     .number = (uint32_t)number};
			at->check = check_of(at);
			ops[n % ROOM].flags = number == MESSAGES - 1 ? TERN_OP_REMOTE : 0;
			CHECK(submit(d->ctx, tern_send(channels[i], at, sizeof(*at), &ops[n % ROOM])));
		}
	}
	for (unsigned i = 0; i < ROOM && i < n; i++)
		CHECK(tern_op_wait(d->ctx, &ops[i], PATIENCE));
	for (int i = 0; i < own; i++)
		tern_channel_close(channels[i]);
	return NULL;
}

static void test_many_channels(void **state)
{
	static worker workers[THREADS];
	uint64_t lanes;
	pair p;

	(void)state;
	memset(workers, 0, sizeof(workers));
	far_wrong = far_complete = far_closed = 0;
	open_pair(&p, far_open);
	lanes = lanes_of(&p.dial);
	run_all(workers, THREADS, &p, many);
	if (!wait_for(p.serve.ctx, &far_closed, CHANNELS))
		fail_msg("%d of %d channels closed", (int)far_closed, CHANNELS);
	assert_int_equal(far_wrong, 0);
	assert_int_equal(far_complete, CHANNELS);
	assert_int_equal(lanes_of(&p.dial), lanes);
	nothing_lost(&p);
	none_live(&p.dial);
	none_live(&p.serve);
	/* Rows come back: as many once more, while the last of these may still be closing. */
	far_complete = far_closed = 0;
	run_all(workers, THREADS, &p, many);
	assert_true(wait_for(p.serve.ctx, &far_closed, CHANNELS));
	assert_int_equal(far_wrong, 0);
	pair_close(&p);
}

/* The limit is told with its remedy. */
static void test_limit_in_words(void **state)
{
	tern_channel *channel;
	tern_status status;
	int n = 0;
	pair p;

	(void)state;
	pair_open(&p);
	while ((status = tern_channel_open(p.dial.link, SERVICE, NULL, &channel)) == TERN_OK)
		assert_true(++n < 10000);
	assert_status(status, TERN_E_LIMIT);
	assert_non_null(strstr(tern_detail(), "link.channels_max"));
	pair_close(&p);
}

/* ---- a receiver that stops ---- */

#define PIECE 4096u
#define ROOM  900u

/* Until nothing more goes through for a while. Returns what was accepted; *through: what ended. */
static unsigned fill_up(side *d, tern_channel *channel, tern_op *ops, uint8_t *src, unsigned *through)
{
	unsigned sent = 0;

	for (unsigned quiet = 0, before = 0; quiet < 40; quiet = *through == before ? quiet + 1 : 0) {
		before = *through;
		while (sent < ROOM) {
			fill(src + (size_t)sent * PIECE, PIECE, sent);
			if (tern_send(channel, src + (size_t)sent * PIECE, PIECE, &ops[sent]) != TERN_OK)
				break;
			sent++;
		}
		*through = 0;
		for (unsigned i = 0; i < sent; i++)
			*through += tern_op_test(&ops[i]) == TERN_OK;
		tern_ctx_wait(d->ctx, TN_NS_PER_MS);
	}
	return sent;
}

static void test_stalled_receiver(void **state)
{
	static tern_op ops[ROOM];
	uint8_t *src = malloc((size_t)ROOM * PIECE), buf[PIECE];
	tern_channel *stalled, *far;
	unsigned sent, through = 0;
	int arrived;
	pair p;

	(void)state;
	memset(ops, 0, sizeof(ops));
	pair_open(&p);
	p.serve.no_on_message = true;
	assert_ok(tern_channel_open(p.dial.link, SERVICE, NULL, &stalled));
	assert_comes(&p.serve, opens, 2);
	far = serve_channel(&p.serve);
	sent = fill_up(&p.dial, stalled, ops, src, &through);
	/* Its window and its inbox, a MiB each, and then no more. */
	assert_true(through < sent);
	assert_true(through >= 64 && (uint64_t)through * PIECE <= 4u << 20);
	/* The other channel goes on. */
	arrived = atomic_load(&p.serve.messages);
	for (int i = 0; i < 2000; i++) {
		tern_op op = {.flags = i % 100 ? 0 : TERN_OP_REMOTE};

		assert_ok(complete(p.dial.ctx, &op, tern_send(p.dial.channel, "on", 2, &op)));
	}
	assert_comes(&p.serve, messages, arrived + 2000);
	assert_true(tern_op_test(&ops[sent - 1]) == TERN_AGAIN);
	nothing_lost(&p);
	/* It consumes again: all of it, in order. */
	for (unsigned i = 0; i < sent; i++) {
		tern_op op = {0};

		assert_ok(complete(p.serve.ctx, &op, tern_recv(far, buf, sizeof(buf), &op)));
		assert_int_equal(op.length, PIECE);
		assert_true(filled(buf, PIECE, i));
	}
	for (unsigned i = 0; i < sent; i++)
		assert_ok(tern_op_wait(p.dial.ctx, &ops[i], PATIENCE));
	nothing_lost(&p);
	pair_close(&p);
	free(src);
}

/* ---- a flag behind a long put ---- */

static atomic_uint flag_taken;
static atomic_bool flags_over;
static uint8_t *flag_memory;

/* Others that put: a piece of this thread's may be moved by another. */
static void *put_beside(void *arg)
{
	worker *w = arg;
	side *d = &w->p->dial;
	tern_channel *channel;
	uint8_t *src;

	CHECK(tern_channel_open(d->link, SERVICE, NULL, &channel));
	CHECK(tern_mem_alloc(tern_ctx_mem(d->ctx), LONG, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&src));
	memset(src, w->index, LONG);
	while (!atomic_load(&flags_over)) {
		uint64_t bytes = w->index % 2 ? LONG : 48;
		tern_op op = {0};

		CHECK(complete(d->ctx, &op,
			       tern_put(channel, src, bytes, &w->key, (uint64_t)w->index * LONG, &op)));
	}
	tern_mem_free(tern_ctx_mem(d->ctx), src);
	return NULL;
}

static void *put_flags(void *arg)
{
	enum { FLAGS = 60 };
	worker *w = arg;
	side *d = &w->p->dial;
	uint8_t *src;

	CHECK(tern_mem_alloc(tern_ctx_mem(d->ctx), LONG, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&src));
	for (uint32_t i = 1; i <= FLAGS; i++) {
		tern_op put = {0}, flag = {0};

		fill(src, LONG - 8, i);
		CHECK(submit(d->ctx, tern_put(d->channel, src, LONG - 8, &w->key, 0, &put)));
		CHECK(submit(d->ctx,
			     tern_put_flag(d->channel, NULL, 0, &w->key, 0, i, &w->key, LONG - 8, &flag)));
		CHECK(tern_op_wait(d->ctx, &put, PATIENCE));
		CHECK(tern_op_wait(d->ctx, &flag, PATIENCE));
		for (uint64_t end = tn_now() + PATIENCE; atomic_load(&flag_taken) != i;) {
			CHECK(tn_now() < end ? TERN_OK : TERN_E_DEADLINE);
			sched_yield();
		}
	}
	atomic_store(&flags_over, true);
	tern_mem_free(tern_ctx_mem(d->ctx), src);
	return NULL;
}

PEER_MEMORY static uint64_t flag_now(void)
{
	return __atomic_load_n((uint64_t *)(void *)(flag_memory + LONG - 8), __ATOMIC_ACQUIRE);
}

/* The far end's reader: data is whole when its flag is there. */
static void *take_flags(void *arg)
{
	worker *w = arg;
	uint64_t last = 0;

	while (!atomic_load(&flags_over)) {
		uint64_t flag = flag_now();

		if (flag == last) {
			sched_yield();
			continue;
		}
		CHECK(flag == last + 1 && filled(flag_memory, LONG - 8, flag) ? TERN_OK : TERN_E_CORRUPT);
		last = flag;
		atomic_store(&flag_taken, (unsigned)flag);
	}
	return NULL;
}

static void *flag_worker(void *arg)
{
	worker *w = arg;
	void *result = w->index == 0 ? put_flags(w) : w->index == 1 ? take_flags(w) : put_beside(w);

	if (w->status != TERN_OK)
		atomic_store(&flags_over, true); /* let the others go */
	return result;
}

static void test_flag_behind_long_put(void **state)
{
	enum { N = 6 };
	worker workers[N] = {0};
	tern_mem *mem;
	tern_key key;
	pair p;

	(void)state;
	flag_taken = 0;
	flags_over = false;
	pair_open(&p);
	if (!(tern_link_caps(p.dial.link) & TERN_LINK_CAN_FLAG)) {
		pair_close(&p);
		return;
	}
	mem = tern_ctx_mem(p.serve.ctx);
	assert_ok(tern_mem_alloc(mem, (uint64_t)N * LONG, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST,
				 (void **)&flag_memory));
	memset(flag_memory, 0, LONG);
	assert_ok(tern_mem_export(mem, flag_memory, (uint64_t)N * LONG, TERN_ACCESS_WRITE, &key));
	for (int i = 0; i < N; i++)
		workers[i].key = key;
	run_all(workers, N, &p, flag_worker);
	pair_close(&p);
}

/* ---- who copies ---- */

static atomic_uint copied[2];

/* Long puts, until either thread has ended as many: each waits for the other, which needs its own calls to return. */
static void *put_until_both(void *arg)
{
	enum { ENOUGH = 64, DEPTH = 16, LENGTH = 128 << 10 };
	worker *w = arg;
	side *d = &w->p->dial;
	uint64_t end = tn_now() + PATIENCE;
	tern_op ops[DEPTH] = {0};
	uint8_t *src;
	unsigned n = 0;

	CHECK(tern_mem_alloc(tern_ctx_mem(d->ctx), LENGTH, 0, TERN_ACCESS_NONE, TERN_MEM_HOST,
			     (void **)&src));
	for (; atomic_load(&copied[0]) < ENOUGH || atomic_load(&copied[1]) < ENOUGH; n++) {
		CHECK(tn_now() < end ? TERN_OK : TERN_E_DEADLINE);
		if (n >= DEPTH) {
			CHECK(tern_op_wait(d->ctx, &ops[n % DEPTH], PATIENCE));
			atomic_fetch_add(&copied[w->index], 1);
		}
		CHECK(submit(d->ctx, tern_put(d->channel, src, LENGTH, &w->key, (uint64_t)w->index * LENGTH,
					      &ops[n % DEPTH])));
	}
	for (unsigned i = 0; i < DEPTH && i < n; i++)
		CHECK(tern_op_wait(d->ctx, &ops[i], PATIENCE));
	tern_mem_free(tern_ctx_mem(d->ctx), src);
	return NULL;
}

/* A submission returns although others submit all the time: no thread copies for everybody. */
static void test_nobody_copies_for_all(void **state)
{
	worker workers[2] = {0};
	tern_mem *mem;
	tern_key key;
	void *dst;
	pair p;

	(void)state;
	atomic_store(&copied[0], 0);
	atomic_store(&copied[1], 0);
	pair_open(&p);
	mem = tern_ctx_mem(p.serve.ctx);
	assert_ok(tern_mem_alloc(mem, LONG, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &dst));
	assert_ok(tern_mem_export(mem, dst, LONG, TERN_ACCESS_WRITE, &key));
	for (int i = 0; i < 2; i++)
		workers[i].key = key;
	run_all(workers, 2, &p, put_until_both);
	pair_close(&p);
}

/* ---- cancel and close ---- */

static atomic_int ended_ops;

static void note_end(tern_op *op, void *arg)
{
	atomic_int *ends = arg;

	(void)op;
	atomic_fetch_add(ends, 1);
	atomic_fetch_add(&ended_ops, 1);
}

enum { ENDS_OPS = 24, ENDS_WORKERS = 8 };

/* Nobody else writes there at the same time: of three operations the first puts LONG, the second little. */
static uint64_t ends_place(int index, int op)
{
	return (uint64_t)(index * ENDS_OPS + op) / 3 * (LONG + 4096) + (op % 3 ? LONG : 0);
}

static void *cancel_and_close(void *arg)
{
	enum { N = ENDS_OPS, ROUNDS = 12 };
	worker *w = arg;
	side *d = &w->p->dial;
	uint8_t *src;

	CHECK(tern_mem_alloc(tern_ctx_mem(d->ctx), LONG, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&src));
	for (int round = 0; round < ROUNDS; round++) {
		static _Thread_local tern_op ops[N];
		static _Thread_local atomic_int ends[N];
		bool accepted[N] = {0};
		tern_channel *channel;

		CHECK(tern_channel_open(d->link, SERVICE, NULL, &channel));
		for (int i = 0; i < N; i++) {
			uint64_t bytes = i % 3 == 0 ? LONG : i % 3 == 1 ? 100 : 9000;
			tern_status status;

			atomic_store(&ends[i], 0);
			tern_op_init(&ops[i], note_end, &ends[i]);
			status = i % 3 == 2 ? tern_send(channel, src, bytes, &ops[i])
					    : tern_put(channel, src, bytes, &w->key, ends_place(w->index, i),
						       &ops[i]);
			accepted[i] = status == TERN_OK;
			if (i % 4 == 3)
				tern_cancel(channel, &ops[i - 2]);
		}
		tern_channel_close(channel);
		for (int i = 0; i < N; i++) {
			if (accepted[i])
				CHECK(wait_for(d->ctx, &ends[i], 1) ? TERN_OK : TERN_E_DEADLINE);
		}
		for (int i = 0; i < N; i++)
			CHECK(atomic_load(&ends[i]) == accepted[i] ? TERN_OK : TERN_E_CORRUPT);
	}
	tern_mem_free(tern_ctx_mem(d->ctx), src);
	return NULL;
}

static void test_ends_once(void **state)
{
	enum { N = ENDS_WORKERS };
	worker workers[N] = {0};
	tern_mem *mem;
	tern_key key;
	void *dst;
	pair p;

	(void)state;
	pair_open(&p);
	mem = tern_ctx_mem(p.serve.ctx);
	assert_ok(tern_mem_alloc(mem, ends_place(N, 0), 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &dst));
	assert_ok(tern_mem_export(mem, dst, ends_place(N, 0), TERN_ACCESS_WRITE, &key));
	for (int i = 0; i < N; i++)
		workers[i].key = key;
	run_all(workers, N, &p, cancel_and_close);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_channels),    cmocka_unit_test(test_limit_in_words),
		cmocka_unit_test(test_stalled_receiver), cmocka_unit_test(test_flag_behind_long_put),
		cmocka_unit_test(test_ends_once),        cmocka_unit_test(test_nobody_copies_for_all),
	};

	test_transport(argc, argv);
	return RUN(tests);
}
