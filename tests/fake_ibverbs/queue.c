/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's completion queues, channels, asynchronous events and shared receive queues. With fake_scramble
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

void fake_cq_push(fake_cq *cq, const struct ibv_wc *wc, bool recv)
{
	fake_cqe *cqe = calloc(1, sizeof(*cqe));

	if (cq->count >= (uint32_t)cq->ibv.cqe)
		fake_fault("completion queue overrun: %u entries", cq->ibv.cqe);
	cqe->wc = *wc;
	cqe->recv = recv;
	poison(&cqe->wc);
	cq->count++;
	/* Not while armed: nobody would poll, and a NIC's lateness ends by itself. */
	if (fake.scramble && !cq->armed && tn_rand_below(&fake.rand, 3) == 0) {
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
	while (!tn_list_empty(&cq->delayed) && (all || tn_rand_below(&fake.rand, 2))) {
		tn_list *node = tn_list_pop_front(&cq->delayed);

		tn_list_push_back(&cq->cqes, node);
		notify(cq);
	}
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
		qp = cqe->recv ? NULL : fake_qp_find(cqe->wc.qp_num);
		if (qp) {
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
	err = fake_scripted("req_notify_cq");
	if (!err) {
		cq->armed = true;
		release_delayed(cq, true);
	}
	pthread_mutex_unlock(&fake_lock);
	run_hook(true);
	return err;
}

void fake_cq_forget(fake_cq *cq, const fake_qp *qp)
{
	tn_list *lists[] = {&cq->cqes, &cq->delayed};

	for (unsigned i = 0; i < TN_COUNT_OF(lists); i++) {
		TN_LIST_FOREACH_SAFE(node, lists[i]) {
			fake_cqe *cqe = TN_LIST_ENTRY(node, fake_cqe, link);

			if (cqe->wc.qp_num != qp->ibv.qp_num)
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
	if (!fake_scripted("create_cq")) {
		if (cqe <= 0 || cqe > ctx->device->max_cqe) {
			errno = EINVAL;
		} else {
			cq = calloc(1, sizeof(*cq));
			cq->ibv = (struct ibv_cq){
				.context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe};
			cq->channel = (fake_channel *)channel;
			tn_list_init(&cq->cqes);
			tn_list_init(&cq->delayed);
			ctx->children++;
			if (cq->channel)
				cq->channel->children++;
			fake.counts.cqs++;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return cq ? &cq->ibv : NULL;
}

int fake_resize_cq(struct ibv_cq *base, int cqe)
{
	fake_cq *cq = (fake_cq *)base;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("resize_cq");
	if (!err && (cqe > ((fake_ctx *)base->context)->device->max_cqe || (uint32_t)cqe < cq->count))
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

	pthread_mutex_lock(&fake_lock);
	if (cq->children)
		fake_fault("a completion queue is destroyed under %d queue pairs", cq->children);
	if (cq->unacked)
		fake_fault("a completion queue is destroyed with %u events not acknowledged", cq->unacked);
	free_cqes(&cq->cqes);
	free_cqes(&cq->delayed);
	tn_list_remove(&cq->event);
	if (cq->channel)
		cq->channel->children--;
	((fake_ctx *)base->context)->children--;
	fake.counts.cqs--;
	pthread_mutex_unlock(&fake_lock);
	free(cq);
	return 0;
}

/* ---- channels ---- */

struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *context)
{
	fake_channel *channel = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_scripted("create_comp_channel")) {
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

	pthread_mutex_lock(&fake_lock);
	if (channel->children)
		fake_fault("a channel is destroyed under %d completion queues", channel->children);
	((fake_ctx *)base->context)->children--;
	fake.counts.channels--;
	pthread_mutex_unlock(&fake_lock);
	close(channel->ibv.fd);
	free(channel);
	return 0;
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

/* ---- asynchronous events ---- */

void fake_async_push(fake_ctx *ctx, const struct ibv_async_event *event)
{
	uint64_t one = 1;

	if (ctx->async_tail - ctx->async_head == FAKE_ASYNC_MAX)
		return;
	ctx->async[ctx->async_tail++ % FAKE_ASYNC_MAX] = *event;
	if (write(ctx->ibv.async_fd, &one, sizeof(one)) != sizeof(one))
		fake_fault("the asynchronous eventfd is full");
}

int fake_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	fake_ctx *ctx = (fake_ctx *)context;
	uint64_t count;

	if (read(context->async_fd, &count, sizeof(count)) != sizeof(count))
		return -1;
	pthread_mutex_lock(&fake_lock);
	*event = ctx->async[ctx->async_head++ % FAKE_ASYNC_MAX];
	ctx->unacked++;
	fake.counts.unacked++;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

void fake_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
	pthread_mutex_lock(&fake_lock);
	if (fake.counts.unacked == 0)
		fake_fault("an asynchronous event is acknowledged twice");
	else
		fake.counts.unacked--;
	pthread_mutex_unlock(&fake_lock);
}

/* ---- shared receive queues ---- */

struct ibv_srq *fake_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	fake_srq *srq = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_scripted("create_srq")) {
		if (attr->attr.max_wr == 0 ||
		    (int)attr->attr.max_wr > ((fake_ctx *)pd->context)->device->max_srq_wr) {
			errno = EINVAL;
		} else {
			srq = calloc(1, sizeof(*srq));
			srq->ibv = (struct ibv_srq){.context = pd->context, .pd = pd};
			srq->max = attr->attr.max_wr;
			tn_list_init(&srq->recvs);
			((fake_pd *)pd)->children++;
			fake.counts.srqs++;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return srq ? &srq->ibv : NULL;
}

int fake_destroy_srq(struct ibv_srq *base)
{
	fake_srq *srq = (fake_srq *)base;
	tn_list *node;

	pthread_mutex_lock(&fake_lock);
	if (srq->children)
		fake_fault("a shared receive queue is destroyed under %d queue pairs", srq->children);
	while ((node = tn_list_pop_front(&srq->recvs)))
		free(TN_LIST_ENTRY(node, fake_recv, link));
	((fake_pd *)base->pd)->children--;
	fake.counts.srqs--;
	pthread_mutex_unlock(&fake_lock);
	free(srq);
	return 0;
}

int fake_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	fake_srq *srq = (fake_srq *)base;
	int err = 0;

	pthread_mutex_lock(&fake_lock);
	for (; wr && !err; wr = wr->next) {
		fake_recv *recv;

		err = fake_scripted("post_srq_recv");
		if (!err && srq->count >= srq->max) {
			fake_fault("a shared receive queue of %u overflows", srq->max);
			err = ENOMEM;
		}
		if (err) {
			*bad = wr;
			break;
		}
		recv = calloc(1, sizeof(*recv));
		recv->wr_id = wr->wr_id;
		recv->has_sge = wr->num_sge > 0;
		if (recv->has_sge)
			recv->sge = wr->sg_list[0];
		tn_list_push_back(&srq->recvs, &recv->link);
		srq->count++;
	}
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
	return err;
}
