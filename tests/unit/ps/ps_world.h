/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter servers and a client in one process, each with a context of its own, over one transport.
 *
 * Threads: set up and asserted in the main thread; link callbacks note the servers' ends of links.
 */
#ifndef TESTS_UNIT_PS_WORLD_H
#define TESTS_UNIT_PS_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/channel.h>
#include <tern/ps.h>
#include <tern/rpc.h>

#include "base/rand.h"
#include "cmocka_all.h"
#ifdef TN_HAVE_VERBS
#include "fake_ibverbs/fake.h"
#endif

#define SERVERS_MAX 3
#define ENDS_MAX    64

typedef struct node {
	tern_ctx *ctx;
	tern_ps_server *server;
	pthread_mutex_t lock;
	tern_link *ends[ENDS_MAX]; /* this side's, not released */
	unsigned end_count;
} node;

typedef struct world {
	unsigned servers;
	node nodes[SERVERS_MAX];
	const char *addresses[SERVERS_MAX];
	tern_ctx *ctx; /* the client's */
	tern_ps *ps;
	tern_mem *mem;
} world;

static const char *transport = "shm";
static const char *const *server_options;
static const char *world_tier; /* directory of cold rows */

static inline void world_transport(const char *name)
{
	transport = name;
#ifdef TN_HAVE_VERBS
	if (strcmp(transport, "verbs") == 0)
		fake_install_judged(); /* no NIC is needed */
#endif
}

static void node_on_link(tern_link *link, void *arg)
{
	node *n = arg;
	tern_link *old = NULL;

	pthread_mutex_lock(&n->lock);
	if (n->end_count == ENDS_MAX) {
		old = n->ends[0];
		memmove(n->ends, n->ends + 1, (ENDS_MAX - 1) * sizeof(n->ends[0]));
		n->end_count--;
	}
	n->ends[n->end_count++] = link;
	pthread_mutex_unlock(&n->lock);
	tern_link_release(old);
}

static inline void node_start(world *w, unsigned i)
{
	static atomic_int number; /* a name is a node's: two of one name are one that restarted */
	char name[32];
	tern_ctx_params params = {.name = name, .transports = transport, .options = server_options};
	node *n = &w->nodes[i];

	snprintf(name, sizeof(name), "server%d", atomic_fetch_add(&number, 1));
	memset(n, 0, sizeof(*n));
	pthread_mutex_init(&n->lock, NULL);
	if (tern_ctx_create(&params, &n->ctx) != TERN_OK)
		fail_msg("context: %s", tern_detail());
	tern_ctx_on_link(n->ctx, node_on_link, NULL, n);
	w->addresses[i] = tern_ctx_address(n->ctx);
}

static inline void node_serve(world *w, unsigned i)
{
	tern_ps_server_params params = {
		.servers = w->addresses, .count = w->servers, .index = i, .tier_dir = world_tier};

	if (tern_ps_server_open(w->nodes[i].ctx, &params, &w->nodes[i].server) != TERN_OK)
		fail_msg("server: %s", tern_detail());
}

static inline void node_stop(world *w, unsigned i)
{
	node *n = &w->nodes[i];

	if (!n->ctx)
		return;
	tern_ctx_on_link(n->ctx, NULL, NULL, NULL);
	tern_ps_server_close(n->server);
	while (n->end_count)
		tern_link_release(n->ends[--n->end_count]);
	tern_ctx_destroy(n->ctx);
	pthread_mutex_destroy(&n->lock);
	n->ctx = NULL;
}

static inline void world_client(world *w, tern_ctx **ctx, tern_ps **ps)
{
	static atomic_int number;
	char name[32];
	tern_ctx_params params = {.name = name, .listen = "", .transports = transport};
	tern_ps_params ps_params = {.servers = w->addresses, .count = w->servers};

	snprintf(name, sizeof(name), "client%d", atomic_fetch_add(&number, 1));
	if (tern_ctx_create(&params, ctx) != TERN_OK || tern_ps_open(*ctx, &ps_params, ps) != TERN_OK)
		fail_msg("client: %s", tern_detail());
}

static inline void world_start(world *w, unsigned servers)
{
	memset(w, 0, sizeof(*w));
	w->servers = servers;
	for (unsigned i = 0; i < servers; i++)
		node_start(w, i);
	for (unsigned i = 0; i < servers; i++)
		node_serve(w, i);
	world_client(w, &w->ctx, &w->ps);
	w->mem = tern_ctx_mem(w->ctx);
}

static inline void world_stop(world *w)
{
	tern_ps_close(w->ps);
	tern_ctx_destroy(w->ctx);
	for (unsigned i = 0; i < w->servers; i++)
		node_stop(w, i);
}

/* End the links of a server, from its side; clients dial anew. */
static inline void node_cut(node *n)
{
	tern_link *ends[ENDS_MAX];
	unsigned count;

	pthread_mutex_lock(&n->lock);
	count = n->end_count;
	n->end_count = 0;
	memcpy(ends, n->ends, count * sizeof(ends[0]));
	pthread_mutex_unlock(&n->lock);
	for (unsigned i = 0; i < count; i++) {
		tern_link_close(ends[i]);
		tern_link_release(ends[i]);
	}
}

static inline void *world_rows(world *w, uint64_t bytes)
{
	void *p;

	assert_ok(tern_mem_alloc(w->mem, bytes, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	memset(p, 0xee, bytes);
	return p;
}

/* A table that adds what is pushed. */
static inline tern_table_schema counters(const char *name, uint32_t dim)
{
	tern_table_schema s = {.dim = dim};

	snprintf(s.name, sizeof(s.name), "%s", name);
	return s;
}

#define assert_success(expr)                                                                 \
	do {                                                                                 \
		tern_status st_ = (expr);                                                    \
		if (st_ != TERN_OK)                                                          \
			fail_msg("%s: %s: %s", #expr, tern_status_name(st_), tern_detail()); \
	} while (0)

#endif
