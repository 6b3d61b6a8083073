/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what users ask for: from a tn_wr or a message to one ibv_send_wr and one op of the lane's ring (ring.c).
 *
 *   inline    the NIC takes the bytes at the post: done at once, silent, a completion asked for now and then
 *   direct    the NIC reads registered memory: a completion each
 *   bounce    a message from foreign memory is copied into a registered buffer first: done at once
 *
 * One-sided access is checked against the key here, as far as the key says: an honest mistake costs no lane.
 * What the NIC checks is the extent and its exposure class; see docs/protocol/verbs.md.
 *
 * Threads: posts of one lane are serialised by the caller; the lane's lock covers them against poll.
 * Tests: tests/conformance, tests/unit/transport/test_verbs_errors.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/ring.h"

/* ---- one-sided ---- */

/* What an honest initiator can see for itself. */
static tern_status check_wr(const tn_vb_dev *dev, const tn_wr *wr, uint32_t access)
{
	if (wr->bytes > dev->max_msg)
		return tn_fail(TERN_E_TOO_LARGE, "%" PRIu64 " bytes, %s takes %u in one request", wr->bytes,
			       dev->name, dev->max_msg);
	if (wr->offset > wr->key.length || wr->bytes > wr->key.length - wr->offset)
		return tn_fail(TERN_E_BOUNDS, "%" PRIu64 " bytes at %" PRIu64 " of a key of %" PRIu64,
			       wr->bytes, wr->offset, wr->key.length);
	if ((wr->key.access & access) != access)
		return tn_fail(TERN_E_ACCESS, "the key is not for %s",
			       access == TERN_ACCESS_READ ? "reading" : "writing");
	return TERN_OK;
}

/* Where the local bytes are for the NIC: inline, in registered memory, or nowhere. */
static TN_ALWAYS_INLINE tern_status local_piece(const tn_vb_rail *rail, const tn_wr *wr, bool read,
						struct ibv_sge *sge, struct ibv_send_wr *out)
{
	const tn_vb_dev *dev = rail->dev;
	const tn_extent *ext;

	if (wr->bytes == 0)
		return TERN_OK;
	*sge = (struct ibv_sge){.addr = (uintptr_t)wr->local, .length = (uint32_t)wr->bytes};
	out->sg_list = sge;
	out->num_sge = 1;
	if (!read && wr->bytes <= dev->inline_bytes) {
		out->send_flags |= IBV_SEND_INLINE;
		return TERN_OK;
	}
	ext = tn_mem_local_of(dev->base.mem, wr->local, wr->bytes);
	if (!ext || !ext->reg[rail->mem_slot])
		return tn_fail(TERN_E_INVALID,
			       "%p is not registered memory of this context: allocate it with "
			       "tern_mem_alloc or register it with tern_mem_register",
			       wr->local);
	sge->lkey = ext->lkey[rail->mem_slot];
	return TERN_OK;
}

static void count_one_sided(tn_vb_dev *dev, enum ibv_wr_opcode opcode, uint64_t bytes)
{
	if (opcode == IBV_WR_RDMA_READ) {
		tn_vb_count(dev, &dev->counters.reads, 1);
		return;
	}
	tn_vb_count(dev, opcode == IBV_WR_RDMA_WRITE ? &dev->counters.writes : &dev->counters.write_imms, 1);
	tn_vb_count(dev, &dev->counters.tx_bytes, bytes);
}

/* For each opcode anew: what the others need is gone. */
static TN_ALWAYS_INLINE tern_status one_sided(tn_lane *base, tn_wr *wr, enum ibv_wr_opcode opcode)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	bool read = opcode == IBV_WR_RDMA_READ;
	struct ibv_send_wr out; /* what the opcode has no use for stays as it is */
	tn_vb_op op = {.cookie = wr->cookie, .bounce = TN_VB_NO_BOUNCE, .kind = TN_VB_OP_USER};
	tern_status status;
	struct ibv_sge sge;

	wr->done = false;
	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the lane belongs to the parent process");
	if (wr->level == TN_LEVEL_REMOTE && !read)
		return tn_fail(TERN_E_UNSUPPORTED, "a NIC's completion says nothing of the target's memory: "
						   "TN_CAP_REMOTE_DONE is not among the capabilities");
	if (!lane->rail)
		return tn_fail(TERN_E_STATE, "the lane is not connected");
	out.opcode = opcode;
	out.send_flags = 0;
	out.imm_data = htonl(wr->imm);
	out.sg_list = NULL;
	out.num_sge = 0;
	TN_TRY(check_wr(dev, wr, read ? TERN_ACCESS_READ : TERN_ACCESS_WRITE));
	TN_TRY(local_piece(lane->rail, wr, read, &sge, &out));
	out.wr.rdma.remote_addr = wr->key.address + wr->offset;
	out.wr.rdma.rkey = wr->key.rkey[lane->peer.mem_slot];
	if (((out.send_flags & IBV_SEND_INLINE) || (wr->bytes == 0 && !read)) && !wr->signal)
		op.kind = TN_VB_OP_SILENT;
	op.read_bytes = read ? wr->bytes : 0;

	tn_vb_lane_lock(lane);
	status = tn_vb_may_post(lane);
	if (status == TERN_OK) {
		int err = tn_vb_ring_post(lane, &out, &op, wr->more);

		status = err ? tn_vb_refused(lane, err) : TERN_OK;
	}
	tn_vb_lane_unlock(lane);
	if (status != TERN_OK)
		return status;
	wr->done = op.kind == TN_VB_OP_SILENT;
	if (out.send_flags & IBV_SEND_INLINE)
		tn_vb_count(dev, &dev->counters.inlined, 1);
	count_one_sided(dev, opcode, wr->bytes);
	return TERN_OK;
}

tern_status tn_vb_write(tn_lane *lane, tn_wr *wr)
{
	return one_sided(lane, wr, IBV_WR_RDMA_WRITE);
}

tern_status tn_vb_write_imm(tn_lane *lane, tn_wr *wr)
{
	return one_sided(lane, wr, IBV_WR_RDMA_WRITE_WITH_IMM);
}

tern_status tn_vb_read(tn_lane *lane, tn_wr *wr)
{
	return one_sided(lane, wr, IBV_WR_RDMA_READ);
}

/* ---- messages ---- */

typedef struct message {
	struct ibv_sge sge[TN_IOV_MAX];
	int pieces;
	uint64_t bytes;
	bool registered; /* all pieces lie in memory that the NIC can read */
} message;

static tern_status message_make(const tn_vb_rail *rail, const tn_iov *iov, int n, message *m)
{
	const tn_vb_dev *dev = rail->dev;

	*m = (message){.registered = true};
	if (n < 0 || n > TN_IOV_MAX)
		return tn_fail(TERN_E_INVALID, "a message of %d pieces: at most %d", n, TN_IOV_MAX);
	for (int i = 0; i < n; i++) {
		const tn_extent *ext = tn_mem_extent_of(dev->base.mem, iov[i].base);

		if (iov[i].bytes > dev->send_bytes - m->bytes)
			return tn_fail(TERN_E_TOO_LARGE,
				       "a message of more than %u bytes (TERN_VERBS_SEND_BYTES)",
				       dev->send_bytes);
		if (iov[i].bytes == 0)
			continue;
		m->bytes += iov[i].bytes;
		m->registered = m->registered && ext != NULL &&
				iov[i].bytes <= ext->bytes - (uint64_t)((const uint8_t *)iov[i].base -
									(const uint8_t *)ext->base);
		m->sge[m->pieces++] = (struct ibv_sge){.addr = (uintptr_t)iov[i].base,
						       .length = (uint32_t)iov[i].bytes,
						       .lkey = ext ? ext->lkey[rail->mem_slot] : 0};
	}
	return TERN_OK;
}

/* Copy the pieces into one registered buffer; TN_VB_NO_BOUNCE if none is free. */
static uint32_t message_bounce(const tn_vb_rail *rail, message *m)
{
	tn_vb_dev *dev = rail->dev;
	uint32_t index = tn_vb_bounce_take(dev);
	uint8_t *at;

	if (index == TN_VB_NO_BOUNCE)
		return index;
	at = dev->bounce_memory + (uint64_t)index * dev->send_bytes;
	for (int i = 0; i < m->pieces; i++) {
		memcpy(at, (const void *)(uintptr_t)m->sge[i].addr, m->sge[i].length);
		at += m->sge[i].length;
	}
	m->sge[0] =
		(struct ibv_sge){.addr = (uintptr_t)(dev->bounce_memory + (uint64_t)index * dev->send_bytes),
				 .length = (uint32_t)m->bytes,
				 .lkey = rail->bounce_lkey};
	m->pieces = 1;
	return index;
}

static tern_status message_post(tn_vb_lane *lane, message *m, uint64_t cookie, bool *done)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	struct ibv_send_wr out = {.opcode = IBV_WR_SEND, .sg_list = m->sge};
	tn_vb_op op = {.cookie = cookie, .bounce = TN_VB_NO_BOUNCE, .kind = TN_VB_OP_USER};
	int err;

	TN_TRY(tn_vb_may_post(lane));
	if (m->bytes <= dev->inline_bytes || m->bytes == 0) {
		out.send_flags = m->bytes ? IBV_SEND_INLINE : 0;
		op.kind = TN_VB_OP_SILENT;
	} else if (!m->registered) {
		op.bounce = message_bounce(lane->rail, m);
		if (op.bounce == TN_VB_NO_BOUNCE)
			return tn_vb_no_room(lane);
		op.kind = TN_VB_OP_SILENT;
	}
	out.num_sge = m->pieces;
	err = tn_vb_ring_post(lane, &out, &op, false);
	if (err) {
		if (op.bounce != TN_VB_NO_BOUNCE)
			tn_vb_bounce_free(dev, op.bounce);
		return tn_vb_refused(lane, err);
	}
	*done = op.kind == TN_VB_OP_SILENT;
	tn_vb_count(dev, &dev->counters.sends, 1);
	tn_vb_count(dev, &dev->counters.tx_bytes, m->bytes);
	if (out.send_flags & IBV_SEND_INLINE)
		tn_vb_count(dev, &dev->counters.inlined, 1);
	if (op.bounce != TN_VB_NO_BOUNCE)
		tn_vb_count(dev, &dev->counters.bounced_sends, 1);
	return TERN_OK;
}

tern_status tn_vb_send(tn_lane *base, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	tern_status status;
	message m;

	*done = false;
	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the lane belongs to the parent process");
	if (!lane->rail)
		return tn_fail(TERN_E_STATE, "the lane is not connected");
	TN_TRY(message_make(lane->rail, iov, n, &m));
	tn_vb_lane_lock(lane);
	status = message_post(lane, &m, cookie, done);
	tn_vb_lane_unlock(lane);
	return status;
}
