/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children on another host: the server that starts them there, and how the parent reaches it. proc.h has the
 * protocol. One parent at a time, in a network of tests: whoever reaches the server may start this program.
 */
#include "proc.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define CHILDREN_MAX 16u
#define DIAL_SECONDS 60u

const char *child_host;

typedef struct served {
	int control;
	pid_t pid;
} served;

static struct addrinfo *resolve(const char *address, int flags)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
	const char *colon = strrchr(address, ':');
	struct addrinfo *list = NULL;
	char host[256];
	int rc;

	if (!colon || (size_t)(colon - address) >= sizeof(host)) {
		(void)fprintf(stderr, "\"%s\" is not ADDRESS:PORT\n", address);
		return NULL;
	}
	memcpy(host, address, (size_t)(colon - address));
	host[colon - address] = 0;
	rc = getaddrinfo(host, colon + 1, &hints, &list);
	if (rc != 0)
		(void)fprintf(stderr, "%s: %s\n", address, gai_strerror(rc));
	return rc == 0 ? list : NULL;
}

static void no_delay(int sock)
{
	const int on = 1;

	(void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* The server may not be there yet. */
int child_dial(const char *address)
{
	const uint64_t end = tn_now() + DIAL_SECONDS * TN_NS_PER_SEC;
	const struct timespec rest = {.tv_nsec = 50000000};
	struct addrinfo *where = resolve(address, 0);
	int sock = -1;

	while (where) {
		sock = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (sock >= 0 && connect(sock, where->ai_addr, where->ai_addrlen) == 0)
			break;
		if (sock >= 0)
			(void)close(sock);
		sock = -1;
		if (tn_now() > end)
			break;
		(void)nanosleep(&rest, NULL);
	}
	if (where)
		freeaddrinfo(where);
	if (sock >= 0)
		no_delay(sock);
	return sock;
}

/* ---- the server ---- */

static int listen_at(const char *address)
{
	struct addrinfo *where = resolve(address, AI_PASSIVE);
	const int on = 1;
	int sock = -1;

	if (where) {
		sock = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		(void)setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		if (bind(sock, where->ai_addr, where->ai_addrlen) != 0 || listen(sock, 8) != 0) {
			(void)fprintf(stderr, "%s: %s\n", address, strerror(errno));
			(void)close(sock);
			sock = -1;
		}
		freeaddrinfo(where);
	}
	return sock;
}

static void begin(served *s, int listener)
{
	int sock;

	s->control = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (s->control < 0 || sock < 0)
		_exit(5);
	no_delay(s->control);
	no_delay(sock);
	s->pid = child_execute(sock);
	(void)close(sock);
}

static int32_t wait_for_end(served *s)
{
	int status = -1;

	while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

static void serve_one(served *s)
{
	int32_t what, answer = 0;

	if (recv(s->control, &what, sizeof(what), MSG_WAITALL) != (ssize_t)sizeof(what)) {
		if (s->pid > 0) {
			(void)kill(s->pid, SIGKILL);
			(void)wait_for_end(s);
		}
		(void)close(s->control);
		*s = (served){.control = -1};
		return;
	}
	if (what == 0) {
		answer = wait_for_end(s);
		s->pid = 0;
	} else if (s->pid <= 0 || kill(s->pid, what) != 0) {
		answer = -1;
	}
	(void)send(s->control, &answer, sizeof(answer), MSG_NOSIGNAL);
}

int child_serve(const char *address)
{
	served children[CHILDREN_MAX];
	struct pollfd fds[CHILDREN_MAX + 1] = {{.fd = listen_at(address), .events = POLLIN}};

	if (fds[0].fd < 0)
		return 1;
	for (unsigned i = 0; i < CHILDREN_MAX; i++)
		children[i] = (served){.control = -1};
	for (;;) {
		for (unsigned i = 0; i < CHILDREN_MAX; i++)
			fds[i + 1] = (struct pollfd){.fd = children[i].control, .events = POLLIN};
		if (poll(fds, CHILDREN_MAX + 1, -1) < 0)
			continue;
		for (unsigned i = 0; i < CHILDREN_MAX; i++) {
			if (children[i].control >= 0 && fds[i + 1].revents)
				serve_one(&children[i]);
			if (children[i].control < 0 && fds[0].revents) {
				begin(&children[i], fds[0].fd);
				fds[0].revents = 0;
			}
		}
	}
}
