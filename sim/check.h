/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judgement. The first violation ends the run and names its checker:
 *
 *   once       every accepted operation is completed exactly once, with a status that can be
 *   order      messages, notifications and tensors come once and in order
 *   content    and are what was sent; nothing is written after its completion
 *   call       a call is executed at most once, its answer is its own
 *   buffer     no buffer is handed back while a device can still read or write it
 *   slots      nothing arrives without a receive slot, nor on a lane beyond its grant (RNR 0); grants of all lanes
 *              of a device together never exceed its slots
 *   window     where nothing is under way a link's window and a device's budget are whole again, and a device has
 *              granted what its links hold
 *   device     what the transport's contract forbids its user
 *   progress   everything ends within a bound after the faults stopped
 *   leak       devices, lanes, registrations and descriptors are gone when the nodes are
 *   assert     an assertion of tern itself
 *
 * Threads: none. Tests: the mutants (sim/README.md).
 */
#ifndef TERN_SIM_CHECK_H
#define TERN_SIM_CHECK_H

#include "sim/world.h"

/* Remember the first violation; the run stops at the next event. */
void sim_violation(sim_world *world, const char *checker, const char *fmt, ...) TN_PRINTF(3, 4);
#define SIM_CHECK(world, checker, expr, ...)                            \
	do {                                                            \
		if (TN_UNLIKELY(!(expr)))                               \
			sim_violation((world), (checker), __VA_ARGS__); \
	} while (0)

/* Bytes that only this id has. */
void sim_fill(void *buf, uint64_t bytes, uint64_t id);
/* Index of the first byte that is not of this id; `bytes` if all are. */
uint64_t sim_differs(const void *buf, uint64_t bytes, uint64_t id);

/* The state of each link of the node, whole (tern's own checks). */
void sim_check_links(sim_node *node);
/* All is done and came, and it has been silent for a while. */
void sim_check_silence(sim_world *world);
/* After the last node is gone. */
void sim_check_leaks(sim_world *world);

#endif
