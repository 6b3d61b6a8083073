/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what `tern doctor` is told about libibverbs and its devices: where the library is, what it can do, and
 * for every device and port what the NIC says, its GID table with the choice that lanes would make of it.
 *
 * Facts: "library", "library.*", "devices", "DEV", "DEV.*", "DEV.portN", "DEV.portN.*", "DEV.portN.gid.I".
 * Must not keep a device open or create anything on it. Threads: any; called now and then by people.
 * Tests: tests/unit/transport/test_verbs_describe.c.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "transport/verbs/verbs.h"

#define KEY_MAX  128
#define GIDS_MAX 256 /* as in gid.c */

typedef struct teller {
	tern_fact_fn fn;
	void *arg;
	const tn_verbs_api *api;
	char prefix[KEY_MAX]; /* with its dot */
} teller;

__attribute__((format(printf, 3, 4))) static void tell(const teller *t, const char *key, const char *fmt, ...)
{
	char name[2 * KEY_MAX], value[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(value, sizeof(value), fmt, args);
	va_end(args);
	snprintf(name, sizeof(name), "%s%s", t->prefix, key);
	t->fn(name, value, t->arg);
}

/* The file that the table was filled from, links followed: its name carries the version of rdma-core. */
static void tell_library(const teller *t)
{
	Dl_info info;
	void *function;
	char *path;

	memcpy(&function, &t->api->get_device_list, sizeof(function));
	if (!dladdr(function, &info) || !info.dli_fname)
		return;
	path = realpath(info.dli_fname, NULL);
	tell(t, "library", "%s", path ? path : info.dli_fname);
	free(path);
	tell(t, "library.query_gid_ex", "%s", t->api->query_gid_ex ? "yes" : "no");
}

static const char *state_name(enum ibv_port_state state)
{
	static const char *const names[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};

	return (unsigned)state < TN_COUNT_OF(names) ? names[state] : "?";
}

static const char *kind_name(tn_vb_gid_kind kind)
{
	static const char *const names[] = {[TN_VB_GID_IB] = "InfiniBand",
					    [TN_VB_GID_ROCE_V1] = "RoCEv1",
					    [TN_VB_GID_ROCE_V2] = "RoCEv2",
					    [TN_VB_GID_UNKNOWN] = "type unknown"};

	return names[kind];
}

static bool entry_read(const teller *t, struct ibv_context *context, uint8_t port, bool ethernet, int index,
		       union ibv_gid *gid, tn_vb_gid_kind *kind)
{
	struct ibv_gid_entry entry = {0};

	*kind = ethernet ? TN_VB_GID_UNKNOWN : TN_VB_GID_IB;
	if (!t->api->query_gid_ex || !ethernet)
		return t->api->query_gid(context, port, index, gid) == 0;
	if (t->api->query_gid_ex(context, port, (uint32_t)index, &entry, 0, sizeof(entry)) != 0)
		return false;
	*gid = entry.gid;
	*kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? TN_VB_GID_ROCE_V2
		: entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? TN_VB_GID_ROCE_V1
							 : TN_VB_GID_IB;
	return true;
}

static void tell_gids(const teller *t, struct ibv_context *context, uint8_t port, bool ethernet, int entries)
{
	static const union ibv_gid empty;
	int best = 0, best_index = -1;
	char best_why[64] = "no entry is usable: give the interface a routed address";

	for (int i = 0; i < TN_MIN(entries, GIDS_MAX); i++) {
		tn_vb_gid_kind kind;
		union ibv_gid gid;
		char key[32], text[64];
		const char *why;
		int score;

		if (!entry_read(t, context, port, ethernet, i, &gid, &kind) ||
		    memcmp(&gid, &empty, sizeof(gid)) == 0)
			continue;
		score = tn_vb_gid_score(&gid, kind, &why);
		tn_vb_gid_text(&gid, text, sizeof(text));
		snprintf(key, sizeof(key), "gid.%d", i);
		tell(t, key, "%s %s, %s%s", text, kind_name(kind),
		     score > 0 ? "usable: " : "not used: ", why);
		if (score <= best)
			continue;
		best = score;
		best_index = i;
		snprintf(best_why, sizeof(best_why), "%s", why);
	}
	tell(t, "gid_choice", "%d %s", best_index, best_why);
}

static void tell_port(const teller *device, struct ibv_context *context, uint8_t number)
{
	struct ibv_port_attr attr = {0};
	bool ethernet;
	teller t = *device;

	snprintf(t.prefix, sizeof(t.prefix), "%.100sport%u.", device->prefix, number);
	if (t.api->query_port(context, number, (struct _compat_ibv_port_attr *)(void *)&attr) != 0) {
		tell(&t, "state", "ibv_query_port failed: %s", strerror(errno));
		return;
	}
	ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
	tell(&t, "state", "%s", state_name(attr.state));
	tell(&t, "link_layer", "%s", ethernet ? "Ethernet" : "InfiniBand");
	tell(&t, "active_mtu", "%u", 128u << attr.active_mtu);
	tell(&t, "max_mtu", "%u", 128u << attr.max_mtu);
	tell(&t, "max_msg_bytes", "%u", attr.max_msg_sz);
	if (!ethernet)
		tell(&t, "lid", "%u, subnet manager at %u", attr.lid, attr.sm_lid);
	tell_gids(&t, context, number, ethernet, attr.gid_tbl_len);
}

static void tell_caps(const teller *t, const struct ibv_device_attr *attr)
{
	tell(t, "firmware", "%.*s", (int)sizeof(attr->fw_ver), attr->fw_ver);
	tell(t, "vendor", "%#x, part %#x", attr->vendor_id, attr->vendor_part_id);
	tell(t, "max_mr_bytes", "%llu", (unsigned long long)attr->max_mr_size);
	tell(t, "max_mr", "%d", attr->max_mr);
	tell(t, "max_qp", "%d", attr->max_qp);
	tell(t, "max_qp_wr", "%d", attr->max_qp_wr);
	tell(t, "max_cqe", "%d", attr->max_cqe);
	tell(t, "max_srq", "%d", attr->max_srq);
	tell(t, "max_srq_wr", "%d", attr->max_srq_wr);
	tell(t, "max_rd_atomic", "%d", attr->max_qp_rd_atom);
	tell(t, "ports", "%u", attr->phys_port_cnt);
}

static void tell_device(const teller *library, struct ibv_device *device)
{
	const char *name = library->api->get_device_name(device);
	struct ibv_device_attr attr;
	struct ibv_context *context;
	teller t = *library;

	name = name ? name : "?";
	errno = 0;
	context = t.api->open_device(device);
	if (!context) {
		tell(&t, name, "cannot be opened: %s", errno ? strerror(errno) : "no reason given");
		return;
	}
	tell(&t, name, "opens");
	snprintf(t.prefix, sizeof(t.prefix), "%.64s.", name);
	if (t.api->query_device(context, &attr) == 0) {
		tell_caps(&t, &attr);
		for (uint8_t port = 1; port <= attr.phys_port_cnt && port > 0; port++)
			tell_port(&t, context, port);
	} else {
		tell(&t, "error", "ibv_query_device failed: %s", strerror(errno));
	}
	t.api->close_device(context);
}

tern_status tn_vb_describe(tern_fact_fn fn, void *arg)
{
	teller t = {.fn = fn, .arg = arg};
	struct ibv_device **list;
	int count = 0;

	TN_TRY(tn_verbs_api_get(&t.api));
	tell_library(&t);
	list = t.api->get_device_list(&count);
	if (!list)
		return tn_fail_errno(
			TERN_E_NO_DEVICE, "ibv_get_device_list",
			"is the module ib_uverbs loaded and /sys/class/infiniband_verbs visible?");
	tell(&t, "devices", "%d", count);
	for (int i = 0; i < count && list[i]; i++)
		tell_device(&t, list[i]);
	t.api->free_device_list(list);
	return TERN_OK;
}
