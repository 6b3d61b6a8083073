/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of somebody else: a put with notification from one context into another's memory, over the transport that
 * the command line names. It sees what is installed, nothing else. Says "transferred" and 0 if the bytes arrived.
 */
#include <stdio.h>
#include <string.h>

#include <tern/channel.h>
#include <tern/ctx.h>
#include <tern/mem.h>

#define BYTES (1u << 20)
#define LIMIT 10000000000ull

static volatile uint32_t notified;

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	(void)channel;
	(void)arg;
	notified = bytes == BYTES ? value : 0;
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	(void)arg;
	params->on_notify = on_notify;
	return TERN_OK;
}

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, tern_detail());
	return 1;
}

static int transfer(tern_ctx *from, tern_ctx *to, unsigned char *src, unsigned char *dst, const tern_key *key)
{
	tern_channel_params params = {0};
	tern_channel *channel;
	tern_link *link;
	tern_op op;

	if (tern_ctx_listen(to, "tensors", on_open, NULL) != TERN_OK ||
	    tern_link_connect(from, tern_ctx_address(to), NULL, &link) != TERN_OK ||
	    tern_link_wait(link, LIMIT) != TERN_OK ||
	    tern_channel_open(link, "tensors", &params, &channel) != TERN_OK)
		return failed("connecting");
	tern_op_init(&op, NULL, NULL);
	if (tern_put_notify(channel, src, BYTES, key, 0, 7, &op) != TERN_OK ||
	    tern_op_wait(from, &op, LIMIT) != TERN_OK || tern_op_test(&op) != TERN_OK)
		return failed("putting");
	for (int i = 0; i < 1000 && notified != 7; i++)
		tern_ctx_wait(to, 10000000);
	if (notified != 7 || memcmp(src, dst, BYTES) != 0)
		return failed("nothing arrived");
	printf("transferred over %s\n", tern_link_transport(link));
	tern_channel_close(channel);
	tern_link_release(link);
	return 0;
}

int main(int argc, char **argv)
{
	const char *transports = argc > 1 ? argv[1] : NULL;
	tern_ctx_params here = {.name = "here", .transports = transports};
	tern_ctx_params there = {.name = "there", .transports = transports};
	tern_ctx *from, *to;
	void *src, *dst;
	tern_key key;
	int result;

	if (strcmp(tern_version(), TERN_VERSION_STRING) != 0 ||
	    strcmp(tern_status_name(TERN_E_BOUNDS), "TERN_E_BOUNDS") != 0)
		return failed("another library than the headers'");
	if (tern_ctx_create(&here, &from) != TERN_OK || tern_ctx_create(&there, &to) != TERN_OK ||
	    tern_mem_alloc(tern_ctx_mem(from), BYTES, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &src) != TERN_OK ||
	    tern_mem_alloc(tern_ctx_mem(to), BYTES, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &dst) != TERN_OK ||
	    tern_mem_export(tern_ctx_mem(to), dst, BYTES, TERN_ACCESS_WRITE, &key) != TERN_OK)
		return failed("beginning");
	memset(src, 0x5a, BYTES);
	memset(dst, 0, BYTES);
	result = transfer(from, to, src, dst, &key);
	tern_ctx_destroy(from);
	tern_ctx_destroy(to);
	return result;
}
