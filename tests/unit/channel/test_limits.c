/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts that are short of something: a small /dev/shm, no descriptors, no threads, shared memory that is
 * forbidden; and what kill -9 leaves behind. Each test names the report of the field that it is about.
 *
 * Each case is a child of its own, forked before there is any context. What namespaces cannot do here is skipped.
 */
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/rand.h"
#include "chan_test.h"

enum { GOOD = 0, REFUSED = 10, NO_WORDS, WRONG, SKIP };

#define REGION (8u << 20)

/* The case's end: GOOD, or why not. */
static int run_child(int (*body)(int arg), int arg)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(60);
		_exit(body(arg));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status))
		fail_msg("case %d ended by signal %d", arg, WTERMSIG(status));
	return WEXITSTATUS(status);
}

#define TRY(expr)                                                                      \
	do {                                                                           \
		if ((expr) != TERN_OK)                                                 \
			return tern_detail() && tern_detail()[0] ? REFUSED : NO_WORDS; \
	} while (0)

static tern_status node(side *s, const char *transports)
{
	static const char *const quick[] = {"link.step_timeout=1s", "link.connect_timeout=2s", NULL};
	tern_ctx_params params = {.transports = transports, .options = quick};
	tern_status status;

	memset(s, 0, sizeof(*s));
	pthread_mutex_init(&s->lock, NULL);
	status = tn_ctx_new(&params, &s->ctx);
	if (status == TERN_OK)
		status = tern_ctx_listen(s->ctx, SERVICE, on_open, s);
	if (status == TERN_OK)
		status = tn_ctx_start(s->ctx);
	return status;
}

/* Two nodes, a link over whatever works, a region and transfers both ways; *over: by what. */
static int talk(const char *transports, char over[16])
{
	uint32_t access = TERN_ACCESS_READ | TERN_ACCESS_WRITE;
	tern_channel_params params;
	uint8_t *src, *dst;
	tern_op op = {0};
	tern_key key;
	side a, b;

	TRY(node(&a, transports));
	TRY(node(&b, transports));
	TRY(tern_mem_alloc(tern_ctx_mem(a.ctx), REGION, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&src));
	TRY(tern_mem_alloc(tern_ctx_mem(b.ctx), REGION, 0, access, TERN_MEM_HOST, (void **)&dst));
	TRY(tern_mem_export(tern_ctx_mem(b.ctx), dst, REGION, access, &key));
	TRY(tern_link_connect(a.ctx, tern_ctx_address(b.ctx), NULL, &a.link));
	TRY(tern_link_wait(a.link, PATIENCE));
	snprintf(over, 16, "%s", tern_link_transport(a.link));
	side_params(&a, &params);
	TRY(tern_channel_open(a.link, SERVICE, &params, &a.channel));
	fill(src, REGION, 1);
	TRY(complete(a.ctx, &op, tern_put(a.channel, src, REGION, &key, 0, &op)));
	if (!filled(dst, REGION, 1))
		return WRONG;
	memset(src, 0, REGION);
	TRY(complete(a.ctx, &op, tern_get(a.channel, src, REGION, &key, 0, &op)));
	if (!filled(src, REGION, 1))
		return WRONG;
	tern_ctx_destroy(a.ctx);
	tern_ctx_destroy(b.ctx);
	return GOOD;
}

/* ---- /dev/shm ---- */

static bool put_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return ok;
}

/* This process alone sees empty, tiny file systems where programs leave things. */
static bool enter_small_world(void)
{
	static const char *const places[] = {"/dev/shm", "/var/tmp", "/run", "/tmp"};
	char uids[64], gids[64];

	snprintf(uids, sizeof(uids), "0 %u 1", getuid());
	snprintf(gids, sizeof(gids), "0 %u 1", getgid());
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !put_text("/proc/self/setgroups", "deny") ||
	    !put_text("/proc/self/uid_map", uids) || !put_text("/proc/self/gid_map", gids) ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		return false;
	for (size_t i = 0; i < TN_COUNT_OF(places); i++)
		if (mount("small", places[i], "tmpfs", 0, "size=64k") != 0)
			return false;
	return chdir("/tmp") == 0;
}

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n - 2;
}

static bool world_is_empty(void)
{
	return entries("/dev/shm") == 0 && entries("/tmp") == 0 && entries("/var/tmp") == 0 &&
	       entries("/run") == 0;
}

static int in_small_shm(int arg)
{
	char over[16];
	int end;

	(void)arg;
	if (!enter_small_world())
		return SKIP;
	end = talk("auto", over);
	return end != GOOD ? end : strcmp(over, "shm") == 0 && world_is_empty() ? GOOD : WRONG;
}

/* NCCL#290, UCX PR#8508: a /dev/shm of 64 MiB (here 64 KiB) is too small, SIGBUS under way. It is not used. */
static void test_small_shm(void **state)
{
	int end = run_child(in_small_shm, 0);

	(void)state;
	if (end == SKIP)
		skip();
	assert_int_equal(end, GOOD);
}

static int busy_until_killed(void)
{
	char over[16];

	for (;;) {
		if (talk("auto", over) != GOOD)
			_exit(1);
	}
}

static int killed_many_times(int kills)
{
	tn_rand rand = {.state = 5};

	if (!enter_small_world())
		return SKIP;
	for (int i = 0; i < kills; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			busy_until_killed();
		}
		usleep(1000 + tn_rand_below(&rand, 40000));
		kill(pid, SIGKILL);
		if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
			return WRONG; /* it ended by itself */
	}
	return world_is_empty() ? GOOD : WRONG;
}

/* libfabric#6476, sglang#40723: kill -9 leaves files behind until the disk is full. TERN_TEST_KILLS=1000 for long. */
static void test_nothing_left(void **state)
{
	const char *kills = getenv("TERN_TEST_KILLS");
	int end;

	(void)state;
	alarm(0);
	end = run_child(killed_many_times, kills ? atoi(kills) : 40);
	if (end == SKIP)
		skip();
	assert_int_equal(end, GOOD);
}

/* ---- shared memory that is forbidden ---- */

static const char *const sharing[] = {"shm.memfd.create", "shm.segment.map", "shm.socket.create"};

static int without_sharing(int which)
{
	char over[16];
	int end;

	/* For the whole life of the process, as under a policy that forbids it. */
	if (tn_fault_set(sharing[which], 1, UINT64_MAX / 2) != TERN_OK)
		return WRONG;
	end = talk("auto", over);
	return end != GOOD ? end : strcmp(over, "tcp") == 0 ? GOOD : WRONG;
}

/*
 * UCX#8958, #4224: copying between processes is forbidden, which is fatal at the first transfer. What cannot be
 * shared is found out when the link is made, and the link goes over tcp.
 */
static void test_sharing_forbidden(void **state)
{
	(void)state;
	for (int i = 0; i < (int)TN_COUNT_OF(sharing); i++) {
		int end = run_child(without_sharing, i);

		if (end != GOOD)
			fail_msg("without %s: %d", sharing[i], end);
	}
}

/* ---- descriptors and threads ---- */

static int with_descriptors(int n)
{
	struct rlimit limit = {(rlim_t)n, (rlim_t)n};
	char over[16];
	int end;

	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		return WRONG;
	end = talk("auto", over);
	/* Who cannot make a context is told the limit. Later a listener without one logs that, and its peer sees no
	   answer in time. */
	if (end == REFUSED && n < 24 && !strstr(tern_detail(), "ulimit") &&
	    !strstr(tern_detail(), "escriptor") && !strstr(tern_detail(), "open files")) {
		fprintf(stderr, "%d descriptors: %s\n", n, tern_detail());
		return NO_WORDS;
	}
	return end;
}

static int without_threads(int nth)
{
	struct rlimit one = {1, 1};
	char over[16];

	if (nth > 0) {
		tn_fault_set("base.os.thread", (uint64_t)nth, 1);
	} else {
		/* A user who has this process alone. */
		if (geteuid() != 0 || setgroups(0, NULL) != 0 || setgid(64123) != 0 || setuid(64123) != 0)
			return SKIP;
		if (setrlimit(RLIMIT_NPROC, &one) != 0)
			return WRONG;
	}
	return talk("auto", over);
}

/*
 * verl#719, Ceph PR#69614: limits of threads and descriptors end in a crash or a hang. With any number of
 * descriptors it works or says in words what is missing.
 */
static void test_descriptors(void **state)
{
	int refused = 0;

	(void)state;
	for (int n = 4; n < 64; n++) {
		int end = run_child(with_descriptors, n);

		if (end != GOOD && end != REFUSED)
			fail_msg("with %d descriptors: %d", n, end);
		refused += end == REFUSED;
	}
	assert_true(refused > 0);
	assert_int_equal(run_child(with_descriptors, 256), GOOD);
}

static void test_threads(void **state)
{
	int end = run_child(without_threads, 0);

	(void)state;
	assert_true(end == REFUSED || end == SKIP);
	for (int nth = 1; nth < 3; nth++)
		assert_int_equal(run_child(without_threads, nth), REFUSED);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_shm),         cmocka_unit_test(test_nothing_left),
		cmocka_unit_test(test_sharing_forbidden), cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_threads),
	};

	test_transport(argc, argv);
	return RUN(tests);
}
