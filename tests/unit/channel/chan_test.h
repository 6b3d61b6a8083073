/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts in one process, joined by a link and a channel, over the provider that is the program's
 * argument (loop without one).
 *
 *   dial   the context that connected and opened the channel
 *   serve  the one that listens for SERVICE; its channel comes with the first one that is opened
 *
 * Threads: set up and asserted in the main thread; what callbacks note is atomic or under `lock`.
 */
#ifndef TERN_TESTS_CHAN_TEST_H
#define TERN_TESTS_CHAN_TEST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/channel.h>

#include "base/check.h"
#include "base/clock.h"
#include "channel/ctx.h"
#include "cmocka_all.h"
#ifdef TN_HAVE_VERBS
#include "fake_ibverbs/fake.h"
#endif

#define SERVICE   "test.service"
#define PATIENCE  (20ull * TN_NS_PER_SEC)
#define INLOG_MAX 64

static const char *transport = "loop";

/* What a side saw. */
typedef struct side {
	tern_ctx *ctx;
	tern_link *link;     /* dialed, or in side_connect's peer the incoming one */
	tern_link *incoming; /* the latest */
	tern_channel *channel;
	atomic_int messages, notifies, closed, downs, ups, opens;
	atomic_ullong bytes;
	_Atomic int down_status, closed_status;
	pthread_mutex_t lock;
	uint8_t *last; /* the latest message; lock */
	uint64_t last_bytes;
	uint32_t last_value;
	uint64_t last_notify_bytes;
	char down_text[512];
	atomic_bool echo;   /* send each message back */
	_Atomic int refuse; /* tern_status */
	atomic_bool no_on_message;
	_Atomic uint64_t message_max; /* a test sets it between two channels, callbacks read it */
} side;

typedef struct pair {
	side dial, serve;
} pair;

static inline const char *test_transport(int argc, char **argv)
{
	transport = argc > 1 ? argv[1] : transport;
#ifdef TN_HAVE_VERBS
	if (strcmp(transport, "verbs") == 0 && !getenv("TERN_TEST_NIC"))
		fake_install_judged(); /* no NIC is needed */
#endif
	return transport;
}

static inline bool wait_for(tern_ctx *ctx, atomic_int *what, int value)
{
	uint64_t end = tn_now() + PATIENCE;

	while (atomic_load(what) < value) {
		uint64_t seen = tern_ctx_events(ctx);

		if (tn_now() >= end)
			return false;
		if (atomic_load(what) < value)
			tern_ctx_wait_past(ctx, seen, 10 * TN_NS_PER_MS);
	}
	return true;
}

#define assert_comes(side_, what, value)                                                               \
	do {                                                                                           \
		if (!wait_for((side_)->ctx, &(side_)->what, value))                                    \
			fail_msg(#side_ "->" #what " is %d, expected %d", atomic_load(&(side_)->what), \
				 (int)(value));                                                        \
	} while (0)

static void free_on_done(tern_op *op, void *arg)
{
	(void)arg;
	free(op);
}

/* From a callback: a copy travels; fails loudly when refused for good. */
static void echo_back(tern_channel *channel, const void *msg, uint64_t bytes)
{
	tern_op *op = malloc(sizeof(*op) + bytes);
	tern_status status;

	tern_op_init(op, free_on_done, NULL);
	if (bytes)
		memcpy(op + 1, msg, bytes);
	status = tern_send(channel, op + 1, bytes, op);
	if (status != TERN_OK) {
		fprintf(stderr, "echo of %llu bytes: %s: %s\n", (unsigned long long)bytes,
			tern_status_name(status), tern_detail());
		free(op);
	}
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	side *s = arg;

	pthread_mutex_lock(&s->lock);
	s->last = realloc(s->last, bytes ? bytes : 1);
	if (bytes)
		memcpy(s->last, msg, bytes);
	s->last_bytes = bytes;
	pthread_mutex_unlock(&s->lock);
	if (s->echo)
		echo_back(channel, msg, bytes);
	atomic_fetch_add(&s->bytes, bytes);
	atomic_fetch_add(&s->messages, 1);
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	side *s = arg;

	(void)channel;
	pthread_mutex_lock(&s->lock);
	s->last_value = value;
	s->last_notify_bytes = bytes;
	pthread_mutex_unlock(&s->lock);
	atomic_fetch_add(&s->notifies, 1);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	side *s = arg;

	(void)channel;
	atomic_store(&s->closed_status, status);
	atomic_fetch_add(&s->closed, 1);
}

static void on_down(tern_link *link, tern_status status, const char *detail, void *arg)
{
	side *s = arg;

	(void)link;
	snprintf(s->down_text, sizeof(s->down_text), "%s", detail);
	atomic_store(&s->down_status, status);
	atomic_fetch_add(&s->downs, 1);
}

static void side_params(side *s, tern_channel_params *params)
{
	*params = (tern_channel_params){.on_message = s->no_on_message ? NULL : on_message,
					.on_notify = on_notify,
					.on_closed = on_closed,
					.message_bytes_max = s->message_max,
					.arg = s};
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	side *s = arg;

	if (atomic_load(&s->refuse) != TERN_OK)
		return (tern_status)atomic_load(&s->refuse);
	side_params(s, params);
	pthread_mutex_lock(&s->lock);
	s->channel = channel;
	pthread_mutex_unlock(&s->lock);
	atomic_fetch_add(&s->opens, 1);
	return TERN_OK;
}

static void on_up(tern_link *link, void *arg)
{
	side *s = arg;

	pthread_mutex_lock(&s->lock);
	s->incoming = link;
	pthread_mutex_unlock(&s->lock);
	atomic_fetch_add(&s->ups, 1);
}

static void side_open_params(side *s, const tern_ctx_params *given)
{
	tern_ctx_params params = given ? *given : (tern_ctx_params){0};

	memset(s, 0, sizeof(*s));
	pthread_mutex_init(&s->lock, NULL);
	if (!params.transports)
		params.transports = transport;
	assert_ok(tn_ctx_new(&params, &s->ctx));
	assert_ok(tern_ctx_listen(s->ctx, SERVICE, on_open, s));
	tern_ctx_on_link(s->ctx, on_up, on_down, s);
	assert_ok(tn_ctx_start(s->ctx));
}

static inline void side_open(side *s, uint32_t flags)
{
	tern_ctx_params params = {.flags = flags};

	side_open_params(s, &params);
}

static inline void side_close(side *s)
{
	tern_ctx_destroy(s->ctx);
	pthread_mutex_destroy(&s->lock);
	free(s->last);
}

static inline void side_connect(side *from, const side *to)
{
	tern_connect_params params = {.on_down = on_down, .arg = from};

	assert_ok(tern_link_connect(from->ctx, tern_ctx_address(to->ctx), &params, &from->link));
	assert_ok(tern_link_wait(from->link, PATIENCE));
}

static inline void side_open_channel(side *from)
{
	tern_channel_params params;

	side_params(from, &params);
	assert_ok(tern_channel_open(from->link, SERVICE, &params, &from->channel));
}

/* Contexts with helpers, a link that is up, a channel that is accepted. */
static inline void pair_open(pair *p)
{
	side_open(&p->serve, 0);
	side_open(&p->dial, 0);
	side_connect(&p->dial, &p->serve);
	side_open_channel(&p->dial);
	assert_comes(&p->serve, ups, 1);
	assert_comes(&p->serve, opens, 1);
	p->serve.link = p->serve.incoming;
}

static inline void pair_close(pair *p)
{
	side_close(&p->dial);
	side_close(&p->serve);
}

/*
 * What a peer's thread does to memory through a socket or another mapping happens before the completion that
 * says so, but the thread sanitizer sees no such edge: the tests' own looks at that memory are exempt.
 */
#define PEER_MEMORY __attribute__((noinline, unused, no_sanitize("thread")))

PEER_MEMORY static void fill(uint8_t *buf, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		buf[i] = (uint8_t)(seed * 131 + i * 7 + (i >> 8) * 13 + (i >> 16));
}

PEER_MEMORY static bool filled(const uint8_t *buf, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i++) {
		if (buf[i] != (uint8_t)(seed * 131 + i * 7 + (i >> 8) * 13 + (i >> 16)))
			return false;
	}
	return true;
}

/* The latest message that the side got was filled with seed. */
static inline bool last_is(side *s, uint64_t bytes, uint64_t seed)
{
	bool same;

	pthread_mutex_lock(&s->lock);
	same = s->last_bytes == bytes && filled(s->last, bytes, seed);
	pthread_mutex_unlock(&s->lock);
	return same;
}

static inline uint32_t last_value(side *s)
{
	uint32_t value;

	pthread_mutex_lock(&s->lock);
	value = s->last_value;
	pthread_mutex_unlock(&s->lock);
	return value;
}

static inline tern_channel *serve_channel(side *s)
{
	tern_channel *channel;

	pthread_mutex_lock(&s->lock);
	channel = s->channel;
	pthread_mutex_unlock(&s->lock);
	return channel;
}

/* Submit again while the answer is AGAIN, making progress. */
#define submit(ctx_, expr)                                   \
	__extension__({                                      \
		tern_status again_;                          \
		while ((again_ = (expr)) == TERN_AGAIN)      \
			tern_ctx_wait((ctx_), TN_NS_PER_MS); \
		again_;                                      \
	})

/* Submit and wait; the operation's status. */
#define complete(ctx_, op_, expr)                                                 \
	__extension__({                                                           \
		tern_status done_ = submit((ctx_), (expr));                       \
		done_ == TERN_OK ? tern_op_wait((ctx_), (op_), PATIENCE) : done_; \
	})

#endif
