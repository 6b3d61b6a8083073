/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one link: everything is thread-safe by default. Threads note failures; the main thread
 * asserts. Run under the thread sanitizer.
 */
#include "workers.h"

#define THREADS 6
#define ROUNDS  150

static void *shared_channel(void *arg)
{
	worker *w = arg;
	side *d = &w->p->dial;
	uint8_t *src;

	CHECK(tern_mem_alloc(tern_ctx_mem(d->ctx), 1 << 16, 0, TERN_ACCESS_NONE, TERN_MEM_HOST,
			     (void **)&src));
	for (int i = 0; i < ROUNDS; i++) {
		tern_op put = {0}, get = {0}, send = {0};
		uint64_t bytes = (uint64_t)(i * 379) % (1 << 16);

		fill(src, bytes, (uint64_t)(w->index + i));
		CHECK(complete(d->ctx, &put, tern_put(d->channel, src, bytes, &w->key, 0, &put)));
		memset(src, 0, bytes);
		CHECK(complete(d->ctx, &get, tern_get(d->channel, src, bytes, &w->key, 0, &get)));
		CHECK(filled(src, bytes, (uint64_t)(w->index + i)) ? TERN_OK : TERN_E_CORRUPT);
		CHECK(complete(d->ctx, &send, tern_send(d->channel, src, bytes % 9000, &send)));
	}
	tern_mem_free(tern_ctx_mem(d->ctx), src);
	return NULL;
}

static void test_shared_channel(void **state)
{
	worker workers[THREADS] = {0};
	pair p;

	(void)state;
	pair_open(&p);
	for (int i = 0; i < THREADS; i++) {
		worker *w = &workers[i];
		tern_mem *mem = tern_ctx_mem(p.serve.ctx);

		w->p = &p;
		w->index = i;
		assert_ok(tern_mem_alloc(mem, 1 << 16, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST,
					 (void **)&w->dst));
		assert_ok(
			tern_mem_export(mem, w->dst, 1 << 16, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &w->key));
	}
	for (int i = 0; i < THREADS; i++)
		pthread_create(&workers[i].thread, NULL, shared_channel, &workers[i]);
	join_all(workers, THREADS);
	assert_comes(&p.serve, messages, THREADS * ROUNDS);
	pair_close(&p);
}

/* Channels come and go in all threads while others work. */
static void *own_channels(void *arg)
{
	worker *w = arg;
	side *d = &w->p->dial;

	for (int i = 0; i < ROUNDS / 3; i++) {
		tern_channel *channel;
		tern_op op = {.flags = TERN_OP_REMOTE};

		CHECK(tern_channel_open(d->link, SERVICE, NULL, &channel));
		for (int k = 0; k < 5; k++)
			CHECK(complete(d->ctx, &op, tern_send(channel, "hello", 5, &op)));
		tern_channel_close(channel);
	}
	return NULL;
}

static void close_ended(tern_channel *channel, tern_status status, void *arg)
{
	side *s = arg;

	(void)status;
	atomic_fetch_add(&s->closed, 1);
	tern_channel_close(channel);
}

static tern_status open_fleeting(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	*params = (tern_channel_params){.on_message = on_message, .on_closed = close_ended, .arg = arg};
	return TERN_OK;
}

static void test_own_channels(void **state)
{
	worker workers[THREADS] = {0};
	pair p;

	(void)state;
	memset(&p, 0, sizeof(p));
	side_open(&p.dial, 0);
	pthread_mutex_init(&p.serve.lock, NULL);
	tern_ctx_params params = {.transports = transport};
	assert_ok(tn_ctx_new(&params, &p.serve.ctx));
	assert_ok(tern_ctx_listen(p.serve.ctx, SERVICE, open_fleeting, &p.serve));
	assert_ok(tn_ctx_start(p.serve.ctx));
	side_connect(&p.dial, &p.serve);
	for (int i = 0; i < THREADS; i++) {
		workers[i].p = &p;
		pthread_create(&workers[i].thread, NULL, own_channels, &workers[i]);
	}
	join_all(workers, THREADS);
	assert_comes(&p.serve, messages, THREADS * (ROUNDS / 3) * 5);
	assert_comes(&p.serve, closed, THREADS * (ROUNDS / 3));
	pair_close(&p);
}

/* Links come and go in all threads. */
static void *own_links(void *arg)
{
	worker *w = arg;
	side *d = &w->p->dial;

	for (int i = 0; i < 15; i++) {
		tern_channel *channel;
		tern_link *link;
		tern_op op = {.flags = TERN_OP_REMOTE};

		CHECK(tern_link_connect(d->ctx, tern_ctx_address(w->p->serve.ctx), NULL, &link));
		CHECK(tern_link_wait(link, PATIENCE));
		CHECK(tern_channel_open(link, SERVICE, NULL, &channel));
		CHECK(complete(d->ctx, &op, tern_send(channel, "hello", 5, &op)));
		if (i % 2)
			tern_channel_close(channel);
		tern_link_release(link);
		if (!(i % 2))
			tern_channel_close(channel);
	}
	return NULL;
}

static void release_up(tern_link *link, void *arg)
{
	(void)arg;
	(void)link; /* keep it: released by the context's end */
}

static void test_own_links(void **state)
{
	worker workers[THREADS] = {0};
	pair p;

	(void)state;
	memset(&p, 0, sizeof(p));
	side_open(&p.dial, 0);
	pthread_mutex_init(&p.serve.lock, NULL);
	static const char *const slots[] = {"tcp.recv_slots=4096", NULL};
	tern_ctx_params params = {.transports = transport,
				  .options = strcmp(transport, "tcp") == 0 ? slots : NULL};
	assert_ok(tn_ctx_new(&params, &p.serve.ctx));
	assert_ok(tern_ctx_listen(p.serve.ctx, SERVICE, open_fleeting, &p.serve));
	tern_ctx_on_link(p.serve.ctx, release_up, NULL, NULL);
	assert_ok(tn_ctx_start(p.serve.ctx));
	for (int i = 0; i < THREADS; i++) {
		workers[i].p = &p;
		pthread_create(&workers[i].thread, NULL, own_links, &workers[i]);
	}
	join_all(workers, THREADS);
	assert_comes(&p.serve, messages, THREADS * 15);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shared_channel),
		cmocka_unit_test(test_own_channels),
		cmocka_unit_test(test_own_links),
	};

	test_transport(argc, argv);
	return RUN(tests);
}
