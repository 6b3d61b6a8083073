/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models that `tern train` knows: what a row of their input has, and with which learning rate they begin. Data for those
 * whose inputs no data set of Debian has: random rows, which cost what real ones cost and teach nothing.
 *
 * Threads: main. Tests: tests/e2e/train_test.py.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sequences.h"
#include "train.h"

#define SYNTHETIC "synthetic"
#define ROWS_MIN  64u
/* What servers assume that are not told. */
#define FEATURES       784
#define CLASSES        10
#define BYTES          256
#define VOCABULARY     4096
#define VOCABULARY_MAX 1000000

const char *const model_names[] = {"mlp",        "fcn5",      "convnet", "convnet_small", "convnet_bn",
				   "lstm_small", "gru_small", "alexnet", "vgg16",         "inception_v3",
				   "lstm",       "gru",       "charlm",  "transformer",   "seq2seq",
				   "word2vec",   "dlrm",      NULL};

/*
 * By number of the model. Rates of mlp and fcn5 were found by trial on Fashion-MNIST; updates that come late
 * (asynchronous) want smaller steps.
 */
const train_model train_models[] = {
	{.lr_sync = 0.1, .lr_async = 0.02, .lr_end = 0.01, .weight_decay = 1e-4},
	{.lr_sync = 0.001, .lr_async = 0.0005, .lr_end = 1},
	{.features = 784, .lr_sync = 0.02, .lr_async = 0.01, .lr_end = 0.01, .weight_decay = 1e-4},
	{.features = 784, .lr_sync = 0.02, .lr_async = 0.01, .lr_end = 0.01, .weight_decay = 1e-4},
	{.features = 784, .lr_sync = 0.02, .lr_async = 0.01, .lr_end = 0.01, .weight_decay = 1e-4},
	{.features = 784, .lr_sync = 0.05, .lr_async = 0.02, .lr_end = 0.01},
	{.features = 784, .lr_sync = 0.05, .lr_async = 0.02, .lr_end = 0.01},
	{.features = 3 * 224 * 224, .lr_sync = 0.001, .lr_async = 0.0005, .lr_end = 1},
	{.features = 3 * 224 * 224, .lr_sync = 0.001, .lr_async = 0.0005, .lr_end = 1},
	{.features = 3 * 299 * 299, .lr_sync = 0.001, .lr_async = 0.0005, .lr_end = 1},
	{.features = 80 * 1024, .lr_sync = 0.001, .lr_async = 0.0005, .lr_end = 1},
	{.features = 80 * 1024, .lr_sync = 0.001, .lr_async = 0.0005, .lr_end = 1},
	{.lr_sync = 0.1,
	 .lr_async = 0.05,
	 .lr_end = 0.01,
	 .data = TRAIN_TEXT,
	 .length = 64,
	 .optimizer = TERN_OPTIMIZER_ADAM},
	{.lr_sync = 0.1,
	 .lr_async = 0.05,
	 .lr_end = 0.01,
	 .data = TRAIN_TEXT,
	 .length = 64,
	 .optimizer = TERN_OPTIMIZER_ADAM},
	{.lr_sync = 0.1,
	 .lr_async = 0.05,
	 .lr_end = 0.01,
	 .data = TRAIN_PAIRS,
	 .length = 32,
	 .optimizer = TERN_OPTIMIZER_ADAM},
};

void train_model_params(const train_options *o, uint64_t features, unsigned classes,
			tern_model_params *params)
{
	const train_model *m = &train_models[o->model];

	*params = (tern_model_params){.seed = o->seed};
	if (!m->features && m->data != TRAIN_TEXT)
		params->inputs = features;
	if (!m->features)
		params->classes = classes;
	if (m->data == TRAIN_TEXT)
		params->steps = o->length;
	if (m->data == TRAIN_PAIRS)
		params->steps = TERN_STEPS_SYMBOLIC;
}

uint64_t train_features(const train_options *o)
{
	return o->features                                  ? o->features
	       : train_models[o->model].data == TRAIN_PAIRS ? o->vocabulary
	       : train_models[o->model].data == TRAIN_TEXT  ? 0
							    : FEATURES;
}

unsigned train_classes(const train_options *o)
{
	return o->classes                                    ? (unsigned)o->classes
	       : train_models[o->model].data != TRAIN_IMAGES ? (unsigned)o->vocabulary
							     : CLASSES;
}

static bool refused(const char *option, const char *why)
{
	fprintf(stderr, "tern train: %s %s\n", option, why);
	return false;
}

bool train_data_check(train_options *o, bool data_given, bool vocabulary_given)
{
	const train_model *m = &train_models[o->model];
	bool bytes = m->data == TRAIN_TEXT && o->unit == UNIT_BYTE;

	if (m->data != TRAIN_TEXT && o->unit != UNIT_BYTE)
		return refused("--unit", "is for charlm and transformer");
	if (m->data == TRAIN_IMAGES && (o->text || o->length || vocabulary_given))
		return refused("--text, --length and --vocabulary", "are for models of texts");
	if (m->data != TRAIN_IMAGES && data_given)
		return refused("--data", "is for images: texts come by --text");
	if (bytes && vocabulary_given)
		return refused("--vocabulary", "is for words: bytes are 256");
	if (!vocabulary_given)
		o->vocabulary = bytes ? BYTES : VOCABULARY;
	if (o->vocabulary <= TOKEN_WORDS || o->vocabulary > VOCABULARY_MAX)
		return refused("--vocabulary", "must be from 5 to 1000000");
	if (!o->length)
		o->length = m->length;
	return true;
}

static bool synthetic(const train_options *o, dataset *set, char *error, size_t error_bytes)
{
	uint64_t count = o->batch * o->workers, x = o->seed * 2 + 1;

	set->count = count < ROWS_MIN ? ROWS_MIN : count;
	set->features = train_models[o->model].features ? train_models[o->model].features : FEATURES;
	set->classes = CLASSES;
	set->images = malloc(set->count * set->features);
	set->labels = malloc(set->count);
	if (!set->images || !set->labels) {
		dataset_free(set);
		snprintf(error, error_bytes, "no memory for %llu random rows",
			 (unsigned long long)set->count);
		return false;
	}
	for (uint64_t i = 0; i < set->count * set->features; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		set->images[i] = (uint8_t)(x >> 56);
	}
	for (uint64_t i = 0; i < set->count; i++)
		set->labels[i] = (uint8_t)(i % set->classes);
	return true;
}

static bool load_images(const train_options *o, bool train, dataset *set, char *error, size_t error_bytes)
{
	uint64_t features = train_models[o->model].features;

	memset(set, 0, sizeof(*set));
	if (strcmp(o->data, SYNTHETIC) == 0)
		return synthetic(o, set, error, error_bytes);
	if (!dataset_load(o->data, train, set, error, error_bytes))
		return false;
	if (!features || set->features == features)
		return true;
	snprintf(error, error_bytes,
		 "%s has rows of %llu numbers, and %s takes %llu: --data " SYNTHETIC " makes random ones",
		 o->data, (unsigned long long)set->features, model_names[o->model],
		 (unsigned long long)features);
	dataset_free(set);
	return false;
}

static bool load_sequences(const train_options *o, dataset *train, dataset *test, char *error,
			   size_t error_bytes)
{
	sequences_params p = {.text = o->text,
			      .steps = o->length,
			      .words = o->unit == UNIT_WORD,
			      .vocabulary = o->vocabulary};
	bool ok = train_models[o->model].data == TRAIN_TEXT
			  ? sequences_text(&p, train, test, error, error_bytes)
			  : sequences_pairs(&p, train, test, error, error_bytes);

	if (ok && o->no_eval)
		dataset_free(test);
	return ok;
}

bool train_data_load(const train_options *o, dataset *train, dataset *test, char *error, size_t error_bytes)
{
	memset(test, 0, sizeof(*test));
	if (train_models[o->model].data != TRAIN_IMAGES)
		return load_sequences(o, train, test, error, error_bytes);
	if (!load_images(o, true, train, error, error_bytes))
		return false;
	if (o->no_eval || load_images(o, false, test, error, error_bytes))
		return true;
	dataset_free(train);
	return false;
}

double train_perplexity(double nll, uint64_t tokens)
{
	return tokens ? exp(nll / (double)tokens) : NAN;
}
