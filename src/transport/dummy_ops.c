/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the default ops of a device: what a provider without a capability answers. Each returns
 * TERN_E_UNSUPPORTED with a text, or does nothing where there is nothing to return, so that callers
 * never test a pointer for NULL.
 *
 * Must not keep state. Threads: any. Tests: tests/unit/transport/test_registry.c.
 */
#include <string.h>

#include "base/fail.h"
#include "transport/transport.h"

static tern_status unsupported(const tn_dev *dev, const char *what)
{
	const char *name = dev && dev->provider ? dev->provider->name : "?";

	return tn_fail(TERN_E_UNSUPPORTED, "provider %s has no %s: read its capabilities first", name, what);
}

static void dummy_caps(tn_dev *dev, tn_dev_caps *caps)
{
	(void)dev;
	memset(caps, 0, sizeof(*caps));
}

static void dummy_address(tn_dev *dev, tn_blob *blob)
{
	(void)dev;
	blob->length = 0;
}

static tern_status dummy_reach(tn_dev *dev, const tn_blob *peer)
{
	(void)peer;
	return unsupported(dev, "way to a peer");
}

static int dummy_poll(tn_dev *dev, tn_event *events, int max)
{
	(void)dev;
	(void)events;
	(void)max;
	return 0;
}

int tn_dummy_take(tn_dev *dev, void *room, tn_lane **lane)
{
	(void)dev, (void)room, (void)lane;
	return -1;
}

static tern_status dummy_arm(tn_dev *dev)
{
	return unsupported(dev, "descriptor to wait on");
}

static int dummy_fd(tn_dev *dev)
{
	(void)dev;
	return -1;
}

static void dummy_recv_done(tn_dev *dev, const tn_event *event)
{
	(void)dev;
	(void)event;
}

static void dummy_close(tn_dev *dev)
{
	(void)dev;
}

static tern_status dummy_lane_create(tn_dev *dev, const tn_lane_params *params, tn_lane **lane, tn_blob *addr)
{
	(void)params;
	*lane = NULL;
	addr->length = 0;
	return unsupported(dev, "lanes");
}

static tern_status dummy_lane_connect(tn_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	(void)peer_dev;
	(void)peer_lane;
	return unsupported(lane->dev, "lanes");
}

static void dummy_lane_nothing(tn_lane *lane)
{
	(void)lane;
}

static bool dummy_lane_drained(tn_lane *lane)
{
	(void)lane;
	return true;
}

static tern_status dummy_write(tn_lane *lane, tn_wr *wr)
{
	(void)wr;
	return unsupported(lane->dev, "one-sided write");
}

static tern_status dummy_write_imm(tn_lane *lane, tn_wr *wr)
{
	(void)wr;
	return unsupported(lane->dev, "write with immediate");
}

static tern_status dummy_read(tn_lane *lane, tn_wr *wr)
{
	(void)wr;
	return unsupported(lane->dev, "one-sided read");
}

static tern_status dummy_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	(void)iov;
	(void)n;
	(void)cookie;
	*done = false;
	return unsupported(lane->dev, "messages");
}

bool tn_dummy_access(tn_lane *lane, const tern_key *key, uint64_t offset, void *local, uint64_t bytes,
		     bool read)
{
	(void)lane, (void)key, (void)offset, (void)local, (void)bytes, (void)read;
	return false;
}

tern_status tn_dummy_copy_begin(tn_lane *lane, const tn_wr *wr, bool read, tn_copy *copy)
{
	(void)wr, (void)read, (void)copy;
	return unsupported(lane->dev, "copying beside posts");
}

void tn_dummy_copy(tn_lane *lane, const tn_copy *copy)
{
	(void)lane, (void)copy;
}

static void dummy_counters(tn_dev *dev, tern_counter_fn fn, void *arg)
{
	(void)dev;
	(void)fn;
	(void)arg;
}

const tn_dev_ops tn_dummy_ops = {
	.caps = dummy_caps,
	.address = dummy_address,
	.reach = dummy_reach,
	.poll = dummy_poll,
	.take = tn_dummy_take,
	.arm = dummy_arm,
	.fd = dummy_fd,
	.recv_done = dummy_recv_done,
	.close = dummy_close,
	.lane_create = dummy_lane_create,
	.lane_connect = dummy_lane_connect,
	.lane_break = dummy_lane_nothing,
	.lane_close = dummy_lane_nothing,
	.lane_drained = dummy_lane_drained,
	.lane_destroy = dummy_lane_nothing,
	.write = dummy_write,
	.write_imm = dummy_write_imm,
	.read = dummy_read,
	.access = tn_dummy_access,
	.send = dummy_send,
	.flush = dummy_lane_nothing,
	.copy_begin = tn_dummy_copy_begin,
	.copy = tn_dummy_copy,
	.copy_end = tn_dummy_copy,
	.counters = dummy_counters,
};
