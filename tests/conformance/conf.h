/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness of the conformance suite: every case runs over every provider that the build has.
 *
 *   target   what is run: a provider, a seed, what it declares; one row of targets.c
 *   node     memory and a device; keeps a ledger of its ops and an inbox of what it received
 *   end      one side of a lane, lane_arg of its events
 *   pair     two nodes of this process; or one node whose peer lives in a child process
 *
 * The ledger is the judge of rule 1: each accepted wr is completed exactly once, no other ever. It is
 * checked at every completion and again when a pair is freed, in every case of the suite. Events are
 * checked against the state of their end (nothing but completions after LANE_DOWN or lane_close).
 *
 * Nothing here asserts a time. A case that doesn't end is ended by its watchdog, which names the line that
 * waits. Threads: asserts of cmocka belong to the main thread; CONF_CHECK works in all.
 */
#ifndef TN_TESTS_CONFORMANCE_CONF_H
#define TN_TESTS_CONFORMANCE_CONF_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rand.h"
#include "transport/transport.h"

typedef struct conf_target {
	const char *name;     /* "loop_adversarial": the test's name in ctest */
	const char *provider; /* of the registry */
	uint64_t seed;
	bool processes;        /* two processes reach each other */
	bool key_error_breaks; /* a key that the target refuses takes the lane down */
	/* Declared granularity of a NIC: what the target checks is the extent and its exposure class. Bounds
	   and access of a key are checked by an honest initiator; a forged or revoked key still reaches the
	   extent. */
	bool extent_keys;
	/* Prepares the process before the first open (a fake function table); NULL = nothing to do. */
	bool (*prepare)(char *why, size_t why_bytes);
} conf_target;

extern const conf_target *conf;         /* the one that runs */
extern struct tn_options *conf_options; /* of the environment */
const conf_target *conf_target_find(const char *name);
const conf_target *conf_target_at(unsigned i); /* NULL past the last */
/* verbs_fake.c: prepare of the targets over a fake NIC */
bool conf_fake_nic(char *why, size_t why_bytes);
bool conf_scrambled_fake_nic(char *why, size_t why_bytes);

typedef struct conf_case {
	const char *name;
	void (*run)(void);
	uint32_t needs; /* TN_CAP_*: skipped without */
	bool processes; /* needs a peer in another process */
	bool slow;      /* only with --slow */
} conf_case;
/* Each ends with a row without a name. */
extern const conf_case conf_cases_basic[], conf_cases_data[], conf_cases_errors[], conf_cases_flow[],
	conf_cases_pool[], conf_cases_life[], conf_cases_connect[], conf_cases_wait[], conf_cases_threads[],
	conf_cases_soak[], conf_cases_process[];

/* ---- checks ---- */

/* Where the case is, for the watchdog. */
extern const char *volatile conf_where_file;
extern volatile int conf_where_line;
#define CONF_HERE() (conf_where_file = __FILE__, conf_where_line = __LINE__)

void conf_check_failed(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#define CONF_CHECK(expr, ...)                                                              \
	do {                                                                               \
		if (!(expr))                                                               \
			conf_check_failed(__FILE__, __LINE__, "(" #expr ") " __VA_ARGS__); \
	} while (0)
#define CONF_OK(expr)                                                                 \
	do {                                                                          \
		tern_status conf_ok_ = (expr);                                        \
		if (conf_ok_ != TERN_OK)                                              \
			conf_check_failed(__FILE__, __LINE__, "%s is %s: %s", #expr,  \
					  tern_status_name(conf_ok_), tern_detail()); \
	} while (0)
/* Fails the case if a thread's CONF_CHECK failed. Call after joining. */
void conf_threads_ok(void);

/* ---- nodes ---- */

#define CONF_OPS_MAX   (1u << 17)
#define CONF_INBOX_MAX 8192u
#define CONF_ENDS_MAX  160u

typedef struct conf_node conf_node;

typedef struct conf_end {
	conf_node *node;
	tn_lane *lane;
	tn_blob addr;
	bool up;
	bool down;
	bool closed;
	tern_status down_status;
} conf_end;

typedef struct conf_op {
	_Atomic uint32_t accepted;
	_Atomic uint32_t completions;
	_Atomic int status;
} conf_op;

struct conf_node {
	const char *name;
	tern_mem *mem;
	tn_dev *dev;
	tn_dev_caps caps;
	tn_blob addr;
	conf_end *ends[CONF_ENDS_MAX]; /* live ones */
	conf_op *ops;
	_Atomic uint32_t ops_used;
	uint32_t ops_salt; /* in the upper half of cookies: old ones are recognised */
	int poll_max;      /* events asked for at a time */
	tn_event inbox[CONF_INBOX_MAX];
	uint32_t inbox_head, inbox_tail;
};

typedef struct conf_pair {
	conf_node *a, *b; /* b is NULL when the peer is another process */
	tn_rand rand;
	uint32_t idle;
} conf_pair;

conf_node *conf_node_open(const char *name);
void conf_node_close(conf_node *node); /* closes and destroys its ends first; checks the ledger */

/* Poll once and file the events. Returns how many. Only in the thread that polls the node. */
int conf_node_poll(conf_node *node);
/* Every accepted op completed, once; forgets them. */
void conf_ledger_settle(conf_node *node);
bool conf_ledger_done(conf_node *node);

void conf_pair_open(conf_pair *pair);  /* both nodes */
void conf_pair_close(conf_pair *pair); /* either may have been closed before (NULL) */
/* Poll both; rests a little when nothing came for long. */
int conf_pump(conf_pair *pair);
#define CONF_UNTIL(pair, cond)                 \
	do {                                   \
		while (!(cond)) {              \
			CONF_HERE();           \
			(void)conf_pump(pair); \
		}                              \
	} while (0)
/* Pump for n rounds: for "nothing comes". */
void conf_pump_n(conf_pair *pair, unsigned n);

/* ---- lanes ---- */

typedef struct conf_lane {
	conf_end a, b; /* a dials */
} conf_lane;

void conf_end_make(conf_end *end, conf_node *node, bool active, const uint8_t *token, uint64_t timeout_ns);
void conf_lane_make(conf_pair *pair, conf_lane *lane); /* both ends, not connected */
void conf_lane_up(conf_pair *pair, conf_lane *lane);   /* make, connect, wait for UP on both */
void conf_end_close(conf_end *end);                    /* lane_close, once */
/* Wait until drained and destroy; RECV and IMM that are still held are given back. */
void conf_end_destroy(conf_pair *pair, conf_end *end);
void conf_lane_free(conf_pair *pair, conf_lane *lane); /* close and destroy both ends */
/* A write and a notification from a to b arrive: the lane works. */
void conf_lane_works(conf_pair *pair, conf_lane *lane);

/* ---- work requests ---- */

typedef enum conf_verb { CONF_WRITE, CONF_WRITE_IMM, CONF_READ, CONF_SEND } conf_verb;

typedef struct conf_req {
	conf_verb verb;
	tn_level level;
	void *local;
	uint64_t bytes;
	tn_key key;
	uint64_t offset;
	uint32_t imm;
	bool more;
	const tn_iov *iov; /* SEND: these instead of local and bytes if iov_count > 0 */
	int iov_count;
} conf_req;

#define CONF_NO_OP UINT32_MAX
/* One post; the op's number in *op, also when it was refused. Any thread. */
tern_status conf_try(conf_end *end, const conf_req *req, uint32_t *op);
/*
 * Post, pumping while the answer is TERN_AGAIN (pair NULL: another thread polls, any thread may call).
 * Returns the op; its status says whether it was refused.
 */
uint32_t conf_post(conf_pair *pair, conf_end *end, const conf_req *req);
/* Post, pumping for a while after TERN_AGAIN; false if that stays the answer. */
bool conf_post_soon(conf_pair *pair, conf_end *end, const conf_req *req);
/* conf_post of a request that has no reason to be refused. */
void conf_must(conf_pair *pair, conf_end *end, const conf_req *req);
bool conf_op_done(const conf_node *node, uint32_t op); /* completed or refused */
tern_status conf_op_status(const conf_node *node, uint32_t op);
/* Post and wait; the final status. */
tern_status conf_do(conf_pair *pair, conf_end *end, const conf_req *req);
/* REMOTE where the device can say so, else LOCAL. */
tn_level conf_best_level(const conf_node *node);

/* ---- what was received ---- */

/* The next event of the inbox (RECV or IMM), still held; NULL if none. */
const tn_event *conf_inbox_peek(conf_node *node);
/* Take it out; the caller gives the buffer back. */
bool conf_inbox_take(conf_node *node, tn_event *event);
/* Wait for one, take it. */
tn_event conf_inbox_wait(conf_pair *pair, conf_node *node);
void conf_recv_done(conf_node *node, const tn_event *event);

/* ---- memory ---- */

typedef struct conf_region {
	conf_node *node;
	uint8_t *ptr;
	uint64_t bytes;
	tern_key wire;
	tn_key key; /* covers all of it, with the access it was made with */
} conf_region;

void conf_region_make(conf_region *region, conf_node *node, uint64_t bytes, uint32_t access);
void conf_region_free(conf_region *region);
/* A part of it, with a key of its own. */
tn_key conf_region_key(conf_region *region, uint64_t at, uint64_t bytes, uint32_t access);
/* Fill with, or compare to, bytes that depend on seed and position. conf_same: first difference or bytes. */
void conf_fill(uint8_t *ptr, uint64_t bytes, uint64_t seed);
uint64_t conf_same(const uint8_t *ptr, uint64_t bytes, uint64_t seed);
void conf_expect(const uint8_t *ptr, uint64_t bytes, uint64_t seed, const char *what);
/* All bytes are value. */
bool conf_all(const uint8_t *ptr, uint64_t bytes, uint8_t value);

/* ---- the rest ---- */

unsigned conf_descriptors(void); /* open in this process */
uint64_t conf_counter(conf_node *node, const char *name, bool *found);
/* Fewer rounds under a sanitizer. */
unsigned conf_rounds(unsigned n);
void conf_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
