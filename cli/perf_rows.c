/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf`: rows. Each puts an operation beside its limit, in pairs taken in turn (limit, tern, limit, tern,
 * ...); what is printed are medians over the pairs, and of a ratio the median of the pairs' own ratios with the
 * interval that holds the true median with 95 % by the sign test, whatever the distribution.
 *
 *            latency                              bandwidth
 *   shm      cache line one way + copy            copy
 *   tcp      plain TCP ping-pong                  plain TCP stream
 *   verbs    ib_write_lat, ib_send_lat, ...       ib_write_bw, ib_read_bw, ib_send_bw
 *
 * Threads: main. Tests: tests/e2e/perf_test.py.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "perf.h"

/* ---- statistics ---- */

typedef struct series { /* one figure per pair */
	double v[PERF_ROUNDS_MAX];
} series;

typedef struct spread {
	double median, low,
		high; /* of the 95 % interval; the extremes where there are too few pairs for one */
} spread;

typedef struct row {
	perf_op op;
	uint64_t bytes;
	double mean, p50, p99, limit_ns; /* ns, medians over the pairs */
	double rate, limit_rate;         /* bytes/ns; 0 = not measured */
	spread latency, bandwidth;       /* ratios */
	const char *latency_limit, *rate_limit;
} row;

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double quantile(double *values, unsigned n, double q)
{
	qsort(values, n, sizeof(*values), by_value);
	return n ? values[(unsigned)((double)(n - 1) * q + 0.5)] : 0;
}

/*
 * The median of n values lies between the k-th smallest and the k-th largest with 95 % at least: the largest
 * such k, from 1; 0 if n is too small even for the extremes.
 */
static unsigned sign_test_rank(unsigned n)
{
	double outside = 0, term = pow(0.5, n); /* term: exactly k of n values on one side */
	unsigned k = 0;

	while (k < n / 2 && 2 * (outside + term) <= 0.05) {
		outside += term;
		term = term * (n - k) / (k + 1);
		k++;
	}
	return k;
}

/* sorts */
static spread spread_of(series *s, unsigned n)
{
	double median = quantile(s->v, n, 0.5);
	unsigned k = sign_test_rank(n);

	k = k > 0 ? k - 1 : 0;
	return (spread){.median = median, .low = s->v[k], .high = s->v[n - 1 - k]};
}

/* ---- limits ---- */

/*
 * The limit lines need the target's core for their own processes: a spinning target is stopped meanwhile. Well
 * below the keepalive's bound.
 */
static double quiet(perf_bench *b, double (*measure)(limits *l, uint64_t bytes), uint64_t bytes)
{
	double value;

	if (b->o->spin)
		kill(b->target, SIGSTOP);
	value = measure(b->limits, bytes);
	if (b->o->spin)
		kill(b->target, SIGCONT);
	return value;
}

static double cache_line(limits *l, uint64_t bytes)
{
	(void)bytes;
	return limit_cache_line_ns(l);
}

/* perftest's tool for an operation. A flag is like a write, an immediate like a send. */
static const char *tool_of(const perf_bench *b, perf_op op, bool latency)
{
	static const char *const lat[] = {"ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_send_lat",
					  "ib_send_lat"};
	static const char *const bw[] = {"ib_write_bw", "ib_write_bw", "ib_read_bw", "ib_send_bw", ""};

	if (latency && op == PERF_PUT && !b->o->spin)
		return "ib_send_lat";
	return latency ? lat[op] : bw[op];
}

static double perftest(perf_bench *b, perf_op op, uint64_t bytes, bool latency)
{
	const char *tool = tool_of(b, op, latency);
	double value;

	if (b->o->spin)
		kill(b->target, SIGSTOP);
	value = latency ? perftest_latency_ns(b->o, tool, bytes) : perftest_rate(b->o, tool, bytes);
	if (b->o->spin)
		kill(b->target, SIGCONT);
	return value;
}

static double latency_limit(perf_bench *b, perf_op op, uint64_t bytes)
{
	double ns;

	if (b->kind == PERF_KIND_VERBS) {
		ns = perftest(b, op, bytes, true);
		return op == PERF_CALL ? 2 * ns : ns;
	}
	if (b->kind == PERF_KIND_TCP) {
		ns = quiet(b, limit_tcp_ns, bytes);
		return op == PERF_CALL || op == PERF_GET ? 2 * ns : ns;
	}
	ns = quiet(b, cache_line, 0);
	if (bytes > 64)
		ns += (double)bytes / quiet(b, limit_copy_rate, bytes);
	return op == PERF_CALL ? 2 * ns : ns;
}

static double rate_limit(perf_bench *b, perf_op op, uint64_t bytes)
{
	if (b->kind == PERF_KIND_VERBS)
		return perftest(b, op, bytes, false);
	return quiet(b, b->kind == PERF_KIND_SHM ? limit_copy_rate : limit_tcp_rate, bytes);
}

static const char *limit_name(const perf_bench *b, perf_op op, bool latency)
{
	if (b->kind == PERF_KIND_VERBS)
		return tool_of(b, op, latency);
	if (b->kind == PERF_KIND_TCP)
		return latency ? "plain TCP ping-pong" : "plain TCP stream";
	return latency ? "cache line one way + copy" : "copy between mapped segments";
}

/* ---- rows ---- */

typedef struct pairs {
	series mean, p50, p99, limit, latency, rate, rate_limit, bandwidth;
} pairs;

static void one_pair(perf_bench *b, const row *r, pairs *p, unsigned i, bool streams)
{
	double sum = 0;

	p->limit.v[i] = latency_limit(b, r->op, r->bytes);
	perf_sample(b, r->op, r->bytes);
	for (unsigned k = 0; k < b->count; k++)
		sum += b->samples[k];
	p->mean.v[i] = sum / b->count;
	p->p50.v[i] = quantile(b->samples, b->count, 0.5);
	p->p99.v[i] = quantile(b->samples, b->count, 0.99);
	p->latency.v[i] = p->p50.v[i] / p->limit.v[i];
	if (!streams)
		return;
	p->rate_limit.v[i] = rate_limit(b, r->op, r->bytes);
	p->rate.v[i] = perf_stream(b, r->op, r->bytes);
	p->bandwidth.v[i] = p->rate.v[i] / p->rate_limit.v[i];
}

static row measure(perf_bench *b, perf_op op, uint64_t bytes)
{
	bool streams = bytes >= 4096 && op != PERF_CALL;
	unsigned n = (unsigned)b->o->rounds;
	row r = {.op = op, .bytes = bytes, .latency_limit = limit_name(b, op, true)};
	pairs p;

	for (unsigned i = 0; i < n; i++)
		one_pair(b, &r, &p, i, streams);
	r.mean = quantile(p.mean.v, n, 0.5);
	r.p50 = quantile(p.p50.v, n, 0.5);
	r.p99 = quantile(p.p99.v, n, 0.5);
	r.limit_ns = quantile(p.limit.v, n, 0.5);
	r.latency = spread_of(&p.latency, n);
	if (streams) {
		r.rate_limit = limit_name(b, op, false);
		r.rate = quantile(p.rate.v, n, 0.5);
		r.limit_rate = quantile(p.rate_limit.v, n, 0.5);
		r.bandwidth = spread_of(&p.bandwidth, n);
	}
	return r;
}

/* ---- output ---- */

static const char *spread_text(const spread *s, char *text, size_t bytes)
{
	if (isnan(s->median))
		snprintf(text, bytes, "%6s %12s", "-", "");
	else
		snprintf(text, bytes, "%6.2f %5.2f to %4.2f", s->median, s->low, s->high);
	return text;
}

static void print_row(const row *r)
{
	char latency[48], bandwidth[48], rate[128] = "";

	if (r->rate > 0)
		snprintf(rate, sizeof(rate), "%10.1f %10.1f %s", r->rate * 1e9 / 1048576,
			 r->limit_rate * 1e9 / 1048576,
			 spread_text(&r->bandwidth, bandwidth, sizeof(bandwidth)));
	printf("%-6s %10llu  %10.3f %10.3f %10.3f  %10.3f %s  %s\n", perf_op_names[r->op],
	       (unsigned long long)r->bytes, r->mean * 1e-3, r->p50 * 1e-3, r->p99 * 1e-3, r->limit_ns * 1e-3,
	       spread_text(&r->latency, latency, sizeof(latency)), rate);
	fflush(stdout);
}

static void json_spread(json *j, const char *name, const spread *s)
{
	char key[64];

	json_real(j, name, s->median);
	snprintf(key, sizeof(key), "%s_low", name);
	json_real(j, key, s->low);
	snprintf(key, sizeof(key), "%s_high", name);
	json_real(j, key, s->high);
}

static void json_row(json *j, const row *r)
{
	json_object(j, NULL);
	json_string(j, "op", perf_op_names[r->op]);
	json_u64(j, "bytes", r->bytes);
	json_real(j, "mean_us", r->mean * 1e-3);
	json_real(j, "p50_us", r->p50 * 1e-3);
	json_real(j, "p99_us", r->p99 * 1e-3);
	json_string(j, "latency_limit", r->latency_limit);
	json_real(j, "limit_us", r->limit_ns * 1e-3);
	json_spread(j, "latency_ratio", &r->latency);
	if (r->rate > 0) {
		json_real(j, "bytes_per_s", r->rate * 1e9);
		json_string(j, "bandwidth_limit", r->rate_limit);
		json_real(j, "limit_bytes_per_s", r->limit_rate * 1e9);
		json_spread(j, "bandwidth_ratio", &r->bandwidth);
	}
	json_object_end(j);
}

static const char *limits_text(const perf_bench *b)
{
	return b->kind == PERF_KIND_SHM   ? "cache line one way + copy between mapped segments"
	       : b->kind == PERF_KIND_TCP ? "plain TCP"
	       : b->o->spin               ? "perftest, polling"
					  : "perftest, ib_send_lat by events, the others polling";
}

static void print_head(perf_bench *b, json *j)
{
	const perf_options *o = b->o;

	if (o->json) {
		json_object(j, NULL);
		json_string(j, "transport", tern_link_transport(b->link));
		json_string(j, "mode", o->spin ? "spin" : "block");
		json_u64(j, "rounds", o->rounds);
		json_array(j, "rows");
		return;
	}
	printf("transport %s (%s), %s, medians of %llu pairs; limit: %s\n", tern_link_transport(b->link),
	       tern_link_transport_reason(b->link), o->spin ? "spin" : "block", (unsigned long long)o->rounds,
	       limits_text(b));
	printf("%-6s %10s  %10s %10s %10s  %10s %6s %13s  %10s %10s %6s %13s\n", "op", "bytes", "mean us",
	       "p50 us", "p99 us", "limit us", "ratio", "95 %", "MiB/s", "limit", "ratio", "95 %");
}

static void measure_all(perf_bench *b, json *j)
{
	const perf_options *o = b->o;

	for (unsigned op = 0; op < PERF_OPS; op++)
		for (unsigned i = 0; i < o->size_count && o->ops[op]; i++) {
			row r;

			if (op == PERF_CALL && o->sizes[i] > TERN_RPC_INLINE_MAX)
				continue;
			r = measure(b, (perf_op)op, o->sizes[i]);
			if (o->json)
				json_row(j, &r);
			else
				print_row(&r);
		}
}

static void print_tail(perf_bench *b, json *j, double before, double after)
{
	const char *problem = b->kind == PERF_KIND_VERBS ? perftest_problem() : "";

	if (b->o->json) {
		json_array_end(j);
		json_real(j, "cache_line_before_us", before * 1e-3);
		json_real(j, "cache_line_after_us", after * 1e-3);
		if (problem[0])
			json_string(j, "no_limit", problem);
		json_object_end(j);
		putchar('\n');
		return;
	}
	if (problem[0])
		printf("no limit: %s\n", problem);
	printf("cache line one way: %.3f us before, %.3f us after%s\n", before * 1e-3, after * 1e-3,
	       fmax(before, after) > 1.5 * fmin(before, after) ? " (the cores moved: compare with care)"
							       : "");
}

void perf_rows(perf_bench *b)
{
	double before = quiet(b, cache_line, 0);
	json j;

	json_init(&j, stdout);
	print_head(b, &j);
	measure_all(b, &j);
	print_tail(b, &j, before, quiet(b, cache_line, 0));
}
