/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads of one process, each with a context of its own. A rank's function runs in its thread and asserts by
 * returning words (cmocka's asserts belong to the main thread).
 */
#ifndef TESTS_COLL_WORLD_H
#define TESTS_COLL_WORLD_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/coll.h>
#include <tern/mem.h>

#include "cmocka_all.h"

#define WORLD_MAX 16

typedef struct world world;
typedef struct rank {
	world *w;
	uint32_t rank;
	tern_ctx *ctx;
	tern_communicator *comm;
	pthread_t thread;
	char wrong[400];
} rank;

struct world {
	uint32_t size;
	rank ranks[WORLD_MAX];
	const char *addresses[WORLD_MAX];
	const char *const *hosts;
	uint64_t timeout_ns;
	void (*run)(rank *r);
	const void *arg;
};

static const char *transport = "loop";

#define WRONG(r, ...)                                                          \
	do {                                                                   \
		if (!(r)->wrong[0])                                            \
			snprintf((r)->wrong, sizeof((r)->wrong), __VA_ARGS__); \
		return;                                                        \
	} while (0)
#define NEED(r, expr)                                                                              \
	do {                                                                                       \
		tern_status need_ = (expr);                                                        \
		if (need_ != TERN_OK)                                                              \
			WRONG(r, "rank %u: %s: %s: %s", (r)->rank, #expr, tern_status_name(need_), \
			      tern_detail());                                                      \
	} while (0)

static inline void *world_thread(void *arg)
{
	rank *r = arg;

	r->w->run(r);
	return NULL;
}

static inline void world_open(world *w, uint32_t size)
{
	static unsigned number;

	w->size = size;
	for (uint32_t i = 0; i < size; i++) {
		char name[40];

		snprintf(name, sizeof(name), "rank %u of world %u", i, number);
		w->ranks[i] = (rank){.w = w, .rank = i};
		if (tern_ctx_create(&(tern_ctx_params){.name = name, .transports = transport},
				    &w->ranks[i].ctx) != TERN_OK)
			fail_msg("context: %s", tern_detail());
		w->addresses[i] = tern_ctx_address(w->ranks[i].ctx);
	}
	number++;
	for (uint32_t i = 0; i < size; i++) {
		tern_comm_params p = {.name = "job",
				      .rank = i,
				      .size = size,
				      .addresses = w->addresses,
				      .hosts = w->hosts,
				      .timeout_ns = w->timeout_ns ? w->timeout_ns : 60000000000ull};

		if (tern_comm_create(w->ranks[i].ctx, &p, &w->ranks[i].comm) != TERN_OK)
			fail_msg("communicator: %s", tern_detail());
	}
}

/* Every rank runs fn; the first that found something wrong fails the test. */
static inline void world_run(world *w, void (*fn)(rank *r), const void *arg)
{
	w->run = fn;
	w->arg = arg;
	for (uint32_t i = 0; i < w->size; i++)
		assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, world_thread, &w->ranks[i]), 0);
	for (uint32_t i = 0; i < w->size; i++)
		pthread_join(w->ranks[i].thread, NULL);
	w->arg = NULL;
	for (uint32_t i = 0; i < w->size; i++)
		if (w->ranks[i].wrong[0])
			fail_msg("%s", w->ranks[i].wrong);
}

static inline void world_close(world *w)
{
	for (uint32_t i = 0; i < w->size; i++)
		tern_comm_destroy(w->ranks[i].comm);
	for (uint32_t i = 0; i < w->size; i++)
		tern_ctx_destroy(w->ranks[i].ctx);
}

#endif
