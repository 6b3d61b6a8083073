/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submitting messages and one-sided transfers, and cancelling.
 *
 * The fast path: on an idle link the machine says at once what to post, it is posted under the same lock,
 * and a post that is done completes the operation before the call returns, without the action queue. An
 * operation without callback is then finished for good; one with a callback gets it from dispatch (or, with
 * TN_OP_INLINE, before the call returns).
 *
 * Threads: any. Tests: tests/unit/channel/test_messages.c, test_xfer.c.
 */
#include "base/fail.h"
#include "channel/brief.h"
#include "channel/channel_impl.h"
#include "channel/gate.h"
#include "channel/op.h"
#include "channel/post.h"
#include "channel/push.h"
#include "channel/queue.h"

_Static_assert(sizeof(tern_iovec) == sizeof(tn_link_iov) &&
		       offsetof(tern_iovec, bytes) == offsetof(tn_link_iov, bytes),
	       "pieces of a message go to the machine as they are");

static tern_status unusable(tern_channel *channel)
{
	tern_link *link = channel->link;

	if (channel->unaccepted)
		return tn_fail(TERN_E_STATE, "the channel is not accepted before on_open returns");
	if (channel->ended) {
		tn_details_use(link->ctx, channel->detail, channel->status);
		return channel->status;
	}
	if (channel->closed)
		return tn_fail(TERN_E_STATE, "the channel is closed");
	return tn_fail(tern_link_status(link), "%s", link->down_text);
}

/* Lock held. */
static inline bool usable_now(const tern_channel *channel)
{
	return !channel->closed && !channel->ended && !channel->link->gone && !channel->unaccepted;
}

static inline tern_status usable(tern_channel *channel)
{
	return TN_LIKELY(usable_now(channel)) ? TERN_OK : unusable(channel);
}

tern_status tn_channel_usable(tern_channel *channel)
{
	return usable(channel);
}

static uint64_t deadline_of(const tern_link *link, const tern_op *op)
{
	return op->timeout_ns ? tn_deadline(tn_ctx_now(link->ctx), op->timeout_ns) : TN_TIME_NEVER;
}

static inline void finish_here(tern_op *op, uint64_t bytes)
{
	op->status = TERN_OK;
	op->length = bytes;
	tn_op_set_state(op, TN_OP_DONE);
}

/* Lock held: a post was done at once. True: the caller runs the callback after it dropped the lock. */
static bool finish_fast(tern_link *link, tern_op *op, uint64_t bytes)
{
	if (op->done && !(op->flags & TN_OP_INLINE)) {
		tn_op_finish(link->ctx, op, TERN_OK, bytes, 0);
		return false;
	}
	finish_here(op, bytes);
	return op->done != NULL;
}

static void run_inline(tern_op *op)
{
	tn_detail_clear();
	op->done(op, op->arg);
}

/* Data that its flag follows at once: they leave together. */
static bool flag_follows(const tn_link_fast *fast)
{
	const tn_link_xfer *xfer = fast->xfer;

	return xfer && xfer->type == TN_XFER_PUT_FLAG && fast->post.local == xfer->local &&
	       fast->post.bytes <= TN_PUSH_BYTES && xfer->bytes > 0;
}

/*
 * Lock held: post what the machine says until the fast op is decided; one: by a single post (no flag follows).
 * posted: tn_link_fast_posted, or a short form of it.
 */
static TN_ALWAYS_INLINE tn_link_fast_result post_fast(tern_link *link, tn_link_fast *fast, bool one,
						      typeof(tn_link_fast_posted) *posted, uint64_t *handle,
						      tern_status *status)
{
	const tn_shell_lane *slane = fast->post.lane_user;
	bool batches = slane->sdev->caps.batches, done, held = false, some = false;
	tn_link_fast_result result;

	fast->host = !tn_gpu_on();
	do {
		if (batches)
			slane->lane->more = held = fast->post.more || (!one && flag_follows(fast)) ||
						   tn_push_may_hold(link, slane, fast->post.bytes);
		some |= held;
		*status = tn_post_here(&fast->post, &done);
		result = posted(link->m, fast, *status, done, handle);
		TN_ASSERT(!one || result != TN_FAST_MORE);
	} while (!one && result == TN_FAST_MORE);
	if (TN_UNLIKELY(some && *status != TERN_OK))
		slane->lane->more = held = true; /* data without its flag: it leaves all the same */
	if (batches)
		tn_push_posted(link, held);
	return result;
}

typedef enum outcome { REFUSED, IN_FLIGHT, COMPLETE, COMPLETE_INLINE } outcome;

/* Lock held. */
static TN_ALWAYS_INLINE outcome fast_outcome(tern_link *link, tn_link_fast *fast, bool one,
					     typeof(tn_link_fast_posted) *posted, tern_op *op, uint64_t bytes,
					     tern_status *status, bool *slow)
{
	outcome result = IN_FLIGHT;

	*slow = false;
	switch (post_fast(link, fast, one, posted, &tn_op_priv_of(op)->handle, status)) {
	case TN_FAST_COMPLETE:
		tn_count_own(&link->counters.fast, 1);
		result = finish_fast(link, op, bytes) ? COMPLETE_INLINE : COMPLETE;
		*status = TERN_OK;
		break;
	case TN_FAST_PENDING: /* a deadline, or a flag that waits */
		*status = TERN_OK;
		tn_shell_run(link, tn_ctx_now(link->ctx));
		break;
	case TN_FAST_FAILED:
		result = REFUSED;
		tn_shell_run(link, tn_ctx_now(link->ctx));
		break;
	default:
		*slow = true; /* the device did not take it: the ordinary way */
	}
	return result;
}

static tern_status conclude(tern_channel *channel, tern_op *op, outcome result, tern_status status)
{
	switch (result) {
	case REFUSED:
		if (status == TERN_AGAIN)
			tn_count(&channel->link->counters.again, 1);
		return status;
	case COMPLETE_INLINE:
		run_inline(op);
		return TERN_OK;
	default:
		return TERN_OK;
	}
}

/*
 * Messages that a thread leaves to others in a while, while the lock is held. One that sends more waits for its turn:
 * the holder would carry what others make, and its core fetch each operation from theirs, which takes longer than all
 * the rest.
 */
#define LEFT_MAX      16u
#define LEFT_WHILE_NS 1000000u

static bool may_queue(const tern_link *link)
{
	static _Thread_local struct {
		uint64_t from_ns;
		uint32_t left;
	} mine;
	uint64_t now;

	if (tn_in_dispatch())
		return true;
	if (mine.left < LEFT_MAX) {
		mine.left++;
		return true;
	}
	now = tn_ctx_now(link->ctx);
	if (now - mine.from_ns < LEFT_WHILE_NS)
		return false;
	mine.from_ns = now;
	mine.left = 1;
	return true;
}

/*
 * The lock is not to be had at once. True: it is a turn. The driver waits for no turns: those who have them wait for
 * what it does.
 */
static bool await_lock(tern_link *link)
{
	if (tn_in_dispatch()) {
		tn_lock_take(&link->lock);
		return false;
	}
	tn_lock_wait_turn(&link->lock);
	return true;
}

/* Lock held: by the machine's rows. */
static __attribute__((noinline)) outcome send_by_rows(tern_channel *channel, const tern_iovec *iov, int count,
						      uint64_t bytes, tern_op *op, uint64_t deadline_ns,
						      tern_status *status)
{
	tern_link *link = channel->link;
	tn_link_op_params params = {.user = op,
				    .deadline_ns = deadline_ns,
				    .level = op->flags & TERN_OP_REMOTE ? TN_LINK_REMOTE : TN_LINK_LOCAL};
	const tn_link_iov *pieces = (const void *)iov;
	outcome result = REFUSED;
	tn_link_fast fast;
	bool slow = true;

	if (tn_link_fast_send(link->m, channel->handle, pieces, (uint32_t)count, &params, &fast))
		result = fast_outcome(link, &fast, true, tn_link_fast_sent, op, bytes, status, &slow);
	if (slow) {
		*status = tn_link_send(link->m, channel->handle, pieces, (uint32_t)count, &params,
				       &tn_op_priv_of(op)->handle);
		result = *status == TERN_OK ? IN_FLIGHT : REFUSED;
		tn_shell_run(link, tn_ctx_now(link->ctx));
	}
	return result;
}

/* Under the lock: no locked instruction is needed. */
static TN_ALWAYS_INLINE void count_sent(tern_channel *channel, uint64_t bytes)
{
	tern_link *link = channel->link;

	tn_count_own(&link->counters.messages_tx, 1);
	tn_count_own(&link->counters.message_bytes_tx, bytes);
	if (TN_UNLIKELY(bytes > atomic_load_explicit(&channel->sent_bytes, memory_order_relaxed)))
		atomic_store_explicit(&channel->sent_bytes, (uint32_t)TN_MIN(bytes, UINT32_MAX),
				      memory_order_relaxed);
}

static TN_ALWAYS_INLINE uint64_t bytes_of(const tern_iovec *iov, int count)
{
	uint64_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += iov[i].bytes;
	return bytes;
}

static TN_ALWAYS_INLINE tern_status submit_send(tern_channel *channel, const tern_iovec *iov, int count,
						tern_op *op, uint64_t deadline_ns)
{
	tern_link *link = channel->link;
	uint64_t bytes = bytes_of(iov, count);
	outcome result = REFUSED;
	tern_status status;
	bool turn = tn_lock_go_on(&link->lock);

	if (TN_UNLIKELY(!turn)) {
		if (may_queue(link) && tn_queue_send(channel, iov, count, bytes, op, deadline_ns))
			return TERN_OK;
		turn = await_lock(link);
	}
	if (TN_LIKELY(turn))
		tn_lock_turn_begun(&link->lock);
	tn_queue_drain(link);
	status = link->sends.backlog ? TERN_AGAIN : usable(channel);
	if (TN_LIKELY(status == TERN_OK)) {
		if (tn_brief_may(link, bytes) && !(op->flags & TERN_OP_REMOTE) &&
		    tn_brief_post(channel, iov, count, bytes))
			result = finish_fast(link, op, bytes) ? COMPLETE_INLINE : COMPLETE;
		else
			result = send_by_rows(channel, iov, count, bytes, op, deadline_ns, &status);
	}
	if (result != REFUSED)
		count_sent(channel, bytes);
	tn_lock_drop(&link->lock);
	return conclude(channel, op, result, status);
}

static TN_ALWAYS_INLINE bool send_now(tern_channel *channel, const tern_iovec *iov, int count)
{
	tern_link *link = channel->link;
	uint64_t bytes = bytes_of(iov, count);
	bool left;

	if (TN_UNLIKELY(!tn_brief_may(link, bytes) || tn_ctx_enter(link->ctx) != TERN_OK ||
			!tn_lock_go_on(&link->lock)))
		return false;
	tn_lock_turn_begun(&link->lock);
	left = !tn_queue_any(link) && usable_now(channel) && tn_brief_post(channel, iov, count, bytes);
	if (TN_LIKELY(left))
		count_sent(channel, bytes);
	tn_lock_drop(&link->lock);
	return left;
}

bool tn_send_now(tern_channel *channel, const void *msg, uint64_t bytes)
{
	tern_iovec iov = {msg, bytes};

	return send_now(channel, &iov, 1);
}

bool tn_sendv_now(tern_channel *channel, const tern_iovec *iov, int count)
{
	return send_now(channel, iov, count);
}

tern_status tn_submit_send(tern_channel *channel, const tern_iovec *iov, int count, tern_op *op,
			   uint64_t deadline_ns)
{
	return submit_send(channel, iov, count, op, deadline_ns);
}

tern_status tern_sendv(tern_channel *channel, const tern_iovec *iov, int count, tern_op *op)
{
	tern_link *link = channel->link;
	tern_status status;

	TN_TRY(tn_ctx_enter(link->ctx));
	if (TN_UNLIKELY(count < 0 || count > TN_LINK_IOV_MAX))
		return tn_fail(TERN_E_INVALID, "a message has at most %d pieces", TN_LINK_IOV_MAX);
	if (TN_UNLIKELY(op->stream != NULL))
		return tn_gate_send(channel, iov, count, op);
	TN_TRY(tn_op_begin(op));
	__atomic_store_n(&tn_op_priv_of(op)->handle, 0, __ATOMIC_RELAXED); /* tern_cancel may look */
	status = submit_send(channel, iov, count, op, deadline_of(link, op));
	if (TN_UNLIKELY(status != TERN_OK))
		tn_op_abort(op);
	return status;
}

tern_status tern_send(tern_channel *channel, const void *buf, uint64_t bytes, tern_op *op)
{
	tern_iovec iov = {buf, bytes};

	return tern_sendv(channel, &iov, 1, op);
}

static inline void count_transfer(tern_link *link, bool get, uint64_t bytes)
{
	tn_count_own(get ? &link->counters.gets : &link->counters.puts, 1);
	tn_count_own(get ? &link->counters.get_bytes : &link->counters.put_bytes, bytes);
}

/* ---- what the device does at once ---- */

typedef struct piece {
	void *local;
	uint64_t bytes;
	const tern_key *key;
	uint64_t offset;
} piece;

/* Lock held. What stands in the way of an access by copy? Nothing: true, and link->once says so to the next. */
static __attribute__((noinline)) bool find_way(tern_channel *channel)
{
	tern_link *link = channel->link;
	const tn_shell_lane *slane;
	tn_link_way way;

	if (!link->copies || link->copying || link->sends.backlog || !usable_now(channel) ||
	    !tn_link_access(link->m, channel->handle, &way))
		return false;
	slane = way.lane_user;
	channel->clear_at = link->lock.entries;
	link->once = (tn_shell_once){.lane = slane->lane,
				     .bytes_max = TN_MIN(way.bytes_max, TN_SHELL_COPY_BYTES),
				     .entries = link->lock.entries,
				     .caps = way.caps};
	return true;
}

/* Lock held. An access of a device that copies (shm): nothing stands in its way, and it is over. */
static TN_ALWAYS_INLINE bool access_now(tern_link *link, const piece *p, uint32_t caps)
{
	bool get = caps == TN_LINK_CAP_READ;

	if (TN_UNLIKELY(p->bytes - 1 >= link->once.bytes_max ||
			!tn_lane_access(link->once.lane, p->key, p->offset, p->local, p->bytes, get)))
		return false;
	tn_link_accessed(link->m, get);
	return true;
}

/* Lock held. */
static TN_ALWAYS_INLINE bool access_all(tern_channel *channel, const piece *data, const piece *flag,
					uint32_t caps)
{
	tern_link *link = channel->link;
	const tn_shell_once *once = &link->once;

	if (TN_UNLIKELY(!tn_mpsc_empty(&link->sends.queued)))
		return false;
	if (TN_UNLIKELY(channel->clear_at != link->lock.entries || once->entries != link->lock.entries) &&
	    !find_way(channel))
		return false;
	if (TN_UNLIKELY((once->caps & caps) != caps ||
			(!(flag && data->bytes == 0) && !access_now(link, data, caps)) ||
			(flag && !access_now(link, flag, caps))))
		return false;
	tn_count_own(&link->counters.fast, 1);
	count_transfer(link, caps == TN_LINK_CAP_READ, data->bytes);
	return true;
}

/*
 * The whole of a small put or get over shm by an operation that nobody has to be told of: it is never seen in flight,
 * and so has no deadline and no handle. False: the ordinary way does it, waits, or says why not; data whose flag could
 * not be written goes again with it.
 */
static TN_ALWAYS_INLINE bool at_once(tern_channel *channel, const piece *data, const piece *flag,
				     uint32_t caps, tern_op *op)
{
	tern_link *link = channel->link;
	bool done;

	if (TN_UNLIKELY(!atomic_load_explicit(&link->copies, memory_order_relaxed) || op->done ||
			op->stream || tn_gpu_on() || tn_op_state(op) == TN_OP_INFLIGHT ||
			tn_ctx_enter(link->ctx) != TERN_OK))
		return false;
	if (link->lock.off) {
		done = access_all(channel, data, flag, caps);
	} else {
		if (TN_UNLIKELY(!tn_lock_go_on(&link->lock)))
			return false;
		tn_lock_turn_mine(&link->lock);
		done = access_all(channel, data, flag, caps);
		tn_lock_drop(&link->lock);
	}
	if (TN_LIKELY(done))
		finish_here(op, data->bytes);
	return done;
}

/* begin: tn_link_fast_xfer, or a short form of it. */
static TN_ALWAYS_INLINE tern_status submit_xfer(tern_channel *channel, const tn_link_xfer *xfer, tern_op *op,
						uint64_t deadline_ns, typeof(tn_link_fast_xfer) *begin)
{
	tern_link *link = channel->link;
	tn_link_op_params params = {.user = op,
				    .deadline_ns = deadline_ns,
				    .level = op->flags & TERN_OP_LOCAL ? TN_LINK_LOCAL : TN_LINK_REMOTE,
				    .placed = op->flags >> TN_OP_PLACED_SHIFT & TN_OP_PLACED_MASK};
	outcome result = REFUSED;
	tn_link_fast fast;
	tern_status status;
	bool slow = true;

	if (TN_LIKELY(tn_lock_go_on(&link->lock)) || await_lock(link))
		tn_lock_turn_begun(&link->lock);
	tn_queue_drain(link);
	status = usable(channel);
	if (TN_LIKELY(status == TERN_OK)) {
		if ((xfer->bytes <= TN_SHELL_COPY_BYTES || !link->copies) &&
		    begin(link->m, channel->handle, xfer, &params, &fast))
			result = fast_outcome(link, &fast, begin == tn_link_fast_notify, tn_link_fast_posted,
					      op, xfer->bytes, &status, &slow);
		if (slow) {
			status = tn_link_transfer(link->m, channel->handle, xfer, &params,
						  &tn_op_priv_of(op)->handle);
			result = status == TERN_OK ? IN_FLIGHT : REFUSED;
			tn_shell_run(link, tn_ctx_now(link->ctx));
		}
		if (result != REFUSED)
			count_transfer(link, xfer->type == TN_XFER_GET, xfer->bytes);
		/* That took a while: messages left here meanwhile do not wait for the driver. */
		if (TN_UNLIKELY(xfer->bytes > TN_SHELL_COPY_BYTES && tn_queue_any(link)))
			tn_shell_run(link, tn_ctx_now(link->ctx));
	}
	tn_lock_drop(&link->lock);
	return conclude(channel, op, result, status);
}

tern_status tn_submit_xfer(tern_channel *channel, const tn_link_xfer *xfer, tern_op *op, uint64_t deadline_ns)
{
	return submit_xfer(channel, xfer, op, deadline_ns, tn_link_fast_xfer);
}

static TN_ALWAYS_INLINE tern_status transfer_by(tern_channel *channel, const tn_link_xfer *xfer, tern_op *op,
						bool notify)
{
	tern_link *link = channel->link;
	tern_status status;

	TN_TRY(tn_ctx_enter(link->ctx));
	if (TN_UNLIKELY(op->stream != NULL))
		return tn_gate_xfer(channel, xfer, op);
	TN_TRY(tn_op_begin(op));
	__atomic_store_n(&tn_op_priv_of(op)->handle, 0, __ATOMIC_RELAXED); /* tern_cancel may look */
	status = notify ? submit_xfer(channel, xfer, op, deadline_of(link, op), tn_link_fast_notify)
			: tn_submit_xfer(channel, xfer, op, deadline_of(link, op));
	if (TN_UNLIKELY(status != TERN_OK))
		tn_op_abort(op);
	return status;
}

static __attribute__((noinline)) tern_status transfer(tern_channel *channel, tn_link_xfer_type type,
						      const piece *data, const piece *flag, tern_op *op)
{
	tn_link_xfer xfer = {.type = type,
			     .local = data->local,
			     .bytes = data->bytes,
			     .key = data->key,
			     .offset = data->offset};

	if (flag) {
		xfer.flag_key = flag->key;
		xfer.flag_offset = flag->offset;
		memcpy(&xfer.flag, flag->local, sizeof(xfer.flag));
	}
	return transfer_by(channel, &xfer, op, false);
}

/* What has no access at once: by scalars, so that an access at once needs no memory for its pieces. */
static __attribute__((noinline)) tern_status put_in_turn(tern_channel *channel, const void *src,
							 uint64_t bytes, const tern_key *key, uint64_t offset,
							 tern_op *op)
{
	piece data = {(void *)(uintptr_t)src, bytes, key, offset};

	return transfer(channel, TN_XFER_PUT, &data, NULL, op);
}

static __attribute__((noinline)) tern_status flag_in_turn(tern_channel *channel, const void *src,
							  uint64_t bytes, const tern_key *key,
							  uint64_t offset, uint64_t flag,
							  const tern_key *flag_key, uint64_t flag_offset,
							  tern_op *op)
{
	piece data = {(void *)(uintptr_t)src, bytes, key, offset};
	piece word = {&flag, sizeof(flag), flag_key, flag_offset};

	return transfer(channel, TN_XFER_PUT_FLAG, &data, &word, op);
}

static __attribute__((noinline)) tern_status get_in_turn(tern_channel *channel, void *dst, uint64_t bytes,
							 const tern_key *key, uint64_t offset, tern_op *op)
{
	piece data = {dst, bytes, key, offset};

	return transfer(channel, TN_XFER_GET, &data, NULL, op);
}

tern_status tern_put(tern_channel *channel, const void *src, uint64_t bytes, const tern_key *key,
		     uint64_t offset, tern_op *op)
{
	piece data = {(void *)(uintptr_t)src, bytes, key, offset};

	return TN_LIKELY(at_once(channel, &data, NULL, 0, op))
		       ? TERN_OK
		       : put_in_turn(channel, src, bytes, key, offset, op);
}

tern_status tern_put_notify(tern_channel *channel, const void *src, uint64_t bytes, const tern_key *key,
			    uint64_t offset, uint32_t value, tern_op *op)
{
	tn_link_xfer xfer = {.type = TN_XFER_PUT_NOTIFY,
			     .local = (void *)(uintptr_t)src,
			     .bytes = bytes,
			     .key = key,
			     .offset = offset,
			     .value = value};

	if (value >> TERN_NOTIFY_BITS)
		return tn_fail(TERN_E_INVALID, "the value of a notification has %d bits", TERN_NOTIFY_BITS);
	return transfer_by(channel, &xfer, op, true); /* without a call until the device's post */
}

tern_status tern_put_flag(tern_channel *channel, const void *src, uint64_t bytes, const tern_key *key,
			  uint64_t offset, uint64_t flag, const tern_key *flag_key, uint64_t flag_offset,
			  tern_op *op)
{
	piece data = {(void *)(uintptr_t)src, bytes, key, offset};
	piece word = {&flag, sizeof(flag), flag_key, flag_offset};

	return TN_LIKELY(flag_offset % 8 == 0 &&
			 at_once(channel, &data, &word, TN_LINK_CAP_ORDERED_WRITES, op))
		       ? TERN_OK
		       : flag_in_turn(channel, src, bytes, key, offset, flag, flag_key, flag_offset, op);
}

tern_status tern_get(tern_channel *channel, void *dst, uint64_t bytes, const tern_key *key, uint64_t offset,
		     tern_op *op)
{
	piece data = {dst, bytes, key, offset};

	return TN_LIKELY(at_once(channel, &data, NULL, TN_LINK_CAP_READ, op))
		       ? TERN_OK
		       : get_in_turn(channel, dst, bytes, key, offset, op);
}

tern_status tern_cancel(tern_channel *channel, tern_op *op)
{
	tern_link *link = channel->link;
	tern_status status;
	uint64_t handle;

	TN_TRY(tn_ctx_enter(link->ctx));
	if (TN_UNLIKELY(op->stream != NULL) && tn_gate_cancel(op))
		return TERN_OK;
	tn_lock_take(&link->lock);
	tn_queue_drain(link);
	status = tn_channel_cancel_recv(channel, op);
	/* 0 or of an earlier turn, whose number nobody knows any more, while another thread submits it. */
	handle = __atomic_load_n(&tn_op_priv_of(op)->handle, __ATOMIC_RELAXED);
	if (status == TERN_E_NOT_FOUND && !link->gone && tn_op_state(op) == TN_OP_INFLIGHT && handle) {
		uint64_t now = tn_ctx_now(link->ctx);

		status = tn_link_cancel(link->m, handle, now);
		tn_shell_run(link, now);
	}
	tn_lock_drop(&link->lock);
	return status == TERN_E_NOT_FOUND ? tn_fail(status, "the operation is not in flight on this channel")
					  : status;
}
