/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links over real verbs between two hosts whose network misbehaves. hosts.sh runs it in both machines:
 *
 *	vm-hosts serve ADDRESS:PORT        echoes messages; gives out a key to memory
 *	vm-hosts CASE ADDRESS:PORT         the dialing side of one case
 *
 * What each case holds: every operation ends, with TERN_OK or with an error of the path or the peer; the link's end
 * is told once, with words that name the peer; nothing wrong was taken for right; a new link works once the network
 * does; no descriptor is left behind. Nothing asserts a time: a bound that is passed is a hang, by much.
 */
#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/channel.h>

#define SEC       1000000000ull
#define ROOM      (1u << 20)
#define PATIENCE  (120 * SEC) /* far beyond each published bound, in an emulated machine */
#define SERVICE   "hosts"
#define OPS       8
#define PEER_NAME "server of b"

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

static void command(const char *text)
{
	CHECK(system(text) == 0, "the command failed: %s", text);
}

static tern_ctx *open_ctx(const char *name, const char *listen)
{
	const tern_ctx_params params = {
		.name = name, .listen = listen, .transports = "verbs", .secret = "of these tests"};
	tern_ctx *ctx;

	OK(tern_ctx_create(&params, &ctx));
	return ctx;
}

/* ---- the server ---- */

static tern_ctx *server;
static tern_key server_key;

static void answered(tern_op *op, void *arg)
{
	(void)arg;
	free(op);
}

/* A message comes back; "key" brings the key. Refused: the link ends, and the other side sees that. */
static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	bool wants_key = bytes == 3 && memcmp(msg, "key", 3) == 0;
	uint64_t length = wants_key ? sizeof(server_key) : bytes;
	tern_op *op = malloc(sizeof(*op) + length);

	(void)arg;
	CHECK(op, "no memory");
	tern_op_init(op, answered, NULL);
	memcpy(op + 1, wants_key ? (const void *)&server_key : msg, length);
	if (tern_send(channel, op + 1, length, op) != TERN_OK)
		free(op);
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	(void)arg;
	params->on_message = on_message;
	return TERN_OK;
}

static void link_ended(tern_link *link, tern_status status, const char *detail, void *arg)
{
	(void)arg;
	printf("the link with %s ended: %s: %s\n", tern_link_peer_name(link), tern_status_name(status),
	       detail);
	(void)fflush(stdout);
}

static void link_up(tern_link *link, void *arg)
{
	(void)link;
	(void)arg;
}

static int serve(const char *address)
{
	void *memory;

	server = open_ctx(PEER_NAME, address);
	OK(tern_mem_alloc(tern_ctx_mem(server), ROOM, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST,
			  &memory));
	OK(tern_mem_export(tern_ctx_mem(server), memory, ROOM, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			   &server_key));
	tern_ctx_on_link(server, link_up, link_ended, NULL);
	OK(tern_ctx_listen(server, SERVICE, on_open, NULL));
	printf("serving at %s\n", tern_ctx_address(server));
	(void)fflush(stdout);
	for (;;)
		(void)pause();
}

/* ---- the dialing side ---- */

typedef struct client {
	tern_ctx *ctx;
	tern_link *link;
	tern_channel *channel;
	tern_key key;
	uint8_t *from, *to;
	atomic_int downs;
	_Atomic int down_status;
	char text[512];
	uint64_t seed, good, bad;
} client;

static void on_down(tern_link *link, tern_status status, const char *detail, void *arg)
{
	client *c = arg;

	(void)link;
	snprintf(c->text, sizeof(c->text), "%s", detail);
	atomic_store(&c->down_status, status);
	atomic_fetch_add(&c->downs, 1);
}

/* It ends; hours are no bound, but a minute without an end is a hang. */
static tern_status finish(client *c, tern_op *op)
{
	tern_status waited = tern_op_wait(c->ctx, op, PATIENCE);

	CHECK(waited != TERN_E_DEADLINE || tern_op_test(op) != TERN_AGAIN, "an operation never ends");
	return op->status;
}

/* Errors that a broken path or peer may give an operation; anything else is a fault. */
static bool is_path_error(tern_status status)
{
	return status == TERN_E_LANE || status == TERN_E_PEER_LOST || status == TERN_E_FLUSHED ||
	       status == TERN_E_UNREACHABLE || status == TERN_E_PEER_CLOSED ||
	       status == TERN_E_PEER_RESTARTED || status == TERN_E_INDETERMINATE;
}

static tern_status exchange(client *c, const void *msg, uint64_t bytes, void *answer, uint64_t room)
{
	tern_op receive, send;
	tern_status status, sent;

	tern_op_init(&receive, NULL, NULL);
	tern_op_init(&send, NULL, NULL);
	status = tern_recv(c->channel, answer, room, &receive);
	if (status != TERN_OK)
		return status;
	while ((sent = tern_send(c->channel, msg, bytes, &send)) == TERN_AGAIN)
		(void)tern_ctx_wait(c->ctx, SEC);
	if (sent == TERN_OK)
		sent = finish(c, &send);
	if (sent != TERN_OK)
		(void)tern_cancel(c->channel, &receive);
	status = finish(c, &receive);
	return sent == TERN_OK ? status : sent;
}

static void dial(client *c, const char *address)
{
	const tern_connect_params params = {.timeout_ns = PATIENCE, .retry = 1, .on_down = on_down, .arg = c};
	const tern_channel_params none = {0};

	atomic_store(&c->downs, 0);
	OK(tern_link_connect(c->ctx, address, &params, &c->link));
	OK(tern_link_wait(c->link, PATIENCE));
	CHECK(strcmp(tern_link_transport(c->link), "verbs") == 0, "by %s: %s", tern_link_transport(c->link),
	      tern_link_transport_reason(c->link));
	OK(tern_channel_open(c->link, SERVICE, &none, &c->channel));
	OK(exchange(c, "key", 3, &c->key, sizeof(c->key)));
}

static void hang_up(client *c)
{
	tern_channel_close(c->channel);
	tern_link_release(c->link);
	c->channel = NULL;
	c->link = NULL;
}

static void begin(client *c, const char *address)
{
	memset(c, 0, sizeof(*c));
	c->ctx = open_ctx("client of a", "");
	OK(tern_mem_alloc(tern_ctx_mem(c->ctx), ROOM, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&c->from));
	OK(tern_mem_alloc(tern_ctx_mem(c->ctx), ROOM, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&c->to));
	dial(c, address);
}

static void fill(uint8_t *bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < ROOM; i += 8) {
		uint64_t word = (seed + i) * 0x9e3779b97f4a7c15ull;

		memcpy(bytes + i, &word, 8);
	}
}

/* A message there and back, all of the memory put in pieces that are in flight together, and got back. */
static tern_status round_trip(client *c)
{
	tern_op ops[OPS], get;
	uint64_t piece = ROOM / OPS, sent = ++c->seed, back = 0;
	tern_status status = exchange(c, &sent, sizeof(sent), &back, sizeof(back)), first = TERN_OK;
	int n = 0;

	CHECK(status != TERN_OK || back == sent, "another answer: %llu", (unsigned long long)back);
	fill(c->from, c->seed);
	for (; n < OPS && status == TERN_OK; n += status == TERN_OK) {
		tern_op_init(&ops[n], NULL, NULL);
		while ((status = tern_put(c->channel, c->from + (uint64_t)n * piece, piece, &c->key,
					  (uint64_t)n * piece, &ops[n])) == TERN_AGAIN)
			(void)tern_ctx_wait(c->ctx, SEC);
	}
	for (int i = 0; i < n; i++) {
		tern_status done = finish(c, &ops[i]);

		first = first == TERN_OK ? done : first;
	}
	status = status == TERN_OK ? first : status;
	if (status != TERN_OK)
		return status;
	memset(c->to, 0, ROOM);
	tern_op_init(&get, NULL, NULL);
	while ((status = tern_get(c->channel, c->to, ROOM, &c->key, 0, &get)) == TERN_AGAIN)
		(void)tern_ctx_wait(c->ctx, SEC);
	status = status == TERN_OK ? finish(c, &get) : status;
	CHECK(status != TERN_OK || memcmp(c->from, c->to, ROOM) == 0, "what came back differs");
	return status;
}

static void works(client *c, int rounds)
{
	for (int i = 0; i < rounds; i++)
		OK(round_trip(c));
}

/* The network is broken: rounds go on until one fails, typed, and the link's end is told. */
static void fails_typed(client *c, int rounds_at_most)
{
	tern_status status = TERN_OK;

	for (int i = 0; i < rounds_at_most && status == TERN_OK; i++)
		status = round_trip(c);
	CHECK(status != TERN_OK, "operations succeed without a peer");
	CHECK(is_path_error(status), "%s: %s", tern_status_name(status), tern_detail());
	for (int i = 0; i < 120 && atomic_load(&c->downs) == 0; i++)
		(void)tern_ctx_wait(c->ctx, SEC);
	CHECK(atomic_load(&c->downs) == 1, "told of the end %d times", atomic_load(&c->downs));
	CHECK(is_path_error(atomic_load(&c->down_status)), "%s",
	      tern_status_name(atomic_load(&c->down_status)));
	CHECK(strstr(c->text, PEER_NAME), "\"%s\" does not name the peer", c->text);
	printf("told: %s: %s\n", tern_status_name(atomic_load(&c->down_status)), c->text);
}

static unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n;
}

/* After a broken link: a new one works and the old one left nothing. */
static void starts_again(client *c, const char *address, unsigned before)
{
	hang_up(c);
	dial(c, address);
	works(c, 2);
	for (int i = 0; i < 60 && descriptors() != before; i++)
		(void)tern_ctx_wait(c->ctx, SEC / 2);
	CHECK(descriptors() == before, "%u descriptors before, %u now", before, descriptors());
}

/* ---- cases ---- */

static void plain(client *c, const char *address)
{
	(void)address;
	works(c, 4);
}

static void loss(client *c, const char *address)
{
	(void)address;
	command("vm-loss 1");
	works(c, 6);
	command("vm-loss 0");
}

/* Shorter than what the NIC retries for: the link may live on or end; both are told truly. */
static void link_short(client *c, const char *address)
{
	unsigned before = descriptors();

	for (int i = 0; i < 3; i++) {
		tern_status status = TERN_OK;

		command("vm-link down; sleep 0.1; vm-link up");
		for (int k = 0; k < 3 && status == TERN_OK; k++)
			status = round_trip(c);
		CHECK(status == TERN_OK || is_path_error(status), "%s: %s", tern_status_name(status),
		      tern_detail());
		printf("after a short break: %s\n", tern_status_name(status));
		if (status != TERN_OK)
			starts_again(c, address, before);
	}
}

static void link_long(client *c, const char *address)
{
	unsigned before = descriptors();

	command("vm-link down");
	fails_typed(c, 2);
	command("vm-link up");
	starts_again(c, address, before);
}

/* The address of this host changes, and with it the GID of its port. */
static void moved(client *c, const char *address)
{
	unsigned before = descriptors();

	command("vm-addr 10.77.0.51");
	fails_typed(c, 50);
	starts_again(c, address, before);
	command("vm-addr $VM_OWN_ADDR");
	fails_typed(c, 50);
	starts_again(c, address, before);
}

static void killed(client *c, const char *address)
{
	unsigned before = descriptors();

	command("touch $VM_SHARED/kill-b; while [ -e $VM_SHARED/kill-b ]; do sleep 0.05; done");
	fails_typed(c, 50);
	command("touch $VM_SHARED/restart-b; while [ -e $VM_SHARED/restart-b ]; do sleep 0.05; done");
	starts_again(c, address, before);
}

static const struct {
	const char *name;
	void (*run)(client *c, const char *address);
} cases[] = {{"plain", plain},         {"loss", loss},   {"link_short", link_short},
	     {"link_long", link_long}, {"moved", moved}, {"killed", killed}};

int main(int argc, char **argv)
{
	client c;

	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		return serve(argv[2]);
	for (size_t i = 0; argc == 3 && i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(argv[1], cases[i].name) != 0)
			continue;
		begin(&c, argv[2]);
		cases[i].run(&c, argv[2]);
		hang_up(&c);
		tern_ctx_destroy(c.ctx);
		printf("%s: good\n", argv[1]);
		return 0;
	}
	fprintf(stderr, "usage: vm-hosts serve|CASE ADDRESS:PORT; cases:");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		fprintf(stderr, " %s", cases[i].name);
	fprintf(stderr, "\n");
	return 2;
}
