/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's devices, contexts, regions, scripts and counts; and the table itself. fake.h says what it is.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake_ibverbs/fake_impl.h"

#define SCRIPTS_MAX 16
#define CALLS_MAX   40

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_state fake;

static struct {
	char call[32];
	int left; /* calls until it fails; 0 = unused */
	int err;
} scripts[SCRIPTS_MAX];
static struct {
	char call[32];
	uint64_t count;
} calls[CALLS_MAX];

/* ---- scripts and counts ---- */

void fake_fault(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(fake.fault, sizeof(fake.fault), fmt, args);
	va_end(args);
	fprintf(stderr, "fake ibverbs: %s\n", fake.fault);
	fake.counts.faults++;
}

int fake_scripted(const char *call)
{
	int err = 0;

	for (int i = 0; i < CALLS_MAX; i++) {
		if (calls[i].count && strcmp(calls[i].call, call) != 0)
			continue;
		snprintf(calls[i].call, sizeof(calls[i].call), "%s", call);
		calls[i].count++;
		break;
	}
	for (int i = 0; i < SCRIPTS_MAX; i++) {
		if (scripts[i].left == 0 ||
		    (strcmp(scripts[i].call, call) != 0 && strcmp(scripts[i].call, "*") != 0))
			continue;
		if (--scripts[i].left == 0)
			err = scripts[i].err;
	}
	if (err)
		errno = err;
	return err;
}

void fake_fail(const char *call, int nth, int err)
{
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < SCRIPTS_MAX; i++) {
		if (scripts[i].left)
			continue;
		snprintf(scripts[i].call, sizeof(scripts[i].call), "%s", call);
		scripts[i].left = nth;
		scripts[i].err = err;
		break;
	}
	pthread_mutex_unlock(&fake_lock);
}

uint64_t fake_calls(const char *call)
{
	uint64_t count = 0;

	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < CALLS_MAX; i++) {
		if (calls[i].count && strcmp(calls[i].call, call) == 0)
			count = calls[i].count;
	}
	pthread_mutex_unlock(&fake_lock);
	return count;
}

#define SETTER(name, type, body)                  \
	void name(type value)                     \
	{                                         \
		pthread_mutex_lock(&fake_lock);   \
		body;                             \
		fake_progress();                  \
		pthread_mutex_unlock(&fake_lock); \
	}
SETTER(fake_scramble, uint64_t, {
	fake.scramble = value != 0;
	fake.rand.state = value;
})
SETTER(fake_impatient, bool, fake.impatient = value)
SETTER(fake_never_flush, bool, fake.never_flush = value)
SETTER(fake_no_last_wqe, bool, fake.no_last_wqe = value)
SETTER(fake_cut, bool, fake.cut = value)
#undef SETTER

void fake_fail_request(uint32_t qpn, enum ibv_wc_status status)
{
	pthread_mutex_lock(&fake_lock);
	TN_LIST_FOREACH(node, &fake.qps) {
		fake_qp *qp = TN_LIST_ENTRY(node, fake_qp, all);

		if (qpn == 0 || qp->ibv.qp_num == qpn)
			qp->script = status;
	}
	pthread_mutex_unlock(&fake_lock);
}

void fake_async_port(enum ibv_event_type type, uint8_t port)
{
	struct ibv_async_event event = {.event_type = type, .element.port_num = port};

	pthread_mutex_lock(&fake_lock);
	TN_LIST_FOREACH(node, &fake.contexts)
		fake_async_push(TN_LIST_ENTRY(node, fake_ctx, all), &event);
	pthread_mutex_unlock(&fake_lock);
}

void fake_set_port_state(enum ibv_port_state state)
{
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < fake.device_count; i++)
		fake.devices[i].state[0] = fake.devices[i].state[1] = state;
	pthread_mutex_unlock(&fake_lock);
}

fake_counts fake_counts_get(void)
{
	fake_counts counts;

	pthread_mutex_lock(&fake_lock);
	counts = fake.counts;
	pthread_mutex_unlock(&fake_lock);
	return counts;
}

const char *fake_fault_text(void)
{
	return fake.fault;
}

/* ---- devices ---- */

fake_device fake_device_default(void)
{
	return (fake_device){
		.name = "fake0",
		.ports = 1,
		.state = {IBV_PORT_ACTIVE, IBV_PORT_DOWN},
		.mtu = IBV_MTU_4096,
		.gids = {{"fe80::1", IBV_GID_TYPE_ROCE_V1},
			 {"fe80::1", IBV_GID_TYPE_ROCE_V2},
			 {"::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1},
			 {"::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2}},
		.max_inline = 101,
		.max_msg = 1u << 30,
		.max_qp_wr = 16384,
		.max_cqe = 1 << 20,
		.max_srq = 100,
		.max_srq_wr = 32768,
		.max_mr = 100000,
		.max_rd_atomic = 16,
	};
}

void fake_reset(const fake_device *devices, int count)
{
	fake_device dflt = fake_device_default();

	pthread_mutex_lock(&fake_lock);
	memset(&fake, 0, sizeof(fake));
	memset(scripts, 0, sizeof(scripts));
	memset(calls, 0, sizeof(calls));
	tn_list_init(&fake.contexts);
	tn_list_init(&fake.qps);
	tn_list_init(&fake.mrs);
	fake.next_qpn = 0x11;
	fake.next_key = 0x1000;
	fake.device_count = devices ? count : 1;
	for (int i = 0; i < fake.device_count; i++) {
		fake.devices[i] = devices ? devices[i] : dflt;
		snprintf(fake.handles[i].name, sizeof(fake.handles[i].name), "%s", fake.devices[i].name);
	}
	pthread_mutex_unlock(&fake_lock);
}

void fake_install(void)
{
	fake_reset(NULL, 0);
	tn_verbs_api_override(fake_api());
}

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_scripted("get_device_list")) {
		list = calloc((size_t)fake.device_count + 1, sizeof(struct ibv_device *));
		for (int i = 0; i < fake.device_count; i++)
			list[i] = &fake.handles[i];
		*count = fake.device_count;
	}
	pthread_mutex_unlock(&fake_lock);
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
	return device->name;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	fake_ctx *ctx = NULL;
	const fake_device *of;

	pthread_mutex_lock(&fake_lock);
	of = &fake.devices[device - fake.handles];
	if (of->open_errno)
		errno = of->open_errno;
	else if (!fake_scripted("open_device")) {
		ctx = calloc(1, sizeof(*ctx));
		ctx->ibv.device = device;
		ctx->ibv.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		ctx->device = of;
		tn_list_push_back(&fake.contexts, &ctx->all);
		fake.counts.contexts++;
	}
	pthread_mutex_unlock(&fake_lock);
	return ctx ? &ctx->ibv : NULL;
}

static int close_device(struct ibv_context *context)
{
	fake_ctx *ctx = (fake_ctx *)context;

	pthread_mutex_lock(&fake_lock);
	if (ctx->children)
		fake_fault("a context is closed with %d objects of it alive", ctx->children);
	tn_list_remove(&ctx->all);
	fake.counts.contexts--;
	pthread_mutex_unlock(&fake_lock);
	close(context->async_fd);
	free(ctx);
	return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	const fake_device *of = ((fake_ctx *)context)->device;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("query_device");
	pthread_mutex_unlock(&fake_lock);
	if (err)
		return err;
	*attr = (struct ibv_device_attr){.max_mr_size = UINT64_MAX,
					 .max_qp = 1 << 17,
					 .max_qp_wr = of->max_qp_wr,
					 .max_sge = FAKE_SGE_MAX,
					 .max_cq = 1 << 16,
					 .max_cqe = of->max_cqe,
					 .max_mr = of->max_mr,
					 .max_pd = 1 << 15,
					 .max_qp_rd_atom = of->max_rd_atomic,
					 .max_qp_init_rd_atom = of->max_rd_atomic,
					 .max_srq = of->max_srq,
					 .max_srq_wr = of->max_srq_wr,
					 .max_srq_sge = 1,
					 .phys_port_cnt = (uint8_t)of->ports};
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
	const fake_device *of = ((fake_ctx *)context)->device;
	struct ibv_port_attr *attr = (struct ibv_port_attr *)(void *)out;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("query_port");
	if (!err && (port < 1 || port > of->ports))
		err = EINVAL;
	if (!err) {
		attr->state = of->state[port - 1];
		attr->max_mtu = attr->active_mtu = of->mtu;
		attr->gid_tbl_len = FAKE_GIDS_MAX;
		attr->max_msg_sz = of->max_msg;
		attr->lid = of->infiniband ? 7 : 0;
		attr->link_layer = of->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	}
	pthread_mutex_unlock(&fake_lock);
	return err;
}

static int gid_of(struct ibv_context *context, int index, union ibv_gid *gid)
{
	const fake_device *of = ((fake_ctx *)context)->device;

	memset(gid, 0, sizeof(*gid));
	if (index < 0 || index >= FAKE_GIDS_MAX)
		return EINVAL;
	if (of->gids[index].address && inet_pton(AF_INET6, of->gids[index].address, gid->raw) != 1)
		fake_fault("%s is no address", of->gids[index].address);
	return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)port;
	return gid_of(context, index, gid);
}

static int query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
			struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	const fake_device *of = ((fake_ctx *)context)->device;

	(void)flags;
	if (index >= FAKE_GIDS_MAX || !of->gids[index].address || entry_size != sizeof(*entry))
		return ENODATA;
	*entry = (struct ibv_gid_entry){
		.gid_index = index, .port_num = port, .gid_type = of->gids[index].type};
	return gid_of(context, (int)index, &entry->gid);
}

/* ---- protection domains and regions ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	fake_pd *pd = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_scripted("alloc_pd")) {
		pd = calloc(1, sizeof(*pd));
		pd->ibv.context = context;
		((fake_ctx *)context)->children++;
		fake.counts.pds++;
	}
	pthread_mutex_unlock(&fake_lock);
	return pd ? &pd->ibv : NULL;
}

static int dealloc_pd(struct ibv_pd *base)
{
	fake_pd *pd = (fake_pd *)base;

	pthread_mutex_lock(&fake_lock);
	if (pd->children)
		fake_fault("a protection domain is freed with %d objects of it alive", pd->children);
	((fake_ctx *)base->context)->children--;
	fake.counts.pds--;
	pthread_mutex_unlock(&fake_lock);
	free(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	fake_mr *mr = NULL;

	pthread_mutex_lock(&fake_lock);
	if (!fake_scripted("reg_mr")) {
		if ((int)fake.counts.mrs >= ((fake_ctx *)pd->context)->device->max_mr) {
			errno = ENOMEM;
		} else {
			mr = calloc(1, sizeof(*mr));
			mr->ibv = (struct ibv_mr){.context = pd->context,
						  .pd = pd,
						  .addr = addr,
						  .length = bytes,
						  .lkey = fake.next_key,
						  .rkey = fake.next_key + 1};
			fake.next_key += 0x100;
			mr->access = access;
			tn_list_push_back(&fake.mrs, &mr->all);
			((fake_pd *)pd)->children++;
			fake.counts.mrs++;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return mr ? &mr->ibv : NULL;
}

static int dereg_mr(struct ibv_mr *base)
{
	fake_mr *mr = (fake_mr *)base;

	pthread_mutex_lock(&fake_lock);
	tn_list_remove(&mr->all);
	((fake_pd *)base->pd)->children--;
	fake.counts.mrs--;
	pthread_mutex_unlock(&fake_lock);
	free(mr);
	return 0;
}

const tn_verbs_api *fake_api(void)
{
	static const tn_verbs_api api = {
		.get_device_list = get_device_list,
		.free_device_list = free_device_list,
		.get_device_name = get_device_name,
		.open_device = open_device,
		.close_device = close_device,
		.query_device = query_device,
		.query_port = query_port,
		.query_gid = query_gid,
		.query_gid_ex = query_gid_ex,
		.get_async_event = fake_get_async_event,
		.ack_async_event = fake_ack_async_event,
		.alloc_pd = alloc_pd,
		.dealloc_pd = dealloc_pd,
		.reg_mr = reg_mr,
		.dereg_mr = dereg_mr,
		.create_comp_channel = fake_create_comp_channel,
		.destroy_comp_channel = fake_destroy_comp_channel,
		.create_cq = fake_create_cq,
		.resize_cq = fake_resize_cq,
		.destroy_cq = fake_destroy_cq,
		.get_cq_event = fake_get_cq_event,
		.ack_cq_events = fake_ack_cq_events,
		.create_srq = fake_create_srq,
		.destroy_srq = fake_destroy_srq,
		.create_qp = fake_create_qp,
		.modify_qp = fake_modify_qp,
		.destroy_qp = fake_destroy_qp,
		.poll_cq = fake_poll_cq,
		.req_notify_cq = fake_req_notify_cq,
		.post_send = fake_post_send,
		.post_srq_recv = fake_post_srq_recv,
	};

	return &api;
}
