/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern run`: a command as every rank of a job, with what it needs to find the others, and with tern in place of gloo in
 * scripts of PyTorch.
 *
 *   started by hand         N processes on this host; their output with the rank in front; when one fails the others are
 *                           ended, and it is named
 *   started by an engine    (run_place.h) this process becomes the command: the engine watches over it
 *
 * Threads: main. Tests: tests/e2e/run_test.py.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "json.h"
#include "run_place.h"

#define RANKS_MAX 1024u
#define KILL_MS   5000

typedef struct run_options {
	uint64_t nproc, port;
	bool gloo, show, json;
	char **command;
} run_options;

typedef struct child {
	pid_t pid; /* 0: over */
	int out;   /* -1: closed */
	char line[4096];
	size_t used;
} child;

static volatile sig_atomic_t got_signal, signal_count;

static void on_signal(int sig)
{
	got_signal = sig;
	signal_count = signal_count + 1;
}

/* ---- the environment of a rank ---- */

static void set_number(const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	setenv(name, text, 1);
}

/* The folder of this executable, or one beside it. False: nothing is there. */
static bool near_self(const char *rest, char *out, size_t bytes)
{
	const char *self = self_path(), *slash = strrchr(self, '/');

	return slash && snprintf(out, bytes, "%.*s/%s", (int)(slash - self), self, rest) < (int)bytes &&
	       access(out, R_OK) == 0;
}

static void put_first(const char *name, const char *folder)
{
	const char *old = getenv(name);
	char *joined;

	if (asprintf(&joined, "%s%s%s", folder, old && old[0] ? ":" : "", old ? old : "") < 0)
		return;
	setenv(name, joined, 1);
	free(joined);
}

/* Python finds the package (beside the command, or installed with it), and its sitecustomize before others. */
static void set_python(void)
{
	static const char *const places[] = {"../python", "../lib/python3/dist-packages"};
	char folder[4200], site[4300], library[4200];

	if (!getenv("LIBTERN_PATH") &&
	    (near_self("../libtern.so." TERN_SOVERSION, library, sizeof(library)) ||
	     near_self("../lib/libtern.so." TERN_SOVERSION, library, sizeof(library))))
		setenv("LIBTERN_PATH", library, 1);
	for (unsigned i = 0; i < 2; i++) {
		if (!near_self(places[i], folder, sizeof(folder)))
			continue;
		snprintf(site, sizeof(site), "%s/tern/_site", folder);
		if (access(site, R_OK) != 0)
			continue;
		put_first("PYTHONPATH", folder);
		put_first("PYTHONPATH", site);
		return;
	}
	fprintf(stderr, "tern run: the Python package is not installed with this command "
			"(lib/python3/dist-packages): scripts "
			"keep their backend\n");
}

static void set_place(const run_place *p, const run_options *o)
{
	set_number("RANK", p->rank);
	set_number("WORLD_SIZE", p->size);
	set_number("LOCAL_RANK", p->local_rank);
	setenv("MASTER_ADDR", p->master, 1);
	set_number("MASTER_PORT", p->port);
	/* Debian 13's PyTorch asks its store for what it was built without, and fails. */
	setenv("USE_LIBUV", "0", 0);
	if (!o->gloo) {
		setenv("TERN_RDMA_OPT", "1", 0); /* 0 of the user's own stays */
		set_python();
	}
}

static int show(const run_place *p, const run_options *o)
{
	json j;

	if (!o->json) {
		printf("engine %s, rank %llu of %llu, local rank %llu, master %s:%u\n",
		       p->engine ? p->engine : "none", (unsigned long long)p->rank,
		       (unsigned long long)p->size, (unsigned long long)p->local_rank, p->master, p->port);
		return 0;
	}
	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "engine", p->engine ? p->engine : "none");
	json_u64(&j, "rank", p->rank);
	json_u64(&j, "size", p->size);
	json_u64(&j, "local_rank", p->local_rank);
	json_string(&j, "master", p->master);
	json_u64(&j, "port", p->port);
	json_object_end(&j);
	putchar('\n');
	return 0;
}

static int become(const run_options *o)
{
	execvp(o->command[0], o->command);
	fprintf(stderr, "tern run: cannot run %s: %s\n", o->command[0], strerror(errno));
	return errno == ENOENT ? 127 : 126;
}

/* ---- ranks on this host ---- */

static uint32_t free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t port = 0;

	if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	    getsockname(fd, (struct sockaddr *)&a, &bytes) == 0)
		port = ntohs(a.sin_port);
	if (fd >= 0)
		close(fd);
	return port;
}

static bool start(child *c, const run_place *place, const run_options *o)
{
	int out[2];

	if (pipe2(out, O_CLOEXEC) != 0)
		return false;
	c->pid = fork();
	if (c->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		signal(SIGINT, SIG_IGN); /* Ctrl-C is the launcher's */
		signal(SIGTERM, SIG_DFL);
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		set_place(place, o);
		_exit(become(o));
	}
	close(out[1]);
	c->out = c->pid > 0 ? out[0] : -1;
	if (c->pid < 0)
		close(out[0]);
	return c->pid > 0;
}

static void print_line(const child *c, uint32_t rank, uint64_t size)
{
	if (size > 1)
		printf("[%u] %.*s\n", rank, (int)c->used, c->line);
	else
		printf("%.*s\n", (int)c->used, c->line);
	fflush(stdout);
}

/* Pass on whole lines; what is left at the end of the output, or is longer than a line may be, as well. */
static void pass_on(child *c, uint32_t rank, uint64_t size)
{
	char buf[4096];
	ssize_t n = read(c->out, buf, sizeof(buf));

	for (ssize_t i = 0; i < n; i++) {
		if (buf[i] != '\n')
			c->line[c->used++] = buf[i];
		if (buf[i] == '\n' || c->used == sizeof(c->line)) {
			print_line(c, rank, size);
			c->used = 0;
		}
	}
	if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)))
		return;
	if (c->used)
		print_line(c, rank, size);
	c->used = 0;
	close(c->out);
	c->out = -1;
}

static void end_all(child *children, uint64_t n, int sig)
{
	for (uint64_t i = 0; i < n; i++)
		if (children[i].pid > 0)
			kill(children[i].pid, sig);
}

static int status_of(int wait_status)
{
	return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static void blame(uint64_t rank, int wait_status)
{
	if (WIFSIGNALED(wait_status))
		fprintf(stderr, "tern run: rank %llu was killed by signal %d (%s); the others are ended\n",
			(unsigned long long)rank, WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
	else
		fprintf(stderr, "tern run: rank %llu exited with status %d; the others are ended\n",
			(unsigned long long)rank, WEXITSTATUS(wait_status));
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

typedef struct crowd {
	child *children;
	uint64_t n, alive;
	int status;        /* of the first that failed */
	uint64_t ended_ms; /* when SIGTERM was sent; 0: not */
} crowd;

static void end_crowd(crowd *c)
{
	if (!c->ended_ms)
		c->ended_ms = now_ms();
	end_all(c->children, c->n, SIGTERM);
}

static void reap(crowd *c)
{
	int wait_status;
	pid_t pid;

	while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
		for (uint64_t i = 0; i < c->n; i++) {
			if (c->children[i].pid != pid)
				continue;
			c->children[i].pid = 0;
			c->alive--;
			if (status_of(wait_status) == 0 || c->status || c->ended_ms)
				continue;
			c->status = status_of(wait_status);
			if (c->alive)
				blame(i, wait_status);
			end_crowd(c);
		}
	}
}

static void listen_once(crowd *c, struct pollfd *fds)
{
	for (uint64_t i = 0; i < c->n; i++)
		fds[i] = (struct pollfd){.fd = c->children[i].out, .events = POLLIN};
	if (poll(fds, c->n, 50) <= 0)
		return;
	for (uint64_t i = 0; i < c->n; i++)
		if (c->children[i].out >= 0 && fds[i].revents)
			pass_on(&c->children[i], (uint32_t)i, c->n);
}

static bool is_open(const crowd *c)
{
	for (uint64_t i = 0; i < c->n; i++)
		if (c->children[i].out >= 0)
			return true;
	return false;
}

static void watch(crowd *c, struct pollfd *fds)
{
	uint64_t over_ms = 0;

	while (c->alive || is_open(c)) {
		listen_once(c, fds);
		reap(c);
		if (got_signal && !c->status)
			c->status = 128 + got_signal;
		if (got_signal && !c->ended_ms) {
			fprintf(stderr, "tern run: %s: ending %llu ranks\n", strsignal(got_signal),
				(unsigned long long)c->alive);
			end_crowd(c);
		}
		if (c->ended_ms && (signal_count > 1 || now_ms() - c->ended_ms > KILL_MS))
			end_all(c->children, c->n, SIGKILL);
		/* A grandchild may hold the output open: it is not waited for. */
		if (!c->alive && !over_ms)
			over_ms = now_ms();
		if (!c->alive && now_ms() - over_ms > 1000)
			return;
	}
}

static int run_here(const run_options *o, const run_place *first)
{
	struct sigaction act = {.sa_handler = on_signal};
	crowd c = {.n = o->nproc};
	struct pollfd *fds = calloc(o->nproc, sizeof(*fds));

	c.children = calloc(o->nproc, sizeof(child));
	if (!c.children || !fds) {
		fprintf(stderr, "tern run: no memory for %llu ranks\n", (unsigned long long)o->nproc);
		free(c.children);
		free(fds);
		return 1;
	}
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	for (uint64_t i = 0; i < o->nproc; i++) {
		run_place place = *first;

		place.rank = place.local_rank = i;
		c.children[i].out = -1;
		if (!start(&c.children[i], &place, o)) {
			fprintf(stderr, "tern run: cannot start rank %llu: %s\n", (unsigned long long)i,
				strerror(errno));
			c.status = 1;
			end_crowd(&c);
			break;
		}
		c.alive++;
	}
	watch(&c, fds);
	free(c.children);
	free(fds);
	return c.status;
}

static int run(const run_options *o, bool nproc_given)
{
	run_place place;

	if (!nproc_given) {
		if (!run_place_find(&place))
			return 2;
		if (place.engine) {
			if (o->show)
				return show(&place, o);
			set_place(&place, o);
			return become(o);
		}
	}
	place = (run_place){
		.size = o->nproc, .local_size = o->nproc, .master = "127.0.0.1", .port = (uint32_t)o->port};
	if (!place.port)
		place.port = free_port();
	return o->show ? show(&place, o) : run_here(o, &place);
}

int cmd_run(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern run",
		.summary = "a command as every rank of a job, with tern below torch.distributed",
		.synopsis = "tern run [--nproc N] [options] -- COMMAND [ARGUMENTS]",
		.epilogue = "tern run --nproc 4 -- python3 train.py      4 ranks on this host\n"
			    "srun -n 64 tern run -- python3 train.py     also mpirun, torchrun, Kubernetes",
	};
	run_options o = {.nproc = 1};
	bool nproc_given = false;
	const arg_row rows[] = {
		{"nproc", ARG_U64, &o.nproc, "N",
		 "ranks on this host (default: what Slurm, MPI, Kubernetes or torchrun say, else 1)", 1,
		 RANKS_MAX, false, &nproc_given},
		{"port", ARG_U64, &o.port, "P", "where ranks meet, with --nproc (default: a free one)", 1,
		 65535, false, NULL},
		{"keep-backend", ARG_FLAG, &o.gloo, NULL,
		 "leave the backend of torch.distributed as the script says", 0, 0, false, NULL},
		{"show", ARG_FLAG, &o.show, NULL,
		 "print which rank this is and where ranks meet; run nothing", 0, 0, false, NULL},
		{"json", ARG_FLAG, &o.json, NULL, "with --show", 0, 0, false, NULL},
		{0},
	};
	int end = 1, rc;

	/* Options end at the first word that is none: the rest is the command's. */
	while (end < argc && argv[end][0] == '-' && strcmp(argv[end], "--") != 0)
		end += (strcmp(argv[end], "--nproc") == 0 || strcmp(argv[end], "--port") == 0) ? 2 : 1;
	end = end < argc ? end : argc;
	rc = args_parse(&usage, rows, end, argv, NULL);
	if (rc >= 0)
		return rc;
	o.command = argv + end + (end < argc && strcmp(argv[end], "--") == 0);
	if (!o.command[0] && !o.show) {
		fprintf(stderr,
			"tern run: which command? For example: tern run --nproc 2 -- python3 train.py\n");
		return 2;
	}
	return run(&o, nproc_given);
}
