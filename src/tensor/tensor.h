/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the tensor layer.
 *
 *   state  one per context: table of receivers by number and name, connections
 *   conn   one channel of service "tern.tensor"; the side that opened it sends tensors
 *   rx     receiver's end: K slots, the generation that comes next
 *   tx     sender's end: keys of the slots, the generation that goes next, slots released so far
 *   dynamic_rx, dynamic_tx  over one of each, whose tensors are metadata blocks; a release is the acknowledgement
 *
 * Generations count from 1; generation g lies in slot (g - 1) % K.
 *
 *   tx: released <= sent <= released + K            (a slot is written only when it is ours)
 *   rx: released <= delivered <= released + 1       (one tensor is looked at, at a time)
 *       arrived[slot] is 0 or the generation that lies there, in (released, released + K]
 *
 * Locks: state->lock for tables and set-up, rx->lock/tx->lock for one end; notifications and polls touch
 * atomics only, but for the look-up by number. Order: state->lock before an end's lock.
 */
#ifndef TN_TENSOR_TENSOR_H
#define TN_TENSOR_TENSOR_H

#include <pthread.h>
#include <stdatomic.h>

#include "channel/ctx_slots.h"
#include "tensor/wire.h"

#define TN_TENSOR_SERVICE     "tern.tensor"
#define TN_TENSOR_BUCKETS     1024u
#define TN_TENSOR_RETRY_NS    50000u /* a release or an answer that found no room is tried again after this */
#define TN_TENSOR_FLAG_STRIDE 64u
#define TN_TENSOR_WAITERS_MAX 1024u /* OPENs per connection that wait for their names */

typedef struct tn_tensor_state tn_tensor_state;
typedef struct tn_tensor_conn tn_tensor_conn;

typedef struct tn_tensor_counters {
	_Atomic uint64_t sent, sent_bytes, received, received_bytes, stale, releases, opens;
	_Atomic uint64_t reads, read_bytes, staged, grown; /* dynamic */
} tn_tensor_counters;

/*
 * A message that must go out although the channel may have no room: one at a time per mailbox, the newest
 * wins (our messages are cumulative, or the last that an end sends). Part of the structure that owns it.
 */
typedef struct tn_mailbox {
	pthread_mutex_t lock; /* innermost */
	tn_tensor_conn *conn;
	bool busy;    /* op in flight: buf is being read */
	bool pending; /* next holds a newer message */
	uint64_t next_length;
	tern_op op;
	tn_ctx_timer timer;
	uint8_t buf[TN_TENSOR_MSG_MAX], next[TN_TENSOR_MSG_MAX];
	uint32_t settling; /* on_idle runs or is about to */
	/* From dispatch, without locks, when a message left and none waits. Under the owner's lock it calls
	   tn_mailbox_settled, then it may free the owner. NULL: nobody waits for that. */
	void (*on_idle)(struct tn_mailbox *box);
	/* For a mailbox that nobody owns: from post or the timer, without locks, when the channel ended before
	   the message left. NULL: the owner hears of that end by itself. */
	void (*on_given_up)(struct tn_mailbox *box);
} tn_mailbox;

struct tn_tensor_conn {
	tn_tensor_state *state;
	tn_tensor_conn *next;
	tern_link *link;
	tern_channel *channel;
	bool opener;                /* this side sends tensors */
	uint32_t waiters;           /* state->lock: OPENs of it that wait */
	_Atomic tern_status status; /* TERN_OK while the channel lives */
	_Atomic uint32_t refs;      /* ends + mailboxes in flight + 1 while the channel lives */
};

/* Slots that several receivers share; part.h. */
struct tn_tensor_whole {
	tern_ctx *ctx;
	uint8_t *memory; /* slots x stride */
	uint64_t bytes, stride_bytes;
	unsigned slots;
	_Atomic uint32_t refs; /* the creator's and one per receiver */
};

struct tern_tensor_rx {
	tn_tensor_state *state;
	uint32_t id;
	char name[TERN_TENSOR_NAME_MAX];
	tern_dtype dtype;
	tern_shape shape;
	uint64_t bytes, stride_bytes;
	unsigned slots;
	tern_notify_mode notify;
	uint8_t *memory;               /* slots x stride */
	struct tn_tensor_whole *whole; /* whose memory that is; NULL: it is this end's own */
	uint8_t *flags;                /* flag mode: slots x 64 bytes, a 64-bit generation each */
	tern_key slot_key, flag_key;
	/* state->lock */
	tern_tensor_rx *next_in_bucket;
	tn_tensor_conn *conn; /* the bound sender */
	uint32_t tx_id;
	bool ending; /* tern_tensor_rx_destroy has begun: no sender is bound any more */
	bool dead;   /* destroyed by the user; lives until nobody can write any more */
	bool quiet;  /* the sender said CLOSE */
	/* polls and notifications */
	_Atomic tern_status status; /* the sender's end: TERN_OK while more may come */
	_Atomic uint64_t arrived[TERN_TENSOR_SLOTS_MAX];
	uint64_t lengths[TERN_TENSOR_SLOTS_MAX]; /* bytes of what lies there, in immediate mode */
	bool parts;                              /* it may be less than rx->bytes */
	uint64_t delivered, released;
	/* releases to the sender */
	pthread_mutex_t lock;
	tn_mailbox box;
	tern_op flag_op;
	tn_ctx_timer flag_timer; /* tries a credit that found no room again */
	bool flag_busy;          /* falls under state->lock too */
	uint64_t flag_sent;      /* released count that the flag write in flight carries */
	tern_key credit_key;
};

/* A put in flight from a slot's turn: counted, so that CLOSE is said only when no write follows. */
typedef struct tn_tensor_put {
	tern_op op;
	tern_tensor_tx *tx;
	tern_op *user; /* NULL: free */
	/* what it carries, to be said again if it is not known whether it came */
	const void *data;
	uint64_t bytes, generation;
	tn_ctx_timer again;
} tn_tensor_put;

struct tern_tensor_tx {
	tn_tensor_state *state;
	uint32_t id;
	tern_tensor_tx *next;
	tn_tensor_conn *conn;
	char name[TERN_TENSOR_NAME_MAX];
	tern_notify_mode notify;
	uint64_t bytes;
	/* answer of the receiver */
	_Atomic int bound; /* 0 waiting, 1 bound, -1 refused */
	tern_status status;
	char detail[TN_TENSOR_TEXT_MAX];
	uint32_t rx_id;
	unsigned slots;
	uint64_t stride_bytes;
	tern_key slot_key, flag_key;
	/* flow */
	uint64_t sent;
	_Atomic uint64_t released;
	_Atomic uint64_t *credit; /* flag mode: the receiver writes the released count here */
	tern_key credit_key;
	_Atomic tern_status closed; /* the receiver ended it */
	tn_tensor_put puts[TERN_TENSOR_SLOTS_MAX];
	/* state->lock */
	uint32_t in_flight; /* puts */
	bool asked;         /* OPEN was posted */
	bool opened;        /* the user got the handle: ends with CLOSE, not WITHDRAW */
	bool unwanted;      /* refused on this side although the receiver had bound it */
	bool user_closed;   /* the handle is gone: free when all is quiet */
	bool peer_closed;   /* the receiver waits for our CLOSE */
	bool close_posted;  /* or WITHDRAW */
	tn_mailbox box;
	/* state->lock, which is held when it runs: more was released, or the end came. May be NULL. */
	void (*on_news)(void *arg);
	void *news_arg;
};

/* A sender that asked for a name that is not published yet. */
typedef struct tn_tensor_waiter {
	struct tn_tensor_waiter *next;
	tn_tensor_conn *conn;
	tn_tensor_msg open;
} tn_tensor_waiter;

struct tn_tensor_state {
	tn_ctx_slot slot; /* first */
	tern_ctx *ctx;
	tn_tensor_counters counters;
	pthread_mutex_t lock;
	uint32_t next_tx_id;
	uint32_t rx_hint; /* where to look for a free number */
	uint32_t rx_end;  /* numbers from here on were never used */
	tern_tensor_rx **rx_by_id;
	tern_tensor_rx *buckets[TN_TENSOR_BUCKETS];
	tern_tensor_tx *txs;
	tn_tensor_waiter *waiters;
	tn_tensor_conn *conns;
	tern_dynamic_tx *dynamic_txs; /* for the context's end */
	tern_dynamic_rx *dynamic_rxs;
};

/* NULL: out of memory. */
tn_tensor_state *tn_tensor_state_get(tern_ctx *ctx);

/* ---- state.c: connections and mailboxes ---- */
void tn_tensor_conn_ref(tn_tensor_conn *conn);
void tn_tensor_conn_unref(tn_tensor_conn *conn);
/* The conn of this side's senders on a link, made at first use; with a reference. */
tern_status tn_tensor_conn_to(tn_tensor_state *state, tern_link *link, tn_tensor_conn **conn);
void tn_mailbox_init(tn_mailbox *box, void (*on_idle)(tn_mailbox *box));
void tn_mailbox_bind(tn_mailbox *box, tn_tensor_conn *conn);
/* Send msg when there is room; one that still waits is replaced. Nothing happens if the channel ended. */
void tn_mailbox_post(tn_mailbox *box, const tn_tensor_msg *msg);
/* Give up what waits (the channel ended). */
void tn_mailbox_drop(tn_mailbox *box);
/* First thing of on_idle, under the lock that the owner is freed under. */
void tn_mailbox_settled(tn_mailbox *box);
/* No message in flight or waiting, and no on_idle to come. */
bool tn_mailbox_idle(tn_mailbox *box);
/* Idle box, about to be freed: stops the timer. */
void tn_mailbox_fini(tn_mailbox *box);

/* ---- rx.c for bind.c ---- */
/* state->lock held. */
tern_tensor_rx *tn_tensor_rx_find(tn_tensor_state *state, const char *name);
/* state->lock held. Free a dead receiver once nobody can write into it; *unref gets its conn. */
void tn_tensor_rx_try_free(tern_tensor_rx *rx, tn_tensor_conn **unref);
/* A new key for the slots. */
tern_status tn_tensor_rx_export(tern_tensor_rx *rx, tern_key *key);
/* whole.c: slots whose bytes of one tensor are `bytes`, `stride` apart. */
tern_status tn_tensor_slots_alloc(tern_ctx *ctx, uint64_t bytes, unsigned slots, uint64_t *stride,
				  uint8_t **memory);
/* May wait for accesses under way: no lock held. False: one did not end. */
bool tn_tensor_rx_revoke(tern_tensor_rx *rx, const tern_key *slot_key, const tern_key *flag_key);

/* ---- bind.c ---- */
/* Bind the first of the senders that asked before rx was published. */
void tn_tensor_answer_waiters(tern_tensor_rx *rx);
/* state->lock held. */
void tn_tensor_drop_waiters(tn_tensor_conn *conn);

/* ---- what messages do: bind.c, rx.c and tx.c; from dispatch ---- */
void tn_tensor_on_open(tn_tensor_conn *conn, const tn_tensor_msg *msg);
void tn_tensor_on_close(tn_tensor_conn *conn, const tn_tensor_msg *msg);
void tn_tensor_on_withdraw(tn_tensor_conn *conn, const tn_tensor_msg *msg);
void tn_tensor_on_notify(tn_tensor_conn *conn, uint32_t value, uint64_t bytes);
void tn_tensor_on_opened(tn_tensor_conn *conn, const tn_tensor_msg *msg);
void tn_tensor_on_release(tn_tensor_conn *conn, const tn_tensor_msg *msg);
void tn_tensor_on_closed(tn_tensor_conn *conn, const tn_tensor_msg *msg);
/* The channel of a conn ended. */
void tn_tensor_rx_conn_ended(tn_tensor_conn *conn, tern_status status);
void tn_tensor_tx_conn_ended(tn_tensor_conn *conn, tern_status status);
/* ---- rx.c for dynamic_rx.c ---- */
/* Has generation come, and where does it lie? Of those that were not released. */
bool tn_tensor_rx_arrived(tern_tensor_rx *rx, uint64_t generation, const void **data);
/* The channel that the bound sender came by, with a reference; NULL: there is none any more. */
tn_tensor_conn *tn_tensor_rx_conn(tern_tensor_rx *rx);
/* ---- tx.c for dynamic_tx.c ---- */
void tn_tensor_tx_watch(tern_tensor_tx *tx, void (*on_news)(void *arg), void *arg);
/* TERN_OK while the receiver is there. */
tern_status tn_tensor_tx_status(tern_tensor_tx *tx);
/* At the context's end: free what is left. */
void tn_dynamic_tx_free_all(tn_tensor_state *state);
void tn_dynamic_rx_free_all(tn_tensor_state *state);
void tn_tensor_rx_free_all(tn_tensor_state *state);
void tn_tensor_tx_free_all(tn_tensor_state *state);

#endif
