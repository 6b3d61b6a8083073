/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a transfer module and is its host: peers learn each other's addresses by one call over the links.
 *
 * A module stays loaded for the life of the process: RPC systems have threads and state of their own that do not
 * survive an unload.
 *
 * Threads: the executor's; the handler of the call runs from dispatch and takes host->lock.
 * Tests: tests/unit/graph/xfer_link_test.c.
 */
#include "graph/xfer_module.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/options.h"
#include "graph/xfer_link.h"

#define METHOD_WHERE 0x7e000003u
#define RETRY_NS     20000000ull

static const tn_option_row rows[] = {
	{.layer = "graph",
	 .name = "grpc_module",
	 .type = TN_OPT_STRING,
	 .dflt = "libtern-xfer-grpc.so",
	 .help = "file of the transfer module that --comm grpc loads"},
	{.layer = "graph",
	 .name = "grpc_way",
	 .type = TN_OPT_ENUM,
	 .choices = "plain|tuned",
	 .help = "--comm grpc: a protobuf service with default settings, or generic byte buffers with raised "
		 "limits"},
	{0},
};
TN_OPTION_TABLE(graph_xfer, rows)

struct tn_xfer_host {
	tn_xfer_link link; /* for texts and waits; no transfer of its own */
	pthread_mutex_t lock;
	char address[TN_XFER_ADDRESS_MAX]; /* lock */
	bool serving;
};

/* ---- addresses ---- */

static void on_where(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_xfer_host *host = arg;
	char address[TN_XFER_ADDRESS_MAX];

	(void)args;
	(void)bytes;
	pthread_mutex_lock(&host->lock);
	memcpy(address, host->address, sizeof(address));
	pthread_mutex_unlock(&host->lock);
	tern_rpc_reply(request, TERN_OK, address, sizeof(address));
}

static tern_status publish(tn_xfer_host *host, const char *address)
{
	tern_status status;

	pthread_mutex_lock(&host->lock);
	snprintf(host->address, sizeof(host->address), "%s", address);
	pthread_mutex_unlock(&host->lock);
	status = tern_rpc_serve(host->link.ctx, METHOD_WHERE, on_where, host);
	host->serving = status == TERN_OK;
	return status;
}

/* Asks again until the peer has published: before, it has no such method. */
static tern_status ask(tn_xfer_host *host, tern_rpc *rpc, const char *peer, uint64_t deadline_ns,
		       char *address)
{
	tern_rpc_call_params params = {
		.method = METHOD_WHERE, .answer = address, .answer_capacity = TN_XFER_ADDRESS_MAX};
	tern_status status;
	uint64_t slice_ns;

	for (;;) {
		TN_TRY(tn_xfer_link_may_wait(&host->link, peer, "say where it listens", deadline_ns,
					     &slice_ns));
		status = tern_rpc_call_wait(rpc, &params, slice_ns, NULL);
		if (status == TERN_OK) {
			address[TN_XFER_ADDRESS_MAX - 1] = '\0';
			return TERN_OK;
		}
		if (status != TERN_E_NO_METHOD && status != TERN_E_DEADLINE)
			return status;
		tern_ctx_wait(host->link.ctx, TN_MIN(slice_ns, RETRY_NS));
	}
}

static tern_status look_up(tn_xfer_host *host, uint32_t device, uint64_t deadline_ns,
			   char address[TN_XFER_ADDRESS_MAX])
{
	tern_link *link = device < host->link.devices ? host->link.links[device] : NULL;
	tern_status status;
	tern_rpc *rpc;

	if (!link)
		return tn_fail(TERN_E_STATE, "there is no link to device %u", device);
	TN_TRY(tern_rpc_open(link, &rpc));
	status = ask(host, rpc, tern_link_peer_name(link), deadline_ns, address);
	tern_rpc_close(rpc);
	return status;
}

static bool canceled(const tn_xfer_host *host)
{
	return host->link.canceled && atomic_load(host->link.canceled);
}

static tern_status fail(tern_status status, const char *text)
{
	return tn_fail(status, "%s", text);
}

static void done(tn_xfer_host *host)
{
	if (host->serving)
		tern_rpc_unserve(host->link.ctx, METHOD_WHERE);
	pthread_mutex_destroy(&host->lock);
	tn_xfer_link_fini(&host->link);
	free(host);
}

static const tn_xfer_host_ops host_ops = {
	.publish = publish, .look_up = look_up, .canceled = canceled, .fail = fail, .done = done};

/* ---- loading ---- */

static tern_status load(const char *path, const tn_xfer_module **module)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	tn_xfer_module_get_fn get;

	if (!library)
		return tn_fail(TERN_E_NOT_FOUND,
			       "the transfer module cannot be loaded: %s; it is built with the benches where "
			       "gRPC's C++ library is installed, TERN_GRAPH_GRPC_MODULE names another file",
			       dlerror());
	*(void **)&get = dlsym(library, TN_XFER_MODULE_SYMBOL);
	*module = get ? get() : NULL;
	if (!*module || (*module)->version != TN_XFER_MODULE_VERSION) {
		tern_status status = tn_fail(TERN_E_VERSION, "%s is no transfer module of version %u", path,
					     TN_XFER_MODULE_VERSION);

		dlclose(library);
		return status;
	}
	return TERN_OK;
}

static tern_status host_new(const tn_xfer_link_params *params, tn_xfer_host **out)
{
	tn_xfer_host *host = calloc(1, sizeof(*host));
	tern_status status;

	if (!host)
		return tn_fail(TERN_E_NOMEM, "no memory for a transfer");
	status = tn_xfer_link_init(&host->link, NULL, params);
	if (status != TERN_OK) {
		free(host);
		return status;
	}
	pthread_mutex_init(&host->lock, NULL);
	*out = host;
	return TERN_OK;
}

tern_status tn_xfer_module_open(const tn_xfer_link_params *params, const char *path, const char *way,
				tn_xfer **xfer)
{
	const tn_xfer_module *module = NULL;
	tn_xfer_module_params p;
	tn_xfer_host *host = NULL;
	tern_status status;

	*xfer = NULL;
	TN_TRY(load(path, &module));
	TN_TRY(host_new(params, &host));
	p = (tn_xfer_module_params){.host = host,
				    .ops = &host_ops,
				    .way = way,
				    .device = params->device,
				    .devices = params->devices,
				    .dialed = params->dialed};
	status = module->open(&p, xfer);
	if (status != TERN_OK)
		done(host);
	return status;
}

tern_status tn_xfer_grpc_open(const tn_xfer_link_params *params, tn_xfer **xfer)
{
	static const char *const ways[] = {"plain", "tuned"};
	tn_options *options;
	tern_status status;

	TN_TRY(tn_options_load(NULL, &options));
	status = tn_xfer_module_open(params, tn_opt_string(options, rows, "grpc_module"),
				     ways[tn_opt_enum(options, rows, "grpc_way")], xfer);
	tn_options_free(options);
	return status;
}
