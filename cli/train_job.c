/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the options of a job to its graph and plan: a pure function, so that every process of a job comes to
 * the same plan by itself. Threads: main.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

uint64_t train_steps(const train_options *o, uint64_t rows)
{
	uint64_t per_step = o->batch * o->workers;

	if (rows && per_step > rows) {
		fprintf(stderr,
			"tern train: batch larger than the data: %llu workers x %llu rows, but %llu training "
			"rows;"
			" give a smaller --batch\n",
			(unsigned long long)o->workers, (unsigned long long)o->batch,
			(unsigned long long)rows);
		return 0;
	}
	return o->steps ? o->steps : rows / per_step * o->epochs;
}

static bool failed(const char *what)
{
	fprintf(stderr, "tern train: %s: %s\n", what, tern_detail());
	return false;
}

bool train_data_fits(const train_options *o, const dataset *set)
{
	if ((!o->features || set->features == o->features) && (!o->classes || set->classes == o->classes))
		return true;
	fprintf(stderr,
		"tern train: %s has rows of %llu numbers in %u classes, which is not what --features and "
		"--classes say (%llu, %llu)\n",
		o->data, (unsigned long long)set->features, set->classes,
		(unsigned long long)(o->features ? o->features : set->features),
		(unsigned long long)(o->classes ? o->classes : set->classes));
	return false;
}

/* FNV-1a: it tells mistakes apart, the shared secret keeps enemies out. */
static uint64_t hash(const char *text)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
	return h;
}

/* "16" or "256,128". */
static bool parse_hidden(const char *text, uint64_t *widths, uint32_t *count)
{
	const char *at = text;

	for (*count = 0; *count < TRAIN_HIDDEN_MAX; at++) {
		char *end;

		widths[*count] = strtoull(at, &end, 10);
		if (end == at || *at < '0' || *at > '9' || !widths[*count])
			break;
		++*count;
		at = end;
		if (!*at)
			return true;
		if (*at != ',')
			break;
	}
	fprintf(stderr, "tern train: --hidden %s: give 1 to %d widths, as in 256,128\n", text,
		TRAIN_HIDDEN_MAX);
	return false;
}

/* False: printed. */
static bool make_model(const train_options *o, const tern_model_params *params, tern_graph **graph)
{
	uint64_t widths[TRAIN_HIDDEN_MAX];
	tern_status status;
	uint32_t count;

	if (!o->hidden)
		status = tern_graph_model(model_names[o->model], params, graph);
	else if (parse_hidden(o->hidden, widths, &count))
		status = tern_graph_fully_connected(model_names[o->model], widths, count, params, graph);
	else
		return false;
	return status == TERN_OK || failed("cannot build the model");
}

uint32_t train_stale(const train_options *o)
{
	return o->consistency == 2 && !o->sync && o->servers ? (uint32_t)o->staleness : 0;
}

/* Two processes with different cookies would plan different transfers, initial values or learning rates. */
static void make_cookie(const train_options *o, const tern_model_params *model, const tern_plan_params *plan,
			train_job *job)
{
	const tern_optimizer *optim = &plan->optimizer;
	char text[1024];

	snprintf(
		text, sizeof(text),
		"%s %s %u %u %u %u %d %llu %llu %llu %llu %d %u %d %a %a %a %a %llu %d %llu %llu %a %a %a %a "
		"%a %a %llu",
		model_names[o->model], o->hidden ? o->hidden : "-", plan->servers, plan->workers,
		plan->stages, plan->micro_batches, o->sparse, (unsigned long long)o->batch,
		(unsigned long long)o->first_step, (unsigned long long)job->steps,
		(unsigned long long)o->seed, plan->sync != 0, plan->stale, (int)plan->comm, (double)optim->lr,
		(double)optim->lr_end, (double)optim->momentum, (double)optim->weight_decay,
		(unsigned long long)optim->lr_steps, (int)optim->kind, (unsigned long long)model->inputs,
		(unsigned long long)model->classes, (double)optim->beta1, (double)optim->beta2,
		(double)optim->rho, (double)optim->epsilon, (double)optim->clip_value,
		(double)optim->clip_norm, (unsigned long long)o->length);
	snprintf(job->cookie, sizeof(job->cookie), "tern train %016llx", (unsigned long long)hash(text));
}

bool train_job_create(const train_options *o, uint64_t rows, uint64_t features, unsigned classes,
		      train_job *job)
{
	tern_model_params model;
	tern_plan_params plan = {.servers = (uint32_t)o->servers,
				 .workers = (uint32_t)o->workers,
				 .sync = o->sync,
				 .comm = (tern_comm)o->comm,
				 .stale = train_stale(o),
				 .stages = (uint32_t)o->stages,
				 .micro_batches = (uint32_t)o->micro,
				 .sparse_bytes = o->sparse};
	tern_graph_info info;

	train_model_params(o, features, classes, &model);
	if (model.steps == TERN_STEPS_SYMBOLIC) {
		plan.dims[0].name = "steps";
		plan.dims[0].size = o->length;
		plan.dims[0].varies = 1;
	}
	memset(job, 0, sizeof(*job));
	job->steps = train_steps(o, rows);
	if (!job->steps) {
		if (!rows)
			fprintf(stderr, "tern train: servers of a job over hosts need --steps N\n");
		return false;
	}
	/* Asynchronous servers apply one update per worker and step. */
	plan.optimizer = train_optimizer(o, job->steps * (o->sync || !o->servers ? 1 : o->workers));
	/* Between stages rows travel: with a fixed number of them the edges are static. */
	if (o->stages > 1) {
		plan.dims[0].name = "batch";
		plan.dims[0].size = o->batch;
	}
	make_cookie(o, &model, &plan, job);
	job->features = features;
	job->classes = classes;
	if (!make_model(o, &model, &job->graph))
		return false;
	tern_graph_info_get(job->graph, &info);
	job->parameters = info.parameters;
	if (tern_plan_create(job->graph, &plan, &job->plan) != TERN_OK) {
		tern_graph_destroy(job->graph);
		job->graph = NULL;
		return failed("cannot plan the job");
	}
	return true;
}

typedef struct words {
	char *text;
	size_t bytes;
} words;

static void add_word(void *to, const char *option, double value)
{
	words *w = to;
	size_t used = strlen(w->text);

	snprintf(w->text + used, w->bytes - used, " %s %g", option, value);
}

void train_job_describe(const train_options *o, const train_job *job, char *text, size_t bytes)
{
	char optim[256] = "";

	train_optimizer_options(o, add_word, &(words){optim, sizeof(optim)});
	snprintf(text, bytes,
		 "--model %s%s%s --servers %llu --workers %llu --batch %llu --steps %llu --seed %llu --comm "
		 "%s --model-parallel %llu --micro-batches %llu --optimizer %s%s%s%s, %llu features, %llu "
		 "classes",
		 model_names[o->model], o->hidden ? " --hidden " : "", o->hidden ? o->hidden : "",
		 (unsigned long long)o->servers, (unsigned long long)o->workers, (unsigned long long)o->batch,
		 (unsigned long long)job->steps, (unsigned long long)o->seed, comm_names[o->comm],
		 (unsigned long long)o->stages, (unsigned long long)o->micro, optimizer_names[o->optimizer],
		 optim, o->sync ? " --sync" : "", o->sparse ? " --sparse" : "",
		 (unsigned long long)job->features, (unsigned long long)job->classes);
}

void train_job_destroy(train_job *job)
{
	tern_plan_destroy(job->plan);
	tern_graph_destroy(job->graph);
	memset(job, 0, sizeof(*job));
}
