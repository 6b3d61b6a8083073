/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what is known of a port: state, MTU, and its usable GIDs in order of preference, computed from what the
 * device says, never an index from a configuration that moves when an address does. A usable GID is RoCEv2
 * (or InfiniBand) and not link-local; a mapped IPv4 address goes before IPv6 because it is what fabrics route
 * most often. Which of them a lane uses depends on the peer (pair.c). The reason is kept in words.
 *
 * Must not keep state. Threads: any. Tests: tests/unit/transport/test_verbs_probe.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "transport/verbs/verbs.h"

#define GIDS_READ_MAX 256 /* of one port; real cards have up to 256 */

typedef struct gid_row {
	union ibv_gid gid;
	tn_vb_gid_kind kind;
	int index;
} gid_row;

static bool is_zero(const union ibv_gid *gid)
{
	static const union ibv_gid zero;

	return memcmp(gid, &zero, sizeof(zero)) == 0;
}

/* 127.0.0.0/8 or ::1: what a device over lo has. */
static bool is_loopback(const union ibv_gid *gid)
{
	static const union ibv_gid six = {.raw = {[15] = 1}};

	return tn_vb_gid_is_v4(gid) ? gid->raw[12] == 127 : memcmp(gid, &six, sizeof(six)) == 0;
}

int tn_vb_gid_score(const union ibv_gid *gid, tn_vb_gid_kind kind, const char **why)
{
	bool link_local = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
	bool v4 = tn_vb_gid_is_v4(gid);

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
	if (is_loopback(gid)) {
		*why = "loopback";
		return 0;
	}
	if (kind == TN_VB_GID_UNKNOWN) {
		*why = v4 ? "type unknown, IPv4" : "type unknown, IPv6";
		return v4 ? 2 : 1;
	}
	*why = v4 ? "RoCEv2, IPv4" : "RoCEv2, IPv6, not link-local";
	return v4 ? 4 : 3;
}

static tn_vb_gid_kind kind_of(uint32_t gid_type)
{
	return gid_type == IBV_GID_TYPE_ROCE_V2   ? TN_VB_GID_ROCE_V2
	       : gid_type == IBV_GID_TYPE_ROCE_V1 ? TN_VB_GID_ROCE_V1
						  : TN_VB_GID_IB;
}

/* One entry of the table; false if it has none or cannot be read. */
static bool read_gid(const tn_verbs_api *api, struct ibv_context *context, const tn_vb_port *port, int index,
		     gid_row *row)
{
	struct ibv_gid_entry entry = {0};

	row->index = index;
	if (!port->ethernet || !api->query_gid_ex) {
		row->kind = port->ethernet ? TN_VB_GID_UNKNOWN : TN_VB_GID_IB;
		return api->query_gid(context, port->number, index, &row->gid) == 0;
	}
	if (api->query_gid_ex(context, port->number, (uint32_t)index, &entry, 0, sizeof(entry)) != 0)
		return false;
	row->gid = entry.gid;
	row->kind = kind_of(entry.gid_type);
	return true;
}

/* All entries in one call where the library can, since tables are mostly empty; -1 if it cannot. */
static int read_table(const tn_verbs_api *api, struct ibv_context *context, const tn_vb_port *port,
		      gid_row *rows)
{
	struct ibv_gid_entry entries[GIDS_READ_MAX];
	ssize_t count;
	int n = 0;

	if (!api->query_gid_table || !port->ethernet)
		return -1;
	count = api->query_gid_table(context, entries, GIDS_READ_MAX, 0, sizeof(entries[0]));
	if (count < 0)
		return -1;
	for (ssize_t i = 0; i < count && i < GIDS_READ_MAX; i++) {
		if (entries[i].port_num == port->number)
			rows[n++] = (gid_row){.gid = entries[i].gid,
					      .kind = kind_of(entries[i].gid_type),
					      .index = (int)entries[i].gid_index};
	}
	return n;
}

/* Put a usable GID at its place: by score, the first of equals first. */
static void rank(tn_vb_port *port, int *scores, const gid_row *row, int score)
{
	uint32_t at = port->gid_count;

	if (row->index > UINT8_MAX) /* the address handle has 8 bits for it */
		return;
	while (at > 0 && scores[at - 1] < score)
		at--;
	if (at >= TN_VB_GIDS_MAX)
		return;
	if (port->gid_count < TN_VB_GIDS_MAX)
		port->gid_count++;
	for (uint32_t i = port->gid_count - 1; i > at; i--) {
		scores[i] = scores[i - 1];
		port->gids[i] = port->gids[i - 1];
		port->gid_index[i] = port->gid_index[i - 1];
	}
	scores[at] = score;
	port->gids[at] = row->gid;
	port->gid_index[at] = (uint8_t)row->index;
}

static bool choose_gids(const tn_verbs_api *api, struct ibv_context *context, int table, tn_vb_port *port)
{
	const char *rejected = "its GID table is empty", *why, *chosen = "";
	int scores[TN_VB_GIDS_MAX] = {0};
	char text[48];
	gid_row rows[GIDS_READ_MAX];
	int n = read_table(api, context, port, rows);

	if (n < 0) {
		n = 0;
		for (int i = 0; i < TN_MIN(table, GIDS_READ_MAX); i++)
			n += read_gid(api, context, port, i, &rows[n]);
	}
	for (int i = 0; i < n; i++) {
		int score = tn_vb_gid_score(&rows[i].gid, rows[i].kind, &why);

		if (score > 0)
			rank(port, scores, &rows[i], score);
		else if (!is_zero(&rows[i].gid))
			rejected = why;
		if (score > 0 && port->gid_index[0] == rows[i].index)
			chosen = why;
	}
	if (port->gid_count == 0) {
		snprintf(port->reason, sizeof(port->reason),
			 "port %u has no usable GID (the last: %s); give the interface a routed address",
			 port->number, rejected);
		return false;
	}
	tn_vb_gid_text(&port->gids[0], text, sizeof(text));
	snprintf(port->reason, sizeof(port->reason), "port %u, GID %u: %s (%s)", port->number,
		 port->gid_index[0], chosen, text);
	return true;
}

/* Widths are bits (1, 2, 4, 8, 16 lanes), speeds grow with their number: good enough to compare ports. */
static uint32_t rate_of(const struct ibv_port_attr *info)
{
	return (uint32_t)info->active_width * info->active_speed;
}

tern_status tn_vb_port_query(const tn_verbs_api *api, struct ibv_context *context, uint8_t number,
			     tn_vb_port *port)
{
	struct ibv_port_attr info;
	int err;

	memset(&info, 0, sizeof(info));
	memset(port, 0, sizeof(*port));
	port->number = number;
	err = api->query_port(context, number, (struct _compat_ibv_port_attr *)(void *)&info);
	if (err != 0) {
		snprintf(port->reason, sizeof(port->reason), "port %u cannot be queried (%s)", number,
			 strerror(err > 0 ? err : errno));
		return tn_fail(TERN_E_NO_DEVICE, "%s", port->reason);
	}
	port->ethernet = info.link_layer == IBV_LINK_LAYER_ETHERNET;
	port->lid = info.lid;
	port->mtu = info.active_mtu;
	port->max_msg = info.max_msg_sz;
	port->rate = rate_of(&info);
	if (info.state != IBV_PORT_ACTIVE) {
		snprintf(port->reason, sizeof(port->reason),
			 "port %u is not ACTIVE (state %d): check the cable and the interface", number,
			 (int)info.state);
		return tn_fail(TERN_E_NO_DEVICE, "%s", port->reason);
	}
	if (port->mtu < IBV_MTU_256 || port->mtu > IBV_MTU_4096)
		port->mtu = IBV_MTU_256;
	if (!choose_gids(api, context, info.gid_tbl_len, port))
		return tn_fail(TERN_E_NO_DEVICE, "%s", port->reason);
	return TERN_OK;
}
