/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other node: it counts what comes, echoes calls and messages, gives out memory to be written, and leaves
 * one service's messages where they are until it is told to take them.
 *
 * A process of its own, because the two ends of a link share neither locks nor caches there; its helper thread
 * drives it. Threads: callbacks in the driver's; totals are atomic.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define STALLED_MAX 64

static struct {
	tern_ctx *ctx;
	atomic_ullong messages, bytes, notifies, opened, drained, drained_bytes;
	tern_channel *stalled[STALLED_MAX];
	unsigned stalled_count;
} here;

/* ---- counting ---- */

static void sink_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	(void)channel, (void)msg, (void)arg;
	/* One thread at a time runs callbacks: no locked instruction is needed. */
	atomic_store_explicit(&here.bytes, here.bytes + bytes, memory_order_relaxed);
	atomic_store_explicit(&here.messages, here.messages + 1, memory_order_release);
}

static void sink_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	(void)channel, (void)value, (void)bytes, (void)arg;
	atomic_fetch_add_explicit(&here.notifies, 1, memory_order_relaxed);
}

static void ended(tern_channel *channel, tern_status status, void *arg)
{
	(void)status, (void)arg;
	tern_channel_close(channel);
}

static tern_status open_sink(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel, (void)arg;
	*params = (tern_channel_params){
		.on_message = sink_message, .on_notify = sink_notify, .on_closed = ended};
	atomic_fetch_add(&here.opened, 1);
	return TERN_OK;
}

static void echo_done(tern_op *op, void *arg)
{
	(void)arg;
	free(op);
}

static void answer(tern_channel *channel)
{
	tern_op *op = calloc(1, sizeof(*op) + 1);

	if (!op)
		return;
	tern_op_init(op, echo_done, NULL);
	if (tern_send(channel, op + 1, 1, op) != TERN_OK)
		free(op);
}

static void echo_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	(void)msg, (void)bytes, (void)arg;
	answer(channel);
}

static void echo_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	(void)value, (void)bytes, (void)arg;
	answer(channel);
}

static tern_status open_echo(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel, (void)arg;
	*params = (tern_channel_params){
		.on_message = echo_message, .on_notify = echo_notify, .on_closed = ended};
	return TERN_OK;
}

/* ---- the receiver that stops ---- */

static tern_status open_stall(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)arg;
	if (here.stalled_count == STALLED_MAX)
		return TERN_E_LIMIT;
	*params = (tern_channel_params){0}; /* no on_message: messages wait for tern_recv */
	here.stalled[here.stalled_count++] = channel;
	return TERN_OK;
}

typedef struct drain {
	tern_op op;
	tern_channel *channel;
	uint8_t buf[65536];
} drain;

/* One receive at a time and channel, each posted by the one before it. */
static void drained(tern_op *op, void *arg)
{
	drain *d = arg;

	if (op->status == TERN_OK) {
		atomic_fetch_add(&here.drained, 1);
		atomic_fetch_add(&here.drained_bytes, op->length);
		if (tern_recv(d->channel, d->buf, sizeof(d->buf), &d->op) == TERN_OK)
			return;
	}
	free(d);
}

static void start_drain(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args, (void)bytes, (void)arg;
	for (unsigned i = 0; i < here.stalled_count; i++) {
		drain *d = calloc(1, sizeof(*d));

		if (!d)
			continue;
		d->channel = here.stalled[i];
		tern_op_init(&d->op, drained, d);
		if (tern_recv(d->channel, d->buf, sizeof(d->buf), &d->op) != TERN_OK)
			free(d);
	}
	here.stalled_count = 0;
	tern_rpc_reply(request, TERN_OK, NULL, 0);
}

/* ---- calls ---- */

static uint64_t anon_bytes(void)
{
	char line[128];
	FILE *file = fopen("/proc/self/status", "re");
	unsigned long long kib = 0;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "RssAnon: %llu", &kib) == 1)
			break;
	}
	if (file)
		fclose(file);
	return kib << 10;
}

static void add_fact(const char *name, uint64_t value, void *arg)
{
	facts *f = arg;

	if (strcmp(name, "channel.live") == 0)
		f->channels = value;
	else if (strcmp(name, "channel.live_bytes") == 0)
		f->channel_bytes = value;
	else if (strcmp(name, "link.dropped") == 0)
		f->dropped = value;
	else if (strstr(name, "rnr"))
		f->rnr += value;
	else if (strstr(name, ".lanes") && strlen(strstr(name, ".lanes")) == 6)
		f->lanes += value;
}

void facts_here(tern_ctx *ctx, facts *f)
{
	*f = (facts){.messages = atomic_load_explicit(&here.messages, memory_order_acquire),
		     .bytes = here.bytes,
		     .notifies = here.notifies,
		     .opened = here.opened,
		     .drained = here.drained,
		     .drained_bytes = here.drained_bytes,
		     .anon_bytes = anon_bytes()};
	tern_ctx_counters(ctx, add_fact, f);
}

static void tell_facts(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	facts f;

	(void)args, (void)bytes, (void)arg;
	facts_here(here.ctx, &f);
	tern_rpc_reply(request, TERN_OK, &f, sizeof(f));
}

static void give_key(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	uint64_t want = 0;
	tern_key key;
	void *ptr;
	tern_status status = TERN_E_INVALID;

	(void)arg;
	if (bytes == sizeof(want)) {
		memcpy(&want, args, sizeof(want));
		status = tern_mem_alloc(tern_ctx_mem(here.ctx), want, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST,
					&ptr);
	}
	if (status == TERN_OK)
		status = tern_mem_export(tern_ctx_mem(here.ctx), ptr, want, TERN_ACCESS_WRITE, &key);
	tern_rpc_reply(request, status, status == TERN_OK ? (const void *)&key : tern_detail(),
		       status == TERN_OK ? sizeof(key) : strlen(tern_detail()));
}

static void echo_call(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

/* ---- life ---- */

void ctx_configure(const options *o, ctx_config *config)
{
	unsigned n = 0;

	snprintf(config->channels, sizeof(config->channels), "link.channels_max=%llu",
		 (unsigned long long)o->channels + 64);
	config->list[n++] = config->channels;
	config->list[n++] = "link.ops_max=16384";
	for (unsigned i = 0; i < o->sets; i++)
		config->list[n++] = o->set[i];
	config->list[n] = NULL;
	config->params = (tern_ctx_params){.transports = o->transport, .options = config->list};
}

static tern_status serve(const options *o)
{
	ctx_config config;
	tern_status status;

	ctx_configure(o, &config);
	config.params.name = "bench peer";
	status = tern_ctx_create(&config.params, &here.ctx);
	if (status == TERN_OK)
		status = tern_ctx_listen(here.ctx, SERVICE_SINK, open_sink, NULL);
	if (status == TERN_OK)
		status = tern_ctx_listen(here.ctx, SERVICE_STALL, open_stall, NULL);
	if (status == TERN_OK)
		status = tern_ctx_listen(here.ctx, SERVICE_ECHO, open_echo, NULL);
	if (status == TERN_OK)
		status = tern_rpc_serve(here.ctx, METHOD_FACTS, tell_facts, NULL);
	if (status == TERN_OK)
		status = tern_rpc_serve(here.ctx, METHOD_KEY, give_key, NULL);
	if (status == TERN_OK)
		status = tern_rpc_serve(here.ctx, METHOD_ECHO, echo_call, NULL);
	if (status == TERN_OK)
		status = tern_rpc_serve(here.ctx, METHOD_DRAIN, start_drain, NULL);
	if (status != TERN_OK)
		fprintf(stderr, "bench-link: peer: %s\n", tern_detail());
	return status;
}

/* Tell the address, then stay until the other end of `stop` is closed. */
__attribute__((noreturn)) static void child(const options *o, int tell, int stop)
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (serve(o) != TERN_OK)
		_exit(1);
	if (write(tell, tern_ctx_address(here.ctx), strlen(tern_ctx_address(here.ctx)) + 1) < 0)
		_exit(1);
	while (read(stop, &byte, 1) < 0 && errno == EINTR)
		;
	tern_ctx_destroy(here.ctx);
	_exit(0);
}

bool peer_start(const options *o, peer *p)
{
	int tell[2], stop[2];

	*p = (peer){.stop = -1};
	memset(&here, 0, sizeof(here));
	if (strcmp(o->transport, "loop") == 0) {
		if (serve(o) != TERN_OK)
			return false;
		p->ctx = here.ctx;
		snprintf(p->address, sizeof(p->address), "%s", tern_ctx_address(p->ctx));
		return true;
	}
	if (pipe(tell) != 0 || pipe(stop) != 0)
		return false;
	p->pid = fork();
	if (p->pid == 0) {
		close(stop[1]);
		close(tell[0]);
		child(o, tell[1], stop[0]);
	}
	close(tell[1]);
	close(stop[0]);
	p->stop = stop[1];
	for (size_t n = 0; p->pid > 0 && n < sizeof(p->address) - 1; n++) {
		if (read(tell[0], p->address + n, 1) != 1 || p->address[n] == 0)
			break;
	}
	close(tell[0]);
	return p->address[0] != 0;
}

void peer_stop(peer *p)
{
	if (p->ctx)
		tern_ctx_destroy(p->ctx);
	if (p->stop >= 0)
		close(p->stop);
	if (p->pid > 0)
		waitpid(p->pid, NULL, 0);
}
