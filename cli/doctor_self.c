/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The self-test of `tern doctor`: this process and a child of it, each with a context of its own, exchange
 * messages, puts and gets over one provider and compare checksums.
 *
 *   child  -> hello             parent -> keys of two regions, checksum of the first
 *   child  -> message, n times  parent -> the same bytes
 *   child  puts pieces, the last with a notification; parent -> checksum of the second region
 *   child  gets pieces of the first region and compares
 *
 * The child asks, one thing at a time; the parent answers from dispatch. Threads: main, helpers of the contexts.
 */
#include "doctor.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tern/channel.h>

#include "commands.h"

#define SERVICE      "tern.doctor"
#define REGION_BYTES (1u << 20)
#define MESSAGE_MAX  (256u << 10)
#define MESSAGES     64u
#define PIECES       32u
#define STEP_NS      10000000000ull /* for each step of the child */
#define ALL_SECONDS  60             /* for all of it, then the child is killed */

typedef struct keys {
	tern_key first, second;
	uint64_t sum; /* of the first region */
} keys;

static uint64_t checksum(const void *data, uint64_t bytes)
{
	const unsigned char *p = data;
	uint64_t hash = 0xcbf29ce484222325ull;

	for (uint64_t i = 0; i < bytes; i++)
		hash = (hash ^ p[i]) * 0x100000001b3ull;
	return hash;
}

static void fill(void *data, uint64_t bytes, uint64_t seed)
{
	unsigned char *p = data;

	for (uint64_t i = 0; i < bytes; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		p[i] = (unsigned char)(seed >> 56);
	}
}

/* ---- the parent ---- */

typedef struct parent {
	tern_ctx *ctx;
	void *first, *second;
	keys keys;
} parent;

typedef struct answer {
	tern_op op;
	unsigned char bytes[];
} answer;

static void on_answered(tern_op *op, void *arg)
{
	(void)op;
	free(arg);
}

static void send_answer(tern_channel *channel, const void *data, uint64_t bytes)
{
	answer *a = malloc(sizeof(*a) + bytes);

	if (!a)
		return; /* the child's step times out and says so */
	memcpy(a->bytes, data, bytes);
	tern_op_init(&a->op, on_answered, a);
	if (tern_send(channel, a->bytes, bytes, &a->op) != TERN_OK)
		free(a);
}

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	parent *p = arg;

	if (bytes == 0) /* hello */
		send_answer(channel, &p->keys, sizeof(p->keys));
	else
		send_answer(channel, msg, bytes);
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	parent *p = arg;
	uint64_t sum = checksum(p->second, REGION_BYTES);

	(void)value, (void)bytes;
	send_answer(channel, &sum, sizeof(sum));
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	*params = (tern_channel_params){.on_message = on_message,
					.on_notify = on_notify,
					.arg = arg,
					.message_bytes_max = MESSAGE_MAX};
	return TERN_OK;
}

static tern_status parent_open(parent *p, const char *provider, const char *secret)
{
	const tern_ctx_params params = {
		.name = "doctor", .transports = provider, .secret = secret, .job = "doctor"};
	uint32_t access = TERN_ACCESS_READ | TERN_ACCESS_WRITE;
	tern_status status = tern_ctx_create(&params, &p->ctx);
	tern_mem *mem;

	if (status != TERN_OK)
		return status;
	mem = tern_ctx_mem(p->ctx);
	if ((status = tern_mem_alloc(mem, REGION_BYTES, 4096, access, TERN_MEM_HOST, &p->first)) == TERN_OK &&
	    (status = tern_mem_alloc(mem, REGION_BYTES, 4096, access, TERN_MEM_HOST, &p->second)) ==
		    TERN_OK &&
	    (status = tern_mem_export(mem, p->first, REGION_BYTES, access, &p->keys.first)) == TERN_OK &&
	    (status = tern_mem_export(mem, p->second, REGION_BYTES, access, &p->keys.second)) == TERN_OK) {
		fill(p->first, REGION_BYTES, 1);
		memset(p->second, 0, REGION_BYTES);
		p->keys.sum = checksum(p->first, REGION_BYTES);
		status = tern_ctx_listen(p->ctx, SERVICE, on_open, p);
	}
	return status;
}

static void make_secret(char secret[33])
{
	unsigned char raw[16];

	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		memset(raw, 7, sizeof(raw));
	for (unsigned i = 0; i < sizeof(raw); i++)
		snprintf(secret + 2 * i, 3, "%02x", raw[i]);
}

/* Returns its pid, -1 on failure; *out: what it says. */
static pid_t start_child(const char *address, const char *provider, const char *secret, int *out)
{
	const char *argv[] = {"tern",   "doctor", "--self-test-of", address, "--self-test-over",
			      provider, NULL};
	int ends[2];
	pid_t pid;

	if (pipe(ends) != 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		setenv("TERN_CTX_SECRET", secret, 1);
		unsetenv("TERN_CTX_SECRET_FILE"); /* which would win */
		execv(self_path(), (char *const *)argv);
		_exit(127);
	}
	close(ends[1]);
	*out = ends[0];
	if (pid < 0)
		close(ends[0]);
	return pid;
}

/* The helper threads serve meanwhile. True: it ended by itself. */
static bool await_child(pid_t pid, int *wait_status)
{
	const struct timespec pause = {.tv_nsec = 5000000};

	for (unsigned i = 0; i < ALL_SECONDS * 200; i++) {
		if (waitpid(pid, wait_status, WNOHANG) == pid)
			return true;
		nanosleep(&pause, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, wait_status, 0);
	return false;
}

static void say_result(doctor *d, const char *check, const char *provider, int out, pid_t pid)
{
	char text[512] = "";
	int wait_status = 0;
	bool ended = await_child(pid, &wait_status);
	ssize_t n = read(out, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (ended && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 && text[0])
		doctor_say(d, VERDICT_OK, check, NULL, "%s", text);
	else if (!ended)
		doctor_say(d, VERDICT_FAIL, check, "TERN_LOG_LEVEL=debug tern doctor shows where it stops",
			   "no end within %d s", ALL_SECONDS);
	else
		doctor_say(d, VERDICT_FAIL, check,
			   "what the reason says; TERN_LOG_LEVEL=debug tern doctor shows more", "%s: %s",
			   provider, text[0] ? text : "the other process died");
}

void doctor_self_test(doctor *d, const char *provider)
{
	char check[48], secret[33];
	parent p = {0};
	int out = -1;
	pid_t pid;

	snprintf(check, sizeof(check), "self_test.%s", provider);
	make_secret(secret);
	if (parent_open(&p, provider, secret) != TERN_OK) {
		doctor_say(d, VERDICT_FAIL, check, "what the reason says", "%s", tern_detail());
	} else {
		pid = start_child(tern_ctx_address(p.ctx), provider, secret, &out);
		if (pid < 0)
			doctor_say(d, VERDICT_FAIL, check, "ulimit -u, ulimit -n", "no process: %s",
				   strerror(errno));
		else
			say_result(d, check, provider, out, pid);
		if (out >= 0)
			close(out);
	}
	if (p.ctx)
		tern_ctx_destroy(p.ctx);
}

/* ---- the child ---- */

typedef struct child {
	tern_ctx *ctx;
	tern_link *link;
	tern_channel *channel;
	unsigned char *out, *in; /* [REGION_BYTES], registered */
	keys keys;
	const char *what; /* that it does now */
} child;

/* The operation's end; false: text printed. */
static bool done(child *c, tern_status accepted, tern_op *op)
{
	tern_status status = accepted == TERN_OK ? tern_op_wait(c->ctx, op, STEP_NS) : accepted;

	if (status == TERN_OK)
		return true;
	printf("%s: %s: %s\n", c->what, tern_status_name(status), tern_detail());
	return false;
}

static bool wrong(const child *c, const char *text)
{
	printf("%s: %s\n", c->what, text);
	return false;
}

/* Send and wait for the answer, which must have that length. */
static bool ask(child *c, const void *data, uint64_t bytes, void *reply, uint64_t reply_bytes)
{
	tern_op op, got;

	tern_op_init(&got, NULL, NULL);
	tern_op_init(&op, NULL, NULL);
	if (!done(c, tern_send(c->channel, data, bytes, &op), &op))
		return false;
	return done(c, tern_recv(c->channel, reply, reply_bytes, &got), &got) &&
	       (got.length == reply_bytes || wrong(c, "the answer has another length"));
}

static bool do_messages(child *c)
{
	static const uint32_t sizes[] = {1, 8, 100, 1000, 4096, 20000, 65536, 200000};

	c->what = "messages";
	for (unsigned i = 0; i < MESSAGES; i++) {
		uint32_t bytes = sizes[i % 8];

		fill(c->out, bytes, i + 100);
		if (!ask(c, c->out, bytes, c->in, bytes))
			return false;
		if (memcmp(c->out, c->in, bytes) != 0)
			return wrong(c, "the bytes that came back differ");
	}
	return true;
}

static bool do_puts(child *c)
{
	const uint64_t piece = REGION_BYTES / PIECES;
	uint64_t sum = 0;
	tern_op op, got;

	c->what = "puts";
	fill(c->out, REGION_BYTES, 2);
	for (unsigned i = 0; i < PIECES; i++) {
		uint64_t at = i * piece;

		tern_op_init(&op, NULL, NULL);
		if (!done(c,
			  i + 1 < PIECES ? tern_put(c->channel, c->out + at, piece, &c->keys.second, at, &op)
					 : tern_put_notify(c->channel, c->out + at, piece, &c->keys.second,
							   at, 7, &op),
			  &op))
			return false;
	}
	tern_op_init(&got, NULL, NULL);
	if (!done(c, tern_recv(c->channel, &sum, sizeof(sum), &got), &got))
		return false;
	return sum == checksum(c->out, REGION_BYTES) || wrong(c, "the checksum at the target differs");
}

static bool do_gets(child *c)
{
	const uint64_t piece = REGION_BYTES / PIECES;
	tern_op op;

	c->what = "gets";
	memset(c->in, 0, REGION_BYTES);
	for (unsigned i = 0; i < PIECES; i++) {
		tern_op_init(&op, NULL, NULL);
		if (!done(c, tern_get(c->channel, c->in + i * piece, piece, &c->keys.first, i * piece, &op),
			  &op))
			return false;
	}
	return checksum(c->in, REGION_BYTES) == c->keys.sum || wrong(c, "the checksum differs");
}

static bool child_connect(child *c, const char *address, const char *provider)
{
	const tern_ctx_params params = {
		.name = "doctor", .listen = "", .transports = provider, .job = "doctor"};
	const tern_connect_params connect = {.timeout_ns = STEP_NS};
	const tern_channel_params channel = {.message_bytes_max = MESSAGE_MAX};
	void *out, *in;
	tern_mem *mem;

	c->what = "connect";
	if (tern_ctx_create(&params, &c->ctx) != TERN_OK)
		return wrong(c, tern_detail());
	mem = tern_ctx_mem(c->ctx);
	if (tern_mem_alloc(mem, REGION_BYTES, 4096, TERN_ACCESS_NONE, TERN_MEM_HOST, &out) != TERN_OK ||
	    tern_mem_alloc(mem, REGION_BYTES, 4096, TERN_ACCESS_NONE, TERN_MEM_HOST, &in) != TERN_OK ||
	    tern_link_connect(c->ctx, address, &connect, &c->link) != TERN_OK ||
	    tern_link_wait(c->link, STEP_NS) != TERN_OK ||
	    tern_channel_open(c->link, SERVICE, &channel, &c->channel) != TERN_OK)
		return wrong(c, tern_detail());
	c->out = out;
	c->in = in;
	if (strcmp(tern_link_transport(c->link), provider) != 0)
		return wrong(c, tern_link_transport_reason(c->link));
	return ask(c, NULL, 0, &c->keys, sizeof(c->keys));
}

int doctor_self_peer(const char *address, const char *provider)
{
	child c = {0};
	bool ok = child_connect(&c, address, provider) && do_messages(&c) && do_puts(&c) && do_gets(&c);

	if (ok)
		printf("%u messages, %u puts and %u gets between two processes, checksums right\n", MESSAGES,
		       PIECES, PIECES);
	fflush(stdout);
	if (c.channel)
		tern_channel_close(c.channel);
	if (c.link)
		tern_link_release(c.link);
	if (c.ctx)
		tern_ctx_destroy(c.ctx);
	return ok ? 0 : 1;
}
