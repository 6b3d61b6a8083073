/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of convolution, pooling and normalisation in plain C, for one type of number: the includer
 * defines REAL and NN_SQRT. In float these are kernels (kern_nn.c); in double the oracle that differences are taken on
 * (tests/ref/ref_nn.c). Layouts are dense (N,C,...).
 *
 * Every result element is a sum in an order that only the geometry decides. Inner loops run along the last
 * dim; reductions along it have eight fixed lanes.
 */
#include <math.h>
#include <string.h>

#include "graph/kern_nn.h"

#ifndef REAL
#error "define REAL"
#endif

#define NN_LANES 8

/* ---- sums ---- */

static REAL nn_fold(const REAL lane[NN_LANES])
{
	return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static REAL nn_sum(const REAL *x, int64_t n)
{
	REAL lane[NN_LANES] = {0};
	int64_t i = 0;

	for (; i + NN_LANES <= n; i += NN_LANES) {
		for (int k = 0; k < NN_LANES; k++)
			lane[k] += x[i + k];
	}
	for (; i < n; i++)
		lane[0] += x[i];
	return nn_fold(lane);
}

/* sum((x - mean) * y); y NULL: sum((x - mean)^2) */
static REAL nn_dot(const REAL *x, REAL mean, const REAL *y, int64_t n)
{
	REAL lane[NN_LANES] = {0};
	int64_t i = 0;

	for (; i + NN_LANES <= n; i += NN_LANES) {
		for (int k = 0; k < NN_LANES; k++) {
			REAL d = x[i + k] - mean;

			lane[k] += d * (y ? y[i + k] : d);
		}
	}
	for (; i < n; i++) {
		REAL d = x[i] - mean;

		lane[0] += d * (y ? y[i] : d);
	}
	return nn_fold(lane);
}

/* ---- windows ---- */

/* Outputs lo..hi-1 of dim d for which element j of the kernel lies inside the input. */
static void nn_span(const tn_nn_window *w, int d, int64_t j, int64_t *lo, int64_t *hi)
{
	int64_t first = w->pad[d] - j * w->dil[d], last = first + w->in[d]; /* o * stride in first..last-1 */

	*lo = first <= 0 ? 0 : (first + w->stride[d] - 1) / w->stride[d];
	*hi = last <= 0 ? 0 : (last + w->stride[d] - 1) / w->stride[d];
	if (*hi > w->out[d])
		*hi = w->out[d];
}

static int64_t nn_at(const tn_nn_window *w, int d, int64_t o, int64_t j)
{
	return o * w->stride[d] - w->pad[d] + j * w->dil[d];
}

typedef enum nn_way { NN_FORWARD, NN_DATA, NN_WEIGHT } nn_way;

/*
 * What element (j0,j1,j2) of a kernel does to an input plane x and an output plane y:
 * y += k x, x += k y, or returns sum(x y).
 */
static REAL nn_tap(const tn_nn_window *w, nn_way way, const int64_t j[3], REAL k, REAL *x, REAL *y)
{
	int64_t lo[3], hi[3], s = w->stride[2];
	REAL sum = 0;

	for (int d = 0; d < 3; d++)
		nn_span(w, d, j[d], &lo[d], &hi[d]);
	for (int64_t o0 = lo[0]; o0 < hi[0]; o0++) {
		for (int64_t o1 = lo[1]; o1 < hi[1]; o1++) {
			REAL *yr = y + (o0 * w->out[1] + o1) * w->out[2] + lo[2];
			REAL *xr = x + (nn_at(w, 0, o0, j[0]) * w->in[1] + nn_at(w, 1, o1, j[1])) * w->in[2] +
				   nn_at(w, 2, lo[2], j[2]);
			int64_t n = hi[2] - lo[2];

			if (way == NN_WEIGHT && s == 1) {
				sum += nn_dot(xr, 0, yr, n);
				continue;
			}
			for (int64_t i = 0; i < n; i++) {
				if (way == NN_FORWARD)
					yr[i] += k * xr[i * s];
				else if (way == NN_DATA)
					xr[i * s] += k * yr[i];
				else
					sum += xr[i * s] * yr[i];
			}
		}
	}
	return sum;
}

/* All taps of the kernel between one input and one output plane. */
static void nn_taps(const tn_nn_window *w, nn_way way, REAL *k, REAL *x, REAL *y)
{
	int64_t j[3];

	for (j[0] = 0; j[0] < w->k[0]; j[0]++) {
		for (j[1] = 0; j[1] < w->k[1]; j[1]++) {
			for (j[2] = 0; j[2] < w->k[2]; j[2]++, k++) {
				REAL sum = nn_tap(w, way, j, way == NN_WEIGHT ? 0 : *k, x, y);

				if (way == NN_WEIGHT)
					*k += sum;
			}
		}
	}
}

/* The three passes of a convolution differ in which of x, k and y is written (and was zeroed or biased). */
static void nn_conv(const tn_nn_window *w, nn_way way, REAL *k, REAL *x, REAL *y)
{
	int64_t in = tn_nn_plane(w->in), out = tn_nn_plane(w->out), taps = tn_nn_plane(w->k);
	int64_t cg = w->c / w->groups, og = w->oc / w->groups;

	for (int64_t n = 0; n < w->n; n++) {
		for (int64_t o = 0; o < w->oc; o++) {
			for (int64_t c = 0; c < cg; c++) {
				nn_taps(w, way, k + (o * cg + c) * taps,
					x + (n * w->c + o / og * cg + c) * in, y + (n * w->oc + o) * out);
			}
		}
	}
}

/* bias NULL: zeros */
static void nn_fill_bias(REAL *y, const REAL *bias, int64_t n, int64_t channels, int64_t plane)
{
	for (int64_t i = 0; i < n * channels; i++) {
		REAL b = bias ? bias[i % channels] : 0;

		for (int64_t p = 0; p < plane; p++)
			y[i * plane + p] = b;
	}
}

static void nn_conv_forward(const tn_nn_window *w, const REAL *x, const REAL *k, const REAL *bias, REAL *y)
{
	nn_fill_bias(y, bias, w->n, w->oc, tn_nn_plane(w->out));
	nn_conv(w, NN_FORWARD, (REAL *)k, (REAL *)x, y);
}

/* Also the transposed convolution, which may have a bias on what it makes. */
static void nn_conv_data(const tn_nn_window *w, const REAL *dy, const REAL *k, const REAL *bias, REAL *dx)
{
	nn_fill_bias(dx, bias, w->n, w->c, tn_nn_plane(w->in));
	nn_conv(w, NN_DATA, (REAL *)k, dx, (REAL *)dy);
}

static void nn_conv_weight(const tn_nn_window *w, const REAL *dy, const REAL *x, REAL *dk)
{
	memset(dk, 0, (size_t)(w->oc * (w->c / w->groups) * tn_nn_plane(w->k)) * sizeof(*dk));
	nn_conv(w, NN_WEIGHT, dk, (REAL *)x, (REAL *)dy);
}

static void nn_conv_bias(int64_t n, int64_t channels, int64_t plane, const REAL *dy, REAL *db)
{
	for (int64_t c = 0; c < channels; c++) {
		REAL sum = 0;

		for (int64_t i = 0; i < n; i++)
			sum += nn_sum(dy + (i * channels + c) * plane, plane);
		db[c] = sum;
	}
}

/* ---- pooling ---- */

/* The window of one output: input elements from..to-1 (in steps of dil) per dim. */
typedef struct nn_box {
	int64_t from[3], to[3];
} nn_box;

static void nn_box_of(const tn_nn_window *w, const int64_t o[3], nn_box *b)
{
	for (int d = 0; d < 3; d++) {
		int64_t start = o[d] * w->stride[d] - w->pad[d], end = start + (w->k[d] - 1) * w->dil[d] + 1;

		if (start < 0)
			start += (-start + w->dil[d] - 1) / w->dil[d] * w->dil[d];
		b->from[d] = start;
		b->to[d] = end < w->in[d] ? end : w->in[d];
	}
}

/* Elements of the window that an average counts; padding too if `count_pad`, but not what ceil_mode adds. */
static int64_t nn_box_count(const tn_nn_window *w, const int64_t o[3])
{
	int64_t n = 1;

	for (int d = 0; d < 3; d++) {
		int64_t start = o[d] * w->stride[d] - w->pad[d], end = start + (w->k[d] - 1) * w->dil[d] + 1;
		int64_t most = w->in[d] + (w->count_pad ? w->pad_end[d] : 0);

		end = end < most ? end : most;
		if (start < 0 && !w->count_pad)
			start += (-start + w->dil[d] - 1) / w->dil[d] * w->dil[d];
		n *= end > start ? (end - start + w->dil[d] - 1) / w->dil[d] : 0;
	}
	return n;
}

/* Index within the plane of the first greatest element; -1 for a window with none. */
static int64_t nn_box_max(const tn_nn_window *w, const nn_box *b, const REAL *x)
{
	int64_t best = -1;

	for (int64_t i = b->from[0]; i < b->to[0]; i += w->dil[0]) {
		for (int64_t j = b->from[1]; j < b->to[1]; j += w->dil[1]) {
			const REAL *row = x + (i * w->in[1] + j) * w->in[2];

			for (int64_t k = b->from[2]; k < b->to[2]; k += w->dil[2]) {
				if (best < 0 || row[k] > x[best] || row[k] != row[k])
					best = row + k - x;
			}
		}
	}
	return best;
}

/* sum(|x|^p) over the box, sum(x) for p = 0 */
static REAL nn_box_sum(const tn_nn_window *w, const nn_box *b, const REAL *x)
{
	REAL sum = 0;

	for (int64_t i = b->from[0]; i < b->to[0]; i += w->dil[0]) {
		for (int64_t j = b->from[1]; j < b->to[1]; j += w->dil[1]) {
			const REAL *row = x + (i * w->in[1] + j) * w->in[2];

			for (int64_t k = b->from[2]; k < b->to[2]; k += w->dil[2])
				sum += w->p ? (REAL)pow(fabs((double)row[k]), (double)w->p) : row[k];
		}
	}
	return sum;
}

static void nn_box_add(const tn_nn_window *w, const nn_box *b, REAL g, REAL *dx)
{
	for (int64_t i = b->from[0]; i < b->to[0]; i += w->dil[0]) {
		for (int64_t j = b->from[1]; j < b->to[1]; j += w->dil[1]) {
			REAL *row = dx + (i * w->in[1] + j) * w->in[2];

			for (int64_t k = b->from[2]; k < b->to[2]; k += w->dil[2])
				row[k] += g;
		}
	}
}

static int64_t nn_column_major(const tn_nn_window *w, int64_t at)
{
	int64_t k = at % w->in[2], j = at / w->in[2] % w->in[1], i = at / w->in[2] / w->in[1];

	return (k * w->in[1] + j) * w->in[0] + i;
}

typedef enum nn_pool { NN_POOL_MAX, NN_POOL_MAX_GRAD, NN_POOL_SUM, NN_POOL_SUM_GRAD } nn_pool;

/* What a pool reads and writes; whatever it has no use for is NULL. */
typedef struct nn_pool_io {
	const REAL *x, *dy;
	REAL *y, *dx;
	int64_t *indices;
} nn_pool_io;

static void nn_pool_one(const tn_nn_window *w, nn_pool what, const int64_t o[3], int64_t x0, int64_t at,
			const nn_pool_io *io)
{
	nn_box box, *b = &box;
	int64_t m, n;
	REAL sum;

	nn_box_of(w, o, b);
	switch (what) {
	case NN_POOL_MAX:
		m = nn_box_max(w, b, io->x + x0);
		io->y[at] = m < 0 ? 0 : io->x[x0 + m];
		if (io->indices)
			io->indices[at] = m < 0 ? -1 : x0 + (w->column_major ? nn_column_major(w, m) : m);
		break;
	case NN_POOL_MAX_GRAD:
		m = nn_box_max(w, b, io->x + x0);
		if (m >= 0)
			io->dx[x0 + m] += io->dy[at];
		break;
	case NN_POOL_SUM:
		sum = nn_box_sum(w, b, io->x + x0);
		n = nn_box_count(w, o);
		if (w->p)
			io->y[at] = (REAL)pow((double)sum, 1.0 / (double)w->p);
		else
			io->y[at] = n ? sum / (REAL)n : 0;
		break;
	case NN_POOL_SUM_GRAD:
		n = nn_box_count(w, o);
		if (n)
			nn_box_add(w, b, io->dy[at] / (REAL)n, io->dx + x0);
		break;
	}
}

static void nn_pool_run(const tn_nn_window *w, nn_pool what, const nn_pool_io *io)
{
	int64_t in = tn_nn_plane(w->in), o[3], at = 0;

	if (io->dx)
		memset(io->dx, 0, (size_t)(w->n * w->c * in) * sizeof(*io->dx));
	for (int64_t p = 0; p < w->n * w->c; p++) {
		for (o[0] = 0; o[0] < w->out[0]; o[0]++) {
			for (o[1] = 0; o[1] < w->out[1]; o[1]++) {
				for (o[2] = 0; o[2] < w->out[2]; o[2]++, at++)
					nn_pool_one(w, what, o, p * in, at, io);
			}
		}
	}
}

/* ---- batch and instance norm ---- */

static void nn_norm_stats(const tn_nn_norm *q, const REAL *x, int64_t g, REAL *mean, REAL *var)
{
	double sum = 0, sq = 0, n = (double)(q->chunks * q->run);

	for (int64_t i = 0; i < q->chunks; i++)
		sum += (double)nn_sum(x + (g + i * q->groups) * q->run, q->run);
	*mean = (REAL)(sum / n);
	for (int64_t i = 0; i < q->chunks; i++)
		sq += (double)nn_dot(x + (g + i * q->groups) * q->run, *mean, NULL, q->run);
	*var = (REAL)(sq / n);
}

static REAL nn_inverse(REAL var, double epsilon)
{
	return (REAL)(1.0 / sqrt((double)var + epsilon));
}

static void nn_norm_apply(const tn_nn_norm *q, int64_t g, REAL mean, REAL inv, const REAL *scale,
			  const REAL *shift, const REAL *x, REAL *y)
{
	REAL a = scale[g % q->channels] * inv, b = shift[g % q->channels];

	for (int64_t i = 0; i < q->chunks; i++) {
		int64_t at = (g + i * q->groups) * q->run;

		for (int64_t j = 0; j < q->run; j++)
			y[at + j] = (x[at + j] - mean) * a + b;
	}
}

/* mean and var NULL: of x, not kept. `given`: they are inputs. */
static void nn_norm_forward(const tn_nn_norm *q, bool given, const REAL *x, const REAL *scale,
			    const REAL *shift, REAL *mean, REAL *var, REAL *y)
{
	for (int64_t g = 0; g < q->groups; g++) {
		REAL m = 0, v = 0;

		if (given) {
			m = mean[g];
			v = var[g];
		} else {
			nn_norm_stats(q, x, g, &m, &v);
		}
		if (!given && mean) {
			mean[g] = m;
			var[g] = v;
		}
		nn_norm_apply(q, g, m, nn_inverse(v, q->epsilon), scale, shift, x, y);
	}
}

/* dx = scale inv (dy - mean(dy) - xhat mean(dy xhat)) */
static void nn_norm_backward(const tn_nn_norm *q, const REAL *dy, const REAL *x, const REAL *scale,
			     const REAL *mean, const REAL *var, REAL *dx, REAL *dscale, REAL *dshift)
{
	REAL n = (REAL)(q->chunks * q->run);

	memset(dscale, 0, (size_t)q->channels * sizeof(*dscale));
	memset(dshift, 0, (size_t)q->channels * sizeof(*dshift));
	for (int64_t g = 0; g < q->groups; g++) {
		int64_t c = g % q->channels;
		REAL m, v, inv, db = 0, ds = 0, a, k;

		if (mean) {
			m = mean[g];
			v = var[g];
		} else {
			nn_norm_stats(q, x, g, &m, &v);
		}
		inv = nn_inverse(v, q->epsilon);
		for (int64_t i = 0; i < q->chunks; i++) {
			int64_t at = (g + i * q->groups) * q->run;

			db += nn_sum(dy + at, q->run);
			ds += nn_dot(x + at, m, dy + at, q->run);
		}
		ds *= inv;
		dscale[c] += ds;
		dshift[c] += db;
		a = scale[c] * inv;
		k = ds / n * inv;
		for (int64_t i = 0; i < q->chunks; i++) {
			int64_t at = (g + i * q->groups) * q->run;

			for (int64_t j = 0; j < q->run; j++)
				dx[at + j] = a * (dy[at + j] - db / n - (x[at + j] - m) * k);
		}
	}
}

/* ---- layer norm: one row a group, scale and shift per element ---- */

static void nn_layer_forward(const tn_nn_norm *q, const REAL *x, const REAL *scale, const REAL *shift,
			     REAL *y, REAL *mean, REAL *inv)
{
	for (int64_t g = 0; g < q->groups; g++) {
		const REAL *xr = x + g * q->run;
		REAL *yr = y + g * q->run, m, v;

		nn_norm_stats(q, x, g, &m, &v);
		mean[g] = m;
		inv[g] = nn_inverse(v, q->epsilon);
		for (int64_t j = 0; j < q->run; j++)
			yr[j] = (xr[j] - m) * inv[g] * scale[j] + shift[j];
	}
}

static void nn_layer_backward(const tn_nn_norm *q, const REAL *dy, const REAL *x, const REAL *scale,
			      const REAL *mean, const REAL *inv, REAL *dx, REAL *dscale, REAL *dshift)
{
	memset(dscale, 0, (size_t)q->run * sizeof(*dscale));
	memset(dshift, 0, (size_t)q->run * sizeof(*dshift));
	for (int64_t g = 0; g < q->groups; g++) {
		const REAL *xr = x + g * q->run, *dyr = dy + g * q->run;
		REAL *dxr = dx + g * q->run, m = mean[g], r = inv[g], mean_d, mean_dx;

		for (int64_t j = 0; j < q->run; j++)
			dxr[j] = dyr[j] * scale[j];
		mean_d = nn_sum(dxr, q->run) / (REAL)q->run;
		mean_dx = nn_dot(xr, m, dxr, q->run) * r / (REAL)q->run;
		for (int64_t j = 0; j < q->run; j++) {
			REAL hat = (xr[j] - m) * r;

			dxr[j] = r * (dxr[j] - mean_d - hat * mean_dx);
			dscale[j] += dyr[j] * hat;
			dshift[j] += dyr[j];
		}
	}
}

/* ---- local response norm ---- */

/* base[c] = bias + alpha / size * sum of squares over the channels around c; one image (C, plane). */
static void nn_lrn_base(const tn_nn_lrn *q, const REAL *x, REAL *base)
{
	REAL f = (REAL)(q->alpha / (double)q->size);

	for (int64_t c = 0; c < q->c; c++) {
		int64_t from = c - (q->size - 1) / 2, to = c + q->size / 2;
		REAL *b = base + c * q->plane;

		from = from < 0 ? 0 : from;
		to = to >= q->c ? q->c - 1 : to;
		for (int64_t p = 0; p < q->plane; p++)
			b[p] = 0;
		for (int64_t k = from; k <= to; k++) {
			for (int64_t p = 0; p < q->plane; p++)
				b[p] += x[k * q->plane + p] * x[k * q->plane + p];
		}
		for (int64_t p = 0; p < q->plane; p++)
			b[p] = (REAL)q->bias + f * b[p];
	}
}

/* b[i] to the power -beta; 3/4, which everybody takes, by square roots */
static void nn_lrn_power(const tn_nn_lrn *q, const REAL *b, REAL *y, int64_t n)
{
	if (q->beta == 0.75) {
		for (int64_t i = 0; i < n; i++) {
			REAL root = (REAL)NN_SQRT(b[i]);

			y[i] = (REAL)1 / (root * (REAL)NN_SQRT(root));
		}
		return;
	}
	for (int64_t i = 0; i < n; i++)
		y[i] = (REAL)pow((double)b[i], -q->beta);
}

static void nn_lrn_forward(const tn_nn_lrn *q, const REAL *x, REAL *y)
{
	int64_t image = q->c * q->plane;

	for (int64_t n = 0; n < q->n; n++, x += image, y += image) {
		nn_lrn_base(q, x, y);
		nn_lrn_power(q, y, y, image);
		for (int64_t i = 0; i < image; i++)
			y[i] *= x[i];
	}
}

/*
 * dx[i] = dy[i] base[i]^-beta - 2 alpha beta / size x[i] sum(dy[k] x[k] base[k]^(-beta - 1)) over the k whose
 * sum has i in it. scratch: two images.
 */
static void nn_lrn_backward(const tn_nn_lrn *q, const REAL *dy, const REAL *x, REAL *dx, REAL *scratch)
{
	int64_t image = q->c * q->plane;
	REAL *base = scratch, *t = scratch + image, f = (REAL)(2.0 * q->alpha * q->beta / (double)q->size);

	for (int64_t n = 0; n < q->n; n++, x += image, dy += image, dx += image) {
		nn_lrn_base(q, x, base);
		nn_lrn_power(q, base, dx, image);
		for (int64_t i = 0; i < image; i++) {
			dx[i] *= dy[i];
			t[i] = dx[i] * x[i] / base[i];
		}
		for (int64_t c = 0; c < q->c; c++) {
			int64_t from = c - q->size / 2, to = c + (q->size - 1) / 2;

			from = from < 0 ? 0 : from;
			to = to >= q->c ? q->c - 1 : to;
			for (int64_t k = from; k <= to; k++) {
				for (int64_t p = 0; p < q->plane; p++) {
					int64_t i = c * q->plane + p;

					dx[i] -= f * x[i] * t[k * q->plane + p];
				}
			}
		}
	}
}

static void nn_global_average(const tn_nn_window *w, const REAL *x, REAL *y)
{
	int64_t in = tn_nn_plane(w->in);

	for (int64_t i = 0; i < w->n * w->c; i++)
		y[i] = nn_sum(x + i * in, in) / (REAL)in;
}
