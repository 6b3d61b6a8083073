/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children of the conformance suite: proc.h says what they are. Parent and child talk over a socket pair:
 * one setup, one reply, then a byte or the end of the stream means stop.
 */
#include "proc.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

typedef struct setup {
	uint32_t mode;
	uint32_t active; /* the child dials */
	uint64_t timeout_ns;
	uint8_t token[TN_LANE_TOKEN_BYTES];
	tn_blob dev, lane;
} setup;

typedef struct reply {
	tn_blob dev, lane;
	tern_key key;
} reply;

static bool put(int sock, const void *data, size_t bytes)
{
	return send(sock, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static bool get(int sock, void *data, size_t bytes)
{
	return recv(sock, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* ---- the parent's side ---- */

pid_t child_execute(int sock)
{
	char fd[16];
	pid_t pid;

	(void)snprintf(fd, sizeof(fd), "%d", sock);
	pid = fork();
	if (pid == 0) {
		int copy = dup(sock); /* without close on exec */

		(void)snprintf(fd, sizeof(fd), "%d", copy);
		(void)execl("/proc/self/exe", "conformance", "--child", conf->name, fd, (char *)NULL);
		_exit(127);
	}
	return pid;
}

void child_start(child *c, conf_node *node, child_mode mode, bool active, uint64_t timeout_ns)
{
	static uint64_t seed = 99;
	tn_rand rand = {seed++};
	setup to_child = {.mode = mode, .active = !active, .timeout_ns = timeout_ns};
	reply from_child;
	int socks[2];

	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < sizeof(to_child.token); i++)
		to_child.token[i] = (uint8_t)tn_rand_next(&rand);
	c->control = -1;
	if (child_host) {
		c->control = child_dial(child_host);
		c->sock = child_dial(child_host);
		assert_true(c->control >= 0 && c->sock >= 0);
	} else {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks), 0);
		c->pid = child_execute(socks[1]);
		assert_true(c->pid > 0);
		(void)close(socks[1]);
		c->sock = socks[0];
	}
	conf_end_make(&c->end, node, active, to_child.token, timeout_ns);
	to_child.dev = node->addr;
	to_child.lane = c->end.addr;
	CONF_HERE();
	assert_true(put(c->sock, &to_child, sizeof(to_child)));
	assert_true(get(c->sock, &from_child, sizeof(from_child)));
	c->dev = from_child.dev;
	c->lane = from_child.lane;
	assert_true(tn_key_decode(&from_child.key, &c->key));
}

void child_connect(child *c)
{
	CONF_OK(c->end.node->dev->ops->lane_connect(c->end.lane, &c->dev, &c->lane));
}

void child_up(conf_pair *pair, child *c)
{
	child_connect(c);
	CONF_UNTIL(pair, c->end.up || c->end.down);
	CONF_CHECK(c->end.up && !c->end.down, "no lane to another process: %s",
		   tern_status_name(c->end.down_status));
}

/* Ask the server; its answer. */
static int ask(child *c, int32_t what)
{
	int32_t answer = -1;

	assert_true(put(c->control, &what, sizeof(what)));
	assert_true(get(c->control, &answer, sizeof(answer)));
	return answer;
}

void child_signal(child *c, int signal)
{
	if (c->control >= 0)
		assert_int_equal(ask(c, signal), 0);
	else
		assert_int_equal(kill(c->pid, signal), 0);
}

static int reap(child *c)
{
	int status = 0;

	CONF_HERE();
	if (c->control >= 0) {
		status = ask(c, 0);
		(void)close(c->control);
		c->control = -1;
	} else {
		while (waitpid(c->pid, &status, 0) < 0)
			assert_int_equal(errno, EINTR);
	}
	c->pid = 0;
	(void)close(c->sock);
	return status;
}

void child_kill(child *c)
{
	child_signal(c, SIGKILL);
	(void)reap(c);
}

void child_stop(conf_pair *pair, child *c)
{
	int status;

	assert_true(put(c->sock, "q", 1));
	CONF_UNTIL(pair, c->end.down);
	status = reap(c);
	CONF_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x",
		   (unsigned)status);
}

/* ---- the child's side ---- */

static bool told_to_stop(int sock, int timeout_ms, int dev_fd)
{
	struct pollfd fds[2] = {{.fd = sock, .events = POLLIN}, {.fd = dev_fd, .events = POLLIN}};

	(void)poll(fds, dev_fd >= 0 ? 2 : 1, timeout_ms);
	return fds[0].revents != 0;
}

/* Refused attempts take rows of the ledger too, and a slow peer makes for many. */
static void ledger_room(conf_node *node)
{
	if (atomic_load(&node->ops_used) <= CONF_OPS_MAX - 100)
		return;
	while (!conf_ledger_done(node))
		(void)conf_node_poll(node);
	conf_ledger_settle(node);
}

static void answer(conf_end *end, const tn_event *event)
{
	static uint8_t text[4096];
	conf_req req = {.verb = CONF_SEND, .local = text, .bytes = event->bytes};
	uint32_t op;

	if (event->type != TN_EV_RECV || event->bytes > sizeof(text))
		return;
	memcpy(text, event->buf, event->bytes);
	ledger_room(end->node);
	while (conf_try(end, &req, &op) == TERN_AGAIN) {
		(void)conf_node_poll(end->node);
		ledger_room(end->node);
	}
	while (!conf_op_done(end->node, op))
		(void)conf_node_poll(end->node);
}

static void flood(conf_end *end)
{
	static uint8_t text[1000];
	conf_req req = {.verb = CONF_SEND, .local = text, .bytes = sizeof(text)};
	uint32_t op;

	for (unsigned i = 0; i < 16 && conf_try(end, &req, &op) == TERN_OK; i++)
		;
	ledger_room(end->node);
}

static void behave(conf_node *node, conf_end *end, child_mode mode, int sock)
{
	tn_event event;

	if (mode == CHILD_SLEEP) {
		(void)told_to_stop(sock, -1, -1);
		return;
	}
	while (!end->down) {
		int n = conf_node_poll(node);

		while (mode != CHILD_HOLD && conf_inbox_take(node, &event)) {
			if (mode == CHILD_SERVE)
				answer(end, &event);
			conf_recv_done(node, &event);
		}
		if (mode == CHILD_FLOOD) {
			flood(end);
			if (told_to_stop(sock, 0, -1))
				return;
		} else if (n == 0 && node->dev->ops->arm(node->dev) == TERN_OK) {
			if (told_to_stop(sock, -1, node->dev->ops->fd(node->dev)))
				return;
		}
	}
}

int child_main(int argc, char **argv)
{
	conf_pair pair = {.rand = {5}};
	conf_region region;
	conf_end end;
	setup from_parent;
	reply to_parent = {0};
	int sock = argc > 3 ? atoi(argv[3]) : -1;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!get(sock, &from_parent, sizeof(from_parent)))
		return 3;
	pair.a = conf_node_open("child");
	conf_region_make(&region, pair.a, CHILD_REGION_BYTES, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	conf_fill(region.ptr, CHILD_REGION_BYTES, 1);
	conf_end_make(&end, pair.a, from_parent.active, from_parent.token, from_parent.timeout_ns);
	to_parent.dev = pair.a->addr;
	to_parent.lane = end.addr;
	to_parent.key = region.wire;
	if (!put(sock, &to_parent, sizeof(to_parent)))
		return 4;
	if (from_parent.mode == CHILD_SILENT) {
		(void)told_to_stop(sock, -1, -1);
	} else {
		CONF_OK(pair.a->dev->ops->lane_connect(end.lane, &from_parent.dev, &from_parent.lane));
		CONF_UNTIL(&pair, end.up || end.down);
		if (end.up)
			behave(pair.a, &end, (child_mode)from_parent.mode, sock);
	}
	conf_pair_close(&pair);
	return 0;
}
