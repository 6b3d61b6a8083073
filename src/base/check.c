/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports broken invariants: one line, the dumps of this thread's hooks, then the panic handler.
 * Must not be reached by bad input. Threads: any; hooks are thread-local.
 * Tests: tests/unit/base/check_test.c.
 */
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdatomic.h>

#include "base/log.h"

#ifndef TN_CHECK_DEFAULT
#define TN_CHECK_DEFAULT 1
#endif

int tn_check_level = TN_CHECK_DEFAULT;

static _Thread_local tn_dump_hook *hooks;
static _Thread_local bool reporting;

static void trap(const char *report)
{
	(void)report;
	__builtin_trap();
}

static _Atomic(tn_panic_fn) panic_fn = trap;

void tn_check_failed(const char *expr, const char *file, int line, const char *func, const char *fmt, ...)
{
	char message[256], report[512];
	tn_panic_fn panic;
	va_list args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	snprintf(report, sizeof(report), "assertion failed: %s%s%s (%s:%d in %s)", expr,
		 message[0] ? ": " : "", message, file, line, func);
	tn_log_write(TN_LOG_ERROR, TN_LOG_C_BASE, "%s", report);
	/* A dump that fails an assertion itself must not dump again. */
	if (!reporting) {
		reporting = true;
		for (tn_dump_hook *hook = hooks; hook; hook = hook->prev)
			hook->dump(hook->arg);
		reporting = false;
	}
	panic = atomic_load(&panic_fn);
	panic(report);
}

tn_panic_fn tn_check_set_panic(tn_panic_fn panic)
{
	return atomic_exchange(&panic_fn, panic ? panic : trap);
}

void tn_dump_push(tn_dump_hook *hook, void (*dump)(void *arg), void *arg)
{
	*hook = (tn_dump_hook){.prev = hooks, .dump = dump, .arg = arg};
	hooks = hook;
}

void tn_dump_pop(tn_dump_hook *hook)
{
	TN_ASSERT(hooks == hook);
	hooks = hook->prev;
}
