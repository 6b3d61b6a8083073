/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the choice of port and GID: computed from what the device says, never an index from a configuration
 * that moves when an address does. A usable GID is RoCEv2 (or InfiniBand) and not link-local; a mapped IPv4
 * address goes before IPv6 because it is what fabrics route most often. The reason is kept in words.
 *
 * Must not keep state. Threads: any. Tests: tests/unit/transport/test_verbs_probe.c.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "transport/verbs/verbs.h"

#define GIDS_MAX 256 /* of one port; real cards have up to 256 */

void tn_vb_gid_text(const union ibv_gid *gid, char *text, size_t bytes)
{
	char name[INET6_ADDRSTRLEN] = "?";

	inet_ntop(AF_INET6, gid->raw, name, sizeof(name));
	snprintf(text, bytes, "%s", name);
}

static bool is_zero(const union ibv_gid *gid)
{
	static const union ibv_gid zero;

	return memcmp(gid, &zero, sizeof(zero)) == 0;
}

static bool is_mapped_v4(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

int tn_vb_gid_score(const union ibv_gid *gid, tn_vb_gid_kind kind, const char **why)
{
	bool link_local = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;

	if (is_zero(gid)) {
		*why = "empty";
		return 0;
	}
	if (kind == TN_VB_GID_IB) {
		*why = "InfiniBand";
		return 1;
	}
	if (kind == TN_VB_GID_ROCE_V1) {
		*why = "RoCEv1 is not routed";
		return 0;
	}
	if (link_local) {
		*why = "link-local";
		return 0;
	}
	if (kind == TN_VB_GID_UNKNOWN) {
		*why = is_mapped_v4(gid) ? "type unknown, IPv4" : "type unknown, IPv6";
		return is_mapped_v4(gid) ? 2 : 1;
	}
	*why = is_mapped_v4(gid) ? "RoCEv2, IPv4" : "RoCEv2, IPv6, not link-local";
	return is_mapped_v4(gid) ? 4 : 3;
}

static bool read_gid(const tn_verbs_api *api, struct ibv_context *context, const tn_vb_port *port, int index,
		     union ibv_gid *gid, tn_vb_gid_kind *kind)
{
	struct ibv_gid_entry entry = {0};

	if (!port->ethernet) {
		*kind = TN_VB_GID_IB;
		return api->query_gid(context, port->number, index, gid) == 0;
	}
	if (!api->query_gid_ex) {
		*kind = TN_VB_GID_UNKNOWN;
		return api->query_gid(context, port->number, index, gid) == 0;
	}
	if (api->query_gid_ex(context, port->number, (uint32_t)index, &entry, 0, sizeof(entry)) != 0)
		return false;
	*gid = entry.gid;
	*kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? TN_VB_GID_ROCE_V2
		: entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? TN_VB_GID_ROCE_V1
							 : TN_VB_GID_IB;
	return true;
}

/* The best GID of an active port; the first of equals. */
static bool choose_gid(const tn_verbs_api *api, struct ibv_context *context, int table, tn_vb_port *port)
{
	const char *rejected = "its GID table is empty";
	int best = 0;

	for (int i = 0; i < TN_MIN(table, GIDS_MAX); i++) {
		tn_vb_gid_kind kind;
		union ibv_gid gid;
		const char *why;
		int score;

		if (!read_gid(api, context, port, i, &gid, &kind))
			continue;
		score = tn_vb_gid_score(&gid, kind, &why);
		if (score == 0 && !is_zero(&gid))
			rejected = why;
		if (score <= best)
			continue;
		best = score;
		port->gid_index = i;
		port->gid_kind = kind;
		port->gid = gid;
		snprintf(port->reason, sizeof(port->reason), "port %u, GID %d: %s", port->number, i, why);
	}
	if (best == 0)
		snprintf(port->reason, sizeof(port->reason),
			 "port %u has no usable GID (the last: %s); give the interface a routed address",
			 port->number, rejected);
	return best > 0;
}

tern_status tn_vb_port_choose(const tn_verbs_api *api, struct ibv_context *context, const char *device,
			      const struct ibv_device_attr *attr, tn_vb_port *port)
{
	char last[sizeof(port->reason)] = "no port";

	for (uint8_t number = 1; number <= attr->phys_port_cnt && number > 0; number++) {
		struct ibv_port_attr info;

		memset(&info, 0, sizeof(info));
		memset(port, 0, sizeof(*port));
		if (api->query_port(context, number, (struct _compat_ibv_port_attr *)(void *)&info) != 0)
			continue;
		port->number = number;
		port->ethernet = info.link_layer == IBV_LINK_LAYER_ETHERNET;
		port->lid = info.lid;
		port->mtu = info.active_mtu;
		port->max_msg = info.max_msg_sz;
		if (info.state != IBV_PORT_ACTIVE)
			snprintf(port->reason, sizeof(port->reason),
				 "port %u is not ACTIVE (state %d): check the cable "
				 "and the interface",
				 number, (int)info.state);
		else if (choose_gid(api, context, info.gid_tbl_len, port))
			return TERN_OK;
		memcpy(last, port->reason, sizeof(last));
	}
	return tn_fail(TERN_E_NO_DEVICE, "%s: %s", device, last);
}
