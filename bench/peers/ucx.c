/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UCX (ucp), over its transports posix, sysv and tcp (UCX_TLS, self beside it). Puts and gets are one-sided: a put is
 * noticed by its last 8 bytes, as ucx_perftest does. Calls, streams, fetches and pushes are active messages; large ones
 * go by rendezvous into the buffer where they belong. Polls: ucp_worker_progress on both sides (--spin alone).
 *
 * Puts and gets reuse hot buffers that their receiver does not read. Threads: one on each side.
 */
#include <stdlib.h>
#include <string.h>

#include <ucp/api/ucp.h>

#include "harness.h"

#define AM_ID 7

typedef struct ucx {
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h ep;
	ucp_mem_h in_mem, out_mem;
	ucp_rkey_h rkey;
	uint64_t remote;
	volatile uint64_t arrived, left; /* messages that came; rendezvous under way */
	uint64_t answered, in_flight;
	h_work work;
} ucx;

static void must(h_env *e, ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		h_die(e, "%s: %s", what, ucs_status_string(status));
}

static void pump(h_env *e)
{
	(void)ucp_worker_progress(((ucx *)e->state)->worker);
}

static void finish(h_env *e, void *request, const char *what)
{
	ucs_status_t status;

	if (request == NULL)
		return;
	if (UCS_PTR_IS_ERR(request))
		h_die(e, "%s: %s", what, ucs_status_string(UCS_PTR_STATUS(request)));
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
		pump(e);
	ucp_request_free(request);
	must(e, status, what);
}

/* ---- active messages ---- */

static void on_data(void *request, ucs_status_t status, size_t length, void *arg)
{
	h_env *e = arg;
	ucx *u = e->state;

	(void)length;
	must(e, status, "rendezvous");
	ucp_request_free(request);
	u->arrived++;
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_length, void *data, size_t length,
			       const ucp_am_recv_param_t *param)
{
	h_env *e = arg;
	ucx *u = e->state;
	ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
				   .cb.recv_am = on_data,
				   .user_data = e};
	void *request;

	(void)header;
	(void)header_length;
	if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
		memcpy(e->in, data, length);
		u->arrived++;
		return UCS_OK;
	}
	request = ucp_am_recv_data_nbx(u->worker, data, e->in, length, &how);
	if (UCS_PTR_IS_ERR(request))
		return UCS_PTR_STATUS(request);
	if (request == NULL)
		u->arrived++;
	return UCS_INPROGRESS;
}

static void send_message(h_env *e, const struct iovec *iov, int count)
{
	ucx *u = e->state;
	ucp_dt_iov_t pieces[3];
	ucp_request_param_t one = {.op_attr_mask = 0}, many = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE,
							       .datatype = ucp_dt_make_iov()};

	if (count == 1) {
		finish(e, ucp_am_send_nbx(u->ep, AM_ID, NULL, 0, iov[0].iov_base, iov[0].iov_len, &one),
		       "send");
		return;
	}
	for (int i = 0; i < count; i++)
		pieces[i] = (ucp_dt_iov_t){iov[i].iov_base, iov[i].iov_len};
	finish(e, ucp_am_send_nbx(u->ep, AM_ID, NULL, 0, pieces, (size_t)count, &many), "send");
}

/* Messages lie at e->in already. */
static void await_message(h_env *e, uint8_t *buf, uint64_t bytes)
{
	ucx *u = e->state;

	(void)buf;
	(void)bytes;
	while (u->arrived == u->answered)
		pump(e);
	u->answered++;
}

static const h_two messages = {.send = send_message, .recv = await_message};

/* ---- set-up ---- */

/* Memory of UCX's own: what its shared memory transports can map at the other side. */
static uint8_t *memory(h_env *e, ucx *u, ucp_mem_h *mem)
{
	ucp_mem_map_params_t params = {.field_mask =
					       UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
				       .length = e->bytes_max,
				       .flags = UCP_MEM_MAP_ALLOCATE};
	ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};

	must(e, ucp_mem_map(u->context, &params, mem), "ucp_mem_map");
	must(e, ucp_mem_query(*mem, &attr), "ucp_mem_query");
	memset(attr.address, 1, e->bytes_max);
	return attr.address;
}

static void begin(h_env *e, ucx *u)
{
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
			       .features = UCP_FEATURE_RMA | UCP_FEATURE_AM};
	ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				      .thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
							UCP_AM_HANDLER_PARAM_FIELD_CB |
							UCP_AM_HANDLER_PARAM_FIELD_ARG,
					  .id = AM_ID,
					  .cb = on_message,
					  .arg = e};
	ucp_config_t *config;
	char tls[64] = "self,";

	must(e, ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	must(e, ucp_config_modify(config, "TLS", strcat(tls, e->transport)), "UCX_TLS");
	must(e, ucp_init(&params, config, &u->context), "ucp_init");
	ucp_config_release(config);
	must(e, ucp_worker_create(u->context, &worker, &u->worker), "ucp_worker_create");
	must(e, ucp_worker_set_am_recv_handler(u->worker, &handler), "active messages");
	e->in = memory(e, u, &u->in_mem);
	e->out = memory(e, u, &u->out_mem);
	memset(e->in, 0, e->bytes_max);
}

typedef struct hello {
	uint64_t at;
	uint32_t address_bytes, key_bytes;
	uint8_t data[3072]; /* address, key */
} hello;

static void exchange(h_env *e, ucx *u)
{
	static hello mine, theirs;
	ucp_address_t *address;
	size_t bytes, packed_bytes;
	void *packed;
	ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
				  .address = (const ucp_address_t *)(const void *)theirs.data};

	must(e, ucp_worker_get_address(u->worker, &address, &bytes), "ucp_worker_get_address");
	must(e, ucp_rkey_pack(u->context, u->in_mem, &packed, &packed_bytes), "ucp_rkey_pack");
	if (bytes + packed_bytes > sizeof(mine.data))
		h_die(e, "address and key do not fit");
	mine.at = (uint64_t)(uintptr_t)e->in;
	mine.address_bytes = (uint32_t)bytes;
	mine.key_bytes = (uint32_t)packed_bytes;
	memcpy(mine.data, address, bytes);
	memcpy(mine.data + bytes, packed, packed_bytes);
	h_give(e, &mine, sizeof(mine));
	(void)h_take(e, &theirs, sizeof(theirs));
	must(e, ucp_ep_create(u->worker, &params, &u->ep), "ucp_ep_create");
	must(e, ucp_ep_rkey_unpack(u->ep, theirs.data + theirs.address_bytes, &u->rkey),
	     "ucp_ep_rkey_unpack");
	u->remote = theirs.at;
	ucp_rkey_buffer_release(packed);
	ucp_worker_release_address(u->worker, address);
}

static void set_up(h_env *e)
{
	ucx *u = calloc(1, sizeof(*u));

	if (u == NULL)
		h_die(e, "no memory");
	e->state = u;
	begin(e, u);
	exchange(e, u);
	if (e->server) { /* connected when the first message came back */
		await_message(e, NULL, 0);
		send_message(e, &(struct iovec){e->out, 8}, 1);
	} else {
		send_message(e, &(struct iovec){e->out, 8}, 1);
		await_message(e, NULL, 0);
	}
}

/* ---- one-sided ---- */

static void put_word(h_env *e, const h_work *w, uint64_t value)
{
	ucx *u = e->state;
	ucp_request_param_t plain = {.op_attr_mask = 0};

	memcpy(e->out + w->size - 8, &value, 8);
	finish(e, ucp_put_nbx(u->ep, e->out, w->size, u->remote, u->rkey, &plain), "put");
}

static void await_word(h_env *e, const h_work *w, uint64_t value)
{
	volatile uint64_t *word = (volatile uint64_t *)(void *)(e->in + w->size - 8);

	while (*word != value)
		pump(e);
}

static void ping_pong(h_env *e, const h_work *w, bool first)
{
	for (uint64_t i = 0; i < w->count; i++) {
		uint64_t value = ++e->put_seq;

		if (first)
			put_word(e, w, value);
		await_word(e, w, value);
		if (!first)
			put_word(e, w, value);
		if (first)
			h_tick(e);
	}
}

static void on_done(void *request, ucs_status_t status, void *arg)
{
	h_env *e = arg;

	must(e, status, "one-sided operation");
	ucp_request_free(request);
	((ucx *)e->state)->in_flight--;
}

static void one_sided(h_env *e, const h_work *w)
{
	ucx *u = e->state;
	ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
				   .cb.send = on_done,
				   .user_data = e},
			    plain = {.op_attr_mask = 0};

	for (uint64_t i = 0; i < w->count; i++) {
		void *request;

		while (u->in_flight >= w->depth)
			pump(e);
		request = w->op == H_PUT ? ucp_put_nbx(u->ep, e->out, w->size, u->remote, u->rkey, &how)
					 : ucp_get_nbx(u->ep, e->in, w->size, u->remote, u->rkey, &how);
		if (UCS_PTR_IS_ERR(request))
			h_die(e, "%s", ucs_status_string(UCS_PTR_STATUS(request)));
		if (request != NULL)
			u->in_flight++;
		while (w->depth == 1 && u->in_flight)
			pump(e);
		h_tick(e);
	}
	finish(e, ucp_ep_flush_nbx(u->ep, &plain), "flush");
	while (u->in_flight)
		pump(e);
}

static bool is_one_sided(const h_work *w)
{
	return w->op == H_PUT || w->op == H_GET;
}

static void serve(h_env *e, const h_work *w)
{
	if (w->op == H_PUT && w->depth == 1)
		ping_pong(e, w, false);
	else if (!is_one_sided(w))
		h_two_serve(e, &messages, w);
	while (!h_done(e))
		pump(e);
}

static void run(h_env *e, const h_work *w)
{
	if (w->op == H_PUT && w->depth == 1)
		ping_pong(e, w, true);
	else if (is_one_sided(w))
		one_sided(e, w);
	else
		h_two_run(e, &messages, w);
}

static const char *cannot(const h_env *e, const h_work *w)
{
	if (!e->spin)
		return "polls: --spin alone";
	if (w->op == H_CALL && w->depth > 1 && w->size > 4096)
		return "calls in flight share a buffer here: up to 4 KiB";
	return w->op >= H_LINE ? "no such work" : NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "ucx",
				    .cannot = cannot,
				    .server = set_up,
				    .client = set_up,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
