/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of torch_test.py that runs here: trains a built-in model on data from files and writes down its
 * losses, with every device of the plan a thread joined by the local transfer.
 *
 *   oracle DIR key=value...   model, steps, batch (of all workers), workers, servers, comm (number), length,
 *                             optimizer, lr, lr_end, lr_steps, momentum, weight_decay, epsilon, clip_norm,
 *                             clip_value, evaluate
 *
 * DIR has one file per input port, PORT.bin: steps * batch rows in the port's dtype. It gets initial.bin and,
 * without servers, which may have variables in parts, final.bin (all variables in order, f32), variables.txt (name and dims of each) and losses.bin (f32 per
 * worker and step). With evaluate=N the trained model is then used (tern_program) on the first N rows: probs.bin.
 *
 * Threads: one per device.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec.h"

typedef struct file {
	char *data;
	uint64_t bytes;
} file;

typedef struct job {
	const char *dir;
	tern_graph *model;
	tern_plan_params params;
	tern_plan *plan;
	uint64_t steps, batch, evaluate;
	file ports[8]; /* per port of the model */
	float *losses; /* [worker][step] */
} job;

typedef struct device {
	job *job;
	uint32_t number;
	tn_xfer *xfer;
	tn_exec *exec;
	tern_status status;
	char detail[512];
} device;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "oracle: %s: %s\n", what, tern_detail());
	exit(1);
}

static FILE *open_file(const job *j, const char *name, const char *mode)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", j->dir, name);
	f = fopen(path, mode);
	if (!f) {
		perror(path);
		exit(1);
	}
	return f;
}

static void read_ports(job *j)
{
	for (uint32_t i = 0; i < j->model->n_ports && i < 8; i++) {
		char name[256];
		long size;
		FILE *f;

		if (!j->model->ports[i].is_input)
			continue;
		snprintf(name, sizeof(name), "%s.bin", j->model->ports[i].name);
		f = open_file(j, name, "rb");
		fseek(f, 0, SEEK_END);
		size = ftell(f);
		rewind(f);
		j->ports[i].bytes = (uint64_t)size;
		j->ports[i].data = malloc((size_t)size + 1);
		if (!j->ports[i].data || fread(j->ports[i].data, 1, (size_t)size, f) != (size_t)size)
			die(name);
		fclose(f);
	}
}

/* ---- variables ---- */

static void write_initial(const job *j)
{
	FILE *list = open_file(j, "variables.txt", "w"), *values = open_file(j, "initial.bin", "wb");

	for (uint32_t i = 0; i < j->model->n_nodes; i++) {
		const tn_node *n = &j->model->nodes[i];
		const tern_shape *s;
		uint64_t elements = 1;
		float *data;

		if (n->op != TN_OP_VARIABLE)
			continue;
		s = &j->model->tensors[n->out[0]].shape;
		fprintf(list, "%s", n->name);
		for (uint32_t d = 0; d < s->rank; d++) {
			fprintf(list, " %llu", (unsigned long long)s->dims[d]);
			elements *= s->dims[d];
		}
		fprintf(list, "\n");
		data = calloc(elements + 1, sizeof(*data));
		if (!data)
			die("memory");
		tn_init_fill(&n->init, n->name, s, data);
		fwrite(data, sizeof(*data), elements, values);
		free(data);
	}
	fclose(list);
	fclose(values);
}

static void write_final(const job *j, const device *devices, uint32_t n)
{
	FILE *values = open_file(j, "final.bin", "wb");

	for (uint32_t i = 0; i < j->model->n_nodes; i++) {
		tn_fetched f;
		uint32_t d = 0;

		if (j->model->nodes[i].op != TN_OP_VARIABLE)
			continue;
		while (d < n && tn_exec_variable(devices[d].exec, j->model->nodes[i].name, &f) != TERN_OK)
			d++;
		if (d == n)
			die(j->model->nodes[i].name);
		fwrite(f.data, 1, f.bytes, values);
	}
	fclose(values);
}

/* ---- the trained model in use ---- */

static void give_variables(const job *j, const device *devices, uint32_t n, tern_program *program)
{
	for (uint32_t i = 0; i < j->model->n_nodes; i++) {
		const char *name = j->model->nodes[i].name;
		tn_fetched f;

		for (uint32_t d = 0; d < n && j->model->nodes[i].op == TN_OP_VARIABLE; d++)
			if (tn_exec_variable(devices[d].exec, name, &f) == TERN_OK &&
			    tern_program_set(program, name, f.data, f.bytes) != TERN_OK)
				die(name);
	}
}

static void evaluate(const job *j, const device *devices, uint32_t n)
{
	const char *output = "probs";
	tern_program_params params = {.sizes = &(tern_size){"batch", j->evaluate},
				      .n_sizes = 1,
				      .outputs = &output,
				      .n_outputs = 1};
	tern_program *program;
	tern_value_info info;
	uint64_t bytes = sizeof(float);
	FILE *f = open_file(j, "probs.bin", "wb");
	float *probs;

	if (tern_program_create(j->model, &params, &program) != TERN_OK)
		die("program");
	give_variables(j, devices, n, program);
	for (uint32_t i = 0; i < j->model->n_ports && i < 8; i++)
		if (j->model->ports[i].is_input &&
		    tern_program_feed(program, j->model->ports[i].name, j->ports[i].data,
				      j->ports[i].bytes / (j->steps * j->batch) * j->evaluate) != TERN_OK)
			die("feed");
	if (tern_program_run(program) != TERN_OK || tern_program_port(program, output, 0, &info) != TERN_OK)
		die("run");
	for (uint32_t i = 0; i < info.shape.rank; i++)
		bytes *= info.shape.dims[i];
	probs = malloc(bytes);
	if (!probs || tern_program_fetch(program, output, probs, bytes) != TERN_OK)
		die("fetch");
	fwrite(probs, 1, bytes, f);
	fclose(f);
	free(probs);
	tern_program_destroy(program);
}

/* ---- devices ---- */

static tern_status feed(device *d, uint32_t worker, uint64_t step)
{
	job *j = d->job;
	uint64_t rows = j->batch / j->params.workers;

	for (uint32_t i = 0; i < j->model->n_ports && i < 8; i++) {
		uint64_t row = j->ports[i].bytes / (j->steps * j->batch);

		if (!j->model->ports[i].is_input)
			continue;
		TN_TRY(tn_exec_feed(d->exec, TN_PROG_TRAIN, j->model->ports[i].name,
				    j->ports[i].data + (step * j->batch + worker * rows) * row, rows * row));
	}
	return TERN_OK;
}

static tern_status run_device(device *d)
{
	const tn_device *dev = &d->job->plan->devices[d->number];
	uint64_t steps = d->job->steps;

	TN_TRY(tn_exec_start(d->exec, TN_TIME_NEVER));
	if (dev->role == TERN_ROLE_SERVER)
		TN_TRY(tn_exec_run(d->exec, steps, TN_TIME_NEVER));
	for (uint64_t s = 0; s < steps && dev->role != TERN_ROLE_SERVER; s++) {
		tn_fetched f;

		TN_TRY(feed(d, dev->index, s));
		TN_TRY(tn_exec_step(d->exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		TN_TRY(tn_exec_fetch(d->exec, TN_PROG_TRAIN, "loss", &f));
		memcpy(&d->job->losses[dev->index * steps + s], f.data, sizeof(float));
	}
	return tn_exec_drain(d->exec, TN_TIME_NEVER);
}

static void *device_main(void *arg)
{
	device *d = arg;

	d->status = run_device(d);
	snprintf(d->detail, sizeof(d->detail), "%s", tern_detail());
	return NULL;
}

static void run(job *j)
{
	uint32_t n = tern_plan_devices(j->plan);
	tn_exec_params params = {.batch = j->batch / j->params.workers};
	device devices[32] = {{0}};
	pthread_t threads[32];
	tn_local_hub *hub;
	FILE *f;

	if (n > 32 || tn_local_hub_create(&(tn_local_params){.devices = n}, &hub) != TERN_OK)
		die("hub");
	for (uint32_t i = 0; i < n; i++) {
		devices[i] = (device){.job = j, .number = i};
		if (tn_local_open(hub, i, &devices[i].xfer) != TERN_OK ||
		    tn_exec_create(j->plan, i, devices[i].xfer, &params, &devices[i].exec) != TERN_OK)
			die("executor");
	}
	for (uint32_t i = 0; i < n; i++) {
		if (pthread_create(&threads[i], NULL, device_main, &devices[i]) != 0)
			die("thread");
	}
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < n; i++) {
		if (devices[i].status != TERN_OK) {
			fprintf(stderr, "oracle: %s: %s\n", j->plan->devices[i].name, devices[i].detail);
			exit(1);
		}
	}
	if (j->params.servers == 0)
		write_final(j, devices, n);
	if (j->evaluate)
		evaluate(j, devices, n);
	f = open_file(j, "losses.bin", "wb");
	fwrite(j->losses, sizeof(float), j->params.workers * j->steps, f);
	fclose(f);
	for (uint32_t i = 0; i < n; i++) {
		tn_exec_destroy(devices[i].exec);
		devices[i].xfer->ops->close(devices[i].xfer);
	}
	tn_local_hub_destroy(hub);
}

/* ---- the command line ---- */

static const char *value_of(int argc, char **argv, const char *key, const char *dflt)
{
	size_t n = strlen(key);

	for (int i = 2; i < argc; i++) {
		if (strncmp(argv[i], key, n) == 0 && argv[i][n] == '=')
			return argv[i] + n + 1;
	}
	return dflt;
}

static float real(int argc, char **argv, const char *key)
{
	return strtof(value_of(argc, argv, key, "0"), NULL);
}

static tern_optimizer optimizer_of(int argc, char **argv)
{
	static const char *const names[] = {"sgd", "momentum", "adagrad", "adam", "rmsprop"};
	const char *name = value_of(argc, argv, "optimizer", "sgd");
	tern_optimizer o = {.lr = real(argc, argv, "lr"),
			    .lr_end = real(argc, argv, "lr_end"),
			    .lr_steps = strtoull(value_of(argc, argv, "lr_steps", "0"), NULL, 10),
			    .momentum = real(argc, argv, "momentum"),
			    .weight_decay = real(argc, argv, "weight_decay"),
			    .epsilon = real(argc, argv, "epsilon"),
			    .clip_norm = real(argc, argv, "clip_norm"),
			    .clip_value = real(argc, argv, "clip_value")};

	for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i], name) == 0)
			o.kind = (tern_optimizer_kind)i;
	}
	return o;
}

int main(int argc, char **argv)
{
	tern_model_params model = {.seed = 3};
	job j = {0};

	if (argc < 2)
		return 2;
	j.dir = argv[1];
	j.steps = strtoull(value_of(argc, argv, "steps", "50"), NULL, 10);
	j.batch = strtoull(value_of(argc, argv, "batch", "16"), NULL, 10);
	j.evaluate = strtoull(value_of(argc, argv, "evaluate", "0"), NULL, 10);
	j.params = (tern_plan_params){
		.servers = (uint32_t)strtoul(value_of(argc, argv, "servers", "0"), NULL, 10),
		.workers = (uint32_t)strtoul(value_of(argc, argv, "workers", "1"), NULL, 10),
		.sync = 1,
		.comm = (tern_comm)strtoul(value_of(argc, argv, "comm", "0"), NULL, 10),
		.optimizer = optimizer_of(argc, argv)};
	model.steps = strtoull(value_of(argc, argv, "length", "0"), NULL, 10);
	model.inputs = strtoull(value_of(argc, argv, "inputs", "0"), NULL, 10);
	model.classes = strtoull(value_of(argc, argv, "classes", "0"), NULL, 10);
	if (tern_graph_model(value_of(argc, argv, "model", "mlp"), &model, &j.model) != TERN_OK ||
	    tern_plan_create(j.model, &j.params, &j.plan) != TERN_OK)
		die("plan");
	j.losses = calloc(j.params.workers * j.steps, sizeof(float));
	if (!j.losses)
		die("memory");
	read_ports(&j);
	write_initial(&j);
	run(&j);
	for (uint32_t i = 0; i < 8; i++)
		free(j.ports[i].data);
	free(j.losses);
	tern_plan_destroy(j.plan);
	tern_graph_destroy(j.model);
	return 0;
}
