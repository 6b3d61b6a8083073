/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: one node of a job. It owns registered memory, one device per usable provider, a listener
 * and links to other nodes, and it drives their progress. A process usually has one; tests have several.
 *
 * Progress -> arm -> wait. tern_ctx_progress() until it returns 0, tern_ctx_arm() says TERN_BUSY if
 * something came in between, then wait for tern_ctx_fd() to become readable. By default a helper thread
 * does that, and a thread that waits for something takes the role over for as long as it waits.
 *
 * Small operations that follow each other at once leave together over tcp: when something is waited for, armed or made
 * progress with, when enough has gathered, or by themselves within a millisecond (without a helper: the descriptor
 * becomes readable, and progress sends them).
 */
#ifndef TERN_CTX_H
#define TERN_CTX_H

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_CTX_NO_HELPER    1u /* the caller drives progress alone (liveness included) */
#define TERN_CTX_SINGLE_OWNER 2u /* one thread uses this context: no locks; checked. Implies NO_HELPER */
#define TERN_CTX_INSECURE     4u /* listen beyond loopback without a shared secret */

/* Zero it, then set what differs. NULL or 0 means the option's value (environment, then default). */
typedef struct tern_ctx_params {
	uint32_t flags;
	const char *name;       /* "worker 3": one node's alone, a second one ends the first one's links */
	const char *listen;     /* "host:port", port 0 = any; "" = do not listen; NULL = 127.0.0.1:0 */
	const char *transports; /* comma list in order of preference; NULL = "auto" (shm,tcp) */
	const char
		*secret; /* shared secret of the job; NULL = options TERN_CTX_SECRET_FILE, _SECRET or none */
	const char *job; /* job cookie: nodes of another job are refused */
	const char *const *options; /* NULL-terminated "layer.name=value" pairs: win over the environment */
	uint64_t mem_limit_bytes;   /* byte budget of registered memory; 0 = option */
} tern_ctx_params;

/*
 * Make a context. May block for a few milliseconds (address space, sockets, probe of providers).
 * TERN_E_INSECURE: a non-loopback listener without secret; TERN_E_IN_USE: port taken; TERN_E_OPTION.
 */
tern_status tern_ctx_create(const tern_ctx_params *params, tern_ctx **ctx);
/*
 * Orderly end: closes links (peers are told), completes every operation (TERN_E_FLUSHED), joins the
 * helper, frees. Blocks at most about a second. Not from a callback; no other thread may be inside.
 */
void tern_ctx_destroy(tern_ctx *ctx);
/*
 * All of that but the memory: blocks stay and can be read, written and freed, tern_mem_* goes on working, and
 * tern_ctx_destroy() is the only other call that is allowed. For who hands out memory that may outlive the context's
 * use (a binding whose arrays are freed by a garbage collector). Idempotent. As tern_ctx_destroy().
 */
void tern_ctx_close(tern_ctx *ctx);

/* Registered memory of the context; lives as long as it. */
tern_mem *tern_ctx_mem(tern_ctx *ctx);
/* "127.0.0.1:43211", or "" if it does not listen. Lives as long as the context. */
const char *tern_ctx_address(const tern_ctx *ctx);
/* By which peers know it. Lives as long as the context. */
const char *tern_ctx_name(const tern_ctx *ctx);

/* Poll everything once and dispatch completions. Returns the number of events handled; never blocks. */
int tern_ctx_progress(tern_ctx *ctx);
/* TERN_OK: armed, the descriptor becomes readable on the next event; TERN_BUSY: call progress again. */
tern_status tern_ctx_arm(tern_ctx *ctx);
/* The descriptor to wait for (readable). Owned by the context. */
int tern_ctx_fd(const tern_ctx *ctx);
/*
 * Take the progress role, make progress until something was dispatched or timeout_ns passed (0 = without
 * end), spinning first for the context's spin time. TERN_OK or TERN_E_DEADLINE.
 */
tern_status tern_ctx_wait(tern_ctx *ctx, uint64_t timeout_ns);
/*
 * How many dispatches did something so far (callbacks, completions, arrivals). Read it, look for what you
 * wait for, then tern_ctx_wait_past() with that number: nothing that happens in between is lost.
 */
uint64_t tern_ctx_events(const tern_ctx *ctx);
/* As tern_ctx_wait, until tern_ctx_events() != seen: returns at once if it differs already. */
tern_status tern_ctx_wait_past(tern_ctx *ctx, uint64_t seen, uint64_t timeout_ns);
/* End a tern_ctx_wait() that runs in another thread, or the next one. Any thread, signal handlers too. */
void tern_ctx_wake(tern_ctx *ctx);

/*
 * For a thread that does little at a time and that others wait for, such as one that runs collectives while the program
 * computes: the calling thread asks the kernel for short time slices, so that it runs soon when there is something to do
 * (Linux 6.12; nothing happens where that is not possible). A context's own threads have it.
 */
void tern_thread_brisk(void);

/*
 * Counters by dotted name ("shm.copy_bytes", "mem.extents", "link.up"). Walks all of them when fn is
 * given; tern_ctx_counter returns one (0 if there is none of that name).
 */
typedef void (*tern_counter_fn)(const char *name, uint64_t value, void *arg);
void tern_ctx_counters(tern_ctx *ctx, tern_counter_fn fn, void *arg);
uint64_t tern_ctx_counter(tern_ctx *ctx, const char *name);

/* One row per provider, usable or not, with the reason in words. Needs no context. */
typedef struct tern_provider_info {
	const char *name;
	int usable;
	char reason[240];
} tern_provider_info;
/* Probes provider number i (0, 1, ...). TERN_E_NOT_FOUND past the last one. May take milliseconds. */
tern_status tern_provider_probe(unsigned i, tern_provider_info *info);
/*
 * What provider number i sees on this host, for `tern doctor`: fn runs for each fact, in the calling thread.
 * Keys are dotted, "mlx5_0.port1.gid.3"; their set may grow; most providers have nothing to say. Needs no
 * context; changes nothing. TERN_E_NOT_FOUND past the last provider; else as the provider's probe. May take
 * milliseconds.
 */
typedef void (*tern_fact_fn)(const char *key, const char *value, void *arg);
tern_status tern_provider_describe(unsigned i, tern_fact_fn fn, void *arg);

/* One row per option, for `tern info --config`. Strings live as long as the library. */
typedef struct tern_option_info {
	char name[64];   /* "link.window_bytes" */
	char env[72];    /* "TERN_LINK_WINDOW_BYTES" */
	char value[128]; /* in force */
	char dflt[128];
	const char *source; /* "default", "environment", "set" */
	const char *type;
	const char *help;
} tern_option_info;
/* Option number i as a new context would see it. TERN_E_NOT_FOUND past the last; TERN_E_OPTION if bad. */
tern_status tern_option_get(unsigned i, tern_option_info *info);

#ifdef __cplusplus
}
#endif

#endif
