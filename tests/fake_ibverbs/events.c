/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's asynchronous events and shared receive queues.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_ibverbs/fake_impl.h"

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

/* Is a queue pair what it is about? */
static bool of_qp(const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
	case IBV_EVENT_PATH_MIG_ERR:
		return true;
	default:
		return false;
	}
}

int fake_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	fake_ctx *ctx = (fake_ctx *)context;
	uint64_t count;

	if (read(context->async_fd, &count, sizeof(count)) != sizeof(count))
		return -1;
	pthread_mutex_lock(&fake_lock);
	*event = ctx->async[ctx->async_head++ % FAKE_ASYNC_MAX];
	fake.counts.unacked++;
	if (of_qp(event) && event->element.qp)
		((fake_qp *)event->element.qp)->unacked++;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

void fake_ack_async_event(struct ibv_async_event *event)
{
	pthread_mutex_lock(&fake_lock);
	if (fake.counts.unacked == 0)
		fake_fault("an asynchronous event is acknowledged twice");
	else
		fake.counts.unacked--;
	if (of_qp(event) && event->element.qp)
		((fake_qp *)event->element.qp)->unacked--;
	pthread_mutex_unlock(&fake_lock);
}

/* ---- shared receive queues ---- */

struct ibv_srq *fake_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	fake_srq *srq = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_call(pd->context, "create_srq")) {
		if (attr->attr.max_wr == 0 ||
		    (int)attr->attr.max_wr > fake_ctx_of(pd->context)->nic->is.max_srq_wr) {
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
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("destroy_srq");
	if (srq->children)
		fake_fault("a shared receive queue is destroyed under %d queue pairs", srq->children);
	while ((node = tn_list_pop_front(&srq->recvs)))
		free(TN_LIST_ENTRY(node, fake_recv, link));
	((fake_pd *)base->pd)->children--;
	fake.counts.srqs--;
	pthread_mutex_unlock(&fake_lock);
	free(srq);
	return err;
}

int fake_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	fake_srq *srq = (fake_srq *)base;
	int err = 0;

	pthread_mutex_lock(&fake_lock);
	for (; wr && !err; wr = wr->next) {
		fake_recv *recv;

		err = fake_call(base->context, "post_srq_recv");
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
