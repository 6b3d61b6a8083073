/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts of one process and the link between them: see budget.h.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"

#define SERVICE     "budget"
#define METHOD_ECHO 1u

static pthread_t pump;
static atomic_bool pumping;

void must(tern_status status, const char *what)
{
	if (status == TERN_OK)
		return;
	fprintf(stderr, "bench-budget: %s: %s: %s\n", what, tern_status_name(status), tern_detail());
	exit(1);
}

static void *drive(void *arg)
{
	pair *p = arg;

	while (atomic_load(&pumping))
		(void)tern_ctx_progress(p->server);
	return NULL;
}

void pair_pump_begin(pair *p)
{
	atomic_store(&pumping, true);
	if (pthread_create(&pump, NULL, drive, p) != 0)
		must(TERN_E_NOMEM, "thread");
}

void pair_pump_end(void)
{
	atomic_store(&pumping, false);
	pthread_join(pump, NULL);
}

void pair_turn(pair *p)
{
	(void)tern_ctx_progress(p->server);
	(void)tern_ctx_progress(p->client);
}

void pair_finish(pair *p, tern_op *op)
{
	tern_status status;

	while ((status = tern_op_test(op)) == TERN_AGAIN)
		pair_turn(p);
	must(status, "operation");
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	(void)channel, (void)msg, (void)bytes;
	((pair *)arg)->messages++;
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	(void)channel, (void)value, (void)bytes;
	((pair *)arg)->notified++;
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	((pair *)arg)->accepted = channel;
	*params = (tern_channel_params){.on_message = on_message, .on_notify = on_notify, .arg = arg};
	return TERN_OK;
}

static void echo(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static tern_ctx *context(const pair *p, const char *name, const char *listen)
{
	static const char *const options[] = {"link.keepalive=0", NULL};
	tern_ctx_params params = {.name = name,
				  .listen = listen,
				  .transports = p->transport,
				  .flags = TERN_CTX_NO_HELPER | (p->owner ? TERN_CTX_SINGLE_OWNER : 0u),
				  .options = options};
	tern_ctx *ctx;

	must(tern_ctx_create(&params, &ctx), "context");
	return ctx;
}

static void *memory(tern_ctx *ctx)
{
	void *block;

	must(tern_mem_alloc(tern_ctx_mem(ctx), BUDGET_BYTES, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			    TERN_MEM_HOST, &block),
	     "memory");
	memset(block, 1, BUDGET_BYTES);
	return block;
}

void pair_begin(pair *p, const char *transport, bool owner)
{
	p->transport = transport;
	p->owner = owner;
	p->server = context(p, "budget server", NULL);
	p->client = context(p, "budget client", "");
	must(tern_rpc_serve(p->server, METHOD_ECHO, echo, NULL), "serve");
	must(tern_ctx_listen(p->server, SERVICE, on_open, p), "listen");
	must(tern_link_connect(p->client, tern_ctx_address(p->server), NULL, &p->link), "connect");
	while (tern_link_get_state(p->link) == TERN_LINK_CONNECTING)
		pair_turn(p);
	must(tern_link_status(p->link), "connect");
	must(tern_channel_open(p->link, SERVICE, &(tern_channel_params){0}, &p->channel), "channel");
	while (!p->accepted)
		pair_turn(p);
	must(tern_rpc_open(p->link, &p->rpc), "rpc");
	p->out = memory(p->client);
	p->in = memory(p->client);
	p->data = memory(p->server);
	must(tern_mem_export(tern_ctx_mem(p->server), p->data, BUDGET_BYTES,
			     TERN_ACCESS_READ | TERN_ACCESS_WRITE, &p->key),
	     "key");
}
