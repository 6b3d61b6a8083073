/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern doctor --report`: runs the conformance suite over the providers that are usable here and a sample of
 * `tern perf`, and writes one text file with all that is known of this host, names and addresses taken out.
 * Ends only programs that it started. Threads: main. Tests: tests/e2e/doctor_test.py.
 */
#include "doctor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tern/ctx.h>

#include "commands.h"
#include "host.h"
#include "redact.h"

#define SUITE_SECONDS 900
#define PERF_SECONDS  120
#define OUTPUT_MAX    (4u << 20)

/* ---- programs ---- */

static time_t now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static pid_t start(const char *const argv[], int *out)
{
	int ends[2];
	pid_t pid;

	if (pipe(ends) != 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 1);
		execv(argv[0], (char *const *)argv);
		fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
		_exit(127);
	}
	close(ends[1]);
	*out = ends[0];
	if (pid < 0)
		close(ends[0]);
	return pid;
}

/* Copies what it says to text until it ends or is late; then its process group is killed. Wait status or -1. */
static int run(const char *const argv[], unsigned seconds, FILE *text)
{
	time_t end = now_seconds() + seconds;
	int out, wait_status = -1;
	pid_t pid = start(argv, &out);
	size_t total = 0;
	char buf[4096];

	if (pid < 0)
		return -1;
	while (now_seconds() < end) {
		struct pollfd p = {.fd = out, .events = POLLIN};
		ssize_t n;

		if (poll(&p, 1, 1000) <= 0)
			continue;
		n = read(out, buf, sizeof(buf));
		if (n == 0 || (n < 0 && errno != EINTR))
			break;
		if (n > 0 && total < OUTPUT_MAX)
			total += fwrite(buf, 1, (size_t)n, text);
	}
	if (now_seconds() >= end) {
		fprintf(text, "\n(killed after %u s)\n", seconds);
		kill(-pid, SIGKILL);
	}
	waitpid(pid, &wait_status, 0);
	close(out);
	return wait_status;
}

/* ---- conformance ---- */

static unsigned count_lines(const char *text, const char *with)
{
	unsigned n = 0;

	for (const char *at = text; at; at = strchr(at, '\n')) {
		at += *at == '\n';
		n += strncmp(at, with, strlen(with)) == 0;
	}
	return n;
}

static void say_suite(doctor *d, const char *check, int wait_status, const char *text)
{
	unsigned bad = count_lines(text, "not ok "), good = count_lines(text, "ok ");
	unsigned skipped = 0;

	for (const char *at = strstr(text, "# SKIP"); at; at = strstr(at + 1, "# SKIP"))
		skipped++;
	if (wait_status != -1 && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
		doctor_say(d, VERDICT_OK, check, NULL, "%u cases passed, %u skipped", good - skipped,
			   skipped);
	else if (wait_status != -1 && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 2)
		doctor_say(d, VERDICT_OK, check, NULL, "the suite has no such cases");
	else
		doctor_say(d, VERDICT_FAIL, check, "send the report to tern's maintainers",
			   "%u cases passed, %u failed%s", good, bad, bad ? "" : ", the suite ended early");
}

static void run_suite(doctor *d, const char *provider, FILE *details)
{
	const char *argv[] = {d->conformance, provider, d->cases[0] ? d->cases : NULL, NULL};
	char check[48], *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	int wait_status;

	if (!out)
		return;
	fprintf(stderr, "tern doctor: conformance suite over %s ...\n", provider);
	snprintf(check, sizeof(check), "conformance.%s", provider);
	wait_status = run(argv, SUITE_SECONDS, out);
	fclose(out);
	fprintf(details, "\n== conformance %s\n%s", provider, text);
	say_suite(d, check, wait_status, text);
	free(text);
}

static void run_perf(const char *provider, FILE *details)
{
	const char *argv[] = {self_path(),   "perf",     "--op", "put,get,send", "--sizes",
			      "8,64K,1M",    "--rounds", "3",    "--round-time", "0.02",
			      "--transport", provider,   NULL};

	fprintf(stderr, "tern doctor: a sample of performance over %s ...\n", provider);
	fprintf(details, "\n== perf %s\n", provider);
	fflush(details);
	(void)run(argv, PERF_SECONDS, details);
}

void doctor_trials(doctor *d, FILE *details)
{
	tern_provider_info p;

	if (!d->conformance)
		doctor_say(d, VERDICT_WARN, "conformance",
			   "build tern's tests (they are installed as libexec/tern/tern-conformance), or "
			   "name the "
			   "program with --conformance",
			   "the conformance program was not found");
	for (unsigned i = 0; tern_provider_probe(i, &p) == TERN_OK; i++) {
		if (!p.usable || strcmp(p.name, "loop") == 0)
			continue;
		if (d->conformance)
			run_suite(d, p.name, details);
		run_perf(p.name, details);
	}
	for (unsigned i = 0; i < d->fact_count; i++)
		fprintf(details, "%s%s = %s\n", i ? "" : "\n== facts of verbs\n", d->facts[i].key,
			d->facts[i].value);
}

/* ---- the file ---- */

static void put_host(FILE *out)
{
	char text[256];
	struct utsname u;

	if (uname(&u) == 0)
		fprintf(out, "kernel     %s %s %s\n", u.sysname, u.release, u.machine);
	if (host_keyed(text, sizeof(text), "/etc/os-release", "PRETTY_NAME="))
		fprintf(out, "system     %s\n", text);
	if (host_keyed(text, sizeof(text), "/proc/cpuinfo", "model name"))
		fprintf(out, "processor  %s, %ld online\n", text, sysconf(_SC_NPROCESSORS_ONLN));
	if (host_keyed(text, sizeof(text), "/proc/meminfo", "MemTotal"))
		fprintf(out, "memory     %s\n", text);
}

/* Options that are not at their defaults; secrets are shown as "(set)" by the library. */
static void put_options(FILE *out)
{
	tern_option_info o;

	fprintf(out, "\n== options that were set\n");
	for (unsigned i = 0; tern_option_get(i, &o) == TERN_OK; i++)
		if (strcmp(o.source, "default") != 0)
			fprintf(out, "%s = %s (%s)\n", o.name, o.value, o.source);
}

/* Small files of a folder in /sys, "name = first line". */
static void put_folder(FILE *out, const char *folder)
{
	host_names names;
	char line[256];

	host_list(&names, "%s", folder);
	for (unsigned i = 0; i < names.count; i++)
		if (host_read(line, sizeof(line), "%s/%s", folder, names.name[i]) && line[0])
			fprintf(out, "%s/%s = %s\n", folder, names.name[i], line);
}

static void put_devices(FILE *out)
{
	static const char *const folders[] = {"",
					      "/ports/1",
					      "/ports/1/counters",
					      "/ports/1/hw_counters",
					      "/ports/1/gids",
					      "/ports/1/gid_attrs/types",
					      "/ports/1/gid_attrs/ndevs",
					      "/ports/2",
					      "/ports/2/hw_counters",
					      "/hw_counters"};
	host_names devices;
	char path[256];

	fprintf(out, "\n== /sys/class/infiniband\n");
	host_list(&devices, "/sys/class/infiniband");
	for (unsigned i = 0; i < devices.count; i++)
		for (unsigned f = 0; f < sizeof(folders) / sizeof(folders[0]); f++) {
			snprintf(path, sizeof(path), "/sys/class/infiniband/%s%s", devices.name[i],
				 folders[f]);
			put_folder(out, path);
		}
}

bool doctor_write(const char *path, const char *text, const char *details)
{
	char *body = NULL;
	size_t bytes;
	FILE *out = open_memstream(&body, &bytes), *file;
	bool ok;

	if (!out)
		return false;
	fprintf(out, "tern doctor report, version %s\n", tern_version());
	fprintf(out, "Host name, user, home folder are taken out, addresses and GUIDs shortened. Read it "
		     "before you "
		     "send it.\n\n");
	put_host(out);
	fprintf(out, "\n== findings\n%s", text);
	put_options(out);
	put_devices(out);
	fputs(details, out);
	fclose(out);
	file = fopen(path, "w");
	if (file)
		redact(file, body);
	free(body);
	ok = file && !ferror(file);
	ok = file && fclose(file) == 0 && ok;
	if (ok)
		fprintf(stderr, "tern doctor: the report is in %s: read it before you send it\n", path);
	else
		fprintf(stderr, "tern doctor: cannot write %s: %s\n", path, strerror(errno));
	return ok;
}
