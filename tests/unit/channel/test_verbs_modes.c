/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context does when verbs cannot be used: auto goes on with one warning if there is a device that should
 * have worked and with a note if there is none; required fails with the reason and the remedy; off never looks.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "channel/ctx.h"
#include "cmocka_all.h"
#include "fake_ibverbs/fake.h"

#include <tern/ctx.h>
#include <tern/status.h>

static unsigned warnings;
static char last_warning[1024];

static void sink(tn_log_level level, const char *line, size_t bytes, void *arg)
{
	(void)arg;
	if (level > TN_LOG_WARN)
		return;
	warnings++;
	snprintf(last_warning, sizeof(last_warning), "%.*s", (int)bytes, line);
}

static const char *device = "verbs.device=auto";

static tern_status open_with(const char *mode, const char *transports, tern_ctx **ctx)
{
	char pair[64];
	const char *const options[] = {pair, device, NULL};
	tern_ctx_params params = {.options = options, .transports = transports};

	snprintf(pair, sizeof(pair), "verbs.mode=%s", mode);
	warnings = 0;
	last_warning[0] = '\0';
	*ctx = NULL;
	return tn_ctx_new(&params, ctx);
}

static bool has_verbs(const tern_ctx *ctx)
{
	(void)ctx;
	return fake_counts_get().contexts > 0;
}

typedef struct row {
	const char *what; /* its reason has this in it */
	int open_errno;
	enum ibv_port_state state;
	const char *call; /* fails with call_errno */
	int call_errno;
} row;

static const row rows[] = {
	{"not permitted", EACCES, IBV_PORT_ACTIVE, NULL, 0},
	{"not ACTIVE", 0, IBV_PORT_DOWN, NULL, 0},
	{"ibv_reg_mr", 0, IBV_PORT_ACTIVE, "reg_mr", ENOMEM},
	{"ibv_create_cq", 0, IBV_PORT_ACTIVE, "create_cq", EIO},
};

static void set_up(const row *r)
{
	fake_device dev = fake_device_default();

	dev.open_errno = r->open_errno;
	dev.state[0] = r->state;
	if (r->call && strcmp(r->call, "reg_mr") == 0) {
		dev.reg_refused_from = 1;
		dev.reg_errno = r->call_errno;
	}
	fake_reset(&dev, 1);
	if (r->call)
		fake_fail(r->call, 1, r->call_errno);
}

static void auto_goes_on_with_one_warning(void **state)
{
	tern_ctx *ctx;

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(rows); i++) {
		set_up(&rows[i]);
		assert_int_equal(open_with("auto", NULL, &ctx), TERN_OK);
		assert_false(has_verbs(ctx));
		assert_int_equal(warnings, 1);
		if (!strstr(last_warning, rows[i].what))
			print_error("%s: %s\n", rows[i].what, last_warning);
		assert_non_null(strstr(last_warning, rows[i].what));
		tern_ctx_destroy(ctx);
	}
}

static void required_fails_with_the_reason(void **state)
{
	tern_ctx *ctx;

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(rows); i++) {
		set_up(&rows[i]);
		assert_true(open_with("required", NULL, &ctx) != TERN_OK);
		assert_null(ctx);
		assert_non_null(strstr(tern_detail(), "required"));
		assert_non_null(strstr(tern_detail(), rows[i].what));
		assert_int_equal(fake_counts_get().contexts, 0);
	}
	fake_reset(NULL, 0);
	assert_int_equal(open_with("required", NULL, &ctx), TERN_OK);
	assert_true(has_verbs(ctx));
	tern_ctx_destroy(ctx);
}

/* Nothing there at all is no reason to warn, but not enough for required. */
static void no_device(void **state)
{
	const fake_device none = fake_device_default();
	tern_ctx *ctx;

	(void)state;
	fake_reset(&none, 0);
	assert_int_equal(open_with("auto", NULL, &ctx), TERN_OK);
	assert_int_equal(warnings, 0);
	tern_ctx_destroy(ctx);
	assert_int_equal(open_with("required", NULL, &ctx), TERN_E_NO_DEVICE);
	assert_non_null(strstr(tern_detail(), "no RDMA devices"));
	device = "verbs.device=mlx5_0"; /* somebody expects one */
	assert_int_equal(open_with("auto", NULL, &ctx), TERN_OK);
	assert_int_equal(warnings, 1);
	tern_ctx_destroy(ctx);
	fake_reset(NULL, 0);
	assert_int_equal(open_with("auto", NULL, &ctx), TERN_OK);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(last_warning, "mlx5_0"));
	tern_ctx_destroy(ctx);
	device = "verbs.device=auto";
}

static void off_never_looks(void **state)
{
	tern_ctx *ctx;

	(void)state;
	set_up(&rows[0]);
	assert_int_equal(open_with("off", NULL, &ctx), TERN_OK);
	assert_int_equal(warnings, 0);
	assert_int_equal(fake_calls("*"), 0);
	tern_ctx_destroy(ctx);
	/* Asked for by name all the same: one of the two has to go. */
	assert_int_equal(open_with("off", "verbs,tcp", &ctx), TERN_E_NO_DEVICE);
	assert_non_null(strstr(tern_detail(), "verbs.mode"));
}

static int install(void **state)
{
	(void)state;
	fake_install();
	tn_log_set_sink(sink, NULL);
	return 0;
}

static int restore(void **state)
{
	(void)state;
	tn_log_set_sink(NULL, NULL);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(auto_goes_on_with_one_warning),
		cmocka_unit_test(required_fails_with_the_reason),
		cmocka_unit_test(no_device),
		cmocka_unit_test(off_never_looks),
	};

	return cmocka_run_group_tests(tests, install, restore);
}
