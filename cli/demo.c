/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern demo`: the tour. Trains the mlp on Fashion-MNIST with 2 servers and 2 workers to its test accuracy,
 * then runs fcn5 for a few steps in each way of communication and prints one table.
 *
 * Exposed communication of a mode = its time per step minus that of the same step with all transfers stubbed.
 * Threads: main.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "train.h"

static const train_optimizer_given none; /* of the options of optimisers */

typedef struct mode {
	const char *name;
	unsigned comm, transport;
	bool no_comm;
} mode;

static const mode modes[] = {
	{"no communication", TERN_COMM_ZEROCOPY, TRANSPORT_AUTO, true},
	{"zerocopy over shm", TERN_COMM_ZEROCOPY, TRANSPORT_SHM, false},
	{"copy over shm", TERN_COMM_COPY, TRANSPORT_SHM, false},
	{"rpc over shm", TERN_COMM_RPC, TRANSPORT_SHM, false},
	{"zerocopy over tcp", TERN_COMM_ZEROCOPY, TRANSPORT_TCP, false},
	{"copy over tcp", TERN_COMM_COPY, TRANSPORT_TCP, false},
	{"rpc over tcp", TERN_COMM_RPC, TRANSPORT_TCP, false},
};
#define MODES (sizeof(modes) / sizeof(modes[0]))

static int train_first(const train_options *base, uint64_t epochs)
{
	train_options o = *base;
	train_result r;
	int status;

	o.epochs = epochs;
	o.sync = true;
	printf("Training a fully connected network on Fashion-MNIST: %llu parameter servers, %llu workers, "
	       "%llu epochs.\n",
	       (unsigned long long)o.servers, (unsigned long long)o.workers, (unsigned long long)o.epochs);
	fflush(stdout);
	train_optimizer_check(&o, &none);
	train_run(&o, self_path(), "mlp", &r, &status);
	if (status != 0)
		return status;
	printf("  %llu steps in %.1f s, %.0f images/s, loss %.4f, test accuracy %.2f %%\n\n",
	       (unsigned long long)r.steps, r.seconds, r.images_per_s, r.loss, 100 * r.accuracy);
	return 0;
}

static void print_row(const mode *m, const train_result *r, const train_result *rpc_tcp, double bare_step)
{
	double step = r->seconds / (double)r->steps;
	char exposed[32] = "-";

	if (!m->no_comm)
		snprintf(exposed, sizeof(exposed), "%.3f", fmax(step - bare_step, 0));
	printf("  %-18s %9.2f %7.2fx %12.1f %9llu %12.1f %12s\n", m->name, r->steps_per_s,
	       r->steps_per_s / rpc_tcp->steps_per_s, (double)r->bytes / 1048576 / (double)r->steps,
	       (unsigned long long)(r->copies / r->steps), (double)r->copy_bytes / 1048576 / (double)r->steps,
	       exposed);
}

static int compare(const train_options *base, uint64_t steps)
{
	train_result results[MODES];
	double bare_step;
	int status;

	printf("The same job as fcn5 (53.6 million parameters, 204 MiB) for %llu steps in each mode:\n",
	       (unsigned long long)steps);
	fflush(stdout);
	for (unsigned i = 0; i < MODES; i++) {
		train_options o = *base;

		o.model = 1;
		o.sync = true;
		o.no_eval = true;
		o.batch = 8;
		o.steps = steps;
		o.comm = modes[i].comm;
		o.transport = modes[i].transport;
		o.no_comm = modes[i].no_comm;
		train_optimizer_check(&o, &none);
		train_run(&o, self_path(), modes[i].name, &results[i], &status);
		if (status != 0)
			return status;
	}
	bare_step = results[0].seconds / (double)results[0].steps;
	printf("\n  %-18s %9s %8s %12s %9s %12s %12s\n", "mode", "steps/s", "ratio", "MiB/step", "copies",
	       "copied MiB", "comm s/step");
	for (unsigned i = 0; i < MODES; i++)
		print_row(&modes[i], &results[i], &results[MODES - 1], bare_step);
	printf("\n  ratio: steps/s against rpc over tcp. copies: passes over a tensor in memory beyond the "
	       "one write\n"
	       "  that moves it, per step, all processes. comm: time of a step minus that without "
	       "communication.\n");
	return 0;
}

int cmd_demo(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern demo",
		.summary = "the tour: train, compare the ways of communication, sum up",
		.synopsis = "tern demo [--epochs E] [--steps N] [--data DIR]",
	};
	uint64_t epochs = 8, steps = 10;
	train_options o;
	int rc;

	train_defaults(&o);
	const arg_row rows[] = {
		{"epochs", ARG_U64, &epochs, "E", "of the first training (8)", 1, 1000, false, NULL},
		{"steps", ARG_U64, &steps, "N", "of each comparison (10)", 1, 100000, false, NULL},
		{"data", ARG_STRING, &o.data, "DIR", "IDX files of Fashion-MNIST", 0, 0, false, NULL},
		{"quiet", ARG_FLAG, &o.quiet, NULL, "no progress", 0, 0, false, NULL},
		{0},
	};
	rc = args_parse(&usage, rows, argc, argv, NULL);
	if (rc >= 0)
		return rc;
	rc = train_first(&o, epochs);
	if (rc == 0)
		rc = compare(&o, steps);
	if (rc == 0)
		printf("\nNext:\n"
		       "  tern train --model mlp --epochs 10 --sync     every worker in step\n"
		       "  tern train --help                             a job over several hosts\n"
		       "  tern perf                                     latency and bandwidth beside the "
		       "physical limits\n"
		       "  tern info --config                            what this host can do, and every "
		       "option\n");
	return rc;
}
