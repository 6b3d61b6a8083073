/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A control connection: a non-blocking TCP socket whose bytes go to and come from a link machine. It knows
 * nothing of what they mean.
 *
 *   life: dial -> (DIALING) -> OPEN -> closed      or      accept -> OPEN -> closed
 *   tx    bytes the socket did not take yet: at most TN_CONN_TX_MAX, more means that the peer does not read
 *
 * Threads: made, read and freed by the driver; tn_conn_send by any thread under the lock of its link.
 * Tests: tests/unit/channel/test_link.c.
 */
#ifndef TN_CHANNEL_CONN_H
#define TN_CHANNEL_CONN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "channel/addr.h"
#include "channel/progress.h"

#define TN_CONN_TX_MAX   (1u << 20)
#define TN_CONN_RX_BYTES 16384u

typedef struct tn_conn {
	tn_watch watch;
	tern_ctx *ctx;
	/* All from the driver. opened: the dial succeeded (call tn_conn_opened under the lock). writable: call
	   tn_conn_writable under the lock. broken: the last call; status says why. */
	void (*opened)(struct tn_conn *conn, void *arg);
	void (*writable)(struct tn_conn *conn, void *arg);
	void (*bytes)(struct tn_conn *conn, const uint8_t *bytes, uint64_t n, void *arg);
	void (*broken)(struct tn_conn *conn, tern_status status, void *arg);
	void *arg;
	tn_list node;      /* ctx->buried */
	_Atomic bool dead; /* broken was called or close was: nothing follows */
	tn_addr peer;
	char peer_text[64];
	/* under the link's lock */
	bool dialing;
	uint32_t events;
	uint8_t *tx;
	uint32_t tx_head, tx_bytes, tx_capacity;
} tn_conn;

/* Start connecting. TERN_E_OS, TERN_E_LIMIT (descriptors), TERN_E_NOMEM. */
tern_status tn_conn_dial(tern_ctx *ctx, const tn_addr *peer, tn_conn **conn);
/* Take over an accepted socket (closed on error). */
tern_status tn_conn_accepted(tern_ctx *ctx, int fd, const tn_addr *peer, tn_conn **conn);
/* Start handling events, once the callbacks are set. */
tern_status tn_conn_start(tn_conn *conn);
/* Send or queue. TERN_E_LIMIT: the peer does not read. A broken socket is found by the driver. */
tern_status tn_conn_send(tn_conn *conn, const void *bytes, uint64_t n);
void tn_conn_opened(tn_conn *conn);
void tn_conn_writable(tn_conn *conn);
/* Nothing is queued. */
bool tn_conn_flushed(const tn_conn *conn);
/* Close the socket (what is queued gets one more try) and free at the end of the round. Driver only. */
void tn_conn_close(tn_conn *conn);

#endif
