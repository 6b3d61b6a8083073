/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern top`: processes, what they do and how long it takes, drawn anew every second until Ctrl-C.
 *
 * Threads: main. Tests: tests/e2e/watch_test.py.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "peek.h"

typedef struct view {
	const char *http;
	char why[320], name[128];
	samples now, before;
} view;

typedef struct screen {
	bool live;      /* a terminal: drawn over itself */
	int rows, line; /* rows 0: no bound */
} screen;

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

/* ---- words ---- */

static const char *short_number(double n, char buf[16])
{
	static const char units[] = " kMGTP";
	unsigned u = 0;

	while (n >= 9999.5 && u < 5) {
		n /= 1000;
		u++;
	}
	snprintf(buf, 16, u ? "%.1f%c" : "%.0f", n, units[u]);
	return buf;
}

static const char *short_bytes(double n, char buf[16])
{
	static const char units[] = "BKMGTP";
	unsigned u = 0;

	while (n >= 1023.5 && u < 5) {
		n /= 1024;
		u++;
	}
	snprintf(buf, 16, u ? "%.1f%c" : "%.0f%c", n, units[u]);
	return buf;
}

/* Seconds in the unit that fits. */
static const char *short_time(double s, char buf[16])
{
	if (s < 1e-3)
		snprintf(buf, 16, "%.1fus", s * 1e6);
	else if (s < 1)
		snprintf(buf, 16, "%.1fms", s * 1e3);
	else
		snprintf(buf, 16, "%.1fs", s);
	return buf;
}

/* A line, as long as the screen has one left. */
#define LINE(screen, ...)                                                     \
	do {                                                                  \
		if (!(screen)->rows || (screen)->line < (screen)->rows - 1) { \
			printf(__VA_ARGS__);                                  \
			printf("%s\n", (screen)->live ? "\033[K" : "");       \
			(screen)->line++;                                     \
		}                                                             \
	} while (0)

/* ---- what there is ---- */

static void look(view *v)
{
	samples_free(&v->before);
	v->before = v->now;
	v->why[0] = '\0';
	if (!samples_get(&v->now, v->http, v->why, sizeof(v->why)))
		return;
	for (size_t i = 0; i < v->now.n; i++)
		if (strcmp(v->now.row[i].name, "tern_build_info") == 0)
			sample_label(&v->now.row[i], "name", v->name, sizeof(v->name));
	if (!v->name[0])
		snprintf(v->name, sizeof(v->name), "%s", v->http);
}

static double rate_of(const view *v, const char *name)
{
	return samples_rate(&v->now, &v->before, samples_sum(&v->now, name), samples_sum(&v->before, name));
}

static double moved(const view *v)
{
	static const char *const names[] = {"tern_shm_copy_bytes", "tern_tcp_tx_bytes", "tern_verbs_tx_bytes",
					    "tern_loop_copy_bytes"};
	double sum = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		sum += rate_of(v, names[i]);
	return sum;
}

static double links_of(const view *v)
{
	double n = 0;

	for (size_t i = 0; i < v->now.n; i++)
		n += strcmp(v->now.row[i].name, "tern_peer_up") == 0;
	return n;
}

/* ---- the three tables ---- */

static void draw_processes(screen *s, const view *v, size_t n)
{
	LINE(s, "%-24s %9s %8s %9s %9s %9s %6s %9s", "PROCESS", "LINKS", "MEMORY", "OPS/S", "MSGS/S",
	     "MOVED/S", "WAITS", "LONGEST");
	for (size_t i = 0; i < n; i++, v++) {
		char links[32], memory[16], ops[16], messages[16], bytes[16], longest[16];

		if (v->why[0]) {
			LINE(s, "%-24.24s %.*s", v->name[0] ? v->name : v->http, 100, v->why);
			continue;
		}
		snprintf(links, sizeof(links), "%.0f/%.0f", samples_sum(&v->now, "tern_peer_up"),
			 links_of(v));
		LINE(s, "%-24.24s %9s %8s %9s %9s %9s %6.0f %9s", v->name, links,
		     short_bytes(samples_value(&v->now, "tern_memory_bytes", "kind=\"used\"", 0), memory),
		     short_number(rate_of(v, "tern_link_ops"), ops),
		     short_number(rate_of(v, "tern_link_messages_tx") + rate_of(v, "tern_link_messages_rx"),
				  messages),
		     short_bytes(moved(v), bytes), samples_value(&v->now, "tern_waits", NULL, 0),
		     short_time(samples_value(&v->now, "tern_longest_wait_seconds", NULL, 0), longest));
	}
}

static double quantile(const view *v, const char *operation, const char *q)
{
	char part[128];

	snprintf(part, sizeof(part), "operation=\"%s\",quantile=\"%s\"", operation, q);
	return samples_value(&v->now, "tern_latency_quantile_seconds", part, 0);
}

static void draw_operations(screen *s, const view *v, size_t n)
{
	LINE(s, "%s", "");
	LINE(s, "%-24s %-20s %9s %9s %9s %9s %9s", "PROCESS", "OPERATION", "PER S", "P50", "P99", "P99.9",
	     "LONGEST");
	for (size_t i = 0; i < n; i++, v++) {
		for (size_t k = 0; !v->why[0] && k < v->now.n; k++) {
			const sample *c = &v->now.row[k];
			char op[64], rate[16], p50[16], p99[16], p999[16], max[16];

			if (strcmp(c->name, "tern_latency_seconds_count") != 0)
				continue;
			sample_label(c, "operation", op, sizeof(op));
			LINE(s, "%-24.24s %-20s %9s %9s %9s %9s %9s", v->name, op,
			     short_number(samples_rate(&v->now, &v->before, c->value,
						       samples_value(&v->before, c->name, c->labels, 0)),
					  rate),
			     short_time(quantile(v, op, "0.5"), p50),
			     short_time(quantile(v, op, "0.99"), p99),
			     short_time(quantile(v, op, "0.999"), p999),
			     short_time(quantile(v, op, "1"), max));
		}
	}
}

static void draw_links(screen *s, const view *v, size_t n)
{
	LINE(s, "%s", "");
	LINE(s, "%-24s %-32s %-9s %-5s %9s %9s %9s", "PROCESS", "LINK TO", "TRANSPORT", "STATE", "FLIGHT",
	     "OPS/S", "RECOVERED");
	for (size_t i = 0; i < n; i++, v++) {
		for (size_t k = 0; !v->why[0] && k < v->now.n; k++) {
			const sample *u = &v->now.row[k];
			char peer[128], address[128], where[300], transport[32], link[32], part[48],
				flight[16], ops[16];

			if (strcmp(u->name, "tern_peer_up") != 0)
				continue;
			snprintf(where, sizeof(where), "%s %s", sample_label(u, "peer", peer, sizeof(peer)),
				 sample_label(u, "address", address, sizeof(address)));
			snprintf(part, sizeof(part), "link=\"%s\"",
				 sample_label(u, "link", link, sizeof(link)));
			LINE(s, "%-24.24s %-32.32s %-9s %-5s %9s %9s %9.0f", v->name, where,
			     sample_label(u, "transport", transport, sizeof(transport)),
			     u->value > 0 ? "up" : "down",
			     short_bytes(samples_value(&v->now, "tern_peer_in_flight_bytes", part, 0),
					 flight),
			     short_number(samples_rate(&v->now, &v->before,
						       samples_value(&v->now, "tern_peer_operations_total",
								     part, 0),
						       samples_value(&v->before, "tern_peer_operations_total",
								     part, 0)),
					  ops),
			     samples_value(&v->now, "tern_peer_recoveries_total", part, 0));
		}
	}
}

static void draw(screen *s, const view *all, size_t n, double seconds)
{
	struct winsize size;
	time_t now = time(NULL);
	char clock[16];

	s->line = 0;
	s->rows = s->live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
	strftime(clock, sizeof(clock), "%H:%M:%S", localtime(&now));
	if (s->live)
		printf("\033[H");
	LINE(s, "tern top - %s, %zu process%s, every %.1f s%s", clock, n, n == 1 ? "" : "es", seconds,
	     s->live ? "; Ctrl-C ends" : "");
	LINE(s, "%s", "");
	draw_processes(s, all, n);
	draw_operations(s, all, n);
	draw_links(s, all, n);
	if (s->live)
		printf("\033[J");
	fflush(stdout);
}

/* ---- the command ---- */

static void nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)},
		  NULL);
}

static int watch(view *all, size_t n, uint64_t interval_ns, uint64_t count)
{
	screen s = {.live = isatty(STDOUT_FILENO) && count == 0};
	size_t silent = 0;

	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	for (size_t i = 0; i < n; i++)
		look(&all[i]);
	if (s.live)
		printf("\033[?1049h\033[?25l"); /* a screen of its own, no cursor */
	for (uint64_t turn = 0; !stopped && (count == 0 || turn < count); turn++) {
		nap(interval_ns);
		if (stopped)
			break;
		silent = 0;
		for (size_t i = 0; i < n; i++) {
			look(&all[i]);
			silent += all[i].why[0] != '\0';
		}
		draw(&s, all, n, (double)interval_ns * 1e-9);
	}
	if (s.live)
		printf("\033[?25h\033[?1049l");
	return silent == n ? 1 : 0;
}

static const arg_usage usage = {
	.command = "tern top",
	.summary = "processes live: links, memory, operations per second and how long they take",
	.synopsis = "tern top [--interval TIME] [--count N] [HOST:PORT...]",
	.epilogue = "HOST:PORT is what a process listens on by --http (default 127.0.0.1:" PEEK_PORT ").\n"
		    "Percentiles are of all operations since the process began to record.\n"
		    "With --count, or if the output is no terminal, each turn is printed below the last.",
	.positional_max = PEEK_MAX,
};

int cmd_top(int argc, char **argv)
{
	const char *addresses[PEEK_MAX] = {0};
	static view all[PEEK_MAX];
	uint64_t interval_ns = UINT64_C(1000000000), count = 0;
	const arg_row rows[] = {
		{"interval", ARG_SECONDS, &interval_ns, "TIME", "between two looks (default 1)", 10000000,
		 UINT64_C(3600000000000), false, NULL},
		{"count", ARG_U64, &count, "N", "end after so many turns (default: at Ctrl-C)", 1, 0, false,
		 NULL},
		{0},
	};
	int rc = args_parse(&usage, rows, argc, argv, addresses);
	size_t n;

	if (rc >= 0)
		return rc;
	n = peek_addresses(addresses);
	for (size_t i = 0; i < n; i++)
		all[i].http = addresses[i];
	rc = watch(all, n, interval_ns, count);
	for (size_t i = 0; i < n; i++) {
		samples_free(&all[i].now);
		samples_free(&all[i].before);
	}
	return rc;
}
