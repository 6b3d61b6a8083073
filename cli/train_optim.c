/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern train`: optimisers and the clipping of gradients, from options to tern_optimizer and back to options. Which option is
 * whose is one table, so that what makes no sense is refused and what a process is told is what its launcher understood.
 *
 * Threads: main. Tests: tests/e2e/train_optim_test.py.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "train.h"

#define BIT(kind) (1u << TERN_OPTIMIZER_##kind)
#define ALL       (BIT(SGD) | BIT(MOMENTUM) | BIT(ADAGRAD) | BIT(ADAM) | BIT(RMSPROP))

const char *const optimizer_names[] = {"sgd", "momentum", "adagrad", "adam", "rmsprop", NULL};

enum { BELOW_1, ABOVE_0_BELOW_1, ABOVE_0, FROM_0 };
static const char *const range_words[] = {"from 0 to below 1", "between 0 and 1", "above 0", "0 or more"};

typedef struct optim_row {
	const char *option;
	size_t value, given; /* where in train_options and train_optimizer_given */
	unsigned kinds;      /* whose option it is */
	int range;
} optim_row;

#define ROW(option, field, kinds, range)                                                                     \
	{                                                                                                    \
		option, offsetof(train_options, field), offsetof(train_optimizer_given, field), kinds, range \
	}
static const optim_row rows[] = {
	ROW("--momentum", momentum, BIT(MOMENTUM) | BIT(RMSPROP), BELOW_1),
	ROW("--beta1", beta1, BIT(ADAM), ABOVE_0_BELOW_1),
	ROW("--beta2", beta2, BIT(ADAM), ABOVE_0_BELOW_1),
	ROW("--rho", rho, BIT(RMSPROP), ABOVE_0_BELOW_1),
	ROW("--epsilon", epsilon, BIT(ADAGRAD) | BIT(ADAM) | BIT(RMSPROP), ABOVE_0),
	ROW("--weight-decay", weight_decay, ALL, FROM_0),
	ROW("--clip-norm", clip_norm, ALL, ABOVE_0),
	ROW("--clip-value", clip_value, ALL, ABOVE_0),
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* 0: that of the model. */
static const double rates[] = {0, 0, 0.01, 0.001, 0.001};

static double value_of(const train_options *o, const optim_row *row)
{
	return *(const double *)((const char *)o + row->value);
}

static bool in_range(double x, int range)
{
	if (range == BELOW_1)
		return x >= 0 && x < 1;
	if (range == ABOVE_0_BELOW_1)
		return x > 0 && x < 1;
	return (range == ABOVE_0 ? x > 0 : x >= 0) && x < 1e30; /* no NaN, and a float */
}

static bool check_row(const train_options *o, const optim_row *row)
{
	double x = value_of(o, row);

	if (!(row->kinds & (1u << o->optimizer)))
		fprintf(stderr, "tern train: %s is not for --optimizer %s\n", row->option,
			optimizer_names[o->optimizer]);
	else if (!in_range(x, row->range))
		fprintf(stderr, "tern train: %s %g: must be %s\n", row->option, x, range_words[row->range]);
	else
		return true;
	return false;
}

bool train_optimizer_check(train_options *o, const train_optimizer_given *given)
{
	if (!given->optimizer && !given->momentum && train_models[o->model].optimizer)
		o->optimizer = train_models[o->model].optimizer;
	/* What there was before there was a choice. */
	if (!given->optimizer && given->momentum && o->momentum == 0)
		o->optimizer = TERN_OPTIMIZER_SGD;
	else if (!given->momentum && o->optimizer != TERN_OPTIMIZER_MOMENTUM)
		o->momentum = 0;
	for (size_t i = 0; i < N_ROWS; i++) {
		bool was = *(const bool *)((const char *)given + rows[i].given);

		if (was && o->optimizer == TERN_OPTIMIZER_SGD && value_of(o, &rows[i]) == 0 &&
		    rows[i].value == offsetof(train_options, momentum))
			continue;
		if (was && !check_row(o, &rows[i]))
			return false;
	}
	if (given->clip_norm && given->clip_value) {
		fprintf(stderr, "tern train: --clip-norm and --clip-value exclude each other: give one\n");
		return false;
	}
	if (!given->weight_decay) /* the models' own are those of SGD */
		o->weight_decay = rates[o->optimizer] > 0 ? 0 : train_models[o->model].weight_decay;
	return true;
}

tern_optimizer train_optimizer(const train_options *o, uint64_t steps)
{
	const train_model *m = &train_models[o->model];
	double lr = o->lr > 0                    ? o->lr
		    : rates[o->optimizer] > 0    ? rates[o->optimizer]
		    : o->sync || o->workers == 1 ? m->lr_sync
						 : m->lr_async;

	return (tern_optimizer){.kind = (tern_optimizer_kind)o->optimizer,
				.lr = (float)lr,
				.lr_end = (float)lr * (float)m->lr_end,
				.lr_steps = steps,
				.momentum = (float)o->momentum,
				.weight_decay = (float)o->weight_decay,
				.beta1 = (float)o->beta1,
				.beta2 = (float)o->beta2,
				.rho = (float)o->rho,
				.epsilon = (float)o->epsilon,
				.clip_value = (float)o->clip_value,
				.clip_norm = (float)o->clip_norm};
}

void train_optimizer_options(const train_options *o, void (*add)(void *to, const char *option, double value),
			     void *to)
{
	if (o->lr > 0)
		add(to, "--lr", o->lr);
	for (size_t i = 0; i < N_ROWS; i++)
		if ((rows[i].kinds & (1u << o->optimizer)) &&
		    (value_of(o, &rows[i]) > 0 || rows[i].range == FROM_0 || rows[i].range == BELOW_1))
			add(to, rows[i].option, value_of(o, &rows[i]));
}
