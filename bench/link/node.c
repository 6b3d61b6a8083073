/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node: its context, the link to the peer, and calls to it.
 * Threads: main, but node_memory and the clock from any.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_ns(uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	nanosleep(&t, NULL);
}

void must(tern_status status, const char *what)
{
	if (status == TERN_OK)
		return;
	fprintf(stderr, "bench-link: %s: %s: %s\n", what, tern_status_name(status), tern_detail());
	exit(1);
}

void node_start(const options *o, node *n)
{
	ctx_config config;

	*n = (node){.o = o};
	if (!peer_start(o, &n->peer)) {
		fprintf(stderr, "bench-link: the peer did not start\n");
		exit(1);
	}
	ctx_configure(o, &config);
	config.params.name = "bench";
	config.params.listen = "";
	must(tern_ctx_create(&config.params, &n->ctx), "context");
	must(tern_link_connect(n->ctx, n->peer.address, NULL, &n->link), "connect");
	must(tern_link_wait(n->link, PATIENCE_NS), "link");
	must(tern_rpc_open(n->link, &n->rpc), "rpc");
}

void node_stop(node *n)
{
	tern_rpc_close(n->rpc);
	tern_link_release(n->link);
	tern_ctx_destroy(n->ctx);
	peer_stop(&n->peer);
}

void facts_there(node *n, facts *f)
{
	tern_rpc_call_params params = {.method = METHOD_FACTS, .answer = f, .answer_capacity = sizeof(*f)};

	must(tern_rpc_call_wait(n->rpc, &params, PATIENCE_NS, NULL), "the peer's counters");
}

tern_channel *node_open(node *n, const char *service, const tern_channel_params *params)
{
	tern_channel *channel;

	must(tern_channel_open(n->link, service, params, &channel), "channel");
	return channel;
}

tern_key node_target(node *n, uint64_t bytes)
{
	tern_key key;
	tern_rpc_call_params params = {.method = METHOD_KEY,
				       .args = &bytes,
				       .args_bytes = sizeof(bytes),
				       .answer = &key,
				       .answer_capacity = sizeof(key)};

	must(tern_rpc_call_wait(n->rpc, &params, PATIENCE_NS, NULL), "memory of the peer");
	return key;
}

void *node_memory(node *n, uint64_t bytes)
{
	void *ptr;

	must(tern_mem_alloc(tern_ctx_mem(n->ctx), bytes, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &ptr), "memory");
	memset(ptr, 1, bytes);
	return ptr;
}

static uint64_t bytes_of(const char *text)
{
	char *unit;
	uint64_t value = strtoull(text, &unit, 10);

	return value << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0);
}

uint64_t chunk_bytes(const options *o)
{
	uint64_t value = 1 << 20;
	tern_option_info info;

	for (unsigned i = 0; tern_option_get(i, &info) == TERN_OK; i++) {
		if (strcmp(info.name, "link.chunk_bytes") == 0)
			value = bytes_of(info.value);
	}
	for (unsigned i = 0; i < o->sets; i++) {
		if (strncmp(o->set[i], "link.chunk_bytes=", 17) == 0)
			value = bytes_of(o->set[i] + 17);
	}
	return value;
}
