/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NNG: a pair0 socket on each side, over tcp or ipc (an abstract Unix socket); blocking alone. What is received is
 * copied where it belongs.
 *
 * Threads: one and NNG's, on each side.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

#include "harness.h"

static void must(h_env *e, int rv, const char *what)
{
	if (rv != 0)
		h_die(e, "%s: %s", what, nng_strerror(rv));
}

static nng_socket socket_of(h_env *e)
{
	return *(nng_socket *)e->state;
}

static void make(h_env *e)
{
	nng_socket *s = calloc(1, sizeof(*s));

	if (s == NULL)
		h_die(e, "no memory");
	e->state = s;
	must(e, nng_pair0_open(s), "nng_pair0_open");
	must(e, nng_socket_set_size(*s, NNG_OPT_RECVMAXSZ, 0), "NNG_OPT_RECVMAXSZ");
	e->in = h_alloc(e, e->bytes_max);
	e->out = h_alloc(e, e->bytes_max);
}

static void server(h_env *e)
{
	char address[256];
	nng_listener listener;

	make(e);
	if (!strcmp(e->transport, "ipc")) {
		snprintf(address, sizeof(address), "abstract://tern-bench-%d", (int)getpid());
		must(e, nng_listen(socket_of(e), address, &listener, 0), "nng_listen");
	} else {
		int port;

		must(e, nng_listen(socket_of(e), "tcp://127.0.0.1:0", &listener, 0), "nng_listen");
		must(e, nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), "port");
		snprintf(address, sizeof(address), "tcp://127.0.0.1:%d", port);
	}
	h_give(e, address, strlen(address) + 1);
}

static void client(h_env *e)
{
	char address[256];

	make(e);
	(void)h_take(e, address, sizeof(address));
	must(e, nng_dial(socket_of(e), address, NULL, 0), "nng_dial");
}

static void send_message(h_env *e, const struct iovec *iov, int count)
{
	nng_msg *msg;

	must(e, nng_msg_alloc(&msg, 0), "nng_msg_alloc");
	for (int i = 0; i < count; i++)
		must(e, nng_msg_append(msg, iov[i].iov_base, iov[i].iov_len), "nng_msg_append");
	must(e, nng_sendmsg(socket_of(e), msg, 0), "nng_sendmsg");
}

static void recv_message(h_env *e, uint8_t *buf, uint64_t bytes)
{
	nng_msg *msg;

	must(e, nng_recvmsg(socket_of(e), &msg, 0), "nng_recvmsg");
	if (nng_msg_len(msg) != bytes)
		h_die(e, "a message of another size");
	memcpy(buf, nng_msg_body(msg), bytes);
	nng_msg_free(msg);
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
	if (e->spin)
		return "blocks: without --spin alone";
	if (strcmp(e->transport, "tcp") != 0 && strcmp(e->transport, "ipc") != 0)
		return "transports are tcp and ipc";
	return w->op >= H_LINE ? "no such work" : NULL;
}

int main(int argc, char **argv)
{
	static const h_peer peer = {.name = "nng",
				    .cannot = cannot,
				    .server = server,
				    .client = client,
				    .serve = serve,
				    .run = run};

	return h_main(&peer, argc, argv);
}
