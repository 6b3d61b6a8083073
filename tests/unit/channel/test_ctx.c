/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: parameters that are refused with a remedy, facts, options, providers, slots, fork.
 * Threads: helpers; asserts in the main thread.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "chan_test.h"
#include "channel/ctx_slots.h"

static void refused(const tern_ctx_params *params, tern_status expected, const char *word)
{
	tern_ctx *ctx = (tern_ctx *)1;

	assert_status(tn_ctx_new(params, &ctx), expected);
	assert_null(ctx);
	if (!strstr(tern_detail(), word))
		fail_msg("\"%s\" lacks \"%s\"", tern_detail(), word);
}

static void test_refusals(void **state)
{
	static const char *const unknown[] = {"link.windw_bytes=1", NULL}, *const bad[] = {"ctx.backlog=many",
											   NULL};
	char long_name[400];
	tern_ctx_params first = {.transports = "loop"};
	tern_ctx *ctx;

	(void)state;
	memset(long_name, 'x', sizeof(long_name));
	long_name[sizeof(long_name) - 1] = '\0';
	refused(&(tern_ctx_params){.listen = "0.0.0.0:0"}, TERN_E_INSECURE, "TERN_CTX_SECRET");
	refused(&(tern_ctx_params){.listen = "nonsense"}, TERN_E_INVALID, "host:port");
	refused(&(tern_ctx_params){.transports = "pigeon"}, TERN_E_NO_DEVICE, "pigeon");
	refused(&(tern_ctx_params){.transports = "loop,,tcp"}, TERN_E_NO_DEVICE, "loop,,tcp");
	refused(&(tern_ctx_params){.options = unknown}, TERN_E_OPTION, "window_bytes");
	refused(&(tern_ctx_params){.options = bad}, TERN_E_OPTION, "backlog");
	refused(&(tern_ctx_params){.name = long_name}, TERN_E_INVALID, "name");
	assert_ok(tn_ctx_new(&first, &ctx));
	refused(&(tern_ctx_params){.listen = tern_ctx_address(ctx), .transports = "loop"}, TERN_E_IN_USE,
		"port");
	tern_ctx_destroy(ctx);
	tern_ctx_destroy(NULL);
}

static void test_beyond_loopback(void **state)
{
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.listen = "0.0.0.0:0", .secret = "s", .transports = "loop"},
			     &ctx));
	assert_int_equal(strncmp(tern_ctx_address(ctx), "0.0.0.0:", 8), 0);
	tern_ctx_destroy(ctx);
	assert_ok(tn_ctx_new(
		&(tern_ctx_params){.listen = ":0", .flags = TERN_CTX_INSECURE, .transports = "loop"}, &ctx));
	tern_ctx_destroy(ctx);
}

static void test_no_listener(void **state)
{
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.listen = "", .transports = "loop"}, &ctx));
	assert_ok(tn_ctx_start(ctx));
	assert_string_equal(tern_ctx_address(ctx), "");
	assert_non_null(tern_ctx_mem(ctx));
	tern_ctx_destroy(ctx);
}

static void test_defaults(void **state)
{
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(NULL, &ctx));
	assert_ok(tn_ctx_start(ctx));
	assert_int_equal(strncmp(tern_ctx_address(ctx), "127.0.0.1:", 10), 0);
	tern_ctx_destroy(ctx);
}

static void count(const char *name, uint64_t value, void *arg)
{
	unsigned *seen = arg;

	(void)value;
	*seen |= strcmp(name, "channel.puts") == 0 ? 1u : 0;
	*seen |= strcmp(name, "link.frames_tx") == 0 ? 2u : 0;
	*seen |= strcmp(name, "loop.tx_bytes") == 0 ? 4u : 0;
	*seen |= strcmp(name, "mem.extents") == 0 ? 8u : 0;
	*seen |= strcmp(name, "link.up") == 0 ? 16u : 0;
	*seen |= strcmp(name, "slot.counter") == 0 ? 32u : 0;
}

static int destroyed;

static void slot_destroy(tn_ctx_slot *slot)
{
	(void)slot;
	destroyed++;
}

static void slot_counters(tn_ctx_slot *slot, tern_counter_fn fn, void *arg)
{
	(void)slot;
	fn("slot.counter", 42, arg);
}

static void test_slots_and_counters(void **state)
{
	tn_ctx_slot slot = {.destroy = slot_destroy, .counters = slot_counters}, other = {0};
	unsigned seen = 0;
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop"}, &ctx));
	assert_null(tn_ctx_slot_get(ctx, TN_SLOT_RPC));
	assert_ptr_equal(tn_ctx_slot_set(ctx, TN_SLOT_RPC, &slot), &slot);
	assert_ptr_equal(tn_ctx_slot_set(ctx, TN_SLOT_RPC, &other), &slot);
	assert_ptr_equal(tn_ctx_slot_get(ctx, TN_SLOT_RPC), &slot);
	assert_null(tn_ctx_slot_get(ctx, TN_SLOT_TENSOR));
	tern_ctx_counters(ctx, count, &seen);
	assert_int_equal(seen, 63);
	assert_int_equal(tern_ctx_counter(ctx, "slot.counter"), 42);
	assert_int_equal(tern_ctx_counter(ctx, "no.such"), 0);
	tern_ctx_destroy(ctx);
	assert_int_equal(destroyed, 1);
}

static void count_fact(const char *key, const char *value, void *arg)
{
	assert_true(strlen(key) > 0 && value);
	++*(unsigned *)arg;
}

static void test_providers(void **state)
{
	tern_provider_info info;
	unsigned i = 0, facts = 0;
	int usable = 0;

	(void)state;
	for (; tern_provider_probe(i, &info) == TERN_OK; i++) {
		assert_true(strlen(info.name) > 0);
		assert_true(strlen(info.reason) > 0);
		usable += info.usable;
	}
	assert_true(i >= 1 && usable >= 1);
	assert_status(tern_provider_probe(i + 1, &info), TERN_E_NOT_FOUND);
	/* the first is shm, which has nothing to say */
	assert_status(tern_provider_describe(0, count_fact, &facts), TERN_OK);
	assert_int_equal(facts, 0);
	assert_status(tern_provider_describe(i, count_fact, &facts), TERN_E_NOT_FOUND);
}

/* TERN_LOG_LEVEL, TERN_CHECK and fault points work in every program that makes a context. */
static void test_options_of_the_process(void **state)
{
	static const char *const pairs[] = {"log.level=error,link=debug", NULL};
	const tern_ctx_params params = {.listen = "", .options = pairs};
	const tern_ctx_params silent = {.listen = ""};
	const uint8_t before = tn_log_levels[TN_LOG_C_LINK], all = tn_log_levels[TN_LOG_C_CTX];
	tern_ctx *ctx;

	(void)state;
	for (int i = 0; i < 2; i++) {
		/* the second says nothing of it: it stays */
		assert_ok(tn_ctx_new(i ? &silent : &params, &ctx));
		assert_int_equal(tn_log_levels[TN_LOG_C_LINK], TN_LOG_DEBUG);
		assert_int_equal(tn_log_levels[TN_LOG_C_CTX], TN_LOG_ERROR);
		tern_ctx_destroy(ctx);
	}
	tn_log_set_level(TN_LOG_C_LINK, (tn_log_level)before);
	for (unsigned i = 0; i < TN_LOG_COMPONENT_COUNT; i++)
		tn_log_set_level((tn_log_component)i, (tn_log_level)all);
}

static void test_options(void **state)
{
	tern_option_info info;
	bool spin = false, keepalive = false;

	(void)state;
	for (unsigned i = 0; tern_option_get(i, &info) == TERN_OK; i++) {
		assert_true(strlen(info.help) > 0 && strlen(info.type) > 0 && strlen(info.source) > 0);
		spin |= strcmp(info.name, "ctx.spin_ns") == 0 && strcmp(info.env, "TERN_CTX_SPIN_NS") == 0;
		keepalive |= strcmp(info.name, "link.keepalive") == 0;
	}
	assert_true(spin && keepalive);
}

/* In a forked child the parent's handles are inert; a context of its own works. */
static void test_fork(void **state)
{
	int status = 0;
	tern_ctx *ctx;
	pid_t pid;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop"}, &ctx));
	assert_ok(tn_ctx_start(ctx));
	pid = fork();
	if (pid == 0) {
		tern_ctx *own = NULL;
		tern_link *link;
		int bad = 0;

		bad |= tern_link_connect(ctx, "127.0.0.1:1", NULL, &link) != TERN_E_FORKED ? 1 : 0;
		bad |= tern_ctx_wait(ctx, 1000) != TERN_E_FORKED ? 2 : 0;
		bad |= tern_ctx_progress(ctx) != 0 ? 4 : 0;
		tern_ctx_wake(ctx);
		tern_ctx_destroy(ctx);
		bad |= tn_ctx_new(&(tern_ctx_params){.transports = "loop"}, &own) != TERN_OK ? 8 : 0;
		bad |= own && tern_ctx_wait(own, 1000) != TERN_E_DEADLINE ? 16 : 0;
		tern_ctx_destroy(own);
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
	/* The parent's is as good as before. */
	assert_status(tern_ctx_wait(ctx, 1000000), TERN_E_DEADLINE);
	tern_ctx_destroy(ctx);
}

/* What is left of a closed context is its memory. */
static void test_close(void **state)
{
	tern_ctx *ctx, *heir;
	tern_mem *mem;
	char address[64];
	uint8_t *block, *later;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop"}, &ctx));
	assert_ok(tn_ctx_start(ctx));
	mem = tern_ctx_mem(ctx);
	assert_ok(tern_mem_alloc(mem, 4096, 0, TERN_ACCESS_READ, TERN_MEM_HOST, (void **)&block));
	memset(block, 7, 4096);
	snprintf(address, sizeof(address), "%s", tern_ctx_address(ctx));
	tern_ctx_close(ctx);
	tern_ctx_close(ctx);
	assert_int_equal(block[4095], 7);
	assert_ok(tern_mem_alloc(mem, 8u << 20, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, (void **)&later));
	memset(later, 8, 8u << 20);
	/* nobody listens there any more */
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop", .listen = address}, &heir));
	tern_ctx_destroy(heir);
	tern_mem_free(mem, block);
	tern_mem_free(mem, later);
	tern_ctx_destroy(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_beyond_loopback),
		cmocka_unit_test(test_no_listener),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_slots_and_counters),
		cmocka_unit_test(test_providers),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_options_of_the_process),
		cmocka_unit_test(test_fork),
		cmocka_unit_test(test_close),
	};

	return RUN(tests);
}
