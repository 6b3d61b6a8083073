/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models that `tern train` knows: what a row of their input has, and with which learning rate they begin. Data for those
 * whose inputs no data set of Debian has: random rows, which cost what real ones cost and teach nothing.
 *
 * Threads: main. Tests: tests/e2e/train_test.py.
 */
#include <stdlib.h>
#include <string.h>

#include "train.h"

#define SYNTHETIC "synthetic"
#define ROWS_MIN  64u

const char *const model_names[] = {"mlp",        "fcn5",      "convnet",  "convnet_small", "convnet_bn",
				   "lstm_small", "gru_small", "alexnet",  "vgg16",         "inception_v3",
				   "lstm",       "gru",       "word2vec", "dlrm",          NULL};

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
};

void train_model_params(const train_options *o, uint64_t features, unsigned classes,
			tern_model_params *params)
{
	bool made_for = train_models[o->model].features != 0;

	*params = (tern_model_params){
		.seed = o->seed, .inputs = made_for ? 0 : features, .classes = made_for ? 0 : classes};
}

static bool synthetic(const train_options *o, dataset *set, char *error, size_t error_bytes)
{
	uint64_t count = o->batch * o->workers, x = o->seed * 2 + 1;

	set->count = count < ROWS_MIN ? ROWS_MIN : count;
	set->features = train_models[o->model].features ? train_models[o->model].features : TRAIN_FEATURES;
	set->classes = TRAIN_CLASSES;
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

bool train_data_load(const train_options *o, bool train, dataset *set, char *error, size_t error_bytes)
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
