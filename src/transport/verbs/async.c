/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a rail's asynchronous events: all are drained and acknowledged (a queue pair with an event that was not
 * cannot be destroyed). What the port lost or got changes the rail's health; an address, LID, MTU or key that
 * moved is read anew and goes out with the next lane's address.
 *
 * Threads: in poll's. Tests: tests/unit/transport/test_verbs_life.c, test_verbs_rails.c.
 */
#include <stdio.h>

#include "base/fail.h"
#include "base/log.h"
#include "transport/verbs/verbs.h"

static tn_vb_lane *lane_of_qp(const tn_vb_rail *rail, const struct ibv_qp *qp)
{
	TN_LIST_FOREACH(node, &rail->dev->lanes) {
		tn_vb_lane *lane = TN_LIST_ENTRY(node, tn_vb_lane, all);

		if (lane->rail == rail && lane->qp == qp)
			return lane;
	}
	return NULL;
}

static void lane_lost(tn_vb_rail *rail, const struct ibv_async_event *event)
{
	tn_vb_lane *lane = lane_of_qp(rail, event->element.qp);

	if (!lane)
		return;
	TN_LOG(INFO, VERBS, "%s: asynchronous event %d of queue pair %u: lane %u is over", rail->name,
	       (int)event->event_type, lane->own.qpn, lane->index);
	tn_vb_lane_fail(lane, TERN_E_LANE);
}

static void rail_lost(tn_vb_rail *rail, const struct ibv_async_event *event)
{
	snprintf(rail->port.reason, sizeof(rail->port.reason),
		 "asynchronous event %d: the device is lost until the context is opened again",
		 (int)event->event_type);
	tn_vb_rail_set_health(rail, TN_VB_RAIL_LOST);
}

static void port_down(tn_vb_rail *rail)
{
	snprintf(rail->port.reason, sizeof(rail->port.reason), "port %u went down", rail->port.number);
	tn_vb_rail_set_health(rail, TN_VB_RAIL_DOWN);
}

/* *moved: something of the port is to be read anew. */
static void handle(tn_vb_rail *rail, const struct ibv_async_event *event, bool *moved)
{
	tn_vb_lane *lane;

	tn_count(&rail->dev->counters.async_events, 1);
	switch (event->event_type) {
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		lane = lane_of_qp(rail, event->element.qp);
		if (lane)
			tn_vb_lane_last_wqe(lane);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		lane_lost(rail, event);
		break;
	case IBV_EVENT_PORT_ERR:
		if (event->element.port_num == rail->port.number)
			port_down(rail);
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
		*moved = *moved || event->element.port_num == rail->port.number;
		break;
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_SRQ_ERR:
		rail_lost(rail, event);
		break;
	default: /* COMM_EST, SQ_DRAINED, PATH_MIG, SRQ_LIMIT_REACHED: nothing to do */
		break;
	}
}

void tn_vb_async(tn_vb_rail *rail)
{
	const tn_verbs_api *api = rail->dev->api;
	struct ibv_async_event event;
	bool moved = false;

	/* The descriptor is non-blocking. A burst is bounded by what the kernel queues; one look at the port is
	   enough for all of it. */
	while (api->get_async_event(rail->context, &event) == 0) {
		handle(rail, &event, &moved);
		api->ack_async_event(&event);
	}
	if (moved)
		tn_vb_rail_refresh(rail);
}
