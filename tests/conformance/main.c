/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner of the conformance suite:
 *
 *	conformance TARGET [--slow] [--seed N] [PATTERN]    run the cases whose name contains PATTERN
 *	conformance TARGET --serve ADDRESS:PORT             start children for a parent on another host
 *	conformance TARGET --peer ADDRESS:PORT [...]        that parent: the cases with a second process
 *	conformance --list
 *
 * Each case is a cmocka test named TARGET/CASE. A watchdog ends a case that hangs and says where it waits.
 */
#include "proc.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/options.h"

#define CASES_MAX        256
#define WATCHDOG_SECONDS 60u

#ifdef TN_SANITIZED
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

const conf_target *conf;
tn_options *conf_options;
const char *volatile conf_where_file = "?";
volatile int conf_where_line;

static const conf_case *const suites[] = {
	conf_cases_basic,   conf_cases_data, conf_cases_errors,  conf_cases_flow,
	conf_cases_pool,    conf_cases_life, conf_cases_connect, conf_cases_wait,
	conf_cases_threads, conf_cases_soak, conf_cases_process,
};

static pthread_t main_thread;
static bool in_case; /* cmocka's asserts work */
static atomic_bool thread_failed;
static char case_name[128];
static tn_dev_caps caps;

/* CONFORMANCE_SLOW: so many times slower than a machine of today (an emulated one). */
static unsigned slowness(void)
{
	const char *text = getenv("CONFORMANCE_SLOW");
	long n = text ? strtol(text, NULL, 10) : 1;

	return n > 1 && n < 1000 ? (unsigned)n : SANITIZED ? 5 : 1;
}

unsigned conf_rounds(unsigned n)
{
	return slowness() > 1 ? n / slowness() + 1 : n;
}

void conf_check_failed(const char *file, int line, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	(void)fprintf(stderr, "%s: %s:%d: %s\n", case_name, file, line, text);
	if (!in_case)
		_exit(98);
	if (pthread_equal(pthread_self(), main_thread))
		_fail(file, line);
	atomic_store(&thread_failed, true);
}

void conf_threads_ok(void)
{
	assert_false(atomic_load(&thread_failed));
}

void conf_skip(const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	print_message("%s: skipped, %s\n", case_name, text);
	_skip(__FILE__, __LINE__);
	abort(); /* not reached: _skip jumps */
}

static void put(const char *text)
{
	ssize_t n = write(STDERR_FILENO, text, strlen(text));

	(void)n;
}

/* Async-signal-safe: says which line waits, then ends the run. */
static void watchdog(int signal)
{
	char digits[12] = "0";
	char *p = digits + sizeof(digits) - 1;
	int line = conf_where_line;

	(void)signal;
	*p = 0;
	for (; line > 0 && p > digits; line /= 10)
		*--p = (char)('0' + line % 10);
	put(case_name);
	put(": hangs; the main thread waits at ");
	put(conf_where_file);
	put(":");
	put(p);
	put("\n");
	_exit(99);
}

static void run_case(void **state)
{
	const conf_case *which = *state;

	(void)snprintf(case_name, sizeof(case_name), "%s/%s", conf->name, which->name);
	if ((caps.flags & which->needs) != which->needs)
		conf_skip("the device has no capability %#x", which->needs & ~caps.flags);
	if (which->processes && !conf->processes)
		conf_skip("two processes can't reach each other over it");
	atomic_store(&thread_failed, false);
	in_case = true;
	(void)alarm(WATCHDOG_SECONDS * slowness());
	which->run();
	(void)alarm(0);
	conf_threads_ok();
}

static int list(void)
{
	for (unsigned s = 0; s < TN_COUNT_OF(suites); s++) {
		for (const conf_case *c = suites[s]; c->name; c++)
			(void)printf("%s%s%s\n", c->name, c->slow ? " (slow)" : "",
				     c->processes ? " (two processes)" : "");
	}
	return 0;
}

static int prepare(void)
{
	char why[256] = "";
	const tn_provider *provider = tn_provider_find(conf->provider);
	conf_node *node;

	if (conf->prepare && !conf->prepare(why, sizeof(why))) {
		(void)printf("%s: cannot be prepared: %s\n", conf->name, why);
		return 1;
	}
	if (!provider || provider->probe(why, sizeof(why)) != TERN_OK) {
		(void)printf("%s: not usable here: %s\n", conf->name, provider ? why : "not in this build");
		return 1;
	}
	node = conf_node_open("probe");
	caps = node->caps;
	conf_node_close(node);
	return 0;
}

static int usage(void)
{
	(void)fprintf(stderr,
		      "usage: conformance TARGET [--slow] [--seed N] [--peer ADDRESS:PORT] [PATTERN]\n"
		      "       conformance TARGET --serve ADDRESS:PORT\n"
		      "       conformance --list\ntargets:");
	for (unsigned i = 0; conf_target_at(i); i++)
		(void)fprintf(stderr, " %s", conf_target_at(i)->name);
	(void)fprintf(stderr, "\n");
	return 2;
}

static size_t choose(struct CMUnitTest tests[CASES_MAX], bool slow, const char *pattern)
{
	static char names[CASES_MAX][96];
	size_t n = 0;

	for (unsigned s = 0; s < TN_COUNT_OF(suites); s++) {
		for (const conf_case *c = suites[s]; c->name; c++) {
			if (c->slow != slow || !strstr(c->name, pattern) || n == CASES_MAX ||
			    (child_host && !c->processes))
				continue;
			(void)snprintf(names[n], sizeof(names[n]), "%s/%s", conf->name, c->name);
			tests[n] = (struct CMUnitTest){.name = names[n],
						       .test_func = run_case,
						       .initial_state = (void *)(uintptr_t)c};
			n++;
		}
	}
	return n;
}

static int run(bool slow, const char *pattern)
{
	static struct CMUnitTest tests[CASES_MAX];
	size_t n;

	(void)signal(SIGALRM, watchdog);
	(void)signal(SIGPIPE, SIG_DFL); /* a provider must not depend on its being ignored */
	if (tn_base_apply(NULL) || prepare())
		return 1;
	n = choose(tests, slow, pattern);
	if (n == 0) {
		(void)fprintf(stderr, "no case of %s matches \"%s\"\n", conf->name, pattern);
		return 2;
	}
	return _cmocka_run_group_tests(conf->name, tests, n, NULL, NULL) ? 1 : 0;
}

int main(int argc, char **argv)
{
	static conf_target seeded;
	const char *pattern = "";
	bool slow = false;

	main_thread = pthread_self();
	if (argc >= 2 && strcmp(argv[1], "--list") == 0)
		return list();
	if (tn_options_load(NULL, &conf_options) != TERN_OK) {
		(void)fprintf(stderr, "%s\n", tern_detail());
		return 2;
	}
	if (argc >= 4 && strcmp(argv[1], "--child") == 0) {
		conf = conf_target_find(argv[2]);
		(void)snprintf(case_name, sizeof(case_name), "%s/child", argv[2]);
		return conf ? child_main(argc, argv) : 2;
	}
	conf = argc >= 2 ? conf_target_find(argv[1]) : NULL;
	if (!conf)
		return usage();
	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[i], "--slow") == 0) {
			slow = true;
		} else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
			seeded = *conf;
			seeded.seed = strtoull(argv[++i], NULL, 0);
			conf = &seeded;
		} else if (strcmp(argv[i], "--serve") == 0 && i + 1 < argc) {
			return child_serve(argv[i + 1]);
		} else if (strcmp(argv[i], "--peer") == 0 && i + 1 < argc) {
			child_host = argv[++i];
		} else {
			pattern = argv[i];
		}
	}
	return run(slow, pattern);
}
