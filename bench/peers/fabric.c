/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabric, providers shm and tcp (tcp;ofi_rxm): reliable datagram endpoints. Puts and gets are fi_write and fi_read; a
 * put is noticed by its last 8 bytes. Calls, streams, fetches and pushes are tagged messages. Polls (--spin alone).
 *
 * Puts and gets reuse hot buffers that their receiver does not read. Threads: one on each side.
 */
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "harness.h"

#define TAG 1u

typedef struct fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *tx, *rx;
	struct fid_mr *in_mr, *out_mr;
	fi_addr_t peer;
	uint64_t remote, key;
	uint64_t tx_done, tx_sent, rx_done, rx_posted;
} fabric;

typedef struct hello {
	uint64_t at, key, name_bytes;
	uint8_t name[512];
} hello;

static void must(h_env *e, ssize_t rc, const char *what)
{
	if (rc != 0)
		h_die(e, "%s: %s", what, fi_strerror((int)-rc));
}

static void poll_one(h_env *e, struct fid_cq *cq, uint64_t *done)
{
	struct fi_cq_tagged_entry entries[16];
	struct fi_cq_err_entry error = {0};
	ssize_t n = fi_cq_read(cq, entries, 16);

	if (n > 0) {
		*done += (uint64_t)n;
	} else if (n == -FI_EAVAIL) {
		(void)fi_cq_readerr(cq, &error, 0);
		h_die(e, "completion: %s", fi_strerror(error.err));
	} else if (n != -FI_EAGAIN) {
		must(e, n, "fi_cq_read");
	}
}

static void pump(h_env *e, fabric *f)
{
	poll_one(e, f->tx, &f->tx_done);
	poll_one(e, f->rx, &f->rx_done);
}

/* ---- set-up ---- */

static void query(h_env *e, fabric *f)
{
	struct fi_info *hints = fi_allocinfo();

	if (hints == NULL)
		h_die(e, "no memory");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED | FI_RMA;
	hints->mode = 0;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->addr_format = !strcmp(e->transport, "tcp") ? FI_SOCKADDR_IN : FI_FORMAT_UNSPEC;
	hints->fabric_attr->prov_name = strdup(!strcmp(e->transport, "tcp") ? "tcp;ofi_rxm" : e->transport);
	must(e,
	     fi_getinfo(FI_VERSION(1, 17), !strcmp(e->transport, "tcp") ? "127.0.0.1" : NULL, NULL,
			!strcmp(e->transport, "tcp") ? FI_SOURCE : 0, hints, &f->info),
	     "fi_getinfo");
	fi_freeinfo(hints);
}

static struct fid_mr *expose(h_env *e, fabric *f, uint8_t *buf, uint64_t key)
{
	struct fid_mr *mr;

	must(e,
	     fi_mr_reg(f->domain, buf, e->bytes_max,
		       FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0,
		       &mr, NULL),
	     "fi_mr_reg");
	return mr;
}

static void begin(h_env *e, fabric *f)
{
	struct fi_cq_attr cq = {.size = 4096, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = 4};

	query(e, f);
	must(e, fi_fabric(f->info->fabric_attr, &f->fabric, NULL), "fi_fabric");
	must(e, fi_domain(f->fabric, f->info, &f->domain, NULL), "fi_domain");
	must(e, fi_endpoint(f->domain, f->info, &f->ep, NULL), "fi_endpoint");
	must(e, fi_cq_open(f->domain, &cq, &f->tx, NULL), "fi_cq_open");
	must(e, fi_cq_open(f->domain, &cq, &f->rx, NULL), "fi_cq_open");
	must(e, fi_av_open(f->domain, &av, &f->av, NULL), "fi_av_open");
	must(e, fi_ep_bind(f->ep, &f->av->fid, 0), "fi_ep_bind");
	must(e, fi_ep_bind(f->ep, &f->tx->fid, FI_TRANSMIT), "fi_ep_bind");
	must(e, fi_ep_bind(f->ep, &f->rx->fid, FI_RECV), "fi_ep_bind");
	must(e, fi_enable(f->ep), "fi_enable");
	e->in = h_alloc(e, e->bytes_max);
	e->out = h_alloc(e, e->bytes_max);
	f->in_mr = expose(e, f, e->in, 1);
	f->out_mr = expose(e, f, e->out, 2);
}

static void await_message(h_env *e, uint8_t *buf, uint64_t bytes);
static void send_message(h_env *e, const struct iovec *iov, int count);

static void set_up(h_env *e)
{
	fabric *f = calloc(1, sizeof(*f));
	struct iovec word;
	hello mine = {0}, theirs;
	size_t bytes = sizeof(mine.name);

	if (f == NULL)
		h_die(e, "no memory");
	e->state = f;
	begin(e, f);
	must(e, fi_getname(&f->ep->fid, mine.name, &bytes), "fi_getname");
	mine.name_bytes = bytes;
	mine.key = fi_mr_key(f->in_mr);
	mine.at = f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)e->in : 0;
	h_give(e, &mine, sizeof(mine));
	(void)h_take(e, &theirs, sizeof(theirs));
	f->remote = theirs.at;
	f->key = theirs.key;
	if (fi_av_insert(f->av, theirs.name, 1, &f->peer, 0, NULL) != 1)
		h_die(e, "fi_av_insert failed");
	word = (struct iovec){e->out, 8};
	if (e->server) { /* connected when a message came back */
		await_message(e, e->in, 8);
		send_message(e, &word, 1);
	} else {
		send_message(e, &word, 1);
		await_message(e, e->in, 8);
	}
}

/* ---- messages ---- */

static void send_message(h_env *e, const struct iovec *iov, int count)
{
	fabric *f = e->state;
	void *desc[3] = {fi_mr_desc(f->out_mr), fi_mr_desc(f->out_mr), fi_mr_desc(f->out_mr)};
	ssize_t rc;

	while ((rc = fi_tsendv(f->ep, iov, desc, (size_t)count, f->peer, TAG, NULL)) == -FI_EAGAIN)
		pump(e, f);
	must(e, rc, "fi_tsendv");
	f->tx_sent++;
	while (f->tx_done != f->tx_sent)
		pump(e, f);
}

static void await_message(h_env *e, uint8_t *buf, uint64_t bytes)
{
	fabric *f = e->state;
	ssize_t rc;

	while ((rc = fi_trecv(f->ep, buf, bytes, fi_mr_desc(f->in_mr), f->peer, TAG, 0, NULL)) == -FI_EAGAIN)
		pump(e, f);
	must(e, rc, "fi_trecv");
	f->rx_posted++;
	while (f->rx_done != f->rx_posted)
		pump(e, f);
}

static const h_two messages = {.send = send_message, .recv = await_message};

/* ---- one-sided ---- */

static void write_one(h_env *e, fabric *f, uint64_t bytes, bool last)
{
	struct iovec iov = {e->out, bytes};
	struct fi_rma_iov to = {.addr = f->remote, .len = bytes, .key = f->key};
	void *desc = fi_mr_desc(f->out_mr);
	struct fi_msg_rma msg = {.msg_iov = &iov,
				 .desc = &desc,
				 .iov_count = 1,
				 .addr = f->peer,
				 .rma_iov = &to,
				 .rma_iov_count = 1};
	ssize_t rc;

	while ((rc = fi_writemsg(f->ep, &msg, FI_COMPLETION | (last ? FI_DELIVERY_COMPLETE : 0))) ==
	       -FI_EAGAIN)
		pump(e, f);
	must(e, rc, "fi_writemsg");
	f->tx_sent++;
}

static void put_word(h_env *e, fabric *f, const h_work *w, uint64_t value)
{
	while (f->tx_done != f->tx_sent) /* the source is in use until then */
		pump(e, f);
	memcpy(e->out + w->size - 8, &value, 8);
	write_one(e, f, w->size, false);
}

static void ping_pong(h_env *e, fabric *f, const h_work *w, bool first)
{
	volatile uint64_t *word = (volatile uint64_t *)(void *)(e->in + w->size - 8);

	for (uint64_t i = 0; i < w->count; i++) {
		uint64_t value = ++e->put_seq;

		if (first)
			put_word(e, f, w, value);
		while (*word != value)
			pump(e, f);
		if (!first)
			put_word(e, f, w, value);
		else
			h_tick(e);
	}
}

static void one_sided(h_env *e, fabric *f, const h_work *w)
{
	for (uint64_t i = 0; i < w->count; i++) {
		ssize_t rc = 0;

		while (f->tx_sent - f->tx_done >= w->depth)
			pump(e, f);
		if (w->op == H_PUT) {
			write_one(e, f, w->size, i + 1 == w->count);
		} else {
			while ((rc = fi_read(f->ep, e->in, w->size, fi_mr_desc(f->in_mr), f->peer, f->remote,
					     f->key, NULL)) == -FI_EAGAIN)
				pump(e, f);
			must(e, rc, "fi_read");
			f->tx_sent++;
		}
		while (w->depth == 1 && f->tx_sent != f->tx_done)
			pump(e, f);
		h_tick(e);
	}
	while (f->tx_sent != f->tx_done)
		pump(e, f);
}

static void serve(h_env *e, const h_work *w)
{
	fabric *f = e->state;

	if (w->op == H_PUT && w->depth == 1)
		ping_pong(e, f, w, false);
	else if (w->op != H_PUT && w->op != H_GET)
		h_two_serve(e, &messages, w);
	while (!h_done(e))
		pump(e, f);
}

static void run(h_env *e, const h_work *w)
{
	fabric *f = e->state;

	if (w->op == H_PUT && w->depth == 1)
		ping_pong(e, f, w, true);
	else if (w->op == H_PUT || w->op == H_GET)
		one_sided(e, f, w);
	else
		h_two_run(e, &messages, w);
}

static const char *cannot(const h_env *e, const h_work *w)
{
	if (!e->spin)
		return "polls: --spin alone";
	if (strcmp(e->transport, "shm") != 0 && strcmp(e->transport, "tcp") != 0)
		return "transports are shm and tcp";
	return w->op >= H_LINE ? "no such work" : NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "fabric",
				    .cannot = cannot,
				    .server = set_up,
				    .client = set_up,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
