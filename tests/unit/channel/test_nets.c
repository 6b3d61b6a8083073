/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes with a network each (namespaces joined by a cable): addresses with a scope, bridges that both have,
 * packets that vanish. Each test names the report of the field that it is about. Where there are no network
 * namespaces, or no ip command, it is skipped.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chan_test.h"

#define SKIPPED 77
#define A       "10.78.1.1"
#define B       "10.78.1.2"
#define A_LOCAL "fe80::78:1"
#define B_LOCAL "fe80::78:2"

/* The other network; it lives as long as `pid`, which waits for a byte. */
static struct {
	pid_t pid;
	int in;
} other;

static bool run(const char *fmt, ...)
{
	char command[512] = "PATH=/usr/sbin:/sbin:$PATH; ";
	size_t n = strlen(command);
	va_list args;
	int status;

	va_start(args, fmt);
	vsnprintf(command + n, sizeof(command) - n, fmt, args);
	va_end(args);
	status = system(command); /* fixed texts only */
	return status == 0;
}

static bool write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	bool ok = file && fputs(text, file) >= 0;

	return file && fclose(file) == 0 && ok;
}

/* Root of a user namespace with an empty network. */
static bool enter(void)
{
	char uids[64], gids[64];

	snprintf(uids, sizeof(uids), "0 %u 1", getuid());
	snprintf(gids, sizeof(gids), "0 %u 1", getgid());
	return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && write_file("/proc/self/setgroups", "deny") &&
	       write_file("/proc/self/uid_map", uids) && write_file("/proc/self/gid_map", gids);
}

static bool lay_cable(void)
{
	int in[2], out[2];
	char byte;

	if (pipe(in) != 0 || pipe(out) != 0)
		return false;
	other.pid = fork();
	if (other.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves nothing behind */
		byte = unshare(CLONE_NEWNET) == 0;
		if (write(out[1], &byte, 1) != 1 || read(in[0], &byte, 1) != 1)
			_exit(1);
		_exit(0);
	}
	other.in = in[1];
	close(in[0]);
	if (other.pid < 0 || read(out[0], &byte, 1) != 1 || !byte)
		return false;
	return run("ip link set lo up && ip link add va type veth peer name vb netns %d && "
		   "ip addr add " A "/24 dev va && ip addr add " A_LOCAL "/64 dev va nodad && "
		   "ip link set va up && "
		   "nsenter --net --target %d sh -c 'ip link set lo up && ip addr add " B "/24 dev vb && "
		   "ip addr add " B_LOCAL "/64 dev vb nodad && ip link set vb up'",
		   other.pid, other.pid);
}

static void take_cable(void)
{
	char byte = 0;

	if (other.pid > 0 && write(other.in, &byte, 1) == 1)
		waitpid(other.pid, NULL, 0);
}

/* ---- a node in the other network ---- */

typedef struct child {
	pid_t pid;
	char address[64];
} child;

static void child_main(int out, const char *listen)
{
	tern_ctx_params params = {.name = "b", .listen = listen, .secret = "s", .transports = "tcp"};
	char path[64], address[64] = "";
	FILE *ns;
	side s;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
	snprintf(path, sizeof(path), "/proc/%d/ns/net", other.pid);
	ns = fopen(path, "r");
	if (!ns || setns(fileno(ns), CLONE_NEWNET) != 0)
		_exit(2);
	(void)fclose(ns);
	memset(&s, 0, sizeof(s));
	pthread_mutex_init(&s.lock, NULL);
	s.echo = true;
	if (tn_ctx_new(&params, &s.ctx) != TERN_OK ||
	    tern_ctx_listen(s.ctx, SERVICE, on_open, &s) != TERN_OK || tn_ctx_start(s.ctx) != TERN_OK) {
		(void)fprintf(stderr, "child: %s\n", tern_detail());
		_exit(3);
	}
	snprintf(address, sizeof(address), "%s", tern_ctx_address(s.ctx));
	if (write(out, address, sizeof(address)) != (ssize_t)sizeof(address))
		_exit(4);
	for (;;)
		pause();
}

static void child_start(child *c, const char *listen)
{
	int out[2];

	assert_int_equal(pipe(out), 0);
	c->pid = fork();
	assert_true(c->pid >= 0);
	if (c->pid == 0)
		child_main(out[1], listen);
	close(out[1]);
	assert_int_equal(read(out[0], c->address, sizeof(c->address)), sizeof(c->address));
	close(out[0]);
}

static void child_end(const child *c)
{
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
}

/* A message there and back from a node that listens there. */
static void talk(const char *listen, const char *to)
{
	tern_ctx_params params = {.name = "a", .listen = listen, .secret = "s", .transports = "tcp"};
	tern_connect_params connect = {.timeout_ns = PATIENCE};
	static uint8_t message[100000];
	tern_op op = {0};
	side s;

	side_open_params(&s, &params);
	assert_ok(tern_link_connect(s.ctx, to, &connect, &s.link));
	assert_ok(tern_link_wait(s.link, PATIENCE));
	side_open_channel(&s);
	assert_ok(complete(s.ctx, &op, tern_send(s.channel, message, sizeof(message), &op)));
	assert_comes(&s, messages, 1);
	side_close(&s);
}

/* ---- tests ---- */

static void test_plain(void **state)
{
	child c;

	(void)state;
	child_start(&c, B ":0");
	talk(A ":0", c.address);
	child_end(&c);
}

/* curl#22079: the scope of an IPv6 address was lost: without it a link-local address leads nowhere. */
static void test_scoped(void **state)
{
	char to[80];
	child c;

	(void)state;
	child_start(&c, "[" B_LOCAL "%vb]:0");
	assert_non_null(strstr(c.address, "[" B_LOCAL "%vb]:"));
	/* Scopes are of each host: only the peer's port is of use here. */
	snprintf(to, sizeof(to), "[" B_LOCAL "%%va]:%s", strrchr(c.address, ':') + 1);
	talk("[" A_LOCAL "%va]:0", to);
	child_end(&c);
}

/*
 * UCX#9383, #6695: docker0 or lo was advertised. Both hosts have a bridge with the same address, which leads each
 * to itself; nodes that listen everywhere find each other all the same.
 */
static void test_bridges(void **state)
{
	/* What counts is an interface that runs: a cable with both ends here needs no bridge of the kernel. */
	static const char bridge[] = "ip link add docker0 type veth peer name d0 && "
				     "ip addr add 172.17.0.1/16 dev docker0 && "
				     "ip link set d0 up && ip link set docker0 up";
	char to[80];
	child c;

	(void)state;
	assert_true(run("%s", bridge));
	assert_true(run("nsenter --net --target %d sh -c '%s'", other.pid, bridge));
	child_start(&c, "0.0.0.0:7801");
	snprintf(to, sizeof(to), B ":7801");
	for (int i = 0; i < 5; i++)
		talk("0.0.0.0:7801", to); /* the same port: each would reach itself by the bridge */
	child_end(&c);
}

/* perftest PR#381, TF#14489: packets vanish without a word: the deadline of the connect holds. */
static void test_nobody_answers(void **state)
{
	tern_ctx_params params = {.listen = "", .transports = "tcp"};
	tern_connect_params connect = {.timeout_ns = 200 * TN_NS_PER_MS};
	side s;

	(void)state;
	assert_true(run("ip neigh replace 10.78.1.9 lladdr 02:00:00:00:00:99 dev va"));
	side_open_params(&s, &params);
	assert_ok(tern_link_connect(s.ctx, "10.78.1.9:7000", &connect, &s.link));
	assert_status(tern_link_wait(s.link, PATIENCE), TERN_E_DEADLINE);
	assert_non_null(strstr(tern_detail(), "10.78.1.9:7000"));
	side_close(&s);
}

/*
 * perftest PR#381: the path dies at any moment of the handshake. It ends with words, in bounded time, or was done
 * before.
 */
static void test_path_dies_under_way(void **state)
{
	tern_ctx_params params = {.name = "a", .listen = "", .secret = "s", .transports = "tcp"};
	tern_connect_params connect = {.timeout_ns = 500 * TN_NS_PER_MS};
	child c;

	(void)state;
	child_start(&c, B ":0");
	for (unsigned step = 0; step < 8; step++) {
		tern_status status;
		side s;

		side_open_params(&s, &params);
		assert_ok(tern_link_connect(s.ctx, c.address, &connect, &s.link));
		tn_sleep_ns(step * 100000);
		assert_true(run("ip neigh replace " B " lladdr 02:00:00:00:00:99 dev va"));
		status = tern_link_wait(s.link, PATIENCE);
		if (status != TERN_OK)
			assert_string_not_equal(tern_detail(), "");
		assert_true(status == TERN_OK || status == TERN_E_DEADLINE ||
			    tern_status_radius(status) >= TERN_RADIUS_PATH);
		assert_true(run("ip neigh del " B " dev va"));
		side_close(&s);
	}
	talk("", c.address);
	child_end(&c);
}

/* A route that drops, or that is forbidden, for a moment: whoever waits for the peer gets through when it is gone. */
static void test_no_route(void **state)
{
	static const char *const routes[] = {"blackhole", "prohibit", "unreachable"};
	tern_ctx_params params = {.name = "a", .listen = "", .secret = "s", .transports = "tcp"};
	tern_connect_params once = {.timeout_ns = PATIENCE};
	tern_connect_params patient = {.timeout_ns = PATIENCE, .retry = 1};
	child c;

	(void)state;
	child_start(&c, B ":0");
	for (unsigned i = 0; i < TN_COUNT_OF(routes); i++) {
		side s;

		side_open_params(&s, &params);
		assert_true(run("ip route add %s " B, routes[i]));
		assert_ok(tern_link_connect(s.ctx, c.address, &once, &s.link));
		assert_status(tern_link_wait(s.link, PATIENCE), TERN_E_UNREACHABLE);
		tern_link_release(s.link);
		assert_ok(tern_link_connect(s.ctx, c.address, &patient, &s.link));
		assert_status(tern_link_wait(s.link, 20 * TN_NS_PER_MS), TERN_E_DEADLINE);
		assert_true(run("ip route del %s " B, routes[i]));
		assert_ok(tern_link_wait(s.link, PATIENCE));
		side_close(&s);
	}
	child_end(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_scoped),
		cmocka_unit_test(test_bridges),
		cmocka_unit_test(test_nobody_answers),
		cmocka_unit_test(test_path_dies_under_way),
		cmocka_unit_test(test_no_route),
	};
	int failed;

	transport = "tcp";
	if (!enter()) {
		print_message("skipped: no network namespaces here: %s\n", strerror(errno));
		return SKIPPED;
	}
	if (!lay_cable()) {
		print_message("skipped: no cable between network namespaces: ip and nsenter are needed\n");
		take_cable();
		return SKIPPED;
	}
	failed = RUN(tests);
	take_cable();
	return failed;
}
