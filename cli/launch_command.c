/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the launcher tells a process: the command line of `tern train --role`, from the options of the job.
 * Threads: main. Tests: tests/e2e/train_test.py, optimizer and data options there.
 */
#include <stdarg.h>
#include <stdio.h>

#include "commands.h"
#include "launch.h"

static void add(command_line *c, const char *option, const char *value)
{
	c->argv[c->count++] = option;
	if (value)
		c->argv[c->count++] = value;
	c->argv[c->count] = NULL;
}

__attribute__((format(printf, 3, 4))) static void addf(command_line *c, const char *option, const char *fmt,
						       ...)
{
	char *value = c->text + c->used;
	va_list args;

	va_start(args, fmt);
	c->used += (size_t)vsnprintf(value, sizeof(c->text) - c->used, fmt, args) + 1;
	va_end(args);
	add(c, option, value);
}

static void add_real(void *c, const char *option, double value)
{
	addf(c, option, "%.17g", value);
}

static void add_data(command_line *c, const train_options *o)
{
	if (train_models[o->model].data == TRAIN_IMAGES) {
		add(c, "--data", o->data);
		return;
	}
	if (o->text)
		add(c, "--text", o->text);
	addf(c, "--length", "%llu", (unsigned long long)o->length);
	if (o->unit == UNIT_WORD)
		add(c, "--unit", "word");
	if (o->unit == UNIT_WORD || train_models[o->model].data == TRAIN_PAIRS)
		addf(c, "--vocabulary", "%llu", (unsigned long long)o->vocabulary);
}

static void add_options(command_line *c, const launch *l)
{
	const train_options *o = l->options;

	add(c, "--model", model_names[o->model]);
	if (o->hidden)
		add(c, "--hidden", o->hidden);
	if (l->features)
		addf(c, "--features", "%llu", (unsigned long long)l->features);
	addf(c, "--classes", "%llu", (unsigned long long)l->classes);
	addf(c, "--servers", "%llu", (unsigned long long)o->servers);
	addf(c, "--workers", "%llu", (unsigned long long)o->workers);
	addf(c, "--model-parallel", "%llu", (unsigned long long)o->stages);
	addf(c, "--micro-batches", "%llu", (unsigned long long)o->micro);
	addf(c, "--batch", "%llu", (unsigned long long)o->batch);
	addf(c, "--steps", "%llu", (unsigned long long)l->steps);
	addf(c, "--seed", "%llu", (unsigned long long)o->seed);
	addf(c, "--kernel-threads", "%llu", (unsigned long long)o->kernel_threads);
	add(c, "--transport", transport_names[o->transport]);
	add(c, "--comm", comm_names[o->comm]);
	add_data(c, o);
	if (o->save)
		add(c, "--save", o->save);
	if (o->save_every)
		addf(c, "--save-every", "%llu", (unsigned long long)o->save_every);
	if (o->resume) {
		add(c, "--resume", o->resume);
		addf(c, "--first-step", "%llu", (unsigned long long)l->first_step);
	}
	if (o->trace)
		add(c, "--trace", o->trace);
	if (o->profile)
		add(c, "--profile", NULL);
	add(c, "--optimizer", optimizer_names[o->optimizer]);
	train_optimizer_options(o, add_real, c);
	addf(c, "--timeout", "%.3f", (double)o->timeout_ns * 1e-9);
	if (o->sync)
		add(c, "--sync", NULL);
	if (train_stale(o)) {
		add(c, "--consistency", "ssp");
		addf(c, "--staleness", "%u", train_stale(o));
	}
	if (o->sparse)
		add(c, "--sparse", NULL);
	if (o->spin)
		add(c, "--spin", NULL);
	if (o->no_comm)
		add(c, "--no-comm", NULL);
	if (o->no_eval)
		add(c, "--no-eval", NULL);
}

void launch_command(const launch *l, const proc *p, const char *cluster, command_line *c)
{
	*c = (command_line){.count = 0};
	add(c, "tern", "train");
	add(c, "--role", p->is_worker ? "worker" : "server");
	addf(c, "--index", "%u", p->index);
	if (p->stage)
		addf(c, "--stage", "%u", p->stage);
	add(c, "--report-fd", "3");
	add_options(c, l);
	if (!p->is_worker || p->stage + 1 < l->options->stages)
		add(c, "--listen", "127.0.0.1:0");
	if (cluster[0] && !l->options->no_comm)
		add(c, "--cluster", cluster);
}
