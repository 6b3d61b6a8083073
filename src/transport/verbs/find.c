/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how devices are found: which ports, why not the others. A device that is refused, down or not
 * permitted is skipped with the reason; only when nothing is left is it an error, which then has all reasons.
 *
 *   "auto"   one port, the fastest that is usable: two ports may lie in fabrics of different purpose, and each
 *            rail costs a registration of all memory, so several are taken only when they were asked for
 *   "all"    every usable port
 *   a list   these, in this order
 *
 * Must not make anything but contexts. Threads: one. Tests: tests/unit/transport/test_verbs_probe.c.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/options.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

#define SYSFS "/sys/class/infiniband"

typedef struct finder {
	const tn_verbs_api *api;
	bool best;  /* keep the fastest one only */
	bool named; /* somebody asked for each: that one is left out is a warning */
	tn_vb_found *found;
	uint32_t count;
	char why[400]; /* of what was skipped */
} finder;

static void note(finder *f, const char *text)
{
	size_t at = strlen(f->why);

	snprintf(f->why + at, sizeof(f->why) - at, "%s%s", at ? "; " : "", text);
	TN_LOG(INFO, VERBS, "skipped: %s", text);
}

/* The first entry of a folder whose name starts so. */
static bool first_entry(const char *folder, const char *prefix, char *name, size_t bytes)
{
	DIR *dir = opendir(folder);
	const struct dirent *entry;
	bool any = false;

	while (dir && !any && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.' || strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
			continue;
		snprintf(name, bytes, "%.60s", entry->d_name);
		any = true;
	}
	if (dir)
		closedir(dir);
	return any;
}

/* The first RDMA device that the kernel shows, library or not. */
static bool kernel_device(char *name, size_t bytes)
{
	return first_entry(SYSFS, "", name, bytes);
}

bool tn_vb_present(void)
{
	struct ibv_device **list;
	const tn_verbs_api *api;
	char name[64];
	int count = 0;

	if (tn_verbs_api_get(&api) == TERN_OK) {
		list = api->get_device_list(&count);
		if (list)
			api->free_device_list(list);
	}
	return count > 0 || (!tn_verbs_api_is_overridden() && kernel_device(name, sizeof(name)));
}

/* ---- one port ---- */

/* Why it cannot be opened: libibverbs tries more than one way and leaves the error of the last. */
static tern_status closed(const struct ibv_device *device, const char *name, int err)
{
	char path[sizeof(device->dev_name) + 32];
	const char *what = "the kernel's driver and rdma-core may not fit each other: update rdma-core";
	int fd;

	snprintf(path, sizeof(path), "/dev/infiniband/%s", device->dev_name);
	if (!tn_verbs_api_is_overridden()) {
		fd = open(path, O_RDWR | O_CLOEXEC);
		err = fd < 0 ? errno : err;
		tn_os_close(&fd);
	}
	if (err == EACCES || err == EPERM)
		what = "not permitted; give this user (or container) /dev/infiniband/uverbs*";
	else if (err == ENOENT)
		what = "/dev/infiniband/uverbs* is not there: pass it into the container (--device), or run "
		       "udevadm "
		       "trigger";
	errno = err;
	return tn_fail_errno(TERN_E_NO_DEVICE, "ibv_open_device", "%s: %s", name, what);
}

static tern_status open_context(const tn_verbs_api *api, struct ibv_device *device, tn_vb_found *f)
{
	errno = 0;
	f->context = api->open_device(device);
	if (!f->context)
		return closed(device, f->name, errno);
	if (api->query_device(f->context, &f->attr) != 0)
		return tn_fail_errno(TERN_E_NO_DEVICE, "ibv_query_device", "%s", f->name);
	if (f->attr.max_srq <= 0)
		return tn_fail(TERN_E_NO_DEVICE, "%s has no shared receive queues", f->name);
	return TERN_OK;
}

/* On error the context is closed again, but f->attr may be filled. */
static tern_status open_port(const tn_verbs_api *api, struct ibv_device *device, uint8_t number,
			     tn_vb_found *f)
{
	tern_status status;

	memset(f, 0, sizeof(*f));
	snprintf(f->name, sizeof(f->name), "%s", api->get_device_name(device));
	status = open_context(api, device, f);
	if (status == TERN_OK) {
		status = tn_vb_port_query(api, f->context, number, &f->port);
		if (status != TERN_OK)
			tn_detail_prefix("%s", f->name);
	}
	if (status != TERN_OK && f->context) {
		api->close_device(f->context);
		f->context = NULL;
	}
	return status;
}

static void take(finder *f, const tn_vb_found *one)
{
	if (f->best && f->count > 0) {
		bool better = one->port.rate > f->found[0].port.rate;

		f->api->close_device(better ? f->found[0].context : one->context);
		if (better)
			f->found[0] = *one;
		return;
	}
	if (f->count == TN_VB_RAILS_MAX) {
		f->api->close_device(one->context);
		TN_LOG(INFO, VERBS, "%s port %u is left out: %u rails are in use", one->name,
		       one->port.number, TN_VB_RAILS_MAX);
		return;
	}
	f->found[f->count++] = *one;
}

/* number 0: each port, or the first usable one if it was named. */
static void try_device(finder *f, struct ibv_device *device, uint8_t number)
{
	uint8_t last = number ? number : 1;
	tn_vb_found one;

	for (uint8_t port = last; port <= last && port > 0; port++) {
		tern_status status = open_port(f->api, device, port, &one);

		if (number == 0 && one.attr.phys_port_cnt > last)
			last = one.attr.phys_port_cnt;
		if (status != TERN_OK) {
			note(f, tn_detail_get());
			continue;
		}
		take(f, &one);
		if (f->named)
			break;
	}
}

/* ---- what was asked for ---- */

static struct ibv_device *by_name(finder *f, struct ibv_device **list, int count, const char *name)
{
	for (int i = 0; i < count && list[i]; i++) {
		const char *has = f->api->get_device_name(list[i]);

		if (has && strcmp(has, name) == 0)
			return list[i];
	}
	return NULL;
}

/* "NAME" or "NAME:PORT". */
static void try_entry(finder *f, struct ibv_device **list, int count, const char *entry)
{
	struct ibv_device *device;
	char name[64], text[128];
	unsigned port = 0;
	const char *colon;

	snprintf(name, sizeof(name), "%s", entry);
	colon = strchr(name, ':');
	if (colon) {
		name[colon - name] = '\0';
		if (sscanf(entry + (colon - name) + 1, "%3u", &port) != 1 || port < 1 || port > 255) {
			snprintf(text, sizeof(text), "\"%.60s\" is not NAME:PORT (TERN_VERBS_DEVICE)", entry);
			note(f, text);
			return;
		}
	}
	device = by_name(f, list, count, name);
	if (device) {
		try_device(f, device, (uint8_t)port);
		return;
	}
	snprintf(text, sizeof(text), "no RDMA device is named %s (TERN_VERBS_DEVICE)", name);
	note(f, text);
}

static void try_list(finder *f, struct ibv_device **list, int count, const char *wanted)
{
	for (const char *at = wanted; at && *at;) {
		const char *comma = strchr(at, ',');
		size_t n = comma ? (size_t)(comma - at) : strlen(at);
		char entry[64] = "";

		memcpy(entry, at, TN_MIN(n, sizeof(entry) - 1));
		if (n > 0)
			try_entry(f, list, count, entry);
		at = comma ? comma + 1 : NULL;
	}
}

static tern_status nothing(const finder *f, int count)
{
	char name[64], node[64];

	if (f->why[0])
		return tn_fail(TERN_E_NO_DEVICE, "%s", f->why);
	if (count == 0 && !tn_verbs_api_is_overridden() && kernel_device(name, sizeof(name)))
		return tn_fail(
			TERN_E_NO_DEVICE, "the kernel has the RDMA device %s, libibverbs shows none: %s",
			name,
			first_entry("/dev/infiniband", "uverbs", node, sizeof(node))
				? "install ibverbs-providers; if it is there, its ABI does not fit the "
				  "kernel's"
				: "/dev/infiniband/uverbs* is not there: pass it into the container "
				  "(--device), or run udevadm trigger");
	return tn_fail(TERN_E_NO_DEVICE,
		       "no RDMA devices on this host (see 'rdma link'); for tests without a NIC: "
		       "'rdma link add rxe0 type rxe netdev IF'");
}

tern_status tn_vb_find(const tn_verbs_api *api, const char *wanted, tn_vb_found *found, uint32_t *count)
{
	bool all = strcmp(wanted, "all") == 0, best = wanted[0] == '\0' || strcmp(wanted, "auto") == 0;
	finder f = {.api = api, .best = best, .named = !all && !best, .found = found};
	struct ibv_device **list;
	int devices = 0;

	*count = 0;
	list = api->get_device_list(&devices);
	if (!list)
		return tn_fail_errno(
			TERN_E_NO_DEVICE, "ibv_get_device_list",
			"is the module ib_uverbs loaded and /sys/class/infiniband_verbs visible?");
	if (f.named)
		try_list(&f, list, devices, wanted);
	for (int i = 0; !f.named && i < devices && list[i]; i++)
		try_device(&f, list[i], 0);
	api->free_device_list(list);
	*count = f.count;
	/* With none left the caller knows whether that is worth a warning. */
	if (f.named && f.count > 0 && f.why[0])
		TN_LOG(WARN, VERBS, "going on without some of %s: %s", wanted, f.why);
	return f.count ? TERN_OK : nothing(&f, devices);
}

tern_status tn_vb_probe(char *reason, size_t reason_bytes)
{
	tn_vb_found found[TN_VB_RAILS_MAX];
	const tn_verbs_api *api;
	uint32_t count = 0;
	tern_status status = tn_verbs_api_get(&api);

	if (status == TERN_OK)
		status = tn_vb_find(api, "auto", found, &count);
	if (reason && reason_bytes && status == TERN_OK)
		snprintf(reason, reason_bytes, "%s: %s", found[0].name, found[0].port.reason);
	else if (reason && reason_bytes)
		snprintf(reason, reason_bytes, "%s", tn_detail_get());
	for (uint32_t i = 0; i < count; i++)
		api->close_device(found[i].context);
	return status;
}

tern_status tn_vb_fail_errno(const char *call, const char *fmt, ...)
{
	char text[256], limit[32], hint[128] = "";
	tn_os_limits limits;
	int err = errno;
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	tn_os_limits_get(&limits);
	/* Queues are pinned like registered memory. */
	if (err == ENOMEM && limits.memlock_bytes != UINT64_MAX)
		snprintf(hint, sizeof(hint),
			 "; RLIMIT_MEMLOCK is %s: raise it with 'ulimit -l unlimited' or "
			 "LimitMEMLOCK=infinity",
			 tn_format_bytes(limits.memlock_bytes, limit, sizeof(limit)));
	errno = err;
	return tn_fail_errno(err == ENOMEM ? TERN_E_NOMEM : TERN_E_DEVICE, call, "%s%s", text, hint);
}
