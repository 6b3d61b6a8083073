/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern train`: the options, and whether this process is the launcher or a part of a job. Threads: main.
 * Tests: tests/e2e.
 */
#include "train.h"

#include <stdio.h>
#include <string.h>

#include <tern/ps.h>

#include "args.h"
#include "commands.h"
#include "models/train_tables.h"

#define FIRST_OF_TABLES 15u /* of model_names */
#define DLRM            16u

const char *const transport_names[] = {"auto", "shm", "tcp", "verbs", NULL};
const char *const comm_names[] = {"zerocopy", "copy", "rpc", "grpc", "none", NULL};

void train_defaults(train_options *options)
{
	*options = (train_options){.data = "/usr/share/datasets/fashion-mnist",
				   .servers = 2,
				   .workers = 2,
				   .stages = 1,
				   .micro = 1,
				   .batch = 64,
				   .epochs = 8,
				   .seed = 1,
				   .optimizer = TERN_OPTIMIZER_MOMENTUM,
				   .momentum = 0.9,
				   .kernel_threads = 1,
				   .timeout_ns = 60ull * 1000000000ull,
				   .report_fd = UINT64_MAX,
				   .dim = 64,
				   .window = 5,
				   .negative = 5,
				   .min_count = 5,
				   .staleness = 2,
				   .sample = 1e-3,
				   .skew = 1.1,
				   .samples = 500000,
				   .vocabulary = 10000};
}

/* One command line per process: its options and their table. */
static train_options o;
static bool steps_given, epochs_given, batch_given, dim_given, data_given, vocabulary_given;
static train_optimizer_given optimizer_given;
static const arg_row rows[] = {
	{"model", ARG_CHOICE, &o.model,
	 "mlp|fcn5|convnet|convnet_small|convnet_bn|lstm_small|gru_small|alexnet|vgg16|inception_v3|lstm|gru|"
	 "charlm|transformer|seq2seq|word2vec|dlrm",
	 "what to train (mlp)", 0, 0, false, NULL},
	{"hidden", ARG_STRING, &o.hidden, "W,W,...", "widths of the hidden layers, instead of the model's", 0,
	 0, false, NULL},
	{"data", ARG_STRING, &o.data, "DIR",
	 "IDX files of the data set (Fashion-MNIST of Debian), or `synthetic`: random rows", 0, 0, false,
	 &data_given},
	{"servers", ARG_U64, &o.servers, "S", "parameter servers (2); 0: one process alone", 0, 256, false,
	 NULL},
	{"workers", ARG_U64, &o.workers, "W", "workers (2)", 1, TERN_PLAN_WORKERS_MAX, false, NULL},
	{"model-parallel", ARG_U64, &o.stages, "N", "processes that each worker's model is split over (1)", 1,
	 TERN_DEVICES_MAX, false, NULL},
	{"micro-batches", ARG_U64, &o.micro, "M",
	 "pieces of a worker's rows that go through them in turn (1)", 1, 1024, false, NULL},
	{"batch", ARG_U64, &o.batch, "B", "rows per worker and step (64)", 1, 1u << 24, false, &batch_given},
	{"epochs", ARG_U64, &o.epochs, "E", "passes over the data (8)", 1, 1000000, false, &epochs_given},
	{"steps", ARG_U64, &o.steps, "N", "steps of each worker, instead of epochs", 1, 1u << 30, false,
	 &steps_given},
	{"transport", ARG_CHOICE, &o.transport, "auto|shm|tcp|verbs", "how tensors travel (auto)", 0, 0,
	 false, NULL},
	{"comm", ARG_CHOICE, &o.comm, "zerocopy|copy|rpc|grpc|none",
	 "one-sided writes, staged copies, calls, gRPC's calls, or order alone without bytes (zerocopy)", 0,
	 0, false, NULL},
	{"sync", ARG_FLAG, &o.sync, NULL, "average the workers' gradients in each step", 0, 0, false, NULL},
	{"sparse", ARG_FLAG, &o.sparse, NULL, "keep embeddings as rows of tables at the servers", 0, 0, false,
	 NULL},
	{"seed", ARG_U64, &o.seed, "N", "of initial values and data order (1)", 0, 0, false, NULL},
	{"lr", ARG_REAL, &o.lr, "X", "learning rate at the start; falls linearly to 1 % of it (by model)", 0,
	 0, false, NULL},
	{"optimizer", ARG_CHOICE, &o.optimizer, "sgd|momentum|adagrad|adam|rmsprop",
	 "how gradients change the variables (momentum)", 0, 0, false, &optimizer_given.optimizer},
	{"momentum", ARG_REAL, &o.momentum, "X", "of momentum (0.9; 0 = sgd) and rmsprop (0)", 0, 0, false,
	 &optimizer_given.momentum},
	{"beta1", ARG_REAL, &o.beta1, "X", "adam: what the mean of gradients keeps (0.9)", 0, 0, false,
	 &optimizer_given.beta1},
	{"beta2", ARG_REAL, &o.beta2, "X", "adam: what the mean of their squares keeps (0.999)", 0, 0, false,
	 &optimizer_given.beta2},
	{"rho", ARG_REAL, &o.rho, "X", "rmsprop: what the mean of squares keeps (0.9)", 0, 0, false,
	 &optimizer_given.rho},
	{"epsilon", ARG_REAL, &o.epsilon, "X", "adagrad (1e-10), adam, rmsprop (1e-8): below the line", 0, 0,
	 false, &optimizer_given.epsilon},
	{"weight-decay", ARG_REAL, &o.weight_decay, "X",
	 "so much of each variable is added to its gradient (by model)", 0, 0, false,
	 &optimizer_given.weight_decay},
	{"clip-norm", ARG_REAL, &o.clip_norm, "X",
	 "scale the gradient so that its norm over all variables is at most this", 0, 0, false,
	 &optimizer_given.clip_norm},
	{"clip-value", ARG_REAL, &o.clip_value, "X", "limit each element of the gradient to this", 0, 0,
	 false, &optimizer_given.clip_value},
	{"kernel-threads", ARG_U64, &o.kernel_threads, "N", "threads of each worker's kernels (1)", 1, 256,
	 false, NULL},
	{"spin", ARG_FLAG, &o.spin, NULL, "poll instead of sleeping (needs a core per process)", 0, 0, false,
	 NULL},
	{"no-comm", ARG_FLAG, &o.no_comm, NULL, "stub all transfers: what a step costs without them", 0, 0,
	 false, NULL},
	{"no-eval", ARG_FLAG, &o.no_eval, NULL, "skip the test accuracy", 0, 0, false, NULL},
	{"losses", ARG_STRING, &o.losses, "FILE", "write each step's loss as a hexadecimal float", 0, 0,
	 false, NULL},
	{"curve", ARG_STRING, &o.curve, "FILE", "write each step's time and loss as a table", 0, 0, false,
	 NULL},
	{"save", ARG_STRING, &o.save, "DIR", "checkpoints: variables and optimiser state, as safetensors", 0,
	 0, false, NULL},
	{"save-every", ARG_U64, &o.save_every, "N", "steps between checkpoints, instead of one at the end", 1,
	 1u << 30, false, NULL},
	{"resume", ARG_STRING, &o.resume, "DIR", "go on from the newest complete checkpoint", 0, 0, false,
	 NULL},
	{"on-failure", ARG_CHOICE, &o.on_failure, "stop|shrink",
	 "when a process dies: end the job, or go on from the newest checkpoint without it (stop)", 0, 0,
	 false, NULL},
	{"first-step", ARG_U64, &o.first_step, "N",
	 "of a job over hosts that is resumed: the checkpoint's step", 0, 1u << 30, false, NULL},
	{"trace", ARG_STRING, &o.trace, "FILE", "write what every process did when, for Perfetto", 0, 0,
	 false, NULL},
	{"profile", ARG_FLAG, &o.profile, NULL, "say at the end which nodes cost most", 0, 0, false, NULL},
	{"json", ARG_FLAG, &o.json, NULL, "print one JSON object at the end", 0, 0, false, NULL},
	{"quiet", ARG_FLAG, &o.quiet, NULL, "no progress", 0, 0, false, NULL},
	{"timeout", ARG_SECONDS, &o.timeout_ns, "SECONDS", "for all processes to find each other (60)",
	 1000000, 0, false, NULL},
	{"role", ARG_CHOICE, &o.role, "launcher|server|worker", "be one process of a job over hosts", 0, 0,
	 false, NULL},
	{"index", ARG_U64, &o.index, "I", "number within the role, from 0", 0, 65535, false, NULL},
	{"stage", ARG_U64, &o.stage, "K", "worker: which of its --model-parallel processes, from 0", 0,
	 TERN_DEVICES_MAX - 1, false, NULL},
	{"cluster", ARG_STRING, &o.cluster, "FILE|host:port,...",
	 "addresses of the servers, in order; then of the stages", 0, 0, false, NULL},
	{"features", ARG_U64, &o.features, "N", "numbers per row, for servers without the data (784)", 1,
	 1u << 20, false, NULL},
	{"classes", ARG_U64, &o.classes, "N", "classes, for servers without the data (10)", 1, 1u << 20,
	 false, NULL},
	{"text", ARG_STRING, &o.text, "FILE",
	 "a text (the bible, of Debian's bible-kjv); seq2seq: parallel ones, with commas", 0, 0, false, NULL},
	{"length", ARG_U64, &o.length, "N", "of sequences of a text: tokens (64; seq2seq: 32 at most)", 2,
	 4096, false, NULL},
	{"unit", ARG_CHOICE, &o.unit, "byte|word", "charlm, transformer: what a token of the text is (byte)",
	 0, 0, false, NULL},
	{"dim", ARG_U64, &o.dim, "N", "models of tables: elements of a row (64; dlrm 16)", 1,
	 TERN_TABLE_DIM_MAX, false, &dim_given},
	{"window", ARG_U64, &o.window, "N", "word2vec: words on each side, at most (5)", 1, 1000, false,
	 NULL},
	{"negative", ARG_U64, &o.negative, "N", "word2vec: drawn for each pair (5)", 0, 32, false, NULL},
	{"min-count", ARG_U64, &o.min_count, "N", "word2vec: rarer words are passed over (5)", 1, 0, false,
	 NULL},
	{"sample", ARG_REAL, &o.sample, "X", "word2vec: words of a larger share are thinned out (0.001)", 0,
	 0, false, NULL},
	{"pairs", ARG_STRING, &o.pairs, "A~B,...", "word2vec: say how near these words are", 0, 0, false,
	 NULL},
	{"samples", ARG_U64, &o.samples, "N", "dlrm: length of the logs (500000)", 1, 1ull << 40, false,
	 NULL},
	{"vocabulary", ARG_U64, &o.vocabulary, "N",
	 "words of each language (4096); dlrm: categories of each field (10000)", 1, 1ull << 40, false,
	 &vocabulary_given},
	{"skew", ARG_REAL, &o.skew, "S", "dlrm: Zipf's exponent of the categories (1.1)", 0, 0, false, NULL},
	{"consistency", ARG_CHOICE, &o.consistency, "async|bsp|ssp",
	 "who waits for whom (async); bsp: models of tables, others have --sync", 0, 0, false, NULL},
	{"staleness", ARG_U64, &o.staleness, "N", "steps that ssp allows to be ahead (2)", 0, 1u << 30, false,
	 NULL},
	{"insecure", ARG_FLAG, &o.insecure, NULL, "listen beyond loopback without a shared secret", 0, 0,
	 false, NULL},
	{"listen", ARG_STRING, &o.listen, "host:port",
	 "where a server or stage listens, instead of at its address in --cluster", 0, 0, false, NULL},
	{"report-fd", ARG_U64, &o.report_fd, "FD", "", 0, 0, true, NULL},
	{0},
};

/* Model parallelism. There is no evaluation: it would need all stages. */
static int check_stages(train_options *options)
{
	if (options->batch % options->micro) {
		fprintf(stderr,
			"tern train: %llu rows (--batch) can't be cut into %llu equal pieces "
			"(--micro-batches)\n",
			(unsigned long long)options->batch, (unsigned long long)options->micro);
		return 2;
	}
	if (options->servers + options->workers * options->stages > TRAIN_PROCESSES_MAX) {
		fprintf(stderr,
			"tern train: %llu servers and %llu workers of %llu stages: at most %d processes\n",
			(unsigned long long)options->servers, (unsigned long long)options->workers,
			(unsigned long long)options->stages, TRAIN_PROCESSES_MAX);
		return 2;
	}
	if (options->stage && options->role != ROLE_WORKER) {
		fprintf(stderr, "tern train: --stage goes with --role worker\n");
		return 2;
	}
	options->no_eval |= options->stages > 1;
	return -1;
}

static int check(train_options *options)
{
	if (steps_given && epochs_given) {
		fprintf(stderr, "tern train: --steps and --epochs exclude each other: give one\n");
		return 2;
	}
	if (options->role != ROLE_LAUNCHER && !options->cluster && options->report_fd == UINT64_MAX &&
	    !options->no_comm) {
		fprintf(stderr,
			"tern train: --role needs --cluster FILE or host:port,...: the servers' addresses\n");
		return 2;
	}
	if (options->role == ROLE_LAUNCHER && options->cluster) {
		fprintf(stderr, "tern train: --cluster goes with --role server|worker and --index\n");
		return 2;
	}
	if (options->role == ROLE_SERVER && options->losses) {
		fprintf(stderr,
			"tern train: --losses is for workers and the launcher: servers see no loss\n");
		return 2;
	}
	if (options->role != ROLE_LAUNCHER && options->curve) {
		fprintf(stderr,
			"tern train: --curve is the launcher's: a worker has its own losses (--losses)\n");
		return 2;
	}
	if (options->save_every && !options->save) {
		fprintf(stderr, "tern train: --save-every goes with --save DIR\n");
		return 2;
	}
	if (options->first_step &&
	    !(options->role != ROLE_LAUNCHER && (options->resume || options->role == ROLE_WORKER))) {
		fprintf(stderr,
			"tern train: --first-step goes with --role, and for servers with --resume DIR\n");
		return 2;
	}
	if (options->on_failure && (options->role != ROLE_LAUNCHER || !options->servers)) {
		fprintf(stderr, "tern train: --on-failure is for the launcher of a job with servers\n");
		return 2;
	}
	if ((options->save || options->resume) && options->no_comm) {
		fprintf(stderr, "tern train: --no-comm trains nothing that could be saved or resumed\n");
		return 2;
	}
	if (options->sparse && (options->servers == 0 || options->save || options->resume)) {
		fprintf(stderr,
			"tern train: --sparse needs servers, and there are no checkpoints of its tables: no "
			"--save or --resume\n");
		return 2;
	}
	if (options->servers == 0 && options->workers != 1) {
		fprintf(stderr, "tern train: without servers there can be only one worker (--workers 1)\n");
		return 2;
	}
	if (!train_data_check(options, data_given, vocabulary_given) ||
	    !train_optimizer_check(options, &optimizer_given))
		return 2;
	return check_stages(options);
}

/* Models of tables: other defaults, and no roles. */
static int check_tables(train_options *options)
{
	if (steps_given && epochs_given) {
		fprintf(stderr, "tern train: --steps and --epochs exclude each other: give one\n");
		return 2;
	}
	if (options->role != ROLE_LAUNCHER) {
		fprintf(stderr,
			"tern train: --role is not for models of tables; %s goes to running servers (`tern "
			"server`) "
			"with "
			"--cluster\n",
			model_names[options->model]);
		return 2;
	}
	if (!batch_given)
		options->batch = options->model == DLRM ? 256 : 500;
	if (!epochs_given)
		options->epochs = options->model == DLRM ? 1 : 5;
	if (!dim_given)
		options->dim = options->model == DLRM ? 16 : 64;
	return -1;
}

/* TERN_RDMA_OPT, before anything prints or compares the mode. */
static bool apply_switch(train_options *options)
{
	tern_comm comm = (tern_comm)options->comm;

	if (tern_comm_switched(&comm) != TERN_OK) {
		fprintf(stderr, "tern train: %s\n", tern_detail());
		return false;
	}
	options->comm = comm;
	return true;
}

int cmd_train(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern train",
		.summary = "train a model data-parallel over parameter servers",
		.synopsis = "tern train [--model NAME] [--data DIR] [--servers S] [--workers W] [options]\n"
			    "       tern train --role server|worker --index I --cluster FILE|host:port,... "
			    "[options]",
		.epilogue = "examples:\n"
			    "  tern train --model mlp --epochs 5\n"
			    "  tern train --model fcn5 --steps 20 --comm rpc --transport tcp --json\n"
			    "  tern train --role server --index 0 --cluster 10.0.0.1:7001,10.0.0.2:7001 "
			    "--workers 4\n"
			    "  tern train --role worker --index 3 --cluster 10.0.0.1:7001,10.0.0.2:7001 "
			    "--workers 4 --transport verbs\n"
			    "\nA cluster file has one host:port per line, one line per server. Beyond "
			    "loopback set the\n"
			    "shared secret in TERN_CTX_SECRET (or say --insecure). What decides the result "
			    "must be the same\n"
			    "everywhere: a process with other options is refused.\n",
	};
	int rc;

	train_defaults(&o);

	rc = args_parse(&usage, rows, argc, argv, NULL);
	if (rc < 0 && !apply_switch(&o))
		return 2;
	if (rc < 0)
		rc = o.model >= FIRST_OF_TABLES ? check_tables(&o) : check(&o);
	if (rc >= 0)
		return rc;
	if (o.model >= FIRST_OF_TABLES)
		return train_tables(&o);
	return o.role == ROLE_LAUNCHER ? train_launch(&o, argv[0]) : train_role(&o);
}
