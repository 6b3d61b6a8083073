/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern doctor`: is this host ready for jobs over RDMA, and if not, what is to be changed. One line per check;
 * nothing on the host is changed. Threads: main. Tests: tests/e2e/doctor_test.py.
 */
#include "doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <tern/ctx.h>

#include "args.h"
#include "commands.h"
#include "host.h"

static const char *const verdict_names[VERDICTS] = {"ok", "warn", "fail"};

void doctor_say(doctor *d, verdict v, const char *check, const char *change, const char *fmt, ...)
{
	char found[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(found, sizeof(found), fmt, args);
	va_end(args);
	d->counts[v]++;
	if (d->copy)
		fprintf(d->copy, "%-4s  %-18s %s%s%s\n", verdict_names[v], check, found,
			change ? "; change: " : "", change ? change : "");
	if (!d->j) {
		printf("%-4s  %-18s %s%s%s\n", verdict_names[v], check, found, change ? "; change: " : "",
		       change ? change : "");
		fflush(stdout);
		return;
	}
	json_object(d->j, NULL);
	json_string(d->j, "check", check);
	json_string(d->j, "verdict", verdict_names[v]);
	json_string(d->j, "found", found);
	if (change)
		json_string(d->j, "change", change);
	else
		json_null(d->j, "change");
	json_object_end(d->j);
}

verdict doctor_missing(const doctor *d)
{
	return strcmp(d->mode, "required") == 0 || d->device ? VERDICT_FAIL : VERDICT_WARN;
}

/* ---- facts ---- */

static void on_fact(const char *key, const char *value, void *arg)
{
	doctor *d = arg;
	doctor_fact *fact = &d->facts[d->fact_count];

	if (d->fact_count == DOCTOR_FACTS_MAX)
		return;
	d->fact_count++;
	snprintf(fact->key, sizeof(fact->key), "%s", key);
	snprintf(fact->value, sizeof(fact->value), "%s", value);
}

const char *doctor_fact_get(const doctor *d, const char *fmt, ...)
{
	char key[128];
	va_list args;

	va_start(args, fmt);
	vsnprintf(key, sizeof(key), fmt, args);
	va_end(args);
	for (unsigned i = 0; i < d->fact_count; i++)
		if (strcmp(d->facts[i].key, key) == 0)
			return d->facts[i].value;
	return NULL;
}

/* A described host says its facts in a file, one "key value" per line. */
static void described_facts(doctor *d)
{
	static char text[65536];
	size_t n = host_bytes(text, sizeof(text) - 1, "/facts");
	char *save = NULL;

	text[n] = '\0';
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(line, ' ');

		if (!value)
			continue;
		*value = '\0';
		on_fact(line, value + 1, d);
	}
}

static void find_facts(doctor *d)
{
	tern_provider_info p;

	if (!host_is_real()) {
		described_facts(d);
		return;
	}
	for (unsigned i = 0; tern_provider_probe(i, &p) == TERN_OK; i++) {
		if (strcmp(p.name, "verbs") == 0 && tern_provider_describe(i, on_fact, d) != TERN_OK)
			on_fact("error", tern_detail(), d);
	}
}

static void find_mode(doctor *d)
{
	tern_option_info o;

	snprintf(d->mode, sizeof(d->mode), "auto");
	for (unsigned i = 0; tern_option_get(i, &o) == TERN_OK; i++)
		if (strcmp(o.name, "verbs.mode") == 0)
			snprintf(d->mode, sizeof(d->mode), "%.15s", o.value);
}

/* ---- the checks ---- */

static void say_software(doctor *d)
{
	struct utsname u;

	if (uname(&u) != 0)
		memset(&u, 0, sizeof(u));
	doctor_say(d, VERDICT_OK, "software", NULL, "tern %s, %s %s %s", tern_version(), u.sysname, u.release,
		   u.machine);
}

/* The change for a provider is what its reason says; shm and tcp have to work on any host. */
static void check_providers(doctor *d, bool self_test)
{
	tern_provider_info p;

	for (unsigned i = 0; tern_provider_probe(i, &p) == TERN_OK; i++) {
		char check[48];
		bool verbs = strcmp(p.name, "verbs") == 0;
		verdict v = p.usable ? VERDICT_OK : verbs ? doctor_missing(d) : VERDICT_FAIL;

		if (strcmp(p.name, "loop") == 0)
			continue; /* of use to tests alone */
		if (verbs && strcmp(d->mode, "off") == 0)
			v = VERDICT_OK;
		snprintf(check, sizeof(check), "provider.%s", p.name);
		doctor_say(d, v, check,
			   v == VERDICT_OK ? NULL
			   : verbs && v == VERDICT_WARN
				   ? "nothing, if this host has no RDMA NIC: jobs use shm and tcp"
				   : "what the reason says",
			   "%s: %s", p.usable ? "usable" : "not usable", p.reason);
		if (p.usable && self_test)
			doctor_self_test(d, p.name);
	}
}

static void examine(doctor *d, bool self_test)
{
	host_names devices;

	say_software(d);
	find_mode(d);
	find_facts(d);
	d->device = host_list(&devices, "/sys/class/infiniband");
	doctor_library(d);
	doctor_devices(d);
	doctor_host(d);
	if (d->peer)
		doctor_peer(d);
	if (host_is_real())
		check_providers(d, self_test);
}

static void say_total(doctor *d)
{
	if (d->copy)
		fprintf(d->copy, "%u ok, %u warnings, %u failed\n", d->counts[VERDICT_OK],
			d->counts[VERDICT_WARN], d->counts[VERDICT_FAIL]);
	if (!d->j) {
		printf("%u ok, %u warnings, %u failed\n", d->counts[VERDICT_OK], d->counts[VERDICT_WARN],
		       d->counts[VERDICT_FAIL]);
		return;
	}
	json_array_end(d->j);
	json_u64(d->j, "ok", d->counts[VERDICT_OK]);
	json_u64(d->j, "warn", d->counts[VERDICT_WARN]);
	json_u64(d->j, "fail", d->counts[VERDICT_FAIL]);
	json_object_end(d->j);
	putchar('\n');
}

static int run(doctor *d, const char *report, bool self_test)
{
	char *text = NULL, *details = NULL;
	size_t text_bytes, details_bytes;
	FILE *copy = report ? open_memstream(&text, &text_bytes) : NULL;
	FILE *more = report ? open_memstream(&details, &details_bytes) : NULL;
	bool written = true;

	if (report && (!copy || !more)) {
		fprintf(stderr, "tern doctor: no memory for the report\n");
		return 1;
	}
	d->copy = copy;
	if (d->j) {
		json_object(d->j, NULL);
		json_string(d->j, "version", tern_version());
		json_array(d->j, "findings");
	}
	examine(d, self_test);
	if (more)
		doctor_trials(d, more);
	say_total(d);
	if (report) {
		fclose(copy);
		fclose(more);
		written = doctor_write(report, text, details);
		free(text);
		free(details);
	}
	return written && d->counts[VERDICT_FAIL] == 0 ? 0 : 1;
}

/* Where the conformance program is: installed beside this one, or in the tree that this one was built in. */
static const char *find_conformance(void)
{
	static const char *const places[] = {"../libexec/tern/tern-conformance",
					     "../tests/conformance/conformance"};
	static char path[4200];
	const char *self = self_path(), *slash = strrchr(self, '/');

	for (unsigned i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - self), self, places[i]);
		if (access(path, X_OK) == 0)
			return path;
	}
	return NULL;
}

int cmd_doctor(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern doctor",
		.summary = "checks whether this host is ready for RDMA, and says what to change",
		.synopsis = "tern doctor [--peer HOST] [--report FILE] [--json]",
		.epilogue = "Exit status: 0 nothing failed, 1 something failed, 2 wrong usage.\n",
	};
	const char *report = NULL, *root = "", *address = NULL, *provider = NULL;
	bool as_json = false, no_self_test = false;
	static doctor_fact facts[DOCTOR_FACTS_MAX];
	doctor d = {.facts = facts, .cases = ""};
	const arg_row rows[] = {
		{"peer", ARG_STRING, &d.peer, "HOST", "also the way to that host: route, interface, MTU", 0,
		 0, false, NULL},
		{"report", ARG_STRING, &report, "FILE",
		 "also run the conformance suite; all into one file to send in", 0, 0, false, NULL},
		{"conformance", ARG_STRING, &d.conformance, "PROGRAM",
		 "the suite, where it is not found by itself", 0, 0, false, NULL},
		{"no-self-test", ARG_FLAG, &no_self_test, NULL, "look only, move no data", 0, 0, false, NULL},
		{"json", ARG_FLAG, &as_json, NULL, "one JSON object", 0, 0, false, NULL},
		{"cases", ARG_STRING, &d.cases, "PATTERN", "", 0, 0, true, NULL},
		{"sysroot", ARG_STRING, &root, "DIR", "", 0, 0, true, NULL},
		{"self-test-of", ARG_STRING, &address, "ADDRESS", "", 0, 0, true, NULL},
		{"self-test-over", ARG_STRING, &provider, "PROVIDER", "", 0, 0, true, NULL},
		{0},
	};
	json j;
	int rc = args_parse(&usage, rows, argc, argv, NULL);

	if (rc >= 0)
		return rc;
	if (address && provider)
		return doctor_self_peer(address, provider);
	host_set_root(root);
	if (!d.conformance)
		d.conformance = find_conformance();
	json_init(&j, stdout);
	d.j = as_json ? &j : NULL;
	return run(&d, report, !no_self_test);
}
