/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's completion queues and channels. With fake_scramble
 * completions of different streams (queue pair and direction) come in any order, and some come late: they
 * arrive at a later poll, or at the latest just after a request for notification, which then fires.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake_ibverbs/fake_impl.h"

/* ---- completion queues ---- */

static void notify(fake_cq *cq)
{
	uint64_t one = 1;

	if (!cq->armed || !cq->channel)
		return;
	cq->armed = false;
	cq->events++;
	if (!tn_list_linked(&cq->event))
		tn_list_push_back(&cq->channel->ready, &cq->event);
	if (write(cq->channel->ibv.fd, &one, sizeof(one)) != sizeof(one))
		fake_fault("the channel's eventfd is full");
}

/* Everything but four fields of a failed completion is junk. */
static void poison(struct ibv_wc *wc)
{
	struct ibv_wc junk;

	if (wc->status == IBV_WC_SUCCESS)
		return;
	memset(&junk, 0xa5, sizeof(junk));
	junk.wr_id = wc->wr_id;
	junk.status = wc->status;
	junk.qp_num = wc->qp_num;
	junk.vendor_err = 0x77;
	*wc = junk;
}

static bool held(const fake_cqe *cqe)
{
	return cqe->recv ? fake.hold_recvs : fake.hold_sends;
}

void fake_cq_push(fake_cq *cq, const struct ibv_wc *wc, bool recv, uint32_t life)
{
	fake_cqe *cqe = calloc(1, sizeof(*cqe));

	if (cq->count >= (uint32_t)cq->ibv.cqe)
		fake_fault("completion queue overrun: %u entries", cq->ibv.cqe);
	cqe->wc = *wc;
	cqe->recv = recv;
	cqe->life = life;
	poison(&cqe->wc);
	cq->count++;
	/* Not while armed: nobody would poll, and a NIC's lateness ends by itself. */
	if (held(cqe) || (fake.scramble && !cq->armed && tn_rand_below(&fake.rand, 3) == 0)) {
		tn_list_push_back(&cq->delayed, &cqe->link);
		return;
	}
	/* Behind delayed ones of its stream it is delayed too. */
	TN_LIST_FOREACH(node, &cq->delayed) {
		fake_cqe *other = TN_LIST_ENTRY(node, fake_cqe, link);

		if (other->wc.qp_num == wc->qp_num && other->recv == recv) {
			tn_list_push_back(&cq->delayed, &cqe->link);
			return;
		}
	}
	tn_list_push_back(&cq->cqes, &cqe->link);
	notify(cq);
}

static void release_delayed(fake_cq *cq, bool all)
{
	TN_LIST_FOREACH_SAFE(node, &cq->delayed) {
		if (held(TN_LIST_ENTRY(node, fake_cqe, link)))
			continue;
		if (!all && tn_rand_below(&fake.rand, 2) == 0)
			return;
		tn_list_remove(node);
		tn_list_push_back(&cq->cqes, node);
		notify(cq);
	}
}

void fake_cqs_release(void)
{
	TN_LIST_FOREACH(node, &fake.cqs)
		release_delayed(TN_LIST_ENTRY(node, fake_cq, all), true);
}

/* The n-th completion in the queue that is the first of its stream. */
static fake_cqe *pick(fake_cq *cq)
{
	fake_cqe *choice = NULL;
	uint64_t seen = 0;

	if (!fake.scramble)
		return TN_LIST_FIRST(&cq->cqes, fake_cqe, link);
	TN_LIST_FOREACH(node, &cq->cqes) {
		fake_cqe *cqe = TN_LIST_ENTRY(node, fake_cqe, link);
		bool first = true;

		for (tn_list *before = cq->cqes.next; before != node && first; before = before->next) {
			fake_cqe *other = TN_LIST_ENTRY(before, fake_cqe, link);

			first = other->wc.qp_num != cqe->wc.qp_num || other->recv != cqe->recv;
		}
		if (first && tn_rand_below(&fake.rand, ++seen) == 0)
			choice = cqe;
		if (seen == 8)
			break;
	}
	return choice;
}

int fake_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *wc)
{
	fake_cq *cq = (fake_cq *)base;
	int n = 0;

	pthread_mutex_lock(&fake_lock);
	if (fake_scripted("poll_cq")) {
		pthread_mutex_unlock(&fake_lock);
		return -1;
	}
	release_delayed(cq, false);
	while (n < count) {
		fake_cqe *cqe = pick(cq);
		fake_qp *qp;

		if (!cqe)
			break;
		tn_list_remove(&cqe->link);
		cq->count--;
		wc[n++] = cqe->wc;
		qp = cqe->recv ? NULL : fake_qp_find(fake_ctx_of(base->context)->nic, cqe->wc.qp_num);
		if (qp && qp->life == cqe->life) {
			/* Room in the send queue comes back with the completion, for silent ones as well. */
			TN_ASSERT(qp->in_queue >= 1);
			qp->in_queue--;
		}
		free(cqe);
	}
	pthread_mutex_unlock(&fake_lock);
	return n;
}

static struct {
	void (*hook)(void *arg);
	void *arg;
	bool after;
} on_notify;

void fake_on_notify(void (*hook)(void *arg), void *arg, bool after)
{
	on_notify.hook = hook;
	on_notify.arg = arg;
	on_notify.after = after;
}

static void run_hook(bool after)
{
	void (*hook)(void *arg) = on_notify.hook;

	if (!hook || on_notify.after != after)
		return;
	on_notify.hook = NULL;
	hook(on_notify.arg);
}

int fake_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	fake_cq *cq = (fake_cq *)base;
	int err;

	(void)solicited_only;
	run_hook(false);
	pthread_mutex_lock(&fake_lock);
	err = fake_call(base->context, "req_notify_cq");
	if (!err) {
		cq->armed = true;
		release_delayed(cq, true);
	}
	pthread_mutex_unlock(&fake_lock);
	run_hook(true);
	return err;
}

/* One life of one queue pair. */
static bool belongs(const fake_cqe *cqe, const fake_qp *qp)
{
	return cqe->wc.qp_num == qp->ibv.qp_num && cqe->life == qp->life;
}

void fake_cq_forget(fake_cq *cq, const fake_qp *qp)
{
	tn_list *lists[] = {&cq->cqes, &cq->delayed};

	for (unsigned i = 0; i < TN_COUNT_OF(lists); i++) {
		TN_LIST_FOREACH_SAFE(node, lists[i]) {
			fake_cqe *cqe = TN_LIST_ENTRY(node, fake_cqe, link);

			if (!belongs(cqe, qp))
				continue;
			fake.counts.stale++;
			if (fake.keep_stale)
				continue;
			tn_list_remove(node);
			cq->count--;
			free(cqe);
		}
	}
}

struct ibv_cq *fake_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			      struct ibv_comp_channel *channel, int comp_vector)
{
	fake_ctx *ctx = (fake_ctx *)context;
	fake_cq *cq = NULL;

	(void)comp_vector;
	pthread_mutex_lock(&fake_lock);
	if (!fake_call(context, "create_cq")) {
		if (cqe <= 0 || cqe > ctx->nic->is.max_cqe) {
			errno = EINVAL;
		} else {
			cq = calloc(1, sizeof(*cq));
			cq->ibv = (struct ibv_cq){
				.context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe};
			cq->channel = (fake_channel *)channel;
			tn_list_init(&cq->cqes);
			tn_list_init(&cq->delayed);
			tn_list_push_back(&fake.cqs, &cq->all);
			ctx->children++;
			if (cq->channel)
				cq->channel->children++;
			fake.counts.cqs++;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return cq ? &cq->ibv : NULL;
}

/* Events come at once all the same: a NIC's period ends by itself, and there is no time here. */
int fake_modify_cq(struct ibv_cq *base, struct ibv_modify_cq_attr *attr)
{
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_call(base->context, "modify_cq");
	if (!err && fake_ctx_of(base->context)->nic->is.no_moderation)
		err = EOPNOTSUPP;
	if (!err && (attr->attr_mask != IBV_CQ_ATTR_MODERATE || attr->moderate.cq_count == 0))
		err = EINVAL;
	if (!err)
		fake.counts.moderated++;
	pthread_mutex_unlock(&fake_lock);
	return err;
}

int fake_resize_cq(struct ibv_cq *base, int cqe)
{
	fake_cq *cq = (fake_cq *)base;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_call(base->context, "resize_cq");
	if (!err && (cqe > fake_ctx_of(base->context)->nic->is.max_cqe || (uint32_t)cqe < cq->count))
		err = EINVAL;
	if (!err)
		cq->ibv.cqe = cqe;
	pthread_mutex_unlock(&fake_lock);
	return err;
}

static void free_cqes(tn_list *list)
{
	tn_list *node;

	while ((node = tn_list_pop_front(list)))
		free(TN_LIST_ENTRY(node, fake_cqe, link));
}

int fake_destroy_cq(struct ibv_cq *base)
{
	fake_cq *cq = (fake_cq *)base;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("destroy_cq");
	if (cq->children)
		fake_fault("a completion queue is destroyed under %d queue pairs", cq->children);
	if (cq->unacked)
		fake_fault("a completion queue is destroyed with %u events not acknowledged", cq->unacked);
	free_cqes(&cq->cqes);
	free_cqes(&cq->delayed);
	tn_list_remove(&cq->event);
	tn_list_remove(&cq->all);
	if (cq->channel)
		cq->channel->children--;
	((fake_ctx *)base->context)->children--;
	fake.counts.cqs--;
	pthread_mutex_unlock(&fake_lock);
	free(cq);
	return err;
}

/* ---- channels ---- */

struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *context)
{
	fake_channel *channel = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_call(context, "create_comp_channel")) {
		channel = calloc(1, sizeof(*channel));
		channel->ibv.context = context;
		channel->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		tn_list_init(&channel->ready);
		((fake_ctx *)context)->children++;
		fake.counts.channels++;
	}
	pthread_mutex_unlock(&fake_lock);
	return channel ? &channel->ibv : NULL;
}

int fake_destroy_comp_channel(struct ibv_comp_channel *base)
{
	fake_channel *channel = (fake_channel *)base;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("destroy_comp_channel");
	if (channel->children)
		fake_fault("a channel is destroyed under %d completion queues", channel->children);
	((fake_ctx *)base->context)->children--;
	fake.counts.channels--;
	pthread_mutex_unlock(&fake_lock);
	close(channel->ibv.fd);
	free(channel);
	return err;
}

int fake_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **out, void **cq_context)
{
	fake_channel *channel = (fake_channel *)base;
	uint64_t count;
	fake_cq *cq;

	/* Blocks if the descriptor does, as the real one. */
	if (read(base->fd, &count, sizeof(count)) != sizeof(count))
		return -1;
	pthread_mutex_lock(&fake_lock);
	cq = TN_LIST_FIRST(&channel->ready, fake_cq, event);
	cq->events--;
	cq->unacked++;
	fake.counts.unacked++;
	if (cq->events == 0)
		tn_list_remove(&cq->event);
	*out = &cq->ibv;
	*cq_context = cq->ibv.cq_context;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

void fake_ack_cq_events(struct ibv_cq *base, unsigned count)
{
	fake_cq *cq = (fake_cq *)base;

	pthread_mutex_lock(&fake_lock);
	if (count > cq->unacked)
		fake_fault("more completion events are acknowledged than were taken");
	cq->unacked -= count;
	fake.counts.unacked -= count;
	pthread_mutex_unlock(&fake_lock);
}
