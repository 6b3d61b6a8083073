/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern, through its public headers alone. Spinning: a single owner on each side, flags tell of puts where data comes by
 * itself, else notifications. Blocking: the
 * helper of either side sleeps, waits sleep at once (ctx.spin_ns=0), notifications tell of puts. With --default waits
 * spin for 20 us before they sleep, as they do unasked.
 *
 * Fetches and pushes: tern_table.c. Threads: main, the contexts' helpers when blocking.
 */
#include "tern.h"

#include <stdlib.h>
#include <string.h>

#define METHOD_ECHO 1u
#define SERVICE     "bench.peers"

void t_must(h_env *e, tern_status status, const char *what)
{
	if (status != TERN_OK)
		h_die(e, "%s: %s: %s", what, tern_status_name(status), tern_detail());
}

const char *const *t_options(const h_env *e)
{
	static const char *const block[] = {"ctx.spin_ns=0", "link.keepalive=0", NULL},
				 *const plain[] = {"link.keepalive=0", NULL}, *const unasked[] = {NULL};

	if (e->keepalive)
		return unasked;
	return e->spin || e->plain ? plain : block;
}

static void pump(t_state *t)
{
	(void)tern_ctx_progress(t->ctx);
}

/* ---- the server's side ---- */

static void echo(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static void answer_put(t_state *t, tern_channel *channel)
{
	tern_op *op = &t->answers[t->notified % T_ANSWERS];
	tern_status status;

	tern_op_init(op, NULL, NULL);
	op->flags = TERN_OP_LOCAL;
	status = tern_put_notify(channel, t->e->out, t->work.size, &t->peer_data, 0, 1, op);
	if (status != TERN_OK)
		h_die(t->e, "answering a put: %s", tern_status_name(status));
}

/* Server: answer, at once. Client: count; it waits for that. */
static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	t_state *t = arg;

	(void)value;
	(void)bytes;
	t->notified++;
	if (t->e->server)
		answer_put(t, channel);
}

/* Streams end with a message of another size: the server says that it has all. */
static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	t_state *t = arg;

	(void)msg;
	t->messages++;
	if (t->e->server && bytes == T_LAST) {
		tern_op_init(&t->ack, NULL, NULL);
		(void)tern_send(channel, t->e->out, T_LAST, &t->ack);
	}
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	t_state *t = arg;

	t->channel = channel;
	*params = (tern_channel_params){
		.on_message = on_message, .on_notify = on_notify, .arg = t, .message_bytes_max = 1u << 20};
	return TERN_OK;
}

static void *memory(h_env *e, t_state *t, uint64_t bytes)
{
	void *p;

	t_must(e,
	       tern_mem_alloc(tern_ctx_mem(t->ctx), bytes, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			      TERN_MEM_HOST, &p),
	       "memory");
	memset(p, 1, bytes);
	return p;
}

/* Context and memory of either side. The keys go to the other one. */
static t_state *set_up(h_env *e, const char *name, const char *listen)
{
	tern_ctx_params params = {.name = name,
				  .listen = listen,
				  .transports = e->transport,
				  .flags = e->spin ? TERN_CTX_SINGLE_OWNER : 0,
				  .options = t_options(e)};
	t_state *t = calloc(1, sizeof(*t));

	if (t == NULL)
		h_die(e, "no memory");
	e->state = t;
	t->e = e;
	t_must(e, tern_ctx_create(&params, &t->ctx), "context");
	e->in = memory(e, t, e->bytes_max);
	e->out = memory(e, t, e->bytes_max);
	t->flag = memory(e, t, 4096);
	*t->flag = 0;
	t_must(e,
	       tern_mem_export(tern_ctx_mem(t->ctx), e->in, e->bytes_max,
			       TERN_ACCESS_READ | TERN_ACCESS_WRITE, &t->hello.data),
	       "key");
	t_must(e,
	       tern_mem_export(tern_ctx_mem(t->ctx), t->flag, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			       &t->hello.flag),
	       "key");
	return t;
}

static void take_keys(h_env *e, t_state *t)
{
	t_hello hello;

	(void)h_take(e, &hello, sizeof(hello));
	t->peer_data = hello.data;
	t->peer_flag = hello.flag;
}

static void server(h_env *e)
{
	t_state *t = set_up(e, "bench server", NULL);

	t_must(e, tern_rpc_serve(t->ctx, METHOD_ECHO, echo, t), "serve");
	t_must(e, tern_ctx_listen(t->ctx, SERVICE, on_open, t), "listen");
	strncpy(t->hello.address, tern_ctx_address(t->ctx), sizeof(t->hello.address) - 1);
	h_give(e, &t->hello, sizeof(t->hello));
	while (!t->channel) {
		if (e->spin)
			pump(t);
		else
			(void)tern_ctx_wait(t->ctx, 1000000);
	}
	take_keys(e, t);
}

static void client(h_env *e)
{
	t_state *t = set_up(e, "bench client", "");
	tern_channel_params channel = {
		.on_message = on_message, .on_notify = on_notify, .arg = t, .message_bytes_max = 1u << 20};
	t_hello hello;

	(void)h_take(e, &hello, sizeof(hello));
	t->peer_data = hello.data;
	t->peer_flag = hello.flag;
	t_must(e, tern_link_connect(t->ctx, hello.address, NULL, &t->link), "connect");
	t_must(e, tern_link_wait(t->link, 10000000000ull), "connect");
	t->passive = (tern_link_caps(t->link) & TERN_LINK_CAN_PASSIVE) != 0;
	t_must(e, tern_channel_open(t->link, SERVICE, &channel, &t->channel), "channel");
	t_must(e, tern_rpc_open(t->link, &t->rpc), "rpc");
	h_give(e, &t->hello, sizeof(t->hello));
}

/* ---- waiting ---- */

static void await_op(h_env *e, t_state *t, tern_op *op)
{
	tern_status status;

	if (e->spin)
		while ((status = tern_op_test(op)) == TERN_AGAIN)
			pump(t);
	else
		status = tern_op_wait(t->ctx, op, 0);
	t_must(e, status, "operation");
}

/* A flag wakes nobody; where data comes by itself, progress is for keepalives alone. */
static void await_flag(t_state *t, uint64_t value)
{
	unsigned turns = 0;

	while (__atomic_load_n(t->flag, __ATOMIC_ACQUIRE) != value)
		if (!t->passive || ++turns % 1024 == 0)
			pump(t);
}

static void await_count(h_env *e, t_state *t, volatile uint64_t *count, uint64_t value)
{
	while (*count != value) {
		uint64_t seen = tern_ctx_events(t->ctx);

		if (e->spin)
			pump(t);
		else if (*count != value)
			(void)tern_ctx_wait_past(t->ctx, seen, 0);
	}
}

/* Operations are used again as they are, once they have ended: they need no other set-up than their first. */
static void make_ops(tern_op *ops, unsigned count, uint32_t flags)
{
	for (unsigned i = 0; i < count; i++) {
		tern_op_init(&ops[i], NULL, NULL);
		ops[i].flags = flags;
	}
}

static void put_flag(h_env *e, t_state *t, uint64_t bytes, uint64_t value)
{
	tern_op *op = &t->answers[value % T_ANSWERS];
	tern_status status;

	while ((status = tern_put_flag(t->channel, e->out, bytes == 8 ? 0 : bytes, &t->peer_data, 0, value,
				       &t->peer_flag, 0, op)) == TERN_AGAIN)
		pump(t);
	t_must(e, status, "put");
}

/* ---- the work ---- */

static void serve(h_env *e, const h_work *w)
{
	t_state *t = e->state;

	t->work = *w;
	if (w->op == H_FETCH || w->op == H_PUSH) {
		t_table_serve(e);
		return;
	}
	t->passive = tern_link_caps(tern_channel_link(t->channel)) & TERN_LINK_CAN_PASSIVE;
	if (!e->spin)
		return; /* the helper answers */
	if (w->op == H_PUT && w->depth == 1 && t->passive) {
		make_ops(t->answers, T_ANSWERS, TERN_OP_LOCAL);
		for (uint64_t i = 0; i < w->count; i++) {
			await_flag(t, ++e->put_seq);
			put_flag(e, t, w->size, e->put_seq);
			if (i % 64 == 0)
				pump(t);
		}
	}
	while (!h_done(e)) { /* the last answer has to leave, too */
		if (t->passive && w->op != H_CALL && w->op != H_STREAM)
			(void)tern_ctx_wait(t->ctx, 2000000); /* nothing to do here: nobody spins */
		else
			pump(t);
	}
}

static void ping_pong(h_env *e, t_state *t, const h_work *w)
{
	make_ops(t->answers, T_ANSWERS, TERN_OP_LOCAL);
	for (uint64_t i = 0; i < w->count; i++) {
		if (e->spin && t->passive) {
			put_flag(e, t, w->size, ++e->put_seq);
			await_flag(t, e->put_seq);
			if (i % 64 == 0)
				pump(t);
		} else {
			uint64_t next = t->notified + 1;

			answer_put(t, t->channel);
			await_count(e, t, &t->notified, next);
		}
		h_tick(e);
	}
}

static tern_status call(h_env *e, t_state *t, const h_work *w, unsigned slot)
{
	tern_rpc_call_params params = {.method = METHOD_ECHO,
				       .args = e->out,
				       .args_bytes = w->size,
				       .answer = e->in + slot * w->size,
				       .answer_capacity = w->size};

	return tern_rpc_call(t->rpc, &params, &t->ops[slot]);
}

static tern_status submit(h_env *e, t_state *t, const h_work *w, bool last, unsigned slot)
{
	tern_op *op = &t->ops[slot];

	if (w->op == H_CALL)
		return call(e, t, w, slot);
	if (w->op == H_GET)
		return tern_get(t->channel, e->in, w->size, &t->peer_data, 0, op);
	op->flags = last ? TERN_OP_REMOTE : TERN_OP_LOCAL;
	if (w->op == H_PUT) /* puts of a channel arrive in order: the last one's completion is that of all */
		return tern_put(t->channel, e->out, w->size, &t->peer_data, 0, op);
	return tern_send(t->channel, e->out, w->size, op);
}

static void in_flight(h_env *e, t_state *t, const h_work *w)
{
	uint64_t sent = 0, done = 0;
	unsigned next = 0, oldest = 0; /* operations: sent and done in turn */

	make_ops(t->ops, w->depth, 0);
	for (; done < w->count; done++) {
		tern_op *op = &t->ops[oldest];
		tern_status status = TERN_OK;

		oldest = oldest + 1 == w->depth ? 0 : oldest + 1;
		while (status == TERN_OK && sent < w->count && sent - done < w->depth) {
			status = submit(e, t, w, sent + 1 == w->count, next);
			if (status != TERN_OK && (status != TERN_AGAIN || sent == done)) {
				if (status != TERN_AGAIN)
					t_must(e, status, "submit");
				(void)tern_ctx_wait(t->ctx, 1000000);
				status = TERN_OK;
				continue;
			}
			if (status == TERN_OK) {
				sent++;
				next = next + 1 == w->depth ? 0 : next + 1;
			}
		}
		await_op(e, t, op);
		h_tick(e);
		if (e->spin && t->passive && done % 64 == 0)
			pump(t);
	}
}

static void run(h_env *e, const h_work *w)
{
	t_state *t = e->state;

	t->work = *w;
	if (w->op == H_FETCH || w->op == H_PUSH) {
		t_table_run(e, w);
	} else if (w->op == H_PUT && w->depth == 1) {
		ping_pong(e, t, w);
	} else {
		uint64_t before = t->messages;

		in_flight(e, t, w);
		if (w->op != H_STREAM)
			return;
		tern_op_init(&t->ack, NULL, NULL);
		t_must(e, tern_send(t->channel, e->out, T_LAST, &t->ack), "send");
		await_count(e, t, &t->messages, before + 1);
		await_op(e, t, &t->ack);
	}
}

static const char *cannot(const h_env *e, const h_work *w)
{
	if (w->op >= H_LINE)
		return "no such work";
	if (w->op == H_STREAM && (w->size > 1u << 20 || w->size == T_LAST))
		return "messages up to 1 MiB: more goes by puts";
	if (w->op == H_CALL && w->size * w->depth > e->bytes_max)
		return "larger than --bytes";
	return NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "tern",
				    .cannot = cannot,
				    .server = server,
				    .client = client,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
