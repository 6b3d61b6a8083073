/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's devices, contexts, ports and GID tables; and the table of functions. fake.h says what it is.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake_ibverbs/fake_impl.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_state fake;

void fake_reset(const fake_device *devices, int count)
{
	fake_device dflt = fake_device_default();

	pthread_mutex_lock(&fake_lock);
	memset(&fake, 0, sizeof(fake));
	fake_scripts_reset();
	tn_list_init(&fake.contexts);
	tn_list_init(&fake.cqs);
	tn_list_init(&fake.qps);
	tn_list_init(&fake.mrs);
	fake.fork = IBV_FORK_UNNEEDED;
	fake.device_count = devices ? count : 1;
	for (int i = 0; i < fake.device_count; i++) {
		fake.nics[i].is = devices ? devices[i] : dflt;
		fake.nics[i].next_qpn = 0x11;
		fake.nics[i].next_key = 0x1000;
		snprintf(fake.handles[i].name, sizeof(fake.handles[i].name), "%s", fake.nics[i].is.name);
	}
	pthread_mutex_unlock(&fake_lock);
}

void fake_install(void)
{
	fake_reset(NULL, 0);
	tn_verbs_api_override(fake_api());
}

static void judge(void)
{
	fake_counts c = fake_counts_get();

	if (c.faults || c.qps || c.mrs || c.contexts || c.unacked) {
		(void)fprintf(
			stderr,
			"fake NIC: %llu faults, left over: %llu queue pairs, %llu regions, %llu events\n",
			(unsigned long long)c.faults, (unsigned long long)c.qps, (unsigned long long)c.mrs,
			(unsigned long long)c.unacked);
		_exit(97);
	}
}

void fake_install_judged(void)
{
	fake_install();
	(void)atexit(judge);
}

/* ---- devices ---- */

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
	fake_nic *nic;

	pthread_mutex_lock(&fake_lock);
	nic = &fake.nics[device - fake.handles];
	if (nic->is.open_errno || nic->dead)
		errno = nic->dead ? EIO : nic->is.open_errno;
	else if (!fake_scripted("open_device")) {
		ctx = calloc(1, sizeof(*ctx));
		ctx->ibv.device = device;
		ctx->ibv.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		ctx->nic = nic;
		tn_list_push_back(&fake.contexts, &ctx->all);
		fake.counts.contexts++;
	}
	pthread_mutex_unlock(&fake_lock);
	return ctx ? &ctx->ibv : NULL;
}

static int close_device(struct ibv_context *context)
{
	fake_ctx *ctx = fake_ctx_of(context);
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("close_device");
	if (ctx->children)
		fake_fault("a context is closed with %d objects of it alive", ctx->children);
	tn_list_remove(&ctx->all);
	fake.counts.contexts--;
	pthread_mutex_unlock(&fake_lock);
	close(context->async_fd);
	free(ctx);
	return err;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	const fake_device *of = &fake_ctx_of(context)->nic->is;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_call(context, "query_device");
	if (!err)
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
	pthread_mutex_unlock(&fake_lock);
	return err;
}

/* ---- ports ---- */

bool fake_port_active(const fake_nic *nic, uint8_t port)
{
	return port >= 1 && port <= nic->is.ports && nic->is.state[port - 1] == IBV_PORT_ACTIVE;
}

static int query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
	const fake_device *of = &fake_ctx_of(context)->nic->is;
	struct ibv_port_attr *attr = (struct ibv_port_attr *)(void *)out;
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_call(context, "query_port");
	if (!err && (port < 1 || port > of->ports))
		err = EINVAL;
	if (!err) {
		attr->state = of->state[port - 1];
		attr->max_mtu = IBV_MTU_4096;
		attr->active_mtu = of->mtu;
		attr->gid_tbl_len = FAKE_GIDS_MAX;
		attr->max_msg_sz = of->max_msg;
		attr->lid = of->infiniband ? of->lid : 0;
		attr->link_layer = of->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	}
	pthread_mutex_unlock(&fake_lock);
	return err;
}

bool fake_gid_of(const fake_nic *nic, int index, union ibv_gid *gid)
{
	const char *address = index >= 0 && index < FAKE_GIDS_MAX ? nic->is.gids[index].address : NULL;

	memset(gid, 0, sizeof(*gid));
	if (address && inet_pton(AF_INET6, address, gid->raw) != 1)
		fake_fault("%s is no address", address);
	return address != NULL;
}

/* An empty entry is a GID of zeros here. */
static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	int err;

	(void)port;
	pthread_mutex_lock(&fake_lock);
	err = fake_call(context, "query_gid");
	if (!err && (index < 0 || index >= FAKE_GIDS_MAX))
		err = EINVAL;
	if (!err)
		(void)fake_gid_of(fake_ctx_of(context)->nic, index, gid);
	pthread_mutex_unlock(&fake_lock);
	return err ? -1 : 0;
}

static int query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
			struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	const fake_nic *nic = fake_ctx_of(context)->nic;
	union ibv_gid gid;
	int err;

	(void)flags;
	pthread_mutex_lock(&fake_lock);
	err = fake_call(context, "query_gid_ex");
	if (!err && (entry_size != sizeof(*entry) || !fake_gid_of(nic, (int)index, &gid)))
		err = ENODATA;
	if (!err)
		*entry = (struct ibv_gid_entry){.gid = gid,
						.gid_index = index,
						.port_num = port,
						.gid_type = nic->is.gids[index].type};
	pthread_mutex_unlock(&fake_lock);
	return err;
}

/* Entries that are there, of all ports. */
static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
			       uint32_t flags, size_t entry_size)
{
	const fake_nic *nic = fake_ctx_of(context)->nic;
	size_t n = 0;
	int err;

	(void)flags;
	pthread_mutex_lock(&fake_lock);
	err = fake_call(context, "query_gid_table");
	if (!err && entry_size != sizeof(*entries))
		err = EINVAL;
	for (int port = 1; !err && port <= nic->is.ports; port++) {
		for (int i = 0; i < FAKE_GIDS_MAX && n < max; i++) {
			union ibv_gid gid;

			if (fake_gid_of(nic, i, &gid))
				entries[n++] = (struct ibv_gid_entry){.gid = gid,
								      .gid_index = (uint32_t)i,
								      .port_num = (uint32_t)port,
								      .gid_type = nic->is.gids[i].type};
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return err ? -err : (ssize_t)n;
}

/* ---- fork ---- */

static enum ibv_fork_status is_fork_initialized(void)
{
	enum ibv_fork_status status;

	pthread_mutex_lock(&fake_lock);
	status = fake.fork;
	pthread_mutex_unlock(&fake_lock);
	return status;
}

static int fork_init(void)
{
	int err;

	pthread_mutex_lock(&fake_lock);
	err = fake_scripted("fork_init");
	if (!err && fake.fork == IBV_FORK_DISABLED) {
		if (fake.counts.regs)
			err = EINVAL;
		else
			fake.fork = IBV_FORK_ENABLED;
	}
	pthread_mutex_unlock(&fake_lock);
	return err;
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
		.query_gid_table = query_gid_table,
		.is_fork_initialized = is_fork_initialized,
		.fork_init = fork_init,
		.query_qp_data_in_order = fake_query_qp_data_in_order,
		.get_async_event = fake_get_async_event,
		.ack_async_event = fake_ack_async_event,
		.alloc_pd = fake_alloc_pd,
		.dealloc_pd = fake_dealloc_pd,
		.reg_mr = fake_reg_mr,
		.dereg_mr = fake_dereg_mr,
		.create_comp_channel = fake_create_comp_channel,
		.destroy_comp_channel = fake_destroy_comp_channel,
		.create_cq = fake_create_cq,
		.resize_cq = fake_resize_cq,
		.modify_cq = fake_modify_cq,
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
