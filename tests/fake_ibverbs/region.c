/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's protection domains and memory regions, and devices that refuse to register.
 */
#include <errno.h>
#include <stdlib.h>

#include "fake_ibverbs/fake_impl.h"

struct ibv_pd *fake_alloc_pd(struct ibv_context *context)
{
	fake_pd *pd = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_call(context, "alloc_pd")) {
		pd = calloc(1, sizeof(*pd));
		pd->ibv.context = context;
		fake_ctx_of(context)->children++;
		fake.counts.pds++;
	}
	pthread_mutex_unlock(&fake_lock);
	return pd ? &pd->ibv : NULL;
}

int fake_dealloc_pd(struct ibv_pd *base)
{
	fake_pd *pd = (fake_pd *)base;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("dealloc_pd");
	if (pd->children)
		fake_fault("a protection domain is freed with %d objects of it alive", pd->children);
	fake_ctx_of(base->context)->children--;
	fake.counts.pds--;
	pthread_mutex_unlock(&fake_lock);
	free(pd);
	return err;
}

/* 0, or why this device does not register that. */
static int refusal(fake_nic *nic, size_t bytes)
{
	int err = nic->is.reg_errno ? nic->is.reg_errno : ENOMEM;

	nic->regs++;
	if (nic->is.reg_refused_from && nic->regs >= nic->is.reg_refused_from)
		return err;
	if (nic->is.reg_refused_bytes && bytes >= nic->is.reg_refused_bytes)
		return err;
	return 0;
}

/* Regions of this device, of all its opens. */
static int alive(const fake_nic *nic)
{
	int count = 0;

	TN_LIST_FOREACH(node, &fake.mrs)
		count += fake_ctx_of(TN_LIST_ENTRY(node, fake_mr, all)->ibv.context)->nic == nic;
	return count;
}

struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	fake_nic *nic = fake_ctx_of(pd->context)->nic;
	fake_mr *mr = NULL;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_call(pd->context, "reg_mr");
	if (!err)
		err = refusal(nic, bytes);
	if (!err && alive(nic) >= nic->is.max_mr)
		err = ENOMEM;
	/* The kernel refuses remote writes into what may not be written locally. */
	if (!err && (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE))
		err = EINVAL;
	if (!err) {
		mr = calloc(1, sizeof(*mr));
		mr->ibv = (struct ibv_mr){.context = pd->context,
					  .pd = pd,
					  .addr = addr,
					  .length = bytes,
					  .lkey = nic->next_key,
					  .rkey = nic->next_key + 1};
		nic->next_key += 0x100;
		mr->access = access;
		tn_list_push_back(&fake.mrs, &mr->all);
		((fake_pd *)pd)->children++;
		fake.counts.mrs++;
		fake.counts.regs++;
	}
	pthread_mutex_unlock(&fake_lock);
	if (err)
		errno = err;
	return mr ? &mr->ibv : NULL;
}

int fake_dereg_mr(struct ibv_mr *base)
{
	fake_mr *mr = (fake_mr *)base;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("dereg_mr");
	tn_list_remove(&mr->all);
	((fake_pd *)base->pd)->children--;
	fake.counts.mrs--;
	pthread_mutex_unlock(&fake_lock);
	free(mr);
	return err;
}
