/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libibverbs inside one process, behind the provider's function table: devices with ports and GIDs,
 * memory regions that are checked, completion queues with channels, shared receive queues, RC queue pairs
 * that carry data between any two devices of one fabric.
 *
 *   device    what opens of the same name share: GID table, ports, limits, queue pair numbers and keys of
 *             its own (two devices give out the same ones)
 *   fabric    a number: devices of one reach each other by GID or LID. A request reaches the queue pair of
 *             the number that it is wired to, on the device with the address that it is wired to, if both
 *             ports are ACTIVE, the source address is still what it was, the other is wired back and both
 *             agree on PSNs
 *   progress  nothing runs by itself: a request goes as far as it can in the call that makes it possible
 *             (post, a receive buffer, the other side's step to RTR); what waits, waits without time
 *
 * It is strict where hardware is silent: completions of failed requests are poisoned but for four fields,
 * completion queues that overrun, queues that overflow, an rnr timer of 0 and objects that outlive their
 * parents are counted as faults of the provider (fake_counts.faults), to be zero at the end of each test.
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
	int fabric;
	int ports;
	enum ibv_port_state state[2]; /* of port 1 and 2 */
	bool infiniband;
	uint16_t lid; /* of InfiniBand */
	enum ibv_mtu mtu;
	fake_gid gids[FAKE_GIDS_MAX];
	uint32_t max_inline, max_msg;
	int max_qp_wr, max_cqe, max_srq, max_srq_wr, max_mr, max_rd_atomic;
	bool in_order;      /* it promises to place writes in order */
	bool no_moderation; /* ibv_modify_cq: EOPNOTSUPP */
	/* Registration is refused with reg_errno (0: ENOMEM) from the n-th on, and of so many bytes; 0 = not. */
	uint32_t reg_refused_from;
	uint64_t reg_refused_bytes;
	int reg_errno;
} fake_device;

/* One device "fake0": RoCEv2 with an IPv4 GID, port ACTIVE, inline 101, generous limits. */
fake_device fake_device_default(void);
/* Back to no scripts and these devices (NULL: the default one). No device may be open. */
void fake_reset(const fake_device *devices, int count);

/* ---- real cards, as their tables and limits are in the field (cards.c) ---- */

fake_device fake_card_mlx5(void);  /* RoCEv1 and v2 of a link-local and of an IPv4 address: 4 entries */
fake_device fake_card_irdma(void); /* RoCEv2 only: link-local and IPv4 */
fake_device fake_card_bnxt(void);  /* IPv6 only, link-local and global, v1 and v2 */
fake_device fake_card_ib(void);    /* InfiniBand: a LID, a GID of its subnet */
/* The smallest of everything: inline 0, one read at a time, short queues. */
fake_device fake_card_tiny(void);

/* The table. */
const tn_verbs_api *fake_api(void);
/* fake_reset with the default, and the provider uses the table. */
void fake_install(void);
/* The same; a fault, or anything left over at exit, ends the process with status 97. */
void fake_install_judged(void);

/* ---- scripts; fake_reset ends them ---- */

/*
 * The nth call (1 = the next) of a function of the table fails: fake_fail("create_qp", 2, ENOMEM); "*" = of
 * any that can fail. A function that destroys reports the error but has destroyed all the same.
 */
void fake_fail(const char *call, int nth, int err);
/* Calls of a function so far; "*" = of all. */
uint64_t fake_calls(const char *call);
/* Which function the latest scripted failure hit; "" = none did. */
const char *fake_failed_call(void);

/* Completions of different queues come in any order, and late; 0 = in order, at once. */
void fake_scramble(uint64_t seed);
/* Completions of sends, or of receives, stay with the NIC until this ends. */
void fake_hold_sends(bool on);
void fake_hold_recvs(bool on);
/* What a queue pair completed stays in the queue when it is reset or destroyed, as with software NICs. */
void fake_keep_stale(bool on);
/* Reads that were begun do not end; those beyond max_rd_atomic are not even begun. */
void fake_hold_reads(bool on);
/* A request to a queue pair that is not wired yet ends in RETRY_EXC at once, instead of waiting for it. */
void fake_impatient(bool on);
/* Queue pairs in ERR flush nothing, or give no LAST_WQE_REACHED. */
void fake_never_flush(bool on);
void fake_no_last_wqe(bool on);
/* The next request of the queue pair with that number (0: of any) ends with the status. */
void fake_fail_request(uint32_t qpn, enum ibv_wc_status status);
/* The same, but it has arrived: only its sender does not know. */
void fake_fail_arrived(uint32_t qpn, enum ibv_wc_status status);
/* Call hook once, just before (or after) the next request for notification takes effect, under no lock. */
void fake_on_notify(void (*hook)(void *arg), void *arg, bool after);
/* Break the path of all queue pairs: requests end in RETRY_EXC. */
void fake_cut(bool on);
/* Break the path of all queue pairs of one device, in both directions. */
void fake_cut_device(int device, bool on);

/* What ibv_is_fork_initialized says (IBV_FORK_UNNEEDED at first); ibv_fork_init is too late after a region. */
void fake_set_fork(enum ibv_fork_status status);

/* ---- what happens to a device that is in use ---- */

/* Raise an asynchronous event on every open device. */
void fake_async_port(enum ibv_event_type type, uint8_t port);
/* Raise one n times at once on the opens of one device. */
void fake_async_burst(int device, enum ibv_event_type type, uint8_t port, int n);
void fake_set_port_state(enum ibv_port_state state);
/* One port, with the event that tells of it. */
void fake_port_turns(int device, uint8_t port, enum ibv_port_state state);
/* An entry of the GID table becomes another; the kernel says GID_CHANGE. */
void fake_set_gid(int device, int index, const char *address, uint32_t type);
/* The port's MTU is another from now on. */
void fake_set_mtu(int device, enum ibv_mtu mtu);
/* It fell off the bus: DEVICE_FATAL, its queue pairs are in ERR, all that talks to it fails with EIO. */
void fake_dies(int device);

/* ---- what it saw ---- */

typedef struct fake_counts {
	uint64_t faults; /* of the provider: see fake_fault_text */
	uint64_t rnr;    /* messages that had to wait for a receive buffer */
	uint64_t qps, cqs, srqs, mrs, pds, channels, contexts; /* alive */
	uint64_t unacked;                                      /* events */
	uint64_t inlined, writes, reads, sends;
	uint64_t signaled;
	uint64_t doorbells;      /* calls of post_send */
	uint64_t reads_at_once;  /* the most that one queue pair had begun and not ended */
	uint64_t reads_waited;   /* had to wait for the depth */
	uint64_t regs;           /* registrations made */
	uint64_t early_rts;      /* queue pairs that went to RTS before a receive buffer was there */
	uint64_t destroyed_busy; /* queue pairs that were destroyed with completions not polled */
	uint64_t moderated;      /* completion queues whose moderation was set */
	uint64_t stale;          /* completions that outlived their queue pair's reset or end */
} fake_counts;
fake_counts fake_counts_get(void);
/* The latest fault in words; "" if none. */
const char *fake_fault_text(void);
/* How the queue pair with that number was last set up (the first device with such a one); false: none. */
bool fake_qp_attr_get(uint32_t qpn, struct ibv_qp_attr *attr);

#endif
