/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Skip-gram with negative sampling (Mikolov et al. 2013, "Distributed Representations of Words and Phrases and their
 * Compositionality"). For a word w and a word c within its window, with rows v of w in the table of inputs and u of c and
 * of k words n drawn at random in the table of outputs:
 *
 *   loss = -log s(u_c v) - sum over n of log s(-u_n v),   s(x) = 1 / (1 + exp(-x))
 *
 * Words are kept with probability sqrt(t/f) + t/f, f being their share of the text; negatives come in proportion to
 * their frequency to the power 3/4. Both tables are sparse: the key is a hash of the word.
 *
 * Threads: see model.h. Tests: tests/e2e/models_test.py.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../zipf.h"
#include "corpus.h"
#include "model.h"

#define INPUT         0
#define OUTPUT        1
#define EVAL_BLOCKS   64 /* of all, evenly */
#define EVAL_EPOCH    UINT32_MAX
#define PAIRS_MAX     32
#define WORD_MAX      32
#define NEGATIVES_MAX 32

typedef struct word_pair {
	char a[WORD_MAX], b[WORD_MAX];
	float cosine;
	uint32_t
		rank; /* of b among the neighbours of a, or of a among those of b, whichever is less; 0: not known */
} word_pair;

/* The words of a table that a block needs, each once. */
typedef struct chosen {
	uint32_t count;
	uint32_t *place; /* [words]: 1 + its row here; 0: not chosen */
	uint32_t *word;  /* [count] */
	uint64_t *keys;
	float *rows, *grads;
} chosen;

typedef struct example {
	uint32_t in, out[1 + NEGATIVES_MAX]; /* rows: of the input, of its context and the negatives */
	uint32_t outs;
} example;

typedef struct w2v {
	model m;
	model_options o;
	corpus c;
	double *cumulative; /* [words]: of frequency^(3/4) */
	double *keep;       /* [words]: probability */
	rows *memory_of;
	chosen side[2];
	example *examples;
	uint64_t example_room, example_count;
	uint32_t *kept;
} w2v;

/* ---- numbers ---- */

static float dot(const float *a, const float *b, uint64_t n)
{
	float sum[8] = {0}, rest = 0;
	uint64_t i = 0;

	for (; i + 8 <= n; i += 8)
		for (unsigned k = 0; k < 8; k++)
			sum[k] += a[i + k] * b[i + k];
	for (; i < n; i++)
		rest += a[i] * b[i];
	return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7])) + rest;
}

static void add_scaled(float *to, const float *from, float by, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		to[i] += by * from[i];
}

/* log(1 + exp(x)) */
static double softplus(double x)
{
	return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* ---- what a block consists of ---- */

static uint32_t negative(const w2v *w, rng *r)
{
	double x = rng_real(r) * w->cumulative[w->c.words - 1];
	uint32_t low = 0, high = w->c.words - 1;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (w->cumulative[mid] > x)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

static uint32_t choose(w2v *w, unsigned side, uint32_t word)
{
	chosen *s = &w->side[side];

	if (!s->place[word]) {
		s->word[s->count] = word;
		s->keys[s->count] = w->c.key[word];
		s->place[word] = ++s->count;
	}
	return s->place[word] - 1;
}

static bool add_example(w2v *w, rng *r, uint32_t word, uint32_t context)
{
	example *e;

	if (w->example_count == w->example_room) {
		uint64_t room = w->example_room ? 2 * w->example_room : 4096;
		example *more = realloc(w->examples, room * sizeof(*more));

		if (!more)
			return false;
		w->examples = more;
		w->example_room = room;
	}
	e = &w->examples[w->example_count++];
	e->in = choose(w, INPUT, word);
	e->out[0] = choose(w, OUTPUT, context);
	e->outs = 1;
	for (uint64_t k = 0; k < w->o.negative; k++) {
		uint32_t n = negative(w, r);

		if (n != context)
			e->out[e->outs++] = choose(w, OUTPUT, n);
	}
	return true;
}

static bool sentence(w2v *w, rng *r, const uint32_t *tokens, uint64_t count)
{
	uint64_t kept = 0;

	for (uint64_t i = 0; i < count; i++)
		if (rng_real(r) < w->keep[tokens[i]])
			w->kept[kept++] = tokens[i];
	for (uint64_t i = 0; i < kept; i++) {
		uint64_t reach = 1 + rng_below(r, w->o.window);
		uint64_t first = i > reach ? i - reach : 0, last = i + reach < kept ? i + reach : kept - 1;

		for (uint64_t j = first; j <= last; j++)
			if (j != i && !add_example(w, r, w->kept[i], w->kept[j]))
				return false;
	}
	return true;
}

/* Examples of a block, and which rows they need. */
static bool prepare(w2v *w, uint64_t epoch, uint64_t block)
{
	rng r = rng_make(w->o.seed, epoch << 32 | block);
	const corpus *c = &w->c;

	for (unsigned side = 0; side < 2; side++) {
		chosen *s = &w->side[side];

		for (uint32_t i = 0; i < s->count; i++)
			s->place[s->word[i]] = 0;
		s->count = 0;
	}
	w->example_count = 0;
	for (uint64_t s = c->block[block]; s < c->block[block + 1]; s++)
		if (!sentence(w, &r, c->tokens + c->sentence[s], c->sentence[s + 1] - c->sentence[s]))
			return false;
	return true;
}

/* ---- gradients ---- */

static void learn(w2v *w, const example *e, bool gradients, model_loss *loss)
{
	uint64_t dim = w->o.dim;
	const float *v = w->side[INPUT].rows + e->in * dim;
	float *gv = w->side[INPUT].grads + e->in * dim;

	for (uint32_t k = 0; k < e->outs; k++) {
		const float *u = w->side[OUTPUT].rows + e->out[k] * dim;
		float x = dot(v, u, dim), g;

		loss->sum += softplus(k ? (double)x : -(double)x);
		if (!gradients)
			continue;
		g = 1 / (1 + expf(-x)) - (k == 0);
		add_scaled(gv, u, g, dim);
		add_scaled(w->side[OUTPUT].grads + e->out[k] * dim, v, g, dim);
	}
	loss->items++;
}

static bool room(w2v *w, rows *r)
{
	uint64_t floats = w->c.words * w->o.dim;

	if (w->memory_of == r)
		return true;
	for (unsigned side = 0; side < 2; side++) {
		w->side[side].rows = r->ops->memory(r, floats);
		w->side[side].grads = r->ops->memory(r, floats);
		if (!w->side[side].rows || !w->side[side].grads)
			return false;
	}
	w->memory_of = r;
	return true;
}

static bool pull_chosen(w2v *w, rows *r, bool create)
{
	rows_part parts[2];

	for (unsigned side = 0; side < 2; side++)
		parts[side] = (rows_part){side, w->side[side].count, w->side[side].keys, w->side[side].rows};
	return r->ops->pull(r, parts, 2, create);
}

static bool push_chosen(w2v *w, rows *r, uint64_t step)
{
	rows_part parts[2];

	for (unsigned side = 0; side < 2; side++)
		parts[side] = (rows_part){side, w->side[side].count, w->side[side].keys, w->side[side].grads};
	return r->ops->push(r, parts, 2, step);
}

static bool no_memory(rows *r)
{
	snprintf(r->error, sizeof(r->error), "no memory for the examples of a block");
	return false;
}

static bool work(model *m, rows *r, uint64_t epoch, uint64_t block, uint64_t step, model_loss *loss)
{
	w2v *w = (w2v *)m;

	if (!room(w, r))
		return false;
	if (!prepare(w, epoch, block))
		return no_memory(r);
	if (!pull_chosen(w, r, true))
		return false;
	for (unsigned side = 0; side < 2; side++)
		memset(w->side[side].grads, 0, w->side[side].count * w->o.dim * sizeof(float));
	for (uint64_t i = 0; i < w->example_count; i++)
		learn(w, &w->examples[i], true, loss);
	return push_chosen(w, r, step);
}

/* ---- neighbours ---- */

/* How many words are nearer to `a` than `b` is, plus one; [words] cosines are in `near`. */
static uint32_t rank_of(const w2v *w, uint32_t a, uint32_t b, const float *all, const float *length)
{
	uint64_t dim = w->o.dim;
	float to_b = dot(all + a * dim, all + b * dim, dim) / length[b];
	uint32_t rank = 1;

	for (uint32_t i = 0; i < w->c.words; i++)
		if (i != a && i != b && dot(all + a * dim, all + i * dim, dim) > to_b * length[i])
			rank++;
	return rank;
}

static bool neighbours(w2v *w, rows *r)
{
	uint64_t dim = w->o.dim;
	word_pair *pairs = w->m.result;
	float *all = w->side[INPUT].rows, *length = w->side[OUTPUT].rows;
	rows_part part = {INPUT, w->c.words, w->c.key, all};

	if (!r->ops->pull(r, &part, 1, false))
		return false;
	for (uint32_t i = 0; i < w->c.words; i++)
		length[i] = sqrtf(dot(all + i * dim, all + i * dim, dim)) + 1e-20f;
	for (word_pair *p = pairs; p < pairs + PAIRS_MAX && p->a[0]; p++) {
		uint32_t a = corpus_find(&w->c, p->a), b = corpus_find(&w->c, p->b), back;

		if (a == w->c.words || b == w->c.words)
			continue;
		p->cosine = dot(all + a * dim, all + b * dim, dim) / (length[a] * length[b]);
		p->rank = rank_of(w, a, b, all, length);
		back = rank_of(w, b, a, all, length);
		p->rank = back < p->rank ? back : p->rank;
	}
	return true;
}

static void read_pairs(word_pair *pairs, const char *text)
{
	for (unsigned n = 0; n < PAIRS_MAX && *text; n++) {
		if (sscanf(text, "%31[^~,]~%31[^,]", pairs[n].a, pairs[n].b) != 2) {
			pairs[n].a[0] = '\0';
			return;
		}
		text += strcspn(text, ",");
		text += *text == ',';
	}
}

/* The same examples whenever it is asked. */
static bool evaluate(model *m, rows *r, model_loss *loss)
{
	w2v *w = (w2v *)m;
	uint64_t n = m->blocks < EVAL_BLOCKS ? m->blocks : EVAL_BLOCKS;

	if (!room(w, r))
		return false;
	for (uint64_t i = 0; i < n; i++) {
		if (!prepare(w, EVAL_EPOCH, i * m->blocks / n))
			return no_memory(r);
		if (!pull_chosen(w, r, false))
			return false;
		for (uint64_t e = 0; e < w->example_count; e++)
			learn(w, &w->examples[e], false, loss);
	}
	read_pairs(m->result, w->o.pairs);
	return neighbours(w, r);
}

static void say(const model *m, const void *result, json *j)
{
	const w2v *w = (const w2v *)m;
	const word_pair *pairs = result;

	if (j) {
		json_u64(j, "words", w->c.words);
		json_u64(j, "tokens", w->c.count);
		json_array(j, "pairs");
	} else {
		printf("%u words, %llu tokens; neighbours (rank, cosine):", w->c.words,
		       (unsigned long long)w->c.count);
	}
	for (const word_pair *p = pairs; p < pairs + PAIRS_MAX && p->a[0]; p++) {
		if (j) {
			json_object(j, NULL);
			json_string(j, "a", p->a);
			json_string(j, "b", p->b);
			json_u64(j, "rank", p->rank);
			json_real(j, "cosine", (double)p->cosine);
			json_object_end(j);
		} else if (p->rank) {
			printf(" %s~%s %u %.2f", p->a, p->b, p->rank, (double)p->cosine);
		} else {
			printf(" %s~%s unknown", p->a, p->b);
		}
	}
	if (j)
		json_array_end(j);
	else
		putchar('\n');
}

/* ---- life ---- */

static void w2v_free(model *m)
{
	w2v *w = (w2v *)m;

	corpus_free(&w->c);
	free(w->cumulative);
	free(w->keep);
	for (unsigned side = 0; side < 2; side++) {
		free(w->side[side].place);
		free(w->side[side].word);
		free(w->side[side].keys);
	}
	free(w->examples);
	free(w->kept);
	free(w);
}

/* What depends on frequencies, and room for whole blocks. */
static bool tabulate(w2v *w)
{
	uint32_t n = w->c.words;
	double sum = 0;

	w->cumulative = malloc(n * sizeof(double));
	w->keep = malloc(n * sizeof(double));
	w->kept = malloc((w->c.count + 1) * sizeof(*w->kept));
	for (unsigned side = 0; side < 2; side++) {
		chosen *s = &w->side[side];

		s->place = calloc(n, sizeof(*s->place));
		s->word = malloc(n * sizeof(*s->word));
		s->keys = malloc(n * sizeof(*s->keys));
		if (!s->place || !s->word || !s->keys)
			return false;
	}
	if (!w->cumulative || !w->keep || !w->kept)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		double share = (double)w->c.often[i] / (double)w->c.count, t = w->o.sample / share;

		w->keep[i] = w->o.sample > 0 ? sqrt(t) + t : 1;
		w->cumulative[i] = sum += pow((double)w->c.often[i], 0.75);
	}
	return true;
}

bool word2vec_new(const model_options *o, model **m, char *error, size_t error_bytes)
{
	static const model_ops ops = {"pairs", work, evaluate, PAIRS_MAX * sizeof(word_pair), say, w2v_free};
	w2v *w = calloc(1, sizeof(*w));

	*m = NULL;
	if (!w || !corpus_load(&w->c, o->text, o->min_count, o->block, error, error_bytes)) {
		free(w);
		return false;
	}
	w->o = *o;
	w->m = (model){.ops = &ops, .name = "word2vec", .tables = 2, .blocks = w->c.blocks};
	for (unsigned side = 0; side < 2; side++) {
		w->m.spec[side] = (rows_spec){.dim = (uint32_t)o->dim, .lr = (float)o->lr};
		snprintf(w->m.spec[side].name, sizeof(w->m.spec[side].name), "word2vec/%s",
			 side == INPUT ? "input" : "output");
	}
	w->m.spec[INPUT].range = 0.5f / (float)o->dim;
	if (!tabulate(w)) {
		snprintf(error, error_bytes, "no memory for %u words", w->c.words);
		w2v_free(&w->m);
		return false;
	}
	*m = &w->m;
	return true;
}
