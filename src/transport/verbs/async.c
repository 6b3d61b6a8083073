/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the device's asynchronous events: all are drained and acknowledged (a queue pair with an event that
 * was not cannot be destroyed). What a port or the device lost goes up as TN_EV_DEVICE.
 *
 * Threads: in poll's. Tests: tests/unit/transport/test_verbs_life.c.
 */
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "transport/verbs/verbs.h"

static tn_vb_lane *lane_of_qp(const tn_vb_dev *dev, const struct ibv_qp *qp)
{
	TN_LIST_FOREACH(node, &dev->lanes) {
		tn_vb_lane *lane = TN_LIST_ENTRY(node, tn_vb_lane, all);

		if (lane->qp == qp)
			return lane;
	}
	return NULL;
}

static void port_changed(tn_vb_dev *dev, const struct ibv_async_event *event, bool up)
{
	tn_vb_port now;

	if (event->element.port_num != dev->port.number)
		return;
	if (!up) {
		TN_LOG(WARN, VERBS, "%s: port %u went down", dev->name, dev->port.number);
		dev->device_status = TERN_E_DEVICE;
		return;
	}
	/* Addresses move while a port is down: choose again. Lanes that exist keep theirs. */
	if (tn_vb_port_choose(dev->api, dev->context, dev->name, &dev->attr, &now) == TERN_OK) {
		TN_LOG(INFO, VERBS, "%s: %s", dev->name, now.reason);
		now.max_msg = dev->port.max_msg; /* lanes and links were told of it */
		dev->address_changed |= memcmp(&now.gid, &dev->port.gid, sizeof(now.gid)) != 0 ||
					now.lid != dev->port.lid || now.mtu != dev->port.mtu;
		dev->port = now;
	} else {
		TN_LOG(WARN, VERBS, "%s", tn_detail_get());
	}
}

static void handle(tn_vb_dev *dev, const struct ibv_async_event *event)
{
	tn_vb_lane *lane;

	tn_count(&dev->counters.async_events, 1);
	switch (event->event_type) {
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		lane = lane_of_qp(dev, event->element.qp);
		if (lane)
			tn_vb_lane_last_wqe(lane);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		lane = lane_of_qp(dev, event->element.qp);
		if (lane)
			tn_vb_lane_fail(lane, TERN_E_LANE);
		break;
	case IBV_EVENT_PORT_ERR:
		port_changed(dev, event, false);
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_GID_CHANGE:
		port_changed(dev, event, true);
		break;
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_SRQ_ERR:
		TN_LOG(ERROR, VERBS, "%s: asynchronous event %d: the device is lost", dev->name,
		       (int)event->event_type);
		dev->device_status = TERN_E_DEVICE;
		TN_LIST_FOREACH(node, &dev->lanes)
			tn_vb_lane_fail(TN_LIST_ENTRY(node, tn_vb_lane, all), TERN_E_DEVICE);
		break;
	default:
		break;
	}
}

void tn_vb_async(tn_vb_dev *dev)
{
	struct ibv_async_event event;

	/* The descriptor is non-blocking. A burst is bounded by what the kernel queues. */
	while (dev->api->get_async_event(dev->context, &event) == 0) {
		handle(dev, &event);
		dev->api->ack_async_event(&event);
	}
}
