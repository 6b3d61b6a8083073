/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one process of a job over hosts leaves behind: its losses in a file, its figures and counters as JSON.
 * The launcher of a local job collects the same from its processes and writes them itself (launch.c).
 * Threads: main. Tests: tests/e2e/train_test.py, hosts_test.py.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "json.h"
#include "train.h"

static bool failed(train_output *out, const train_options *o, int error)
{
	if (!out->failed)
		fprintf(stderr, "tern train: cannot write --losses %s: %s\n", o->losses, strerror(error));
	out->failed = true;
	return false;
}

bool output_open(train_output *out, const train_options *o)
{
	if (!o->losses || report_to_launcher())
		return true;
	out->losses = fopen(o->losses, "we");
	return out->losses || failed(out, o, errno);
}

void output_loss(train_output *out, uint64_t step, double loss)
{
	if (out->losses) /* an error stays in the stream until the close */
		fprintf(out->losses, "%llu %a\n", (unsigned long long)step, loss);
}

bool output_close(train_output *out, const train_options *o)
{
	FILE *file = out->losses;
	bool bad;

	if (!file)
		return !out->failed;
	out->losses = NULL;
	errno = 0;
	bad = ferror(file) != 0;
	bad |= fclose(file) != 0;
	return !bad || failed(out, o, errno ? errno : EIO);
}

static void add_counter(const char *name, uint64_t value, void *arg)
{
	if (value)
		json_u64(arg, name, value);
}

void output_json(const train_options *o, const char *name, const train_job *job, tern_session *session,
		 tern_ctx *ctx, const train_share *share)
{
	tern_session_stats s;
	json j;

	tern_session_stats_get(session, &s);
	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "name", name);
	json_string(&j, "model", model_names[o->model]);
	json_u64(&j, "parameters", job->parameters);
	json_u64(&j, "steps", share->steps);
	json_real(&j, "seconds", share->seconds);
	json_real(&j, "loss", o->role == ROLE_WORKER ? share->loss : NAN);
	json_real(&j, "accuracy", share->rows ? (double)share->correct / (double)share->rows : NAN);
	if (train_models[o->model].data != TRAIN_IMAGES) {
		json_real(&j, "perplexity", train_perplexity(share->nll, share->rows));
		json_real(&j, "train_perplexity", train_perplexity(share->train_nll, share->train_rows));
	}
	json_u64(&j, "bytes", s.bytes_sent);
	json_u64(&j, "tensors_sent", s.tensors_sent);
	json_u64(&j, "tensors_received", s.tensors_received);
	json_u64(&j, "writes", s.writes);
	json_u64(&j, "copies", s.copies);
	json_u64(&j, "copy_bytes", s.copy_bytes);
	json_u64(&j, "staging_copies", ctx ? tern_ctx_counter(ctx, "mem.staging_copies") : 0);
	json_real(&j, "comm_seconds", (double)(s.comm_ns + s.wait_ns) * 1e-9);
	json_real(&j, "compute_seconds", (double)s.compute_ns * 1e-9);
	json_string(&j, "transport", tern_session_transport(session));
	json_object(&j, "counters"); /* of the process's whole life, start and end included */
	if (ctx)
		tern_ctx_counters(ctx, add_counter, &j);
	json_object_end(&j);
	json_object_end(&j);
	putchar('\n');
	fflush(stdout);
}
