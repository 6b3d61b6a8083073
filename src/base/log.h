/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines by component and level: "12.345678 W link worker 3: text". Off levels cost one load and branch.
 * TERN_LOG_LEVEL="warn,link=debug,shm=trace". Only the first detector of a fault logs it.
 *
 *	TN_LOG(WARN, LINK, "keepalive missed %u times by %s", n, peer);
 *
 * Must not be used for results: a user's answer goes through statuses and return values.
 * Threads: any; one line is one write. Tests: tests/unit/base/log_test.c.
 */
#ifndef TN_BASE_LOG_H
#define TN_BASE_LOG_H

#include <stdatomic.h>
#include <stdint.h>

#include <tern/status.h>

#include "base/check.h"

typedef enum tn_log_level {
	TN_LOG_NONE,
	TN_LOG_ERROR, /* something was lost that the user must know about */
	TN_LOG_WARN,  /* works on, worse than it should */
	TN_LOG_INFO,  /* a few lines per link: choices with their reason */
	TN_LOG_DEBUG, /* state changes */
	TN_LOG_TRACE, /* per operation */
} tn_log_level;

/* X(enum suffix, name) */
#define TN_LOG_COMPONENTS(X)      \
	X(BASE, "base")           \
	X(MEM, "mem")             \
	X(TRANSPORT, "transport") \
	X(LOOP, "loop")           \
	X(SHM, "shm")             \
	X(TCP, "tcp")             \
	X(VERBS, "verbs")         \
	X(LINK, "link")           \
	X(CHANNEL, "channel")     \
	X(CTX, "ctx")             \
	X(RPC, "rpc")             \
	X(TENSOR, "tensor")       \
	X(PS, "ps")               \
	X(GRAPH, "graph")         \
	X(SESSION, "session")     \
	X(RUNTIME, "runtime")

typedef enum tn_log_component {
#define TN_LOG_ENUM(suffix, name) TN_LOG_C_##suffix,
	TN_LOG_COMPONENTS(TN_LOG_ENUM)
#undef TN_LOG_ENUM
		TN_LOG_COMPONENT_COUNT,
} tn_log_component;

extern _Atomic uint8_t tn_log_levels[TN_LOG_COMPONENT_COUNT];

#define TN_LOG_ON(level, component)                                                                      \
	(TN_UNLIKELY(atomic_load_explicit(&tn_log_levels[TN_LOG_C_##component], memory_order_relaxed) >= \
		     TN_LOG_##level))

#define TN_LOG(level, component, ...)                                                    \
	do {                                                                             \
		if (TN_LOG_ON(level, component))                                         \
			tn_log_write(TN_LOG_##level, TN_LOG_C_##component, __VA_ARGS__); \
	} while (0)

/* At most `burst` lines per second from this place; the next line that passes tells how many did not. */
#define TN_LOG_LIMITED(level, component, burst, ...)                                                         \
	do {                                                                                                 \
		static tn_log_limit tn_limit_;                                                               \
		if (TN_LOG_ON(level, component) && tn_log_limit_pass(&tn_limit_, (burst)))                   \
			tn_log_write_limited(&tn_limit_, TN_LOG_##level, TN_LOG_C_##component, __VA_ARGS__); \
	} while (0)

typedef struct tn_log_limit {
	_Atomic uint64_t window; /* second in which `passed` counts */
	_Atomic uint32_t passed;
	_Atomic uint32_t dropped;
} tn_log_limit;

TN_COLD void tn_log_write(tn_log_level level, tn_log_component component, const char *fmt, ...)
	TN_PRINTF(3, 4);
bool tn_log_limit_pass(tn_log_limit *limit, uint32_t burst);
TN_COLD void tn_log_write_limited(tn_log_limit *limit, tn_log_level level, tn_log_component component,
				  const char *fmt, ...) TN_PRINTF(4, 5);

/* Apply "warn,link=debug". TERN_E_OPTION leaves the levels as they were. */
tern_status tn_log_apply(const char *spec);
void tn_log_set_level(tn_log_component component, tn_log_level level);
const char *tn_log_component_name(tn_log_component component);

/* Put a node's name into each line of this thread, "" for none; cut at 31 bytes. */
void tn_log_set_thread_name(const char *name);

/* Where complete lines (with newline) go; NULL = stderr. Called under no lock, from any thread. */
typedef void (*tn_log_sink)(tn_log_level level, const char *line, size_t bytes, void *arg);
void tn_log_set_sink(tn_log_sink sink, void *arg);

#endif
