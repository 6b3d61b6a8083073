/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes in one process, joined by a link: what tests of the layers above the channel start from.
 * Both have helper threads. Every transport that works between two contexts of one process can be used.
 */
#ifndef TESTS_SUPPORT_NODES_H
#define TESTS_SUPPORT_NODES_H

#include <string.h>

#include <tern/channel.h>

#include "cmocka_all.h"

#define NODES_WAIT_NS 20000000000ull

typedef struct nodes {
	tern_ctx *a, *b; /* a dials b */
	tern_link *ab;   /* a's end */
	tern_link *ba;   /* b's end */
} nodes;

static void nodes_on_link(tern_link *link, void *arg)
{
	nodes *n = arg;

	__atomic_store_n(&n->ba, link, __ATOMIC_RELEASE);
}

static inline void nodes_connect(nodes *n)
{
	tern_connect_params params = {.timeout_ns = NODES_WAIT_NS};

	n->ba = NULL;
	assert_int_equal(tern_link_connect(n->a, tern_ctx_address(n->b), &params, &n->ab), TERN_OK);
	if (tern_link_wait(n->ab, NODES_WAIT_NS) != TERN_OK)
		fail_msg("link: %s", tern_detail());
	while (!__atomic_load_n(&n->ba, __ATOMIC_ACQUIRE))
		tern_ctx_wait(n->b, 10000000);
}

static inline void nodes_start(nodes *n, const char *transports)
{
	tern_ctx_params pa = {.name = "a", .listen = "", .transports = transports};
	tern_ctx_params pb = {.name = "b", .transports = transports};

	memset(n, 0, sizeof(*n));
	if (tern_ctx_create(&pa, &n->a) != TERN_OK || tern_ctx_create(&pb, &n->b) != TERN_OK)
		fail_msg("context: %s", tern_detail());
	tern_ctx_on_link(n->b, nodes_on_link, NULL, n);
	nodes_connect(n);
}

/* The same, but b has no helper: it looks at its messages only when the test drives it. */
static inline void nodes_start_passive(nodes *n, const char *transports)
{
	tern_ctx_params pa = {.name = "a", .listen = "", .transports = transports};
	tern_ctx_params pb = {.name = "b", .transports = transports, .flags = TERN_CTX_NO_HELPER};
	tern_connect_params params = {.timeout_ns = NODES_WAIT_NS};

	memset(n, 0, sizeof(*n));
	if (tern_ctx_create(&pa, &n->a) != TERN_OK || tern_ctx_create(&pb, &n->b) != TERN_OK)
		fail_msg("context: %s", tern_detail());
	tern_ctx_on_link(n->b, nodes_on_link, NULL, n);
	assert_int_equal(tern_link_connect(n->a, tern_ctx_address(n->b), &params, &n->ab), TERN_OK);
	for (int i = 0; i < 20000 && !(n->ba && tern_link_get_state(n->ab) == TERN_LINK_UP); i++)
		tern_ctx_wait(n->b, 1000000);
	assert_int_equal(tern_link_get_state(n->ab), TERN_LINK_UP);
	assert_non_null(n->ba);
}

static inline void nodes_stop(nodes *n)
{
	if (n->ab)
		tern_link_release(n->ab);
	if (n->ba)
		tern_link_release(n->ba);
	tern_ctx_destroy(n->a);
	tern_ctx_destroy(n->b);
}

#endif
