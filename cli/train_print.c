/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern train` on one host, as its user sees it: runs the job and says what came of it, in words or --json.
 * Threads: main. Tests: tests/e2e/train_test.py.
 */
#include <math.h>
#include <stdio.h>

#include "commands.h"
#include "json.h"
#include "train.h"

const char *train_rows_of(const train_options *o)
{
	return train_models[o->model].data == TRAIN_IMAGES ? "images" : "rows";
}

static void print_json(const train_options *o, const train_result *r)
{
	json j;

	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "model", model_names[o->model]);
	json_u64(&j, "parameters", r->parameters);
	json_real(&j, "loss", r->loss);
	json_real(&j, "accuracy", r->accuracy);
	if (train_models[o->model].data != TRAIN_IMAGES) {
		json_real(&j, "perplexity", r->perplexity);
		json_real(&j, "train_perplexity", r->train_perplexity);
	}
	json_u64(&j, "steps", r->steps);
	json_u64(&j, "failures", r->failures);
	json_real(&j, "seconds", r->seconds);
	json_real(&j, "steps_per_s", r->steps_per_s);
	json_real(&j, "images_per_s", r->images_per_s);
	json_u64(&j, "bytes", r->bytes);
	json_u64(&j, "copies", r->copies);
	json_u64(&j, "copy_bytes", r->copy_bytes);
	json_u64(&j, "staging_copies", r->staging_copies);
	json_u64(&j, "writes", r->writes);
	json_real(&j, "comm_seconds", r->comm_seconds);
	json_real(&j, "compute_seconds", r->compute_seconds);
	json_real(&j, "step_seconds", r->step_seconds);
	json_real(&j, "cpu_seconds", r->cpu_seconds);
	json_string(&j, "transport", r->transport);
	if (r->straggler[0]) {
		json_object(&j, "straggler");
		json_string(&j, "name", r->straggler);
		json_real(&j, "waited_seconds", r->straggler_seconds);
		json_object_end(&j);
	}
	json_object(&j, "options");
	json_string(&j, "data",
		    train_models[o->model].data == TRAIN_IMAGES ? o->data
		    : o->text                                   ? o->text
								: "");
	if (train_models[o->model].data != TRAIN_IMAGES)
		json_u64(&j, "length", o->length);
	if (o->hidden)
		json_string(&j, "hidden", o->hidden);
	json_u64(&j, "servers", o->servers);
	json_u64(&j, "workers", o->workers);
	if (o->stages > 1)
		json_u64(&j, "model_parallel", o->stages);
	if (o->micro > 1)
		json_u64(&j, "micro_batches", o->micro);
	json_u64(&j, "batch", o->batch);
	json_u64(&j, "epochs", o->steps ? 0 : o->epochs);
	json_string(&j, "transport", transport_names[o->transport]);
	json_string(&j, "comm", comm_names[o->comm]);
	json_bool(&j, "sync", o->sync);
	if (o->sparse)
		json_bool(&j, "sparse", true);
	json_u64(&j, "seed", o->seed);
	json_string(&j, "optimizer", optimizer_names[o->optimizer]);
	json_u64(&j, "kernel_threads", o->kernel_threads);
	json_bool(&j, "spin", o->spin);
	json_bool(&j, "no_comm", o->no_comm);
	json_object_end(&j);
	json_object_end(&j);
	putchar('\n');
}

int train_launch(const train_options *o, const char *self)
{
	train_result r;
	int status;

	(void)self;
	train_run(o, self_path(), model_names[o->model], &r, &status);
	if (!r.ok)
		return status;
	if (o->json) {
		print_json(o, &r);
	} else {
		printf("%s: %llu steps in %.1f s (%.1f steps/s, %.0f %s/s), loss %.4f", model_names[o->model],
		       (unsigned long long)r.steps, r.seconds, r.steps_per_s, r.images_per_s,
		       train_rows_of(o), r.loss);
		if (!isnan(r.perplexity))
			printf(", perplexity %.3f, of what was held out %.3f", r.train_perplexity,
			       r.perplexity);
		else if (!isnan(r.accuracy))
			printf(", test accuracy %.2f %%", 100 * r.accuracy);
		printf("\n%s over %s: %.1f MiB moved, %llu copies (%.1f MiB), %.2f s of communication per "
		       "%s\n",
		       comm_names[o->comm], r.transport, (double)r.bytes / 1048576,
		       (unsigned long long)r.copies, (double)r.copy_bytes / 1048576, r.comm_seconds,
		       o->stages > 1 ? "stage" : "worker");
		if (r.straggler[0])
			printf("servers waited longest for %s: %.2f s\n", r.straggler, r.straggler_seconds);
	}
	return status;
}
