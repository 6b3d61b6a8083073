/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multilevel partitioning of a DAG (Herrmann, Oezkaya, Ucar, Kaya, Catalyuerek: "Multilevel algorithms for acyclic
 * partitioning of directed acyclic graphs", SIAM J. Sci. Comput. 2019), simplified:
 *
 *   coarsen   heavy edges first, merge u -> v where u has no other successor or v no other predecessor: no other
 *             path leads from u to v, so no merge closes a cycle. Until few vertices are left, or nothing merges
 *   split     the coarsest graph in topological order: a part ends where it has its share of what is left
 *   refine    on the way back, at each level: moves of single vertices by falling gain (Fiduccia and Mattheyses
 *             1982), downhill ones too, each vertex once per pass; the best prefix of the moves is kept. A vertex
 *             may go to any part between those of its predecessors and its successors
 *
 * A part may weigh SLACK times its share, or as much as the heaviest vertex.
 *
 * Thread story: pure. Tests: tests/unit/graph/stage_test.c.
 */
#include "graph/mincut.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"

#define SLACK_NUM  11u
#define SLACK_DEN  10u
#define PASSES     8u
#define DOWNHILL   64u /* moves without a new best before a pass ends */
#define LEVELS_MAX 32u
#define PER_PART   16u /* vertices per part in the coarsest graph */

typedef struct level {
	uint32_t n, n_edges;
	uint64_t *weight;
	int32_t *fixed;
	tn_cut_edge *edges; /* by (from, to), each pair once */
	uint32_t *coarse;   /* vertex -> vertex of the next level */
	uint32_t *first;    /* edges of vertex v as neighbours: around[first[v] .. first[v + 1]) */
	uint32_t *around;   /* edge numbers */
} level;

static tern_status no_memory(uint32_t n)
{
	return tn_fail(TERN_E_NOMEM, "no memory to cut a graph of %u nodes", n);
}

static void level_free(level *l)
{
	free(l->weight);
	free(l->fixed);
	free(l->edges);
	free(l->coarse);
	free(l->first);
	free(l->around);
}

static int by_ends(const void *a, const void *b)
{
	const tn_cut_edge *x = a, *y = b;

	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return x->to < y->to ? -1 : x->to > y->to;
}

static int by_bytes(const void *a, const void *b)
{
	const tn_cut_edge *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return by_ends(a, b);
}

static tern_status level_alloc(level *l, uint32_t n, uint32_t n_edges)
{
	*l = (level){.n = n, .n_edges = n_edges};
	l->weight = calloc(n + 1, sizeof(*l->weight));
	l->fixed = calloc(n + 1, sizeof(*l->fixed));
	l->edges = calloc(n_edges + 1, sizeof(*l->edges));
	l->coarse = calloc(n + 1, sizeof(*l->coarse));
	l->first = calloc(n + 2, sizeof(*l->first));
	l->around = calloc(2 * (size_t)n_edges + 1, sizeof(*l->around));
	if (!l->weight || !l->fixed || !l->edges || !l->coarse || !l->first || !l->around)
		return no_memory(n);
	return TERN_OK;
}

/* One edge per pair of vertices, and who is whose neighbour. */
static void level_index(level *l)
{
	uint32_t n = 0;

	qsort(l->edges, l->n_edges, sizeof(*l->edges), by_ends);
	for (uint32_t i = 0; i < l->n_edges; i++) {
		if (n > 0 && by_ends(&l->edges[n - 1], &l->edges[i]) == 0)
			l->edges[n - 1].bytes += l->edges[i].bytes;
		else
			l->edges[n++] = l->edges[i];
	}
	l->n_edges = n;
	for (uint32_t i = 0; i < n; i++) {
		TN_ASSERT(l->edges[i].from < l->edges[i].to && l->edges[i].to < l->n);
		l->first[l->edges[i].from + 1]++;
		l->first[l->edges[i].to + 1]++;
	}
	for (uint32_t v = 0; v < l->n; v++)
		l->first[v + 1] += l->first[v];
	for (uint32_t i = n; i-- > 0;) {
		l->around[--l->first[l->edges[i].from + 1]] = i;
		l->around[--l->first[l->edges[i].to + 1]] = i;
	}
	for (uint32_t v = 0; v < l->n; v++) /* the loop above left them one too early */
		l->first[v] = l->first[v + 1];
	l->first[l->n] = 2 * n;
}

/* ---- coarsen ---- */

static uint32_t degree(const level *l, uint32_t v, bool out)
{
	uint32_t n = 0;

	for (uint32_t k = l->first[v]; k < l->first[v + 1]; k++)
		n += (l->edges[l->around[k]].from == v) == out;
	return n;
}

/* mate[v]: who v merges with, itself if nobody. Gives the number of merges. */
static uint32_t match(const level *l, uint64_t cap, tn_cut_edge *heavy, uint32_t *mate)
{
	uint32_t merged = 0;

	memcpy(heavy, l->edges, l->n_edges * sizeof(*heavy));
	qsort(heavy, l->n_edges, sizeof(*heavy), by_bytes);
	for (uint32_t v = 0; v < l->n; v++)
		mate[v] = v;
	for (uint32_t i = 0; i < l->n_edges; i++) {
		uint32_t u = heavy[i].from, v = heavy[i].to;

		if (mate[u] != u || mate[v] != v || l->weight[u] + l->weight[v] > cap)
			continue;
		if (l->fixed[u] >= 0 && l->fixed[v] >= 0 && l->fixed[u] != l->fixed[v])
			continue;
		if (degree(l, u, true) != 1 && degree(l, v, false) != 1)
			continue;
		mate[u] = v;
		mate[v] = u;
		merged++;
	}
	return merged;
}

/* Numbers for the merged vertices in a topological order: a pair comes when all that lead to it have come. */
static void number(level *l, const uint32_t *mate, uint32_t *waits, uint32_t *queue)
{
	uint32_t head = 0, tail = 0, n = 0;

	for (uint32_t v = 0; v < l->n; v++)
		waits[v] = 0;
	for (uint32_t i = 0; i < l->n_edges; i++) {
		uint32_t a = TN_MIN(l->edges[i].from, mate[l->edges[i].from]);
		uint32_t b = TN_MIN(l->edges[i].to, mate[l->edges[i].to]);

		waits[b] += a != b;
	}
	for (uint32_t v = 0; v < l->n; v++) {
		if (v <= mate[v] && waits[v] == 0)
			queue[tail++] = v;
	}
	for (; head < tail; head++) {
		uint32_t a = queue[head], pair[2] = {a, mate[a]};

		l->coarse[a] = l->coarse[mate[a]] = n++;
		for (uint32_t p = 0; p < (a == mate[a] ? 1u : 2u); p++) {
			for (uint32_t k = l->first[pair[p]]; k < l->first[pair[p] + 1]; k++) {
				const tn_cut_edge *e = &l->edges[l->around[k]];
				uint32_t b = TN_MIN(e->to, mate[e->to]);

				if (e->from == pair[p] && b != a && --waits[b] == 0)
					queue[tail++] = b;
			}
		}
	}
	TN_ASSERT(tail == n);
}

static tern_status coarsen(level *l, uint32_t n, level *next)
{
	TN_TRY(level_alloc(next, n, l->n_edges));
	for (uint32_t v = 0; v < n; v++)
		next->fixed[v] = -1;
	for (uint32_t v = 0; v < l->n; v++) {
		next->weight[l->coarse[v]] += l->weight[v];
		if (l->fixed[v] >= 0)
			next->fixed[l->coarse[v]] = l->fixed[v];
	}
	next->n_edges = 0;
	for (uint32_t i = 0; i < l->n_edges; i++) {
		tn_cut_edge e = {l->coarse[l->edges[i].from], l->coarse[l->edges[i].to], l->edges[i].bytes};

		if (e.from != e.to)
			next->edges[next->n_edges++] = e;
	}
	level_index(next);
	return TERN_OK;
}

static tern_status build_levels(const tn_cut_problem *p, uint64_t total, level *levels, uint32_t *n_levels)
{
	uint64_t cap = total / (p->parts * 4u) + 1;
	tn_cut_edge *heavy = calloc(p->n_edges + 1, sizeof(*heavy));
	uint32_t *mate = calloc(3 * (size_t)p->n + 1, sizeof(*mate));
	tern_status st = heavy && mate ? TERN_OK : no_memory(p->n);

	while (st == TERN_OK && *n_levels < LEVELS_MAX) {
		level *l = &levels[*n_levels - 1];
		uint32_t merged = l->n <= PER_PART * p->parts ? 0 : match(l, cap, heavy, mate);

		if (merged == 0)
			break;
		number(l, mate, mate + l->n, mate + 2 * l->n);
		st = coarsen(l, l->n - merged, &levels[*n_levels]);
		++*n_levels;
	}
	free(heavy);
	free(mate);
	return st;
}

/* ---- split and refine ---- */

typedef struct cut {
	const tn_cut_problem *p;
	const level *l;
	uint32_t *part;
	uint64_t *load; /* per part */
	uint64_t limit;
	bool *locked;
	uint32_t *moved, *from; /* the moves of a pass */
} cut;

static void bounds(const cut *c, uint32_t v, uint32_t *lo, uint32_t *hi)
{
	*lo = 0;
	*hi = c->p->parts - 1;
	for (uint32_t k = c->l->first[v]; k < c->l->first[v + 1]; k++) {
		const tn_cut_edge *e = &c->l->edges[c->l->around[k]];

		if (e->to == v)
			*lo = TN_MAX(*lo, c->part[e->from]);
		else
			*hi = TN_MIN(*hi, c->part[e->to]);
	}
}

static void split(cut *c, uint64_t total)
{
	const level *l = c->l;
	uint64_t sum = 0, load = 0; /* in parts that are closed; in the open one */
	uint32_t share = 0;

	/* the latest part that a vertex may be in for the sake of fixed ones behind it */
	for (uint32_t v = l->n; v-- > 0;) {
		c->part[v] = l->fixed[v] >= 0 ? (uint32_t)l->fixed[v] : c->p->parts - 1;
		for (uint32_t k = l->first[v]; k < l->first[v + 1]; k++) {
			const tn_cut_edge *e = &l->edges[l->around[k]];

			if (e->from == v && l->fixed[v] < 0)
				c->part[v] = TN_MIN(c->part[v], c->part[e->to]);
		}
	}
	for (uint32_t v = 0; v < l->n; v++) {
		uint32_t latest = c->part[v], earliest = 0;

		/* what is left is for the parts that are left: a heavy vertex takes nothing from the others */
		if (load > 0 && share + 1 < c->p->parts &&
		    load + l->weight[v] / 2 > (total - sum) / (c->p->parts - share)) {
			sum += load;
			load = 0;
			share++;
		}
		load += l->weight[v];
		for (uint32_t k = l->first[v]; k < l->first[v + 1]; k++) {
			const tn_cut_edge *e = &l->edges[l->around[k]];

			if (e->to == v)
				earliest = TN_MAX(earliest, c->part[e->from]);
		}
		if (l->fixed[v] < 0)
			c->part[v] = TN_MIN(TN_MAX(share, earliest), TN_MAX(latest, earliest));
	}
}

static int64_t gain(const cut *c, uint32_t v, uint32_t to)
{
	int64_t g = 0;

	for (uint32_t k = c->l->first[v]; k < c->l->first[v + 1]; k++) {
		const tn_cut_edge *e = &c->l->edges[c->l->around[k]];
		uint32_t other = c->part[e->from == v ? e->to : e->from];

		g += (int64_t)e->bytes * ((other != c->part[v]) - (other != to));
	}
	return g;
}

static uint64_t overload(const cut *c)
{
	uint64_t over = 0;

	for (uint32_t s = 0; s < c->p->parts; s++)
		over += c->load[s] > c->limit ? c->load[s] - c->limit : 0;
	return over;
}

/* The best move there is: it must not overload a part, unless the one that it leaves is fuller, nor empty one. */
static bool best_move(const cut *c, uint32_t *vertex, uint32_t *to)
{
	int64_t best = INT64_MIN;

	for (uint32_t v = 0; v < c->l->n; v++) {
		uint32_t lo, hi;
		uint64_t w = c->l->weight[v];

		if (c->locked[v] || c->l->fixed[v] >= 0 || c->load[c->part[v]] == w)
			continue;
		bounds(c, v, &lo, &hi);
		for (uint32_t s = lo; s <= hi; s++) {
			bool full = c->load[c->part[v]] > c->limit;
			int64_t g;

			if (s == c->part[v] ||
			    (c->load[s] + w > c->limit && c->load[s] + w >= c->load[c->part[v]]))
				continue;
			g = gain(c, v, s) + (full ? INT64_MAX / 4 : 0);
			if (g > best) {
				best = g;
				*vertex = v;
				*to = s;
			}
		}
	}
	return best != INT64_MIN;
}

static void move(cut *c, uint32_t v, uint32_t to)
{
	c->load[c->part[v]] -= c->l->weight[v];
	c->load[to] += c->l->weight[v];
	c->part[v] = to;
}

/* Whether the pass made it better. */
static bool refine_once(cut *c)
{
	uint64_t best_over = overload(c), over;
	int64_t gained = 0, best = 0;
	uint32_t n = 0, keep = 0, v = 0, to = 0;

	memset(c->locked, 0, c->l->n * sizeof(*c->locked));
	while (n < c->l->n && n - keep < DOWNHILL && best_move(c, &v, &to)) {
		gained += gain(c, v, to);
		c->locked[v] = true;
		c->moved[n] = v;
		c->from[n++] = c->part[v];
		move(c, v, to);
		over = overload(c);
		if (over < best_over || (over == best_over && gained > best)) {
			best_over = over;
			best = gained;
			keep = n;
		}
	}
	while (n-- > keep)
		move(c, c->moved[n], c->from[n]);
	return keep > 0;
}

static void refine(cut *c)
{
	memset(c->load, 0, c->p->parts * sizeof(*c->load));
	for (uint32_t v = 0; v < c->l->n; v++)
		c->load[c->part[v]] += c->l->weight[v];
	for (uint32_t i = 0; i < PASSES && refine_once(c); i++)
		;
}

static tern_status solve(const tn_cut_problem *p, level *levels, uint32_t *n_levels, uint32_t *part)
{
	cut c = {.p = p, .part = part};
	uint64_t total = 0, heaviest = 0;
	tern_status st;

	for (uint32_t v = 0; v < p->n; v++) {
		total += p->weight[v];
		heaviest = TN_MAX(heaviest, p->weight[v]);
	}
	c.limit = TN_MAX(total / p->parts * SLACK_NUM / SLACK_DEN, heaviest);
	st = build_levels(p, total, levels, n_levels);
	c.load = calloc(p->parts, sizeof(*c.load));
	c.locked = calloc(p->n + 1, sizeof(*c.locked));
	c.moved = calloc(2 * (size_t)p->n + 1, sizeof(*c.moved));
	c.from = c.moved + p->n;
	if (st == TERN_OK && (!c.load || !c.locked || !c.moved))
		st = no_memory(p->n);
	for (uint32_t i = *n_levels; i-- > 0 && st == TERN_OK;) {
		c.l = &levels[i];
		if (i + 1 == *n_levels)
			split(&c, total);
		else /* every vertex is where its coarse one was; backwards, since coarse numbers are not above */
			for (uint32_t v = c.l->n; v-- > 0;)
				c.moved[v] = part[c.l->coarse[v]];
		if (i + 1 < *n_levels)
			memcpy(part, c.moved, c.l->n * sizeof(*part));
		refine(&c);
	}
	free(c.load);
	free(c.locked);
	free(c.moved);
	return st;
}

tern_status tn_mincut(const tn_cut_problem *p, uint32_t *part)
{
	level levels[LEVELS_MAX];
	uint32_t n_levels = 1;
	tern_status st;

	TN_ASSERT(p->parts > 0);
	st = level_alloc(&levels[0], p->n, p->n_edges);
	if (st == TERN_OK) {
		memcpy(levels[0].weight, p->weight, p->n * sizeof(*p->weight));
		memcpy(levels[0].fixed, p->fixed, p->n * sizeof(*p->fixed));
		memcpy(levels[0].edges, p->edges, p->n_edges * sizeof(*p->edges));
		level_index(&levels[0]);
		st = solve(p, levels, &n_levels, part);
	}
	for (uint32_t i = 0; i < n_levels; i++)
		level_free(&levels[i]);
	return st;
}

uint64_t tn_cut_bytes(const tn_cut_problem *p, const uint32_t *part)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < p->n_edges; i++)
		bytes += part[p->edges[i].from] != part[p->edges[i].to] ? p->edges[i].bytes : 0;
	return bytes;
}
