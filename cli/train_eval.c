/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trained model is worth: a worker's share of what was held out. Images: how many are classified as their labels say.
 * Sequences: -log p of each token, in what was held out and in as many rows of what was learned, spread evenly.
 *
 * Threads: main. Tests: tests/e2e/train_test.py, train_text_test.py.
 */
#include <stdlib.h>

#include "train.h"

static unsigned best_of(const float *probs, unsigned classes)
{
	unsigned best = 0;

	for (unsigned k = 1; k < classes; k++)
		if (probs[k] > probs[best])
			best = k;
	return best;
}

/* Rows whose largest probability is at the label. */
static tern_status classify(const train_options *o, tern_session *session, const dataset *test, batcher *b,
			    train_share *share)
{
	uint64_t at = test->count * o->index / o->workers, end = test->count * (o->index + 1) / o->workers;
	float *probs = calloc(o->batch * test->classes, sizeof(*probs));
	tern_status status = probs ? TERN_OK : TERN_E_NOMEM;

	for (; at < end && status == TERN_OK; at += o->batch) {
		batcher_rows(b, at, test->count, 1);
		status = batcher_feed(b, session, 1);
		if (status == TERN_OK)
			status = tern_session_step(session, 1);
		if (status == TERN_OK)
			status = tern_session_fetch(session, 1, "probs", probs,
						    o->batch * test->classes * sizeof(float));
		for (uint64_t i = 0; i < o->batch && at + i < end && status == TERN_OK; i++, share->rows++)
			share->correct +=
				best_of(probs + i * test->classes, test->classes) == test->labels[at + i];
	}
	free(probs);
	return status;
}

typedef struct sums {
	double nll;
	uint64_t tokens, correct;
} sums;

/* Our share of n rows, every stride-th of the set. */
static tern_status predict(const train_options *o, tern_session *session, batcher *b, uint64_t n,
			   uint64_t stride, sums *s)
{
	uint64_t at = n * o->index / o->workers, end = n * (o->index + 1) / o->workers;
	tern_status status = TERN_OK;

	for (; at < end && status == TERN_OK; at += o->batch) {
		uint64_t tokens;
		int32_t correct;
		float loss; /* the mean over tokens */

		batcher_rows(b, at, end, stride);
		tokens = batcher_targets(b);
		status = batcher_feed(b, session, 1);
		if (status == TERN_OK)
			status = tern_session_step(session, 1);
		if (status == TERN_OK)
			status = tern_session_fetch(session, 1, "loss", &loss, sizeof(loss));
		if (status == TERN_OK)
			status = tern_session_fetch(session, 1, "correct", &correct, sizeof(correct));
		if (status != TERN_OK)
			break;
		s->nll += (double)loss * (double)tokens;
		s->tokens += tokens;
		s->correct += (uint64_t)correct;
	}
	return status;
}

static tern_status predict_both(const train_options *o, tern_session *session, const dataset *train,
				const dataset *test, batcher *b, train_share *share)
{
	uint64_t n = test->count < train->count ? test->count : train->count;
	sums held = {0}, learned = {0};
	tern_status status = predict(o, session, b, test->count, 1, &held);

	batcher_fini(b);
	if (status == TERN_OK && !batcher_init(b, train, o))
		status = TERN_E_NOMEM;
	if (status == TERN_OK)
		status = predict(o, session, b, n, train->count / n, &learned);
	share->correct = held.correct;
	share->rows = held.tokens;
	share->nll = held.nll;
	share->train_nll = learned.nll;
	share->train_rows = learned.tokens;
	return status;
}

tern_status train_evaluate(const train_options *o, tern_session *session, const dataset *train,
			   const dataset *test, train_share *share)
{
	tern_status status = TERN_E_NOMEM;
	batcher b;

	if (batcher_init(&b, test, o)) {
		batcher_scale(&b, train);
		status = test->steps ? predict_both(o, session, train, test, &b, share)
				     : classify(o, session, test, &b, share);
	}
	batcher_fini(&b);
	return status;
}
