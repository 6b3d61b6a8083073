/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions on tern's own invariants. They never stand for input: a peer, a file or a caller that is wrong
 * gets a tern_status.
 *
 *   TN_ASSERT(x)        cheap, in all dev builds; compiled out when TN_DEV_CHECKS is 0 (release)
 *   TN_CHECK(level, x)  as TN_ASSERT, evaluated only when TERN_CHECK >= level:
 *                         1 O(1) beside each step, 2 a whole object now and then, 3 a whole object always
 *
 * A failure writes one line (expression, place, message), runs the dump hooks of this thread and calls the
 * panic handler, which traps unless a test replaced it.
 *
 * Threads: any. Tests: tests/unit/base/check_test.c.
 */
#ifndef TN_BASE_CHECK_H
#define TN_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#ifndef TN_DEV_CHECKS
#define TN_DEV_CHECKS 1
#endif

#define TN_LIKELY(x)   __builtin_expect(!!(x), 1)
#define TN_UNLIKELY(x) __builtin_expect(!!(x), 0)
/* For steps of the hot path, where each call costs as much as what it does. */
#define TN_ALWAYS_INLINE inline __attribute__((always_inline))
/* For what is called when something is wrong: the paths to it are laid out of the way of the others. */
#define TN_COLD __attribute__((cold))
/* For small thread-local variables of the hot path: no call to find them. */
#define TN_TLS_FAST                   __attribute__((tls_model("initial-exec")))
#define TN_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))

/* Elements of an array; a compile error for a pointer. */
#define TN_COUNT_OF(a)                                                                             \
	(sizeof(a) / sizeof((a)[0]) +                                                              \
	 0 * sizeof(struct {                                                                       \
		 int is_array : !__builtin_types_compatible_p(__typeof__(a), __typeof__(&(a)[0])); \
	 }))

#define TN_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define TN_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TN_MAX(a, b) ((a) > (b) ? (a) : (b))

/* The level in force: TN_CHECK_DEFAULT of the build until the option TERN_CHECK is applied. */
extern int tn_check_level;

/* Report a broken invariant. Returns only if a test's panic handler does. */
__attribute__((cold, noinline)) void tn_check_failed(const char *expr, const char *file, int line,
						     const char *func, const char *fmt, ...) TN_PRINTF(5, 6);

/* What happens after the report; NULL restores the trap. Returns the previous one. For tests and fuzzers. */
typedef void (*tn_panic_fn)(const char *report);
tn_panic_fn tn_check_set_panic(tn_panic_fn panic);

/*
 * A dump hook: while it is on this thread's stack of hooks, a failed assertion prints the object. Push
 * before stepping a state machine in sim, fuzz or dispatch; the node lives on the stack. Never nests past
 * its scope: pop what you pushed.
 */
typedef struct tn_dump_hook {
	struct tn_dump_hook *prev;
	void (*dump)(void *arg);
	void *arg;
} tn_dump_hook;
void tn_dump_push(tn_dump_hook *hook, void (*dump)(void *arg), void *arg);
void tn_dump_pop(tn_dump_hook *hook);

#if TN_DEV_CHECKS
#define TN_ASSERT(expr)                                                                 \
	do {                                                                            \
		if (TN_UNLIKELY(!(expr)))                                               \
			tn_check_failed(#expr, __FILE__, __LINE__, __func__, "%s", ""); \
	} while (0)
/* With the operands in the report: TN_ASSERT_MSG(a <= b, "a=%u b=%u", a, b). */
#define TN_ASSERT_MSG(expr, ...)                                                           \
	do {                                                                               \
		if (TN_UNLIKELY(!(expr)))                                                  \
			tn_check_failed(#expr, __FILE__, __LINE__, __func__, __VA_ARGS__); \
	} while (0)
#define TN_CHECK(level, expr)                                                           \
	do {                                                                            \
		if (TN_UNLIKELY(tn_check_level >= (level)) && TN_UNLIKELY(!(expr)))     \
			tn_check_failed(#expr, __FILE__, __LINE__, __func__, "%s", ""); \
	} while (0)
#define TN_CHECK_ENABLED(level) (TN_UNLIKELY(tn_check_level >= (level)))
#define TN_UNREACHABLE()                                                                \
	do {                                                                            \
		tn_check_failed("unreachable", __FILE__, __LINE__, __func__, "%s", ""); \
		__builtin_unreachable();                                                \
	} while (0)
#else
#define TN_ASSERT(expr)          ((void)sizeof((expr) ? 1 : 0))
#define TN_ASSERT_MSG(expr, ...) ((void)sizeof((expr) ? 1 : 0))
#define TN_CHECK(level, expr)    ((void)sizeof((expr) ? 1 : 0))
#define TN_CHECK_ENABLED(level)  false
#define TN_UNREACHABLE()         __builtin_unreachable()
#endif

#endif
