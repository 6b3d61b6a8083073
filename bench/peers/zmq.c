/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeroMQ: a PAIR socket on each side, over tcp or ipc (an abstract Unix socket); blocking, or polling with ZMQ_DONTWAIT
 * (--spin). What is sent is not copied by the sender (zmq_msg_init_data) from 4 KiB on; what is received is copied
 * where it belongs.
 *
 * Threads: one and ZeroMQ's, on each side.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <zmq.h>

#include "harness.h"

#define COPY_MAX 4096

static void *make(h_env *e)
{
	void *context = zmq_ctx_new(), *socket = context ? zmq_socket(context, ZMQ_PAIR) : NULL;
	int none = 0;

	if (socket == NULL)
		h_die(e, "zmq_socket: %s", zmq_strerror(errno));
	/* Bounded by the work's depth, not by the library. */
	(void)zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof(none));
	(void)zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof(none));
	e->state = socket;
	e->in = h_alloc(e, e->bytes_max);
	e->out = h_alloc(e, e->bytes_max);
	return socket;
}

static void server(h_env *e)
{
	void *socket = make(e);
	char address[256];
	size_t bytes = sizeof(address);

	if (!strcmp(e->transport, "ipc"))
		snprintf(address, sizeof(address), "ipc://@tern-bench-%d", (int)getpid());
	else
		snprintf(address, sizeof(address), "tcp://127.0.0.1:*");
	if (zmq_bind(socket, address) != 0 || zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &bytes) != 0)
		h_die(e, "zmq_bind: %s", zmq_strerror(errno));
	h_give(e, address, strlen(address) + 1);
}

static void client(h_env *e)
{
	void *socket = make(e);
	char address[256];

	(void)h_take(e, address, sizeof(address));
	if (zmq_connect(socket, address) != 0)
		h_die(e, "zmq_connect: %s", zmq_strerror(errno));
}

static void keep(void *data, void *hint)
{
	(void)data;
	(void)hint;
}

/* Gathered into a message of its own where there are several pieces. Large ones are borrowed: the work's buffers outlive it. */
static void send_message(h_env *e, const struct iovec *iov, int count)
{
	size_t bytes = 0;
	uint8_t *at;
	zmq_msg_t msg;

	for (int i = 0; i < count; i++)
		bytes += iov[i].iov_len;
	if (count == 1 && bytes > COPY_MAX) {
		(void)zmq_msg_init_data(&msg, iov[0].iov_base, bytes, keep, NULL);
	} else {
		if (zmq_msg_init_size(&msg, bytes) != 0)
			h_die(e, "zmq_msg_init_size: %s", zmq_strerror(errno));
		at = zmq_msg_data(&msg);
		for (int i = 0; i < count; at += iov[i++].iov_len)
			memcpy(at, iov[i].iov_base, iov[i].iov_len);
	}
	while (zmq_msg_send(&msg, e->state, e->spin ? ZMQ_DONTWAIT : 0) < 0)
		if (errno != EAGAIN && errno != EINTR)
			h_die(e, "zmq_msg_send: %s", zmq_strerror(errno));
}

static void recv_message(h_env *e, uint8_t *buf, uint64_t bytes)
{
	zmq_msg_t msg;

	(void)zmq_msg_init(&msg);
	while (zmq_msg_recv(&msg, e->state, e->spin ? ZMQ_DONTWAIT : 0) < 0)
		if (errno != EAGAIN && errno != EINTR)
			h_die(e, "zmq_msg_recv: %s", zmq_strerror(errno));
	if (zmq_msg_size(&msg) != bytes)
		h_die(e, "a message of another size");
	memcpy(buf, zmq_msg_data(&msg), bytes);
	(void)zmq_msg_close(&msg);
}

static const h_two messages = {.send = send_message, .recv = recv_message};

static void serve(h_env *e, const h_work *w)
{
	h_two_serve(e, &messages, w);
}

static void run(h_env *e, const h_work *w)
{
	h_two_run(e, &messages, w);
}

static const char *cannot(const h_env *e, const h_work *w)
{
	if (strcmp(e->transport, "tcp") != 0 && strcmp(e->transport, "ipc") != 0)
		return "transports are tcp and ipc";
	/* Its queue takes what the work puts in flight, however large. */
	if (w->answer == 0 && w->size > 64u << 20)
		return "its queue would hold gigabytes";
	return w->op >= H_LINE ? "no such work" : NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "zmq",
				    .cannot = cannot,
				    .server = server,
				    .client = client,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
