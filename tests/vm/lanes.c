/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams between two hosts while lanes are killed at random moments (TERN_BASE_FAULT), in the middle of what they carry:
 * puts of 4 MiB with a notification each, calls, and calls whose answers of 4 MiB are put. lanes.sh runs it in both
 * machines:
 *
 *	vm-lanes serve ADDRESS:PORT           takes the puts and answers the calls
 *	vm-lanes KILLS ADDRESS:PORT           goes on until its link was rebuilt so often
 *	vm-lanes silence TIMES ADDRESS:PORT   so often its NIC hears nothing for a while, until retries are exhausted:
 *	                                      the link goes on over tcp, and returns
 *
 * Over verbs (silence: or tcp), or LANES_TRANSPORT.
 *
 * Each put has other bytes, its checksum goes by a call after its notification. What is held: nothing lost, nothing
 * twice, nothing out of order, all checksums equal; the link stays the same. At the end the server says how many calls it
 * executed. Times are printed, not judged: a link that takes longer than link.recover to resume ends.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/rpc.h>

#define SEC      1000000000ull
#define PATIENCE (200 * SEC) /* far beyond each published bound, in an emulated machine */
#define SLOT     (4ull << 20)
#define SLOTS    4u
#define CALLS    8u
#define SERVICE  "puts"

enum { METHOD_KEY = 1, METHOD_ECHO, METHOD_FILL, METHOD_SUM, METHOD_COUNTS, METHOD_RETRIES };

#define CHECK(expr, ...)                                                            \
	do {                                                                        \
		if (!(expr)) {                                                      \
			fprintf(stderr, "%s:%d: (%s) ", __FILE__, __LINE__, #expr); \
			fprintf(stderr, __VA_ARGS__);                               \
			fprintf(stderr, "\n");                                      \
			exit(1);                                                    \
		}                                                                   \
	} while (0)
#define OK(expr)                                                                       \
	do {                                                                           \
		tern_status ok_ = (expr);                                              \
		CHECK(ok_ == TERN_OK, "%s: %s", tern_status_name(ok_), tern_detail()); \
	} while (0)

/* Executed, by kind; notifications in order. */
typedef struct counts {
	uint64_t echoes, fills, sums, notifies;
} counts;

static const char *transport = "verbs";

static tern_ctx *open_ctx(const char *name, const char *listen)
{
	const tern_ctx_params params = {
		.name = name, .listen = listen, .transports = transport, .secret = "of these tests"};
	tern_ctx *ctx;

	OK(tern_ctx_create(&params, &ctx));
	return ctx;
}

static void *memory_of(tern_ctx *ctx, uint64_t bytes, uint32_t access, tern_key *key)
{
	void *memory;

	OK(tern_mem_alloc(tern_ctx_mem(ctx), bytes, 0, access, TERN_MEM_HOST, &memory));
	if (key)
		OK(tern_mem_export(tern_ctx_mem(ctx), memory, bytes, access, key));
	return memory;
}

/* Different in each word for each seed. */
static void fill(uint8_t *bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < SLOT; i += 8) {
		uint64_t word = (seed * SLOT + i) * 0x9e3779b97f4a7c15ull;

		memcpy(bytes + i, &word, 8);
	}
}

static uint64_t sum_of(const uint8_t *bytes)
{
	uint64_t sum = 0xcbf29ce484222325ull;

	for (uint64_t i = 0; i < SLOT; i += 8) {
		uint64_t word;

		memcpy(&word, bytes + i, 8);
		sum = (sum ^ word) * 0x100000001b3ull;
		sum ^= sum >> 29;
	}
	return sum;
}

/* ---- the server: all of it runs in dispatch ---- */

static counts did;
static uint8_t *taken, *given;
static tern_key taken_key;

/* A call for the checksum of a put may overtake the put's notification: they go over different lanes. */
static uint64_t sums[SLOTS], awaited;
static tern_rpc_request *waiting;

static void sum_reply(tern_rpc_request *request, uint64_t n)
{
	tern_rpc_reply(request, TERN_OK, &sums[n % SLOTS], sizeof(sums[0]));
}

/* What it finds at its notification counts. */
static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	uint64_t n = did.notifies++;

	(void)channel;
	(void)arg;
	CHECK(value == (uint32_t)n, "notification %u, expected %llu", value, (unsigned long long)n);
	CHECK(bytes == SLOT, "a put of %llu bytes", (unsigned long long)bytes);
	sums[n % SLOTS] = sum_of(taken + n % SLOTS * SLOT);
	if (waiting && awaited == n) {
		sum_reply(waiting, n);
		waiting = NULL;
	}
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	(void)arg;
	params->on_notify = on_notify;
	return TERN_OK;
}

static void on_key(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args;
	(void)bytes;
	(void)arg;
	tern_rpc_reply(request, TERN_OK, &taken_key, sizeof(taken_key));
}

static void on_echo(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	did.echoes++;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static void on_sum(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	uint64_t n;

	(void)arg;
	CHECK(bytes == sizeof(n), "%llu bytes", (unsigned long long)bytes);
	memcpy(&n, args, sizeof(n));
	did.sums++;
	if (n < did.notifies) {
		sum_reply(request, n);
		return;
	}
	CHECK(!waiting, "two calls for a checksum");
	waiting = request;
	awaited = n;
}

typedef struct filling {
	tern_op op;
	tern_rpc_request *request;
} filling;

static void on_filled(tern_op *op, void *arg)
{
	filling *f = arg;

	/* A put of unknown outcome is put again: the caller reads the sink only after the answer. */
	if (op->status == TERN_E_INDETERMINATE) {
		tern_op_init(op, on_filled, f);
		if (tern_rpc_request_put(f->request, 0, 0, given, SLOT, op) == TERN_OK)
			return;
	}
	tern_rpc_reply(f->request, op->status, NULL, 0);
	free(f);
}

static void on_fill(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	filling *f = malloc(sizeof(*f));
	tern_status status;

	(void)args;
	(void)bytes;
	(void)arg;
	CHECK(f, "no memory");
	did.fills++;
	f->request = request;
	tern_op_init(&f->op, on_filled, f);
	status = tern_rpc_request_put(request, 0, 0, given, SLOT, &f->op);
	if (status == TERN_OK)
		return;
	tern_rpc_reply(request, status, NULL, 0);
	free(f);
}

static void on_counts(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)args;
	(void)bytes;
	(void)arg;
	tern_rpc_reply(request, TERN_OK, &did, sizeof(did));
}

/* Lanes whose NIC gave up to send again: of this context, from any thread. */
static uint64_t gave_up(tern_ctx *ctx)
{
	return tern_ctx_counter(ctx, "verbs.failed_retry");
}

static void on_retries(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	uint64_t n = gave_up(arg);

	(void)args;
	(void)bytes;
	tern_rpc_reply(request, TERN_OK, &n, sizeof(n));
}

static int serve(const char *address)
{
	tern_ctx *ctx = open_ctx("server of b", address);

	taken = memory_of(ctx, SLOTS * SLOT, TERN_ACCESS_WRITE, &taken_key);
	given = memory_of(ctx, SLOT, TERN_ACCESS_NONE, NULL);
	fill(given, 77);
	OK(tern_ctx_listen(ctx, SERVICE, on_open, NULL));
	OK(tern_rpc_serve(ctx, METHOD_KEY, on_key, NULL));
	OK(tern_rpc_serve(ctx, METHOD_ECHO, on_echo, NULL));
	OK(tern_rpc_serve(ctx, METHOD_FILL, on_fill, NULL));
	OK(tern_rpc_serve(ctx, METHOD_SUM, on_sum, NULL));
	OK(tern_rpc_serve(ctx, METHOD_COUNTS, on_counts, NULL));
	OK(tern_rpc_serve(ctx, METHOD_RETRIES, on_retries, ctx));
	printf("serving at %s\n", tern_ctx_address(ctx));
	(void)fflush(stdout);
	for (;;)
		(void)pause();
}

/* ---- the client ---- */

typedef struct one_call {
	tern_op op;
	uint64_t id, answer;
} one_call;

typedef struct client {
	tern_ctx *ctx;
	tern_link *link;
	tern_channel *channel;
	tern_rpc *rpc;
	tern_key key;
	uint8_t *source, *sink;
	tern_rpc_sink sink_of;
	counts made;
	uint64_t ids;
	one_call calls[CALLS];
} client;

static uint64_t rebuilt(const client *c)
{
	return tern_ctx_counter(c->ctx, "link.resumes");
}

static void finish(client *c, tern_op *op)
{
	tern_status waited = tern_op_wait(c->ctx, op, PATIENCE);

	CHECK(waited == TERN_OK, "%s: %s", tern_status_name(waited), tern_detail());
}

/* Again while there is no room. */
#define SUBMIT(c, expr)                                                                      \
	do {                                                                                 \
		tern_status again_;                                                          \
		while ((again_ = (expr)) == TERN_AGAIN)                                      \
			(void)tern_ctx_wait((c)->ctx, SEC / 100);                            \
		CHECK(again_ == TERN_OK, "%s: %s", tern_status_name(again_), tern_detail()); \
	} while (0)

static void call_wait(client *c, uint32_t method, const void *args, uint64_t bytes, void *answer,
		      uint64_t room)
{
	const tern_rpc_call_params params = {.method = method,
					     .args = args,
					     .args_bytes = bytes,
					     .answer = answer,
					     .answer_capacity = room};
	tern_op op = {.timeout_ns = PATIENCE};

	SUBMIT(c, tern_rpc_call(c->rpc, &params, &op));
	finish(c, &op);
	CHECK(op.length == room, "an answer of %llu bytes", (unsigned long long)op.length);
}

static void echoes_begin(client *c)
{
	for (unsigned i = 0; i < CALLS; i++) {
		one_call *one = &c->calls[i];
		const tern_rpc_call_params params = {.method = METHOD_ECHO,
						     .args = &one->id,
						     .args_bytes = sizeof(one->id),
						     .answer = &one->answer,
						     .answer_capacity = sizeof(one->answer)};

		one->id = ++c->ids;
		one->answer = 0;
		tern_op_init(&one->op, NULL, NULL);
		one->op.timeout_ns = PATIENCE;
		SUBMIT(c, tern_rpc_call(c->rpc, &params, &one->op));
		c->made.echoes++;
	}
}

static void echoes_end(client *c)
{
	for (unsigned i = 0; i < CALLS; i++) {
		finish(c, &c->calls[i].op);
		CHECK(c->calls[i].answer == c->calls[i].id, "the answer to %llu is %llu",
		      (unsigned long long)c->calls[i].id, (unsigned long long)c->calls[i].answer);
	}
}

/* A put of 4 MiB, an answer of 4 MiB and calls, all under way together. */
static void round_trip(client *c)
{
	uint64_t n = c->made.notifies++, there = 0;
	const tern_rpc_call_params params = {.method = METHOD_FILL, .sinks = &c->sink_of, .sink_count = 1};
	tern_op put, call;

	fill(c->source, n);
	memset(c->sink, 0, SLOT);
	tern_op_init(&put, NULL, NULL);
	put.flags = TERN_OP_REMOTE;
	SUBMIT(c, tern_put_notify(c->channel, c->source, SLOT, &c->key, n % SLOTS * SLOT, (uint32_t)n, &put));
	tern_op_init(&call, NULL, NULL);
	call.timeout_ns = PATIENCE;
	SUBMIT(c, tern_rpc_call(c->rpc, &params, &call));
	c->made.fills++;
	echoes_begin(c);
	finish(c, &put);
	call_wait(c, METHOD_SUM, &n, sizeof(n), &there, sizeof(there));
	c->made.sums++;
	CHECK(there == sum_of(c->source), "put %llu: another checksum there", (unsigned long long)n);
	echoes_end(c);
	finish(c, &call);
	fill(c->source, 77);
	CHECK(memcmp(c->source, c->sink, SLOT) == 0, "answer %llu differs", (unsigned long long)n);
}

static void dial(client *c, const char *address)
{
	const tern_connect_params params = {.timeout_ns = PATIENCE, .retry = 1};
	const tern_channel_params none = {0};

	memset(c, 0, sizeof(*c));
	c->ctx = open_ctx("client of a", "");
	c->source = memory_of(c->ctx, SLOT, TERN_ACCESS_NONE, NULL);
	c->sink = memory_of(c->ctx, SLOT, TERN_ACCESS_WRITE, &c->sink_of.key);
	c->sink_of.bytes = SLOT;
	OK(tern_link_connect(c->ctx, address, &params, &c->link));
	OK(tern_link_wait(c->link, PATIENCE));
	OK(tern_rpc_open(c->link, &c->rpc));
	/* Calls wait for a server that has just begun; channels don't, and its service is there before its methods. */
	call_wait(c, METHOD_KEY, NULL, 0, &c->key, sizeof(c->key));
	OK(tern_channel_open(c->link, SERVICE, &none, &c->channel));
}

/* Everything that was made was executed, once; on the link that it began with, over the better transport. */
static void settle(client *c, const char *over)
{
	counts there;

	call_wait(c, METHOD_COUNTS, NULL, 0, &there, sizeof(there));
	CHECK(memcmp(&there, &c->made, sizeof(there)) == 0,
	      "made %llu, %llu, %llu, %llu; there: %llu, %llu, %llu, %llu",
	      (unsigned long long)c->made.echoes, (unsigned long long)c->made.fills,
	      (unsigned long long)c->made.sums, (unsigned long long)c->made.notifies,
	      (unsigned long long)there.echoes, (unsigned long long)there.fills,
	      (unsigned long long)there.sums, (unsigned long long)there.notifies);
	CHECK(tern_link_get_state(c->link) == TERN_LINK_UP && strcmp(tern_link_transport(c->link), over) == 0,
	      "the link did not stay as it was");
	printf("rebuilt %llu times under %llu puts and as many answers of 4 MiB, %llu calls: each once, "
	       "checksums equal\n",
	       (unsigned long long)rebuilt(c), (unsigned long long)c->made.notifies,
	       (unsigned long long)(c->made.echoes + c->made.fills + c->made.sums));
	tern_rpc_close(c->rpc);
	tern_channel_close(c->channel);
	tern_link_release(c->link);
	tern_ctx_destroy(c->ctx);
}

static int stream(uint64_t kills, const char *address)
{
	static client c;
	uint64_t told = 0;

	dial(&c, address);
	while (rebuilt(&c) < kills) {
		round_trip(&c);
		if (rebuilt(&c) < told + kills / 10)
			continue;
		told = rebuilt(&c);
		printf("%llu rebuilt, %llu puts\n", (unsigned long long)told,
		       (unsigned long long)c.made.notifies);
		(void)fflush(stdout);
	}
	settle(&c, transport);
	return 0;
}

/* ---- a NIC that hears nothing ---- */

/* Streams go on until the counter has risen. */
static void until_more(client *c, const char *counter)
{
	uint64_t before = tern_ctx_counter(c->ctx, counter);

	for (unsigned i = 0; tern_ctx_counter(c->ctx, counter) == before; i++) {
		CHECK(i < 1000, "%s stays %llu", counter, (unsigned long long)before);
		round_trip(c);
	}
}

/* On both sides: whichever notices first tells the other, whose lanes are then flushed. */
static uint64_t gave_up_both(client *c)
{
	uint64_t there = 0;

	call_wait(c, METHOD_RETRIES, NULL, 0, &there, sizeof(there));
	return there + gave_up(c->ctx);
}

static void hear(const char *command)
{
	CHECK(system(command) == 0, "the command failed: %s", command);
}

static int silence(uint64_t times, const char *address)
{
	static client c;
	uint64_t exhausted = 0, before;

	dial(&c, address);
	for (uint64_t i = 0; i < times; i++) {
		char command[64];

		CHECK(strcmp(tern_link_transport(c.link), "verbs") == 0, "over %s",
		      tern_link_transport(c.link));
		round_trip(&c);
		/* In the middle of what follows. */
		snprintf(command, sizeof(command), "(sleep 0.%llu; vm-udp off) &",
			 (unsigned long long)(1 + 3 * i % 9));
		hear(command);
		until_more(&c, "link.fallbacks");
		before = exhausted;
		exhausted = gave_up_both(&c);
		CHECK(exhausted > before, "the link fell back, but no lane ran out of retries");
		round_trip(&c);
		CHECK(strcmp(tern_link_transport(c.link), "tcp") == 0, "over %s",
		      tern_link_transport(c.link));
		hear("vm-udp on");
		until_more(&c, "link.returns");
		printf("%llu: %llu lanes ran out of retries, %llu puts\n", (unsigned long long)i,
		       (unsigned long long)exhausted, (unsigned long long)c.made.notifies);
		(void)fflush(stdout);
	}
	settle(&c, "verbs");
	return 0;
}

int main(int argc, char **argv)
{
	bool silent = argc == 4 && strcmp(argv[1], "silence") == 0;

	if (argc != 3 && !silent) {
		fprintf(stderr,
			"usage: vm-lanes serve|KILLS ADDRESS:PORT, vm-lanes silence TIMES ADDRESS:PORT\n");
		return 2;
	}
	transport = getenv("LANES_TRANSPORT") ? getenv("LANES_TRANSPORT") : silent ? "verbs,tcp" : transport;
	if (silent)
		return silence(strtoull(argv[2], NULL, 10), argv[3]);
	if (strcmp(argv[1], "serve") == 0)
		return serve(argv[2]);
	return stream(strtoull(argv[1], NULL, 10), argv[2]);
}
