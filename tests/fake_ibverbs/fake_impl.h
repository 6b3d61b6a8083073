/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the fake share. fake.h has the nouns. Everything here is guarded by fake_lock.
 */
#ifndef TN_TESTS_FAKE_IBVERBS_IMPL_H
#define TN_TESTS_FAKE_IBVERBS_IMPL_H

#include <pthread.h>

#include "base/list.h"
#include "base/rand.h"
#include "fake_ibverbs/fake.h"

#define FAKE_SGE_MAX   8
#define FAKE_ASYNC_MAX 4096

/* A device while the test runs. */
typedef struct fake_nic {
	fake_device is;
	bool cut, dead;
	uint32_t next_qpn, next_key, regs;
	char moved[FAKE_GIDS_MAX][48]; /* addresses that fake_set_gid gave */
} fake_nic;

typedef struct fake_ctx {
	struct ibv_context ibv; /* first; async_fd is an eventfd that counts */
	fake_nic *nic;
	tn_list all;
	struct ibv_async_event async[FAKE_ASYNC_MAX];
	uint32_t async_head, async_tail;
	uint32_t unacked;
	int children;
} fake_ctx;

typedef struct fake_pd {
	struct ibv_pd ibv;
	int children;
} fake_pd;

typedef struct fake_mr {
	struct ibv_mr ibv;
	tn_list all;
	int access;
} fake_mr;

typedef struct fake_channel {
	struct ibv_comp_channel ibv; /* fd is an eventfd that counts */
	tn_list ready;               /* CQs with an event, through their `event` node */
	int children;
} fake_channel;

typedef struct fake_cqe {
	tn_list link;
	struct ibv_wc wc;
	bool recv;
	uint32_t life; /* of the queue pair */
} fake_cqe;

typedef struct fake_cq {
	struct ibv_cq ibv;
	tn_list all;
	fake_channel *channel;
	bool armed;
	tn_list cqes;    /* to be polled */
	tn_list delayed; /* not there yet (fake_scramble, fake_hold_*) */
	uint32_t count;  /* of both */
	uint32_t events; /* in the channel, not taken */
	uint32_t unacked;
	tn_list event;
	int children;
} fake_cq;

typedef struct fake_recv {
	tn_list link;
	uint64_t wr_id;
	struct ibv_sge sge;
	bool has_sge;
} fake_recv;

typedef struct fake_srq {
	struct ibv_srq ibv;
	tn_list recvs;
	uint32_t count, max;
	int children;
} fake_srq;

typedef struct fake_wqe {
	tn_list link;
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	uint32_t flags;
	uint32_t imm;
	uint64_t remote_addr;
	uint32_t rkey;
	int pieces;
	struct ibv_sge sge[FAKE_SGE_MAX];
	uint8_t *inlined; /* owns the bytes */
	uint64_t bytes;
	bool waited; /* counted as RNR, or as a read that waited */
	bool begun;  /* a read that counts in reads_begun */
} fake_wqe;

typedef struct fake_qp {
	struct ibv_qp ibv;
	tn_list all;
	fake_ctx *ctx;
	uint32_t max_wr, max_inline;
	uint32_t life;    /* another one with each reset; of all queue pairs */
	uint32_t unacked; /* asynchronous events */
	uint32_t reads_begun;
	union ibv_gid sgid; /* of the entry that it was wired with */
	uint32_t in_queue;  /* posted and not known to be completed by a polled CQE */
	bool sig_all;
	tn_list wqes; /* not executed */
	struct ibv_qp_attr attr;
	enum ibv_wc_status script; /* of the next request; IBV_WC_SUCCESS = none */
	bool script_arrives;       /* ... which is carried out all the same */
	uint32_t silent;           /* executed without a CQE: their room is free with the next polled one */
} fake_qp;

extern pthread_mutex_t fake_lock;
extern struct fake_state {
	fake_nic nics[FAKE_DEVICES_MAX];
	struct ibv_device handles[FAKE_DEVICES_MAX];
	int device_count;
	tn_list contexts, cqs, qps, mrs;
	uint32_t lives;
	tn_rand rand;
	bool scramble, impatient, never_flush, no_last_wqe, cut;
	bool hold_sends, hold_recvs, hold_reads, keep_stale;
	enum ibv_fork_status fork;
	bool progressing, again;
	fake_counts counts;
	char fault[256];
} fake;

/* ---- script.c ---- */
void fake_scripts_reset(void);
void fake_fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A scripted failure of this call: sets errno and returns it, else 0. */
int fake_scripted(const char *call);
/* The same, and EIO if the device is dead. */
int fake_call(const struct ibv_context *context, const char *call);

/* ---- fake.c ---- */
static inline fake_ctx *fake_ctx_of(struct ibv_context *context)
{
	return (fake_ctx *)context;
}
/* An entry of the table; false: it is empty. */
bool fake_gid_of(const fake_nic *nic, int index, union ibv_gid *gid);
bool fake_port_active(const fake_nic *nic, uint8_t port);

/* ---- queue.c ---- */
void fake_cq_push(fake_cq *cq, const struct ibv_wc *wc, bool recv, uint32_t life);
/* A queue pair was reset or destroyed: its completions go, unless fake_keep_stale. */
void fake_cq_forget(fake_cq *cq, const fake_qp *qp);
/* What was held may come now. */
void fake_cqs_release(void);

/* ---- events.c ---- */
void fake_async_push(fake_ctx *ctx, const struct ibv_async_event *event);

/* ---- wire.c ---- */
/* Let every queue pair go as far as it can. */
void fake_progress(void);
void fake_qp_error(fake_qp *qp);
fake_qp *fake_qp_find(const fake_nic *nic, uint32_t qpn);
/* Complete what a queue pair in ERR holds. */
void fake_flush(fake_qp *qp);
void fake_wqe_free(fake_wqe *wqe);
/* The bytes of a request into one place. */
void fake_copy_out(const fake_wqe *wqe, uint8_t *to);

/* ---- the table's functions ---- */
struct ibv_pd *fake_alloc_pd(struct ibv_context *context);
int fake_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access);
int fake_dereg_mr(struct ibv_mr *mr);
int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int fake_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void fake_ack_cq_events(struct ibv_cq *cq, unsigned count);
int fake_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
void fake_ack_async_event(struct ibv_async_event *event);
struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *context);
int fake_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *fake_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			      struct ibv_comp_channel *channel, int comp_vector);
int fake_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int fake_resize_cq(struct ibv_cq *cq, int cqe);
int fake_destroy_cq(struct ibv_cq *cq);
struct ibv_srq *fake_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int fake_destroy_srq(struct ibv_srq *srq);
int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int fake_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);
int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int fake_destroy_qp(struct ibv_qp *qp);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

#endif
