/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of a context, and tern_provider_probe. See devices.h.
 * Threads: see devices.h. Tests: tests/unit/channel/test_ctx.c.
 */
#include "channel/devices.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/options.h"
#include "channel/ctx_impl.h"

/* Of one link's messages: at most 64 frames of them are in flight, the rest is for what is told late. */
#define SLOTS_MOST 256u

static bool is_auto(const char *transports)
{
	return !transports || transports[0] == '\0' || strcmp(transports, "auto") == 0;
}

int tn_transports_rank(const char *transports, const char *name)
{
	size_t n = strlen(name);
	int rank = 0;

	if (is_auto(transports)) {
		if (strcmp(name, "loop") == 0)
			return -1; /* it reaches only its own process: never by itself */
		for (size_t i = 0; tn_providers()[i]; i++) {
			if (strcmp(tn_providers()[i]->name, name) == 0)
				return (int)i;
		}
		return -1;
	}
	for (const char *at = transports; at; rank++) {
		const char *comma = strchr(at, ',');
		size_t len = comma ? (size_t)(comma - at) : strlen(at);

		if (len == n && memcmp(at, name, n) == 0)
			return rank;
		at = comma ? comma + 1 : NULL;
	}
	return -1;
}

static const tn_provider *find_provider(const tern_ctx *ctx, const char *name)
{
	for (size_t i = 0; ctx->hooks && ctx->hooks->providers[i]; i++) {
		if (strcmp(ctx->hooks->providers[i]->name, name) == 0)
			return ctx->hooks->providers[i];
	}
	return tn_provider_find(name);
}

static tn_want want_of(const tn_provider *provider, const tn_options *options)
{
	return provider->want ? provider->want(options) : TN_WANT_AUTO;
}

void tn_share_lock_take(void *lock)
{
	tn_lock_take(lock);
}

void tn_share_lock_drop(void *lock)
{
	tn_lock_drop(lock);
}

static void init_share(tn_shell_dev *sdev)
{
	tn_share_lock lock = {tn_share_lock_take, tn_share_lock_drop, &sdev->share_lock};
	const tn_options *o = sdev->ctx->options;
	unsigned grants = tn_opt_enum(o, tn_link_option_rows, "grants");

	tn_lock_init(&sdev->share_lock, sdev->ctx->single_owner);
	tn_link_budget_init(&sdev->budget, tn_opt_u64(o, tn_link_option_rows, "device_bytes"), &lock);
	tn_link_arbiter_init(&sdev->arbiter, tn_opt_u64(o, tn_link_option_rows, "grant_bytes"),
			     tn_opt_u64(o, tn_link_option_rows, "grant_unit"), &lock);
	tn_link_pool_init(&sdev->pool, sdev->caps.recv_slots, TN_MIN(sdev->caps.lane_recv_slots, SLOTS_MOST),
			  &lock);
	tn_link_quota_init(&sdev->quota, (uint32_t)tn_opt_u64(o, tn_link_option_rows, "device_lanes"),
			   tn_opt_u64(o, tn_link_option_rows, "lane_rest"), &lock);
	sdev->grants = grants == TN_GRANTS_ON || (grants == TN_GRANTS_AUTO && sdev->caps.incast);
}

static tern_status open_device(tern_ctx *ctx, const tn_provider *provider, const char *bind_host)
{
	tn_shell_dev *sdev = &ctx->devs[ctx->dev_count];
	tn_dev_params params = {.mem = ctx->mem,
				.options = ctx->options,
				.bind_host = bind_host,
				.one_thread = ctx->single_owner};
	tern_status status;

	if (want_of(provider, ctx->options) == TN_WANT_OFF)
		return tn_fail(TERN_E_NO_DEVICE, "provider %s is off (option %s.mode)", provider->name,
			       provider->name);
	status = provider->probe(sdev->reason, sizeof(sdev->reason));
	if (status != TERN_OK)
		return tn_fail(TERN_E_NO_DEVICE, "provider %s is not usable: %s", provider->name,
			       sdev->reason);
	status = provider->open(&params, &sdev->dev);
	if (status != TERN_OK) {
		tn_detail_prefix("provider %s", provider->name);
		return status;
	}
	sdev->ctx = ctx;
	sdev->name = provider->name;
	sdev->dev->ops->caps(sdev->dev, &sdev->caps);
	sdev->dev->ops->address(sdev->dev, &sdev->address);
	sdev->watch.ready = tn_progress_device_ready;
	sdev->watch.fd = sdev->dev->ops->fd(sdev->dev);
	sdev->armed = false;
	init_share(sdev);
	status = tn_progress_watch(ctx, &sdev->watch, EPOLLIN);
	if (status != TERN_OK) {
		sdev->dev->ops->close(sdev->dev);
		sdev->dev = NULL;
		return status;
	}
	ctx->dev_count++;
	TN_LOG(INFO, CTX, "provider %s: %s", provider->name, sdev->reason);
	return TERN_OK;
}

/* One that cannot be used: an error if it is required, else one line. */
static tern_status do_without(const tern_ctx *ctx, const tn_provider *provider, tern_status status)
{
	tn_want want = want_of(provider, ctx->options);
	char why[TN_DETAIL_MAX];

	if (want == TN_WANT_REQUIRED) {
		tn_detail_prefix("required by %s.mode", provider->name);
		return status;
	}
	snprintf(why, sizeof(why), "%s", tn_detail_get());
	if (want == TN_WANT_NAMED || (want == TN_WANT_AUTO && provider->present && provider->present()))
		TN_LOG(WARN, CTX, "%s: going on without it (%s.mode=off silences this)", why, provider->name);
	else
		TN_LOG(INFO, CTX, "%s: going on without it", why);
	return TERN_OK;
}

/* "auto": whatever is usable. */
static tern_status open_auto(tern_ctx *ctx, const char *bind_host)
{
	char why[TN_DETAIL_MAX] = "";

	for (size_t i = 0; tn_providers()[i] && ctx->dev_count < TN_CTX_DEVICES_MAX; i++) {
		const tn_provider *provider = tn_providers()[i];
		tern_status status;

		if (tn_transports_rank(NULL, provider->name) < 0)
			continue;
		status = open_device(ctx, provider, bind_host);
		if (status == TERN_OK)
			continue;
		snprintf(why, sizeof(why), "%s", tn_detail_get());
		TN_TRY(do_without(ctx, provider, status));
	}
	if (ctx->dev_count == 0)
		return tn_fail(TERN_E_NO_DEVICE,
			       "no provider is usable (tern info has all reasons), the last because: %s",
			       why);
	return TERN_OK;
}

tern_status tn_devices_open(tern_ctx *ctx, const char *transports, const char *bind_host)
{
	if (is_auto(transports))
		return open_auto(ctx, bind_host);
	for (const char *at = transports; at;) {
		const char *comma = strchr(at, ',');
		size_t n = comma ? (size_t)(comma - at) : strlen(at);
		const tn_provider *provider;
		char name[32] = "";

		if (n < sizeof(name))
			memcpy(name, at, n);
		at = comma ? comma + 1 : NULL;
		provider = find_provider(ctx, name);
		if (!provider)
			return tn_fail(TERN_E_NO_DEVICE,
				       "there is no provider \"%s\" in \"%s\": use auto, shm or tcp", name,
				       transports);
		if (ctx->dev_count == TN_CTX_DEVICES_MAX)
			return tn_fail(TERN_E_LIMIT, "at most %d transports", TN_CTX_DEVICES_MAX);
		TN_TRY(open_device(ctx, provider, bind_host));
	}
	return TERN_OK;
}

void tn_devices_close(tern_ctx *ctx)
{
	while (ctx->dev_count > 0) {
		tn_shell_dev *sdev = &ctx->devs[--ctx->dev_count];

		TN_ASSERT(sdev->lanes == 0);
		tn_progress_unwatch(ctx, &sdev->watch);
		sdev->dev->ops->close(sdev->dev);
		sdev->dev = NULL;
	}
}

tern_status tern_provider_probe(unsigned i, tern_provider_info *info)
{
	const tn_provider *const *list = tn_providers();

	tn_options *options = NULL;

	memset(info, 0, sizeof(*info));
	for (unsigned k = 0; k <= i; k++) {
		if (!list[k])
			return TERN_E_NOT_FOUND;
	}
	info->name = list[i]->name;
	if (tn_options_load(NULL, &options) == TERN_OK && want_of(list[i], options) == TN_WANT_OFF) {
		snprintf(info->reason, sizeof(info->reason), "off (option %s.mode)", info->name);
		tn_options_free(options);
		return TERN_OK;
	}
	tn_options_free(options);
	info->usable = list[i]->probe(info->reason, sizeof(info->reason)) == TERN_OK;
	return TERN_OK;
}

tern_status tern_provider_describe(unsigned i, tern_fact_fn fn, void *arg)
{
	const tn_provider *const *list = tn_providers();

	for (unsigned k = 0; k <= i; k++) {
		if (!list[k])
			return TERN_E_NOT_FOUND;
	}
	return list[i]->describe ? list[i]->describe(fn, arg) : list[i]->probe(NULL, 0);
}
