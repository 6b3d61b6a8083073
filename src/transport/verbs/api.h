/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libibverbs that tern calls, as a table: filled from the library when it is loaded at run
 * time, so that one binary runs with and without it, or by tests with a fake. Everything of this provider
 * calls through the table; nothing links to libibverbs.
 *
 * The data-path functions (poll_cq, post_*, req_notify_cq) are inlines of <infiniband/verbs.h> over the
 * context's own pointers. The library's table has NULL for them, and they are called without a detour; a fake
 * has functions there and needs no such context. What is marked optional may be NULL: an older library, or a
 * fake.
 *
 * Threads: any; loading happens once. Tests: tests/unit/transport/test_verbs_probe.c.
 */
#ifndef TN_TRANSPORT_VERBS_API_H
#define TN_TRANSPORT_VERBS_API_H

#include <stdbool.h>

#include <infiniband/verbs.h>

#include <tern/status.h>

#include "base/check.h"

/* X(member, symbol, optional, result, parameters) of what is looked up by name */
#define TN_VERBS_SYMBOLS(X)                                                                                  \
	X(get_device_list, ibv_get_device_list, 0, struct ibv_device **, (int *count))                       \
	X(free_device_list, ibv_free_device_list, 0, void, (struct ibv_device * *list))                      \
	X(get_device_name, ibv_get_device_name, 0, const char *, (struct ibv_device * device))               \
	X(open_device, ibv_open_device, 0, struct ibv_context *, (struct ibv_device * device))               \
	X(close_device, ibv_close_device, 0, int, (struct ibv_context * context))                            \
	X(query_device, ibv_query_device, 0, int,                                                            \
	  (struct ibv_context * context, struct ibv_device_attr * attr))                                     \
	X(query_port, ibv_query_port, 0, int,                                                                \
	  (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr * attr))                 \
	X(query_gid, ibv_query_gid, 0, int,                                                                  \
	  (struct ibv_context * context, uint8_t port, int index, union ibv_gid *gid))                       \
	X(query_gid_ex, _ibv_query_gid_ex, 1, int,                                                           \
	  (struct ibv_context * context, uint32_t port, uint32_t index, struct ibv_gid_entry * entry,        \
	   uint32_t flags, size_t entry_size))                                                               \
	X(query_gid_table, _ibv_query_gid_table, 1, ssize_t,                                                 \
	  (struct ibv_context * context, struct ibv_gid_entry * entries, size_t max_entries, uint32_t flags, \
	   size_t entry_size))                                                                               \
	X(is_fork_initialized, ibv_is_fork_initialized, 1, enum ibv_fork_status, (void))                     \
	X(fork_init, ibv_fork_init, 1, int, (void))                                                          \
	X(query_qp_data_in_order, ibv_query_qp_data_in_order, 1, int,                                        \
	  (struct ibv_qp * qp, enum ibv_wr_opcode op, uint32_t flags))                                       \
	X(get_async_event, ibv_get_async_event, 0, int,                                                      \
	  (struct ibv_context * context, struct ibv_async_event * event))                                    \
	X(ack_async_event, ibv_ack_async_event, 0, void, (struct ibv_async_event * event))                   \
	X(alloc_pd, ibv_alloc_pd, 0, struct ibv_pd *, (struct ibv_context * context))                        \
	X(dealloc_pd, ibv_dealloc_pd, 0, int, (struct ibv_pd * pd))                                          \
	X(reg_mr, ibv_reg_mr, 0, struct ibv_mr *,                                                            \
	  (struct ibv_pd * pd, void *addr, size_t bytes, int access))                                        \
	X(reg_dmabuf_mr, ibv_reg_dmabuf_mr, 1, struct ibv_mr *,                                              \
	  (struct ibv_pd * pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access))            \
	X(dereg_mr, ibv_dereg_mr, 0, int, (struct ibv_mr * mr))                                              \
	X(create_comp_channel, ibv_create_comp_channel, 0, struct ibv_comp_channel *,                        \
	  (struct ibv_context * context))                                                                    \
	X(destroy_comp_channel, ibv_destroy_comp_channel, 0, int, (struct ibv_comp_channel * channel))       \
	X(create_cq, ibv_create_cq, 0, struct ibv_cq *,                                                      \
	  (struct ibv_context * context, int cqe, void *cq_context, struct ibv_comp_channel *channel,        \
	   int comp_vector))                                                                                 \
	X(resize_cq, ibv_resize_cq, 0, int, (struct ibv_cq * cq, int cqe))                                   \
	X(destroy_cq, ibv_destroy_cq, 0, int, (struct ibv_cq * cq))                                          \
	X(get_cq_event, ibv_get_cq_event, 0, int,                                                            \
	  (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **cq_context))                       \
	X(ack_cq_events, ibv_ack_cq_events, 0, void, (struct ibv_cq * cq, unsigned count))                   \
	X(create_srq, ibv_create_srq, 0, struct ibv_srq *,                                                   \
	  (struct ibv_pd * pd, struct ibv_srq_init_attr * attr))                                             \
	X(destroy_srq, ibv_destroy_srq, 0, int, (struct ibv_srq * srq))                                      \
	X(create_qp, ibv_create_qp, 0, struct ibv_qp *,                                                      \
	  (struct ibv_pd * pd, struct ibv_qp_init_attr * attr))                                              \
	X(modify_qp, ibv_modify_qp, 0, int, (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask))       \
	X(destroy_qp, ibv_destroy_qp, 0, int, (struct ibv_qp * qp))

typedef struct tn_verbs_api {
#define TN_VERBS_MEMBER(member, symbol, optional, result, parameters) result(*member) parameters;
	TN_VERBS_SYMBOLS(TN_VERBS_MEMBER)
#undef TN_VERBS_MEMBER
	/* NULL: the context's own. Called through tn_verbs_*, below. */
	int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *wc);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
	int (*modify_cq)(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr); /* may be NULL */
} tn_verbs_api;

/* The table in force. TERN_E_NO_DEVICE with a text if the library is missing or too old. */
tern_status tn_verbs_api_get(const tn_verbs_api **api);
/* For tests: use this one instead (NULL: the library again). Devices that are open keep theirs. */
void tn_verbs_api_override(const tn_verbs_api *api);
bool tn_verbs_api_is_overridden(void);

/* ---- data path ---- */

static inline int tn_verbs_poll_cq(const tn_verbs_api *api, struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	return TN_LIKELY(!api->poll_cq) ? ibv_poll_cq(cq, count, wc) : api->poll_cq(cq, count, wc);
}

static inline int tn_verbs_req_notify_cq(const tn_verbs_api *api, struct ibv_cq *cq, int solicited_only)
{
	return TN_LIKELY(!api->req_notify_cq) ? ibv_req_notify_cq(cq, solicited_only)
					      : api->req_notify_cq(cq, solicited_only);
}

static inline int tn_verbs_post_send(const tn_verbs_api *api, struct ibv_qp *qp, struct ibv_send_wr *wr,
				     struct ibv_send_wr **bad)
{
	return TN_LIKELY(!api->post_send) ? ibv_post_send(qp, wr, bad) : api->post_send(qp, wr, bad);
}

static inline int tn_verbs_post_srq_recv(const tn_verbs_api *api, struct ibv_srq *srq, struct ibv_recv_wr *wr,
					 struct ibv_recv_wr **bad)
{
	return TN_LIKELY(!api->post_srq_recv) ? ibv_post_srq_recv(srq, wr, bad)
					      : api->post_srq_recv(srq, wr, bad);
}

#endif
