/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers in other processes: killed at any moment, stopped, gone quiet; and what idling costs. Over the
 * provider that is the argument (shm without one).
 *
 * Children are forked before this process makes a context, so that they inherit nothing of ours; each
 * listens and tells its address through a pipe. Threads: helpers; asserts in the main thread.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rand.h"
#include "chan_test.h"

#define REGION (4u << 20)

#ifdef TN_SANITIZED
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

typedef struct child {
	pid_t pid;
	char address[64];
	tern_key key; /* of a region that may be read and written */
} child;

typedef struct greeting {
	char address[64];
	tern_key key;
} greeting;

/* The child: an echo server with a region, until it is killed or its pipe says that the parent is gone. */
static void child_main(int out, const char *name, const char *const *options)
{
	tern_ctx_params params = {.name = name, .transports = transport, .options = options};
	greeting hello = {0};
	void *region;
	side s;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memset(&s, 0, sizeof(s));
	pthread_mutex_init(&s.lock, NULL);
	atomic_store(&s.echo, true);
	if (tn_ctx_new(&params, &s.ctx) != TERN_OK ||
	    tern_ctx_listen(s.ctx, SERVICE, on_open, &s) != TERN_OK ||
	    tern_mem_alloc(tern_ctx_mem(s.ctx), REGION, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			   TERN_MEM_HOST, &region) != TERN_OK ||
	    tern_mem_export(tern_ctx_mem(s.ctx), region, REGION, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			    &hello.key) != TERN_OK ||
	    tn_ctx_start(s.ctx) != TERN_OK) {
		fprintf(stderr, "child: %s\n", tern_detail());
		_exit(1);
	}
	snprintf(hello.address, sizeof(hello.address), "%s", tern_ctx_address(s.ctx));
	if (write(out, &hello, sizeof(hello)) != sizeof(hello))
		_exit(2);
	for (;;)
		pause();
}

static void child_start(child *c, const char *name, const char *const *options)
{
	greeting hello;
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	c->pid = fork();
	if (c->pid == 0) {
		close(fds[0]);
		child_main(fds[1], name, options);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &hello, sizeof(hello)), sizeof(hello));
	close(fds[0]);
	memcpy(c->address, hello.address, sizeof(c->address));
	c->key = hello.key;
}

static void child_kill(child *c)
{
	kill(c->pid, SIGKILL);
	assert_int_equal(waitpid(c->pid, NULL, 0), c->pid);
}

static void connect_child(side *s, const child *c)
{
	tern_connect_params params = {.on_down = on_down, .arg = s};

	assert_ok(tern_link_connect(s->ctx, c->address, &params, &s->link));
	assert_ok(tern_link_wait(s->link, PATIENCE));
	side_open_channel(s);
}

/* ---- killed ---- */

/* mlx#3910, libfabric#7441: kill -9 at a random moment with operations of all kinds in flight: each ends once, the
   link says who. */
static void test_killed(void **state)
{
	enum { ROUNDS = 12, OPS = 60 };
	tn_rand rand = {.state = 42};
	uint8_t *buf = calloc(1, REGION), *into = calloc(OPS, 1 << 19);

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		tern_op ops[OPS] = {0};
		child c;
		side s;
		int n = 0;

		child_start(&c, "child", NULL);
		side_open(&s, 0);
		connect_child(&s, &c);
		for (; n < OPS; n++) {
			uint64_t bytes = 1ull << tn_rand_below(&rand, 20);
			tern_status status;

			if (n == OPS / 2 && round % 2)
				child_kill(&c);
			if (n % 3 == 0)
				status = tern_put(s.channel, buf, bytes, &c.key, 0, &ops[n]);
			else if (n % 3 == 1)
				status = tern_send(s.channel, buf, bytes, &ops[n]);
			else
				status = tern_get(s.channel, into + ((uint64_t)n << 19), bytes, &c.key, 0,
						  &ops[n]);
			if (status == TERN_AGAIN)
				break;
			if (status != TERN_OK) {
				assert_true(tern_status_radius(status) >= TERN_RADIUS_OP);
				break;
			}
		}
		if (!(round % 2) || n < OPS / 2) {
			tn_sleep_ns(tn_rand_below(&rand, 2 * TN_NS_PER_MS));
			child_kill(&c);
		}
		assert_comes(&s, downs, 1);
		assert_non_null(strstr(s.down_text, "peer 'child' at 127.0.0.1:"));
		assert_int_equal(atomic_load(&s.down_status), TERN_E_PEER_LOST);
		for (int i = 0; i < n; i++)
			assert_int_not_equal(tern_op_wait(s.ctx, &ops[i], PATIENCE), TERN_E_DEADLINE);
		assert_comes(&s, closed, 1);
		tern_channel_close(s.channel);
		tern_link_release(s.link);
		side_close(&s);
	}
	free(into);
	free(buf);
}

/* ---- stopped ---- */

static const char *const quick[] = {"link.keepalive=50ms", "link.keepalive_misses=4", NULL};

/* valkey PR#916, Paddle PR#42708 (a dead worker noticed after 15 minutes): one of two peers is stopped: the other
   does not notice; the stopped one is lost within the bound. */
static void test_stopped(void **state)
{
	tern_ctx_params params = {.options = quick};
	uint8_t *buf = calloc(1, 1 << 16);
	tern_op stuck[8] = {0};
	child c[2];
	side s[2];
	uint64_t stopped_at;
	int answered, n = 0;

	(void)state;
	child_start(&c[0], "first", quick);
	child_start(&c[1], "second", quick);
	side_open_params(&s[0], &params);
	s[1] = s[0];
	connect_child(&s[0], &c[0]);
	connect_child(&s[1], &c[1]);
	assert_int_equal(kill(c[0].pid, SIGSTOP), 0);
	stopped_at = tn_now();
	while (n < 8 && tern_send(s[0].channel, buf, 1 << 16, &stuck[n]) == TERN_OK)
		n++;
	answered = 0;
	while (atomic_load(&s[0].downs) == 0 && tn_now() - stopped_at < PATIENCE) {
		tern_op op = {.flags = TERN_OP_REMOTE, .timeout_ns = PATIENCE};

		assert_ok(complete(s[1].ctx, &op, tern_send(s[1].channel, buf, 100, &op)));
		answered++;
	}
	assert_int_equal(atomic_load(&s[0].downs), 1);
	assert_int_equal(atomic_load(&s[0].down_status), TERN_E_PEER_LOST);
	assert_true(answered > 20);
	for (int i = 0; i < n; i++)
		tern_op_wait(s[0].ctx, &stuck[i], PATIENCE); /* each ends */
	for (int i = 0; i < n; i++)
		assert_int_not_equal(tern_op_test(&stuck[i]), TERN_AGAIN);
	assert_int_equal(tern_link_get_state(s[1].link), TERN_LINK_UP);
	kill(c[0].pid, SIGCONT);
	child_kill(&c[0]);
	child_kill(&c[1]);
	side_close(&s[0]);
	free(s[1].last);
	free(buf);
}

/* ---- idle ---- */

static void test_idle(void **state)
{
	uint64_t before, used;
	child c;
	side s;

	(void)state;
	child_start(&c, "child", NULL);
	side_open(&s, 0);
	connect_child(&s, &c);
	for (int i = 0; i < 100; i++) {
		tern_op op = {.flags = TERN_OP_REMOTE};

		assert_ok(complete(s.ctx, &op, tern_send(s.channel, "x", 1, &op)));
	}
	tn_sleep_ns(200 * TN_NS_PER_MS);
	before = tn_cpu_process_ns();
	tn_sleep_ns(8 * TN_NS_PER_SEC);
	tern_ctx_wait_past(s.ctx, tern_ctx_events(s.ctx), 2 * TN_NS_PER_SEC);
	used = tn_cpu_process_ns() - before;
	if (used > 100 * TN_NS_PER_MS) /* 1 % of 10 s */
		fail_msg("idle for 10 s used %llu us of CPU", (unsigned long long)(used / 1000));
	child_kill(&c);
	side_close(&s);
}

/* A process that forks children on demand, so that they inherit nothing of a context. */
typedef struct spawner {
	pid_t pid;
	int fd;
} spawner;

typedef struct spawned {
	pid_t pid;
	greeting hello;
} spawned;

static void spawn_all(int fd)
{
	char word;

	signal(SIGCHLD, SIG_IGN); /* nobody waits for them */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(fd, &word, 1) == 1) {
		spawned next;
		int fds[2];

		if (pipe(fds) != 0)
			_exit(3);
		next.pid = fork();
		if (next.pid == 0) {
			close(fds[0]);
			child_main(fds[1], "child", NULL);
		}
		close(fds[1]);
		if (read(fds[0], &next.hello, sizeof(next.hello)) != sizeof(next.hello))
			_exit(4);
		close(fds[0]);
		if (write(fd, &next, sizeof(next)) != sizeof(next))
			_exit(5);
	}
	_exit(0);
}

static void spawner_start(spawner *sp)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	sp->fd = fds[0];
	sp->pid = fork();
	if (sp->pid == 0) {
		close(fds[0]);
		spawn_all(fds[1]);
	}
	close(fds[1]);
}

static void spawner_next(spawner *sp, child *c)
{
	spawned next;

	assert_int_equal(write(sp->fd, "n", 1), 1);
	assert_int_equal(read(sp->fd, &next, sizeof(next)), sizeof(next));
	c->pid = next.pid;
	memcpy(c->address, next.hello.address, sizeof(c->address));
	c->key = next.hello.key;
}

static void spawner_end(spawner *sp)
{
	close(sp->fd);
	assert_int_equal(waitpid(sp->pid, NULL, 0), sp->pid);
}

typedef struct holdings {
	int descriptors, queue_pairs;
	uint64_t registrations, resident;
} holdings;

/* Of the whole machine; -1 where no RDMA device is. */
static int queue_pairs(void)
{
	FILE *rdma = strcmp(transport, "verbs") ? NULL : popen("rdma resource show 2>/dev/null", "r");
	char line[256], *at;
	int total = -1;

	while (rdma && fgets(line, sizeof(line), rdma))
		if ((at = strstr(line, " qp ")))
			total = TN_MAX(total, 0) + atoi(at + 4);
	if (rdma)
		pclose(rdma);
	return total;
}

static holdings hold_now(const side *s)
{
	holdings now = {.queue_pairs = queue_pairs()};
	FILE *statm = fopen("/proc/self/statm", "r");
	long pages = 0;

	for (int fd = 0; fd < 1024; fd++)
		now.descriptors += fcntl(fd, F_GETFD) >= 0;
	assert_int_equal(fscanf(statm, "%*s %ld", &pages), 1);
	fclose(statm);
	now.resident = (uint64_t)pages * (uint64_t)getpagesize();
	now.registrations = tern_ctx_counter(s->ctx, "mem.registrations");
	return now;
}

/*
 * libfabric#5864, Mooncake#1845: a leak per dead client. A peer that comes again after kill -9, 300 times, with work in
 * flight when it goes: nothing is left behind. TERN_TEST_ROUNDS changes the number.
 */
static void test_comes_again(void **state)
{
	const char *text = getenv("TERN_TEST_ROUNDS");
	int rounds = text ? atoi(text) : SANITIZED ? 40 : 300;
	holdings before = {0}, after;
	void *buf;
	spawner sp;
	side s;

	(void)state;
	spawner_start(&sp);
	side_open(&s, 0);
	assert_ok(tern_mem_alloc(tern_ctx_mem(s.ctx), REGION, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &buf));
	for (int i = 0; i < rounds; i++) {
		tern_op ops[6] = {0};
		int n = 0;
		child c;

		spawner_next(&sp, &c);
		connect_child(&s, &c);
		for (; n < (int)TN_COUNT_OF(ops) / 2; n++)
			if (tern_put(s.channel, buf, REGION >> n, &c.key, 0, &ops[n]) != TERN_OK)
				break;
		kill(c.pid, SIGKILL);
		assert_comes(&s, downs, i + 1);
		for (int k = 0; k < n; k++)
			assert_int_not_equal(tern_op_wait(s.ctx, &ops[k], PATIENCE), TERN_E_DEADLINE);
		tern_channel_close(s.channel);
		tern_link_release(s.link);
		if (i == rounds / 2) {
			tn_sleep_ns(200 * TN_NS_PER_MS);
			before = hold_now(&s);
		}
	}
	for (int tries = 0; tries < 100; tries++) {
		after = hold_now(&s);
		if (after.descriptors <= before.descriptors && after.queue_pairs <= before.queue_pairs)
			break;
		tn_sleep_ns(50 * TN_NS_PER_MS);
	}
	print_message("%d restarts: %d and %d descriptors, %d and %d queue pairs, %llu and %llu KiB\n",
		      rounds, before.descriptors, after.descriptors, before.queue_pairs, after.queue_pairs,
		      (unsigned long long)before.resident >> 10, (unsigned long long)after.resident >> 10);
	assert_true(after.descriptors <= before.descriptors);
	assert_true(after.queue_pairs <= before.queue_pairs);
	assert_int_equal(after.registrations, before.registrations);
	/* Sanitizers keep what was freed; and what is kept for reuse has its size after some dozens of rounds. */
	if (!SANITIZED && rounds >= 200)
		assert_true(after.resident <= before.resident + (1u << 20));
	tern_mem_free(tern_ctx_mem(s.ctx), buf);
	side_close(&s);
	spawner_end(&sp);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_comes_again),
	};

	transport = "shm";
	test_transport(argc, argv);
	return RUN(tests);
}
