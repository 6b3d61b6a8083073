/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of a world: each seed draws a few kinds, and of each kind a few faults with their times. The plan is made
 * before the run, so that single faults can be left out of it: what remains happens as before.
 *
 *   index of a fault   its place in the plan, 0.. : what `--only` takes
 *
 * Threads: none. Tests: sim-smoke (coverage).
 */
#ifndef TERN_SIM_FAULT_H
#define TERN_SIM_FAULT_H

#include "sim/world.h"

#define SIM_FAULTS(X)                                                         \
	X(LANE_BREAK, "lane-break", "a lane breaks, both sides notice")       \
	X(LANE_HALF, "lane-half", "a lane breaks at one side alone")          \
	X(LANE_STUCK, "lane-stuck", "a lane moves nothing for a while")       \
	X(DEVICE_DEATH, "device-death", "a device dies and comes back")       \
	X(REFUSE_CREATE, "refuse-create", "a device makes no lanes")          \
	X(REFUSE_CONNECT, "refuse-connect", "a device connects no lanes")     \
	X(REFUSE_REACH, "refuse-reach", "a device reaches nobody")            \
	X(REFUSE_REG, "refuse-register", "a device registers no memory")      \
	X(AGAIN_STORM, "again-storm", "most posts are told to come again")    \
	X(CTRL_CUT, "control-cut", "a control connection ends")               \
	X(CTRL_HALF, "control-half", "and one side learns of it late")        \
	X(CTRL_STALL, "control-stall", "control connections of a node stall") \
	X(RESTART, "restart", "a process dies and starts anew")               \
	X(VANISH, "vanish", "and nobody is told")                             \
	X(END, "end", "a node ends in good order and starts anew")            \
	X(SILENT, "silent", "a process stands still")                         \
	X(SLOW, "slow", "a process is slow")                                  \
	X(CLOCK_JUMP, "clock-jump", "a node's clock jumps ahead")             \
	X(REORDER, "reorder", "completions come in any order")                \
	X(DELAY, "delay", "completions come late")                            \
	X(UNPLUG, "unplug", "a host's cable is out for a while")              \
	X(MEMORY, "memory", "allocations fail")                               \
	X(DEADLINES, "deadlines", "operations have deadlines")                \
	X(CANCELS, "cancels", "operations are cancelled")                     \
	X(BAD_KEYS, "bad-keys", "transfers name keys that were revoked")      \
	X(TWICE, "twice", "a device delivers messages twice")                 \
	X(LEFT_OUT, "left-out", "or leaves them out and reports success")

typedef enum sim_fault_kind {
#define SIM_FAULT_ENUM(name, word, text) SIM_FAULT_##name,
	SIM_FAULTS(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
		SIM_FAULT_COUNT
} sim_fault_kind;
_Static_assert((int)SIM_FAULT_COUNT <= (int)SIM_COVER_FAULTS, "faults come first in the coverage");

const char *sim_fault_word(unsigned kind);
const char *sim_fault_text(unsigned kind);

void sim_faults_plan(sim_world *world);
void sim_faults_fini(sim_world *world);
/* "3: lane-break at 12.3 ms" for the fault of that index. */
void sim_fault_describe(const sim_world *world, uint32_t index, char *buf, size_t bytes);

#endif
