/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers: each instruction set against one element at a time, bit by bit; known first steps by hand; what is not
 * finite is reported.
 */
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "ref/optim_ref.h"
#include "store/optim.h"
#include "store/rows.h"

#define DIM_MAX 131

static float draw(tn_rand *r)
{
	return (float)(tn_rand_double(r) - 0.5) * 2;
}

static tern_optimizer_params usual(tern_row_optimizer kind, tn_rand *r)
{
	tern_optimizer_params p;

	tern_optimizer_init(&p, kind, 0.05f);
	p.weight_decay = tn_rand_below(r, 2) ? 0.01f : 0;
	p.momentum = tn_rand_below(r, 3) ? 0.9f : 0;
	p.l1 = tn_rand_below(r, 2) ? 0.3f : 0;
	p.l2 = tn_rand_below(r, 2) ? 0.1f : 0;
	p.initial_accumulator = 0.1f;
	return p;
}

/* A few updates of one row, as the oracle says, by the loops in use, in place or beside. */
static void one_row(tern_row_optimizer kind, tn_rand *r)
{
	tern_optimizer_params p = usual(kind, r);
	uint32_t dim = 1 + (uint32_t)tn_rand_below(r, DIM_MAX);
	float w[DIM_MAX], want[DIM_MAX], g[DIM_MAX], state[2 * DIM_MAX + 1], w2[DIM_MAX],
		state2[2 * DIM_MAX + 1];
	ref_state s[DIM_MAX];
	tn_optim o;

	tn_optim_prepare(&o, &p);
	assert_int_equal(o.slots, ref_slots(&p));
	tn_optim_state_init(&o, dim, state);
	for (uint32_t d = 0; d < dim; d++) {
		want[d] = w[d] = draw(r);
		s[d] = ref_start(&p);
	}
	for (uint32_t t = 1; t <= 6; t++) {
		float scale = tn_rand_below(r, 2) ? 1 : 0.25f;
		bool beside = tn_rand_below(r, 2);

		for (uint32_t d = 0; d < dim; d++) {
			g[d] = draw(r);
			want[d] = ref_step(&p, scale, want[d], &s[d], g[d], t);
		}
		assert_true(tn_optim_apply(&o, scale, dim, w, state, g, beside ? w2 : w,
					   beside ? state2 : state));
		if (beside) {
			memcpy(w, w2, sizeof(w));
			memcpy(state, state2, tn_optim_state_bytes(&o, dim));
		}
		for (uint32_t d = 0; d < dim; d++) {
			if (memcmp(&w[d], &want[d], 4) != 0)
				fail_msg("%s, optimizer %d, t %u, column %u of %u: %a, expected %a",
					 tn_loops_get()->name, (int)kind, t, d, dim, w[d], want[d]);
			assert_true(o.slots < 1 || memcmp(&state[d], &s[d].a, 4) == 0);
			assert_true(o.slots < 2 || memcmp(&state[dim + d], &s[d].b, 4) == 0);
		}
	}
}

static void each_instruction_set_gives_the_same_bits(void **state)
{
	(void)state;
	for (unsigned i = 0; tn_loops_at(i); i++) {
		tn_rand r = {3};

		tn_loops_use((int)i);
		printf("  %s\n", tn_loops_get()->name);
		for (int round = 0; round < 300; round++) {
			for (int kind = 0; kind <= TERN_OPT_RMSPROP; kind++)
				one_row((tern_row_optimizer)kind, &r);
		}
	}
	tn_loops_use(-1);
}

static void rows_by_each_instruction_set(void **state)
{
	(void)state;
	for (unsigned i = 0; tn_loops_at(i); i++) {
		const tn_loops *l = tn_loops_at(i);
		uint16_t in[70], out[70];
		float f[70], sum[70];

		for (uint32_t h = 0; h < 65536; h += 70) {
			for (uint32_t k = 0; k < 70; k++)
				in[k] = (uint16_t)(h + k);
			l->from_bf16(f, in, 70);
			for (uint32_t k = 0; k < 70; k++) {
				float x = tn_bf16_to_f32(in[k]);

				assert_memory_equal(&f[k], &x, 4);
			}
			l->to_f16(out, f, 70);
			for (uint32_t k = 0; k < 70; k++)
				assert_int_equal(out[k], tn_f16_from_f32(f[k]));
			l->from_f16(f, in, 70);
			for (uint32_t k = 0; k < 70; k++) {
				float x = tn_f16_to_f32(in[k]);

				assert_memory_equal(&f[k], &x, 4);
			}
			l->to_bf16(out, f, 70);
			for (uint32_t k = 0; k < 70; k++)
				assert_int_equal(out[k], tn_bf16_from_f32(f[k]));
			memset(sum, 0, sizeof(sum));
			l->add(sum, f, 69);
			assert_true(sum[69] == 0);
		}
		f[0] = NAN;
		assert_false(l->finite(f, 1));
		f[0] = 3e38f;
		assert_true(l->finite(f, 1));
	}
}

/* The first step of each, worked out by hand from the papers. */
static void first_steps_by_hand(void **state)
{
	const struct {
		tern_row_optimizer kind;
		double want;
	} by_hand[] = {
		{TERN_OPT_NONE, 1 + 0.5},
		{TERN_OPT_SGD, 1 - 0.1 * 0.5},
		{TERN_OPT_MOMENTUM, 1 - 0.1 * 0.5},
		{TERN_OPT_ADAGRAD, 1 - 0.1 * 0.5 / sqrt(0.1 + 0.25)},
		{TERN_OPT_ADAM, 1 - 0.1},  /* m / sqrt(v) is the sign of g */
		{TERN_OPT_ADAMW, 1 - 0.1}, /* no decay here */
		/* s = (sqrt 0.35 - sqrt 0.1) / 0.1, z = 0.5 - s, w = -z 0.1 / sqrt 0.35 */
		{TERN_OPT_FTRL, -(0.5 - (sqrt(0.35) - sqrt(0.1)) / 0.1) * 0.1 / sqrt(0.35)},
		{TERN_OPT_RMSPROP, 1 - 0.1 * 0.5 / sqrt(0.1 * 0.25)},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(by_hand) / sizeof(by_hand[0]); i++) {
		tern_optimizer_params p;
		tn_optim o;
		float w = 1, g = 0.5f, s[3];

		tern_optimizer_init(&p, by_hand[i].kind, 0.1f);
		tn_optim_prepare(&o, &p);
		tn_optim_state_init(&o, 1, s);
		assert_true(tn_optim_apply(&o, 1, 1, &w, s, &g, &w, s));
		if (fabs((double)w - by_hand[i].want) > 1e-6)
			fail_msg("optimizer %d: %.9g, expected %.9g", (int)by_hand[i].kind, (double)w,
				 by_hand[i].want);
	}
}

static void what_is_not_finite_is_seen(void **state)
{
	tn_rand r = {5};

	(void)state;
	for (unsigned i = 0; tn_loops_at(i); i++) {
		tn_loops_use((int)i);
		for (int kind = 0; kind <= TERN_OPT_RMSPROP; kind++) {
			tern_optimizer_params p = usual((tern_row_optimizer)kind, &r);
			float w[40] = {0}, g[40] = {0}, s[81];
			tn_optim o;

			tn_optim_prepare(&o, &p);
			for (int at = 0; at < 40; at++) {
				for (int bad = 0; bad < 3; bad++) {
					tn_optim_state_init(&o, 40, s);
					memset(w, 0, sizeof(w));
					memset(g, 0, sizeof(g));
					assert_true(tn_optim_apply(&o, 1, 40, w, s, g, w, s));
					g[at] = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
					if (tn_optim_apply(&o, 1, 40, w, s, g, w, s))
						fail_msg("%s, optimizer %d, column %d", tn_loops_get()->name,
							 kind, at);
				}
			}
		}
	}
	tn_loops_use(-1);
}

static void a_power_of_its_own(void **state)
{
	tern_optimizer_params p;
	tn_optim o;
	float w = 0.25f, want = 0.25f, g = 0.5f, s[2];
	ref_state ref;

	(void)state;
	tern_optimizer_init(&p, TERN_OPT_FTRL, 0.1f);
	p.lr_power = -0.75f;
	tn_optim_prepare(&o, &p);
	tn_optim_state_init(&o, 1, s);
	ref = ref_start(&p);
	for (uint32_t t = 1; t < 5; t++) {
		want = ref_step(&p, 1, want, &ref, g, t);
		assert_true(tn_optim_apply(&o, 1, 1, &w, s, &g, &w, s));
		assert_true(fabsf(w - want) <= 1e-6f * fabsf(want));
	}
}

static void slots_have_names(void **state)
{
	tern_optimizer_params p;
	tn_optim o;

	(void)state;
	for (int kind = 0; kind <= TERN_OPT_RMSPROP; kind++) {
		tern_optimizer_init(&p, (tern_row_optimizer)kind, 1);
		tn_optim_prepare(&o, &p);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(tn_optim_slot_name(&o, i) != NULL, i < o.slots);
		assert_int_equal(tn_optim_state_bytes(&o, 10),
				 o.slots * 40 + (kind == TERN_OPT_ADAM || kind == TERN_OPT_ADAMW ? 4 : 0));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_instruction_set_gives_the_same_bits),
		cmocka_unit_test(rows_by_each_instruction_set),
		cmocka_unit_test(first_steps_by_hand),
		cmocka_unit_test(what_is_not_finite_is_seen),
		cmocka_unit_test(a_power_of_its_own),
		cmocka_unit_test(slots_have_names),
	};

	return RUN(tests);
}
