/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two links from their start to their end, for the tests of hello and of life. Threads: none.
 */
#ifndef TERN_TESTS_LINK_LIFE_H
#define TERN_TESTS_LINK_LIFE_H

#include "cmocka_all.h"
#include "link/wire.h"
#include "unit/link/pair.h"

static pair_world world;

static inline void fresh(void)
{
	pair_init(&world, 42);
}

static inline void until_down(void)
{
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
}

static inline void until_up(void)
{
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
}

static inline void assert_ends(int side, tern_status status, const char *words)
{
	if (world.node[side].status != status || !strstr(world.node[side].detail, words))
		fail_msg("node %d ended with %s '%s', expected %s '%s'", side,
			 tern_status_name(world.node[side].status), world.node[side].detail,
			 tern_status_name(status), words);
}

/* Both start, with these secrets. */
static inline void hello_with(const char *a, const char *b)
{
	const char *secrets[] = {a, b};

	fresh();
	for (int i = 0; i < 2; i++) {
		world.node[i].config.secret = secrets[i];
		world.node[i].config.secret_bytes = secrets[i] ? (uint32_t)strlen(secrets[i]) : 0;
	}
	pair_start(&world);
}

#endif
