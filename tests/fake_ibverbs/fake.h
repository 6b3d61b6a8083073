/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libibverbs inside one process, behind the provider's function table: devices with ports and GIDs,
 * memory regions that are checked, completion queues with channels, shared receive queues, RC queue pairs
 * that carry data between any two devices of the process.
 *
 *   fabric    all queue pairs of the process by number; a request reaches the one it is wired to, if the
 *             other is wired back and both agree on PSNs
 *   progress  nothing runs by itself: a request goes as far as it can in the call that makes it possible
 *             (post, a receive buffer, the other side's step to RTR); what waits, waits without time
 *
 * It is strict where hardware is silent: completions of failed requests are poisoned but for four fields,
 * completion queues that overrun, queues that overflow and objects that outlive their parents are counted
 * as faults of the provider (fake_faults), to be zero at the end of each test.
 *
 * Threads: any; one lock over everything, so that it is also an oracle for the thread sanitizer.
 */
#ifndef TN_TESTS_FAKE_IBVERBS_H
#define TN_TESTS_FAKE_IBVERBS_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/verbs/api.h"

#define FAKE_DEVICES_MAX 4
#define FAKE_GIDS_MAX    16

typedef struct fake_gid {
	const char *address; /* "fe80::1", "::ffff:10.0.0.1"; NULL = an empty entry */
	uint32_t type;       /* enum ibv_gid_type */
} fake_gid;

typedef struct fake_device {
	const char *name;
	int open_errno; /* ibv_open_device fails with it */
	int ports;
	enum ibv_port_state state[2]; /* of port 1 and 2 */
	bool infiniband;
	enum ibv_mtu mtu;
	fake_gid gids[FAKE_GIDS_MAX];
	uint32_t max_inline, max_msg;
	int max_qp_wr, max_cqe, max_srq, max_srq_wr, max_mr, max_rd_atomic;
} fake_device;

/* One device "fake0": RoCEv2 with an IPv4 GID, port ACTIVE, inline 101, generous limits. */
fake_device fake_device_default(void);
/* Back to no scripts and these devices (NULL: the default one). No device may be open. */
void fake_reset(const fake_device *devices, int count);

/* The table. */
const tn_verbs_api *fake_api(void);
/* fake_reset with the default, and the provider uses the table. */
void fake_install(void);

/* ---- scripts; fake_reset ends them ---- */

/* The nth call (1 = the next) of a function of the table fails: fake_fail("create_qp", 2, ENOMEM). */
void fake_fail(const char *call, int nth, int err);
/* Calls of a function so far. */
uint64_t fake_calls(const char *call);

/* Completions of different queues come in any order, and late; 0 = in order, at once. */
void fake_scramble(uint64_t seed);
/* A request to a queue pair that is not wired yet ends in RETRY_EXC at once, instead of waiting for it. */
void fake_impatient(bool on);
/* Queue pairs in ERR flush nothing, or give no LAST_WQE_REACHED. */
void fake_never_flush(bool on);
void fake_no_last_wqe(bool on);
/* The next request of the queue pair with that number (0: of any) ends with the status. */
void fake_fail_request(uint32_t qpn, enum ibv_wc_status status);
/* Call hook once, just before (or after) the next request for notification takes effect, under no lock. */
void fake_on_notify(void (*hook)(void *arg), void *arg, bool after);
/* Break the path of all queue pairs: requests end in RETRY_EXC. */
void fake_cut(bool on);
/* Raise an asynchronous event on every open device. */
void fake_async_port(enum ibv_event_type type, uint8_t port);
void fake_set_port_state(enum ibv_port_state state);

/* ---- what it saw ---- */

typedef struct fake_counts {
	uint64_t faults; /* of the provider: see fake_fault_text */
	uint64_t rnr;    /* messages that had to wait for a receive buffer */
	uint64_t qps, cqs, srqs, mrs, pds, channels, contexts; /* alive */
	uint64_t unacked;                                      /* events */
	uint64_t inlined, writes, reads, sends;
	uint64_t signaled;
} fake_counts;
fake_counts fake_counts_get(void);
/* The latest fault in words; "" if none. */
const char *fake_fault_text(void);

#endif
