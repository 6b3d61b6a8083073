/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the primary of slots sends to their backup: frames of entries, one after the other. Little endian;
 * docs/protocol/ps.md draws it, golden bytes pin it.
 *
 *   frame    u8 version | u8 0 | u16 from | u32 0 | u64 stream | u64 seq | u64 map version | entries
 *   entry    u8 kind | u8 0 | u16 0 | u32 count | u64 table | u64 schema | u64 client | u64 seq | u64 low |
 *            i32 status | u32 item bytes | count x item, padded to 8
 *
 *   kind     items
 *   TABLE    bytes of a schema       there is such a table
 *   DROP     -                       it is gone
 *   BEGIN    slot, epoch             what the backup has of the slot goes; from now on it gets everything
 *   ROWS     records                 after-images: of the slot that is copied, of keys erased or made by a pull
 *   PUSH     records                 after-images of the keys of one push, and the fact that it was applied in their slots
 *   FACT     u16 slot                a push was applied in these slots; none: the client's mark alone
 *   SYNCED   slot, epoch             the backup has all of the slot
 *   ADOPT    slot, epoch             the backup, in sync, has all of the slot already; from now on it gets everything from here
 *   STAGE    1: a request of round_wire.h   gradients of a step that has not closed (client: the group's life, seq: the step)
 *   CLOSED   u16 slot                steps below seq have closed in these slots (client: the group's life; status: how)
 *   BYE      -                       the client repeats nothing any more
 *
 *   record   u64 key | u64 last step | u32 frequency | u32 there (0: the key has no row) | row, padded to 4 | state |
 *            padded to 8
 *
 *   answer   u8 version | u8 verdict | u16 0 | u32 0 | u64 map version | PARTIAL: 64 x u64 bits of slots
 *
 * Parsers are bounded and trust nothing. Pure: no locks; a buffer grows by realloc. Tests: tests/unit/ps/repl_wire_test.c,
 * fuzz/ps_repl.c.
 */
#ifndef TN_PS_REPL_WIRE_H
#define TN_PS_REPL_WIRE_H

#include "ps/dedup.h"
#include "ps/table.h"

#define TN_PS_REPLICATE 0x70730050u /* the method */

#define TN_REPL_VERSION    1u
#define TN_REPL_HEAD       32u
#define TN_REPL_ENTRY      56u
#define TN_REPL_RECORD     24u
#define TN_REPL_ANSWER     16u
#define TN_REPL_ANSWER_MAX (TN_REPL_ANSWER + (uint32_t)sizeof(tn_ps_slots))
#define TN_REPL_STAGE_MAX  (1u << 30) /* of bytes of one request with gradients */
#define TN_REPL_RECORD_MAX (1u << 20) /* of bytes of one record: more than a table can have */

typedef enum tn_repl_kind {
	TN_REPL_TABLE = 1,
	TN_REPL_DROP,
	TN_REPL_BEGIN,
	TN_REPL_ROWS,
	TN_REPL_PUSH,
	TN_REPL_FACT,
	TN_REPL_SYNCED,
	TN_REPL_BYE,
	TN_REPL_ADOPT,
	TN_REPL_STAGE,
	TN_REPL_CLOSED,
} tn_repl_kind;

typedef struct tn_repl_head {
	uint16_t from;
	uint64_t stream, seq, map_version;
} tn_repl_head;

typedef struct tn_repl_entry {
	tn_repl_kind kind;
	uint32_t count, item_bytes;
	uint64_t table, schema;
	uint64_t client, seq, low;
	tern_status status;
	const uint8_t *items; /* decoded: they point into the frame, 8-aligned if the frame is */
} tn_repl_entry;

typedef enum tn_repl_verdict {
	TN_REPL_DONE = 0,
	TN_REPL_PARTIAL = 1, /* done, but for slots that are not this pair's by the backup's map: its bits */
	TN_REPL_LATER = 2,   /* nothing was done: the backup does not know of the map or a table yet; again */
	TN_REPL_LOST = 3,    /* nothing was done: the backup does not know the stream: it began anew */
	TN_REPL_FAILED = 4,  /* something of it could not be done, no memory: the backup is of no use */
} tn_repl_verdict;

typedef struct tn_repl_answer {
	tn_repl_verdict verdict;
	uint64_t map_version;
	tn_ps_slots refused; /* PARTIAL */
} tn_repl_answer;

/* ---- writing ---- */

typedef struct tn_repl_buf {
	uint8_t *at;
	uint64_t used, room;
	uint64_t entry; /* where the open one begins */
} tn_repl_buf;

void tn_repl_buf_free(tn_repl_buf *buf);
/* Room for `bytes` more. False: no memory. */
bool tn_repl_buf_reserve(tn_repl_buf *buf, uint64_t bytes);
/* Empty, with a place for the head. False: no memory. */
bool tn_repl_buf_start(tn_repl_buf *buf);
/* Nothing but a head? */
static inline bool tn_repl_buf_empty(const tn_repl_buf *buf)
{
	return buf->used <= TN_REPL_HEAD;
}
void tn_repl_head_encode(uint8_t out[TN_REPL_HEAD], const tn_repl_head *head);
/* An entry without items yet; then items; then its end. e->count counts up with the items. False: no memory; give_up. */
bool tn_repl_entry_open(tn_repl_buf *buf, const tn_repl_entry *e);
/* Room for one more item of the open entry, counted; NULL: no memory. */
uint8_t *tn_repl_item(tn_repl_buf *buf);
void tn_repl_entry_close(tn_repl_buf *buf);
/* As if the entry had not been opened. */
void tn_repl_entry_give_up(tn_repl_buf *buf);
/* As it was with `used` bytes. */
static inline void tn_repl_entry_cut(tn_repl_buf *buf, uint64_t used)
{
	buf->entry = 0;
	buf->used = used;
}

/* Bytes of a record of the table in a frame. */
uint32_t tn_repl_record_bytes(const tn_table *table);
/* record->value NULL: the key has no row. */
void tn_repl_record_encode(uint8_t *out, const tn_table *table, const tn_record *record);
/* bytes: tn_repl_record_bytes of the table. *there: whether it has a row; value and state point into `in`. */
void tn_repl_record_decode(const uint8_t *in, const tn_table *table, tn_record *record, bool *there);
void tn_repl_slot_encode(uint8_t out[8], uint16_t slot, uint32_t epoch);
void tn_repl_slot_decode(const uint8_t in[8], uint16_t *slot, uint32_t *epoch);

/* ---- reading ---- */

bool tn_repl_head_decode(const void *data, uint64_t bytes, tn_repl_head *head);
/* The entry at *at (TN_REPL_HEAD at first), and *at behind it. False at the end, and if it can't be read: *at is not
   `bytes` then. What kinds demand of count and items is checked, but for the size of records. */
bool tn_repl_entry_next(const void *data, uint64_t bytes, uint64_t *at, tn_repl_entry *e);

/* Returns the bytes. */
uint64_t tn_repl_answer_encode(uint8_t out[TN_REPL_ANSWER_MAX], const tn_repl_answer *answer);
bool tn_repl_answer_decode(const void *data, uint64_t bytes, tn_repl_answer *answer);

#endif
