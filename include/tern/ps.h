/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameter server: sparse and dense tables of rows, spread over servers by 4096 slots.
 *
 * A sparse table has no fixed vocabulary: any u64 is a key, 0 and 2^64-1 too, and a row comes into being when a
 * push or a pull with TERN_UNKNOWN_CREATE first names its key. A dense table has rows 0 .. rows-1 from the start.
 * A record is one key's row, the optimiser's state of that row and its metadata; they are changed, saved and moved
 * together.
 */
#ifndef TERN_PS_H
#define TERN_PS_H

#include <stddef.h>
#include <stdint.h>

#include <tern/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_TABLE_NAME_MAX 64   /* with NUL */
#define TERN_TABLE_DIM_MAX  8192 /* elements of a row */
#define TERN_TABLE_SLOTS    4096 /* keys hash to these, servers own them */

typedef enum tern_table_kind {
	TERN_TABLE_SPARSE = 0, /* any u64 is a key */
	TERN_TABLE_DENSE = 1,  /* keys are 0 .. rows-1, all present */
} tern_table_kind;

/*
 * How a gradient g changes a row w, element by element, in f32 whatever the table's dtype. lr is the learning rate
 * times the push's scale. State starts at zero, accumulators at initial_accumulator. Decay that is not decoupled
 * (all but ADAMW) is L2: g += weight_decay * w first.
 *
 *   NONE      w += g
 *   SGD       w -= lr g                                                              (Robbins and Monro 1951)
 *   MOMENTUM  m = momentum m + g;  w -= lr m                                         (Polyak 1964)
 *   ADAGRAD   a += g g;  w -= lr g / (sqrt(a) + epsilon)                             (Duchi et al. 2011)
 *   ADAM      m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g g;
 *             w -= lr (m / (1-beta1^t)) / (sqrt(v / (1-beta2^t)) + epsilon)          (Kingma and Ba 2015)
 *   ADAMW     as ADAM, and w -= lr weight_decay w                                    (Loshchilov and Hutter 2019)
 *   FTRL      n' = n + g g;  s = (n'^-lr_power - n^-lr_power) / lr;  z += g - s w;
 *             w = |z| <= l1 ? 0 : (sign(z) l1 - z) / (n'^-lr_power / lr + 2 l2)      (McMahan et al. 2013)
 *   RMSPROP   a = rho a + (1-rho) g g;  m = momentum m + lr g / (sqrt(a) + epsilon);  w -= m  (Tieleman, Hinton 2012)
 *
 * t counts the updates of that row, not steps of the job: a row that comes late starts unbiased as well.
 */
typedef enum tern_row_optimizer {
	TERN_OPT_NONE = 0,
	TERN_OPT_SGD = 1,
	TERN_OPT_MOMENTUM = 2,
	TERN_OPT_ADAGRAD = 3,
	TERN_OPT_ADAM = 4,
	TERN_OPT_ADAMW = 5,
	TERN_OPT_FTRL = 6,
	TERN_OPT_RMSPROP = 7,
} tern_row_optimizer;

/* Fields that an optimiser does not use are ignored. tern_optimizer_init() fills in the usual values. */
typedef struct tern_optimizer_params {
	tern_row_optimizer kind;
	float lr;       /* > 0 but for NONE */
	float momentum; /* [0, 1) */
	float beta1;    /* [0, 1) */
	float beta2;    /* [0, 1) */
	float rho;      /* [0, 1) */
	float epsilon;  /* >= 0 */
	float weight_decay;
	float l1;
	float l2;
	float lr_power;            /* FTRL: [-1, 0); -0.5 is the paper's */
	float initial_accumulator; /* ADAGRAD, FTRL, RMSPROP: >= 0 */
} tern_optimizer_params;

/* The usual values: momentum 0.9, betas 0.9 and 0.999, rho 0.9, epsilon 1e-8 (ADAGRAD 1e-10), no decay, no l1 and
   l2, lr_power -0.5, accumulators from 0 (ADAGRAD, FTRL 0.1). Any thread. */
void tern_optimizer_init(tern_optimizer_params *params, tern_row_optimizer kind, float lr);

/*
 * What a row is when it comes into being. Random values are a pure function of seed, the table's name, key and
 * column: whoever creates the row, and when, it is the same row.
 */
typedef enum tern_row_start {
	TERN_ROW_ZEROS = 0,
	TERN_ROW_CONSTANT = 1, /* value */
	TERN_ROW_UNIFORM = 2,  /* [-value, value) */
	TERN_ROW_NORMAL = 3,   /* mean 0, standard deviation value */
} tern_row_start;

typedef struct tern_row_init {
	tern_row_start kind;
	float value;
	uint64_t seed;
} tern_row_init;

/* What a push does with a row whose gradient, or whose result, has a NaN or an infinity. Each is counted. */
typedef enum tern_nonfinite {
	TERN_NONFINITE_DROP = 0, /* the row stays as it is */
	TERN_NONFINITE_CLIP =
		1, /* NaN counts as 0, infinities as +-2^63; if the result is still not finite: DROP */
	TERN_NONFINITE_FAIL = 2, /* a push with such a gradient ends in TERN_E_CORRUPT and changes nothing */
} tern_nonfinite;

/* What makes room when a new row would not fit into the budget. */
typedef enum tern_eviction {
	TERN_EVICT_NONE = 0, /* nothing: new rows are refused with TERN_E_BUDGET */
	TERN_EVICT_LRU = 1,  /* a row with a low last step, of a sample */
	TERN_EVICT_LFU = 2,  /* a row with a low frequency, of a sample; frequencies age by being sampled */
} tern_eviction;

/* No frequency and no last step in records: 24 bytes of overhead per key instead of 36 or so, no TTL, no eviction. */
#define TERN_TABLE_NO_META 1u
/*
 * Its servers keep it in memory that clients read by themselves (TERN_PULL_ONE_SIDED). Such memory is not given back
 * while the table lives.
 */
#define TERN_TABLE_ONE_SIDED 2u

/* Zero it, then set what differs. name and dim must be set. */
typedef struct tern_table_schema {
	char name[TERN_TABLE_NAME_MAX]; /* letters, digits and "._-/" */
	tern_table_kind kind;
	tern_dtype dtype; /* TERN_F32 (also 0), TERN_BF16, TERN_F16; optimiser state is f32 always */
	uint32_t dim;     /* 1 .. TERN_TABLE_DIM_MAX */
	uint32_t flags;   /* TERN_TABLE_* */
	uint64_t rows;    /* dense tables */
	tern_optimizer_params optimizer;
	tern_row_init init;
	tern_nonfinite nonfinite;
	tern_eviction eviction;
	uint64_t budget_bytes; /* of one server's share: records and index together; 0 = none */
	uint64_t ttl_steps;    /* rows that no step used for longer are dropped by expiry; 0 = never */
	uint32_t admit_after;  /* a key gets a row when it was asked for that often; 0, 1 = at once; <= 255 */
	uint32_t reserved;     /* 0 */
} tern_table_schema;

/*
 * Is it a table that can be? TERN_E_INVALID, or TERN_E_UNSUPPORTED for a dtype that rows can't have, with a text
 * that names the field, its limit and what to write instead. Any thread; never blocks.
 */
tern_status tern_table_schema_check(const tern_table_schema *schema);

/* Keys that have no row. */
typedef enum tern_unknown {
	TERN_UNKNOWN_CREATE = 0,  /* they get one (admission and budget permitting) */
	TERN_UNKNOWN_ZERO = 1,    /* zeros */
	TERN_UNKNOWN_DEFAULT = 2, /* the initial value, without creating the row */
	TERN_UNKNOWN_ERROR = 3,   /* TERN_E_NOT_FOUND; the rows of known keys are there all the same */
} tern_unknown;

/* Rows of several keys as one: see bags of tern_table_pull_params. */
typedef enum tern_pool {
	TERN_POOL_NONE = 0,
	TERN_POOL_SUM = 1,
	TERN_POOL_MEAN = 2, /* the sum over the number of keys in the bag, known or not; zeros for none */
} tern_pool;

/* What a push brings. Keys that occur more than once in a push count once. */
typedef enum tern_push_mode {
	TERN_PUSH_GRADIENT = 0, /* gradients, summed in the order given, for the optimiser */
	TERN_PUSH_ASSIGN = 1,   /* values; the last one counts; optimiser state stays */
	TERN_PUSH_ADD = 2,      /* amounts to add to the row, past the optimiser */
} tern_push_mode;

/* ---- servers ---- */

/*
 * A server holds its share of every table in memory and serves it on all links of a context. Which keys are its own
 * says the map: 4096 slots over servers. Either all servers of a job are given the same list, and have equal runs of slots;
 * or they join one of them, or etcd: then servers come and go while clients work, slots can have a backup that takes over
 * when their server dies, and move so that loads are even.
 */
typedef struct tern_ps_server tern_ps_server;

/* Zero it, then set what differs. */
typedef struct tern_ps_server_params {
	const char *const *servers; /* "host:port" of all of them, in order; NULL: this one alone */
	uint32_t count;             /* of servers; 0 with NULL; at most 256 */
	uint32_t index;             /* of this one */
	uint64_t map_version;       /* of the list, 0 = 1: a later list has a higher one */
	uint64_t budget_bytes;      /* of all its tables together; 0 = none */
	uint32_t workers;           /* threads for batches that take long; 0 = option ps.workers */
	/*
	 * Instead of a list. "": others join this one, which decides who has which slot for as long as it lives;
	 * "host:port": that one; "etcd:http://host:port[,http://...][/prefix]": etcd keeps the map, no server is special.
	 */
	const char *join;
	uint32_t
		replicas; /* of each slot, 1 or 2; counts at the one that others join, and the first with etcd; 0 = 1 */
	uint32_t
		first; /* servers that have to be there before slots are given out; counts as replicas; 0 = 1 */
	/*
	 * NULL, or a directory: rows that tables with a budget and eviction would evict go there instead (RocksDB, loaded at
	 * run time), with all that belongs to them, and come back when they are asked for. It is the overflow of what is in
	 * memory: emptied when a server begins; what lasts is a checkpoint.
	 */
	const char *tier_dir;
} tern_ps_server_params;

/* One per context: TERN_E_EXISTS. The context must listen. */
tern_status tern_ps_server_open(tern_ctx *ctx, const tern_ps_server_params *params, tern_ps_server **server);
/*
 * Another list of servers. Keys that are not this one's any more are refused from now on, and their clients fetch the
 * map anew; rows do not move with it. TERN_E_INVALID: the version is not higher.
 */
tern_status tern_ps_server_remap(tern_ps_server *server, const tern_ps_server_params *params);
/*
 * Give all slots of a server that has joined others to them, while it serves; returns when it has none: then it can be closed
 * and nobody is the worse. TERN_E_DEADLINE: it goes on giving. TERN_E_STATE: it has a list, or there is no other server. Not from a callback.
 */
tern_status tern_ps_server_drain(tern_ps_server *server, uint64_t timeout_ns);
/*
 * Stop serving and free all tables. Waits for batches that are at work; later ones get TERN_E_NO_METHOD. Before the
 * context is destroyed; not from a callback. NULL is allowed.
 */
void tern_ps_server_close(tern_ps_server *server);

/* ---- clients ---- */

/*
 * A client of all servers of a job. It dials them when it needs them and again when a link is lost; while it does, the
 * operations wait within their deadlines. Any thread.
 *
 * A push is applied once in each slot, whatever happens to links in between, and its completion says that it was
 * applied, at the slot's backup too if it has one. Where slots have backups the death of a server is no more than a delay, as
 * long as deadlines allow; else it leaves the outcome open: TERN_E_INDETERMINATE.
 */
typedef struct tern_ps tern_ps;
typedef struct tern_table tern_table;

/* Zero it, then set what differs. */
typedef struct tern_ps_params {
	const char *const *servers; /* one or more of the job's; the first that answers tells the others */
	uint32_t count;
	uint64_t timeout_ns;    /* of operations that name none, and of open itself; 0 = option rpc.timeout */
	const char *transports; /* as of tern_connect_params */
} tern_ps_params;

/* Waits until a server has told the map. TERN_E_UNREACHABLE and the like name each server that did not answer. */
tern_status tern_ps_open(tern_ctx *ctx, const tern_ps_params *params, tern_ps **ps);
/* Operations in flight end in TERN_E_FLUSHED before it returns; its tables are closed with it. Not from a callback. */
void tern_ps_close(tern_ps *ps);
/* Servers that are alive, and the version of the map. */
uint32_t tern_ps_servers(tern_ps *ps, uint64_t *version);

/* ---- servers that join and leave ---- */

/* A server as its coordinator knows it. Strings live during the call. */
typedef struct tern_ps_server_info {
	uint32_t number;
	const char *address, *state; /* "up", "draining", "down", "gone" */
	int alive;
	uint32_t primaries, backups; /* slots */
	uint32_t alone;              /* of the primaries: no other server has all of it */
	uint32_t leaving, arriving;  /* slots that are on their way to another server, or to this one */
	uint64_t keys_per_second;
} tern_ps_server_info;

/* fn runs for each server, in the calling thread. TERN_E_NOT_FOUND: the servers have a fixed list. Waits; not from a
   callback. version may be NULL. */
tern_status tern_ps_server_list(tern_ps *ps, void (*fn)(const tern_ps_server_info *info, void *arg),
				void *arg, uint64_t *version);

typedef enum tern_ps_op {
	TERN_PS_DRAIN = 1,   /* the server's slots go to others; it serves until then */
	TERN_PS_UNDRAIN = 2, /* it takes slots again */
	TERN_PS_GIVE_UP = 3, /* a dead server will not come back: slots that only it had begin anew, empty */
	TERN_PS_BALANCE = 4, /* look at loads now */
	TERN_PS_PAUSE = 5,   /* move no slots; backups for slots that have none are made all the same */
	TERN_PS_RESUME = 6,
} tern_ps_op;

/* Begins it. server: its address, for the first three. TERN_E_NOT_FOUND, TERN_E_STATE in words. Waits for the coordinator
   alone; not from a callback. */
tern_status tern_ps_change(tern_ps *ps, tern_ps_op op, const char *server);

/*
 * Tables live at the servers. create: TERN_E_EXISTS if there is one of that name, unless it has the same schema, which
 * is success. open: schema may be NULL; else TERN_E_SHAPE if it differs. All wait, up to the client's timeout; the
 * server that failed is named. Not from a callback.
 */
tern_status tern_table_create(tern_ps *ps, const tern_table_schema *schema, tern_table **table);
tern_status tern_table_open(tern_ps *ps, const char *name, const tern_table_schema *schema,
			    tern_table **table);
/* The handle alone: no operation of it may be in flight. NULL is allowed. */
void tern_table_close(tern_table *table);
/* Its rows are gone; handles of it end in TERN_E_NOT_FOUND. */
tern_status tern_table_drop(tern_ps *ps, const char *name);
tern_status tern_table_describe(tern_ps *ps, const char *name, tern_table_schema *schema);
/* fn runs for each table of the first server of the map, in the calling thread, in the order of names. */
tern_status tern_table_list(tern_ps *ps, void (*fn)(const tern_table_schema *schema, void *arg), void *arg);

/*
 * Sums over the servers, but for record_bytes. rows and cold_rows are those that servers serve: what they keep as backups of
 * others is in bytes, created, erased and evicted alone. Of a dense table each server counts all its rows.
 */
typedef struct tern_table_stats {
	uint64_t rows, bytes, record_bytes;
	uint64_t created, erased, evicted, expired;
	uint64_t not_admitted, refused, nonfinite;
	uint64_t pulled, pushed; /* keys */
	uint64_t duplicates;     /* pushes that came again and were not applied again */
	uint64_t cold_rows;      /* of rows, those in the tier */
	uint64_t cold_bytes;     /* of the tier, about */
} tern_table_stats;
tern_status tern_table_get_stats(tern_ps *ps, const char *name, tern_table_stats *stats);
/* The tables of a server and its own share of each, in the order of names, for monitors. Any thread; fn runs in it. */
void tern_ps_server_tables(tern_ps_server *server,
			   void (*fn)(const tern_table_schema *schema, const tern_table_stats *stats,
				      void *arg),
			   void *arg);
/*
 * How many keys of each slot were pulled, pushed and erased since the table came into being at its server, about: one key in
 * sixteen is looked at. A slot far above the others has a hot key. Waits, as the functions above.
 */
tern_status tern_table_get_load(tern_ps *ps, const char *name, uint64_t load[TERN_TABLE_SLOTS]);

/* Lives as long as the handle. */
const tern_table_schema *tern_table_get_schema(const tern_table *table);

/*
 * Read rows where they lie in the servers' memory, without work of a server: of a table with TERN_TABLE_ONE_SIDED, over
 * shm. Keys that are not found so, and all keys where or while it can't be done, are asked for in the usual way
 * (counters ps.one_sided, ps.one_sided_left): so it is a hint, and TERN_UNKNOWN_CREATE creates as ever. Such reads are no
 * use of a row: admission, TTL and eviction don't see them. They go by the slot map of at most option ps.lease ago:
 * where slots moved meanwhile, rows may be as old as that.
 */
#define TERN_PULL_ONE_SIDED 1u

/*
 * Rows of count keys, in the caller's order, equal keys equal rows: row i to rows + i * stride. rows should lie in memory
 * of tern_mem_alloc with TERN_ACCESS_WRITE: servers write there. Anything else is filled from a buffer (counter
 * ps.copies). A key to it stays live at the servers between operations, until rows lie elsewhere or the table is closed.
 */
typedef struct tern_table_pull_params {
	const uint64_t *keys; /* in use until the completion */
	uint64_t count;       /* at most 2^32 - 2: TERN_E_TOO_LARGE */
	void *rows;
	uint64_t stride;  /* bytes; 0 = rows lie close */
	tern_dtype dtype; /* of rows; 0 = the table's */
	tern_unknown unknown;
	uint8_t *found; /* NULL, or count bytes: 1 if the key has a row */
	uint64_t step;
	/*
	 * Pooled by the servers, so that one row per bag travels: bag b has keys offsets[b] .. offsets[b + 1] - 1, offsets
	 * has bags + 1 numbers from 0 up to count, and row b is theirs; a key may be in a bag more than once. Sums are of
	 * f32, in the order of the keys; where several servers have keys of a bag, of what each has summed. Without found.
	 */
	tern_pool pool;
	const uint64_t *offsets; /* in use until the completion */
	uint64_t bags;           /* at most 2^32 - 2 */
	/*
	 * How rows travel, if not as they lie in memory (0): TERN_F32, TERN_BF16, TERN_F16, or TERN_I8: int8 with a scale of
	 * each row, off by at most 1/254 of the row's largest absolute value (pooled over n servers: of each one's sum), rows
	 * with a NaN or an infinity are NaNs. Then they are copied at this side too.
	 */
	tern_dtype travel;
	uint32_t flags; /* TERN_PULL_* */
} tern_table_pull_params;

/*
 * op->length: keys that had a row. op->timeout_ns 0 = the client's. TERN_AGAIN: too many operations are in flight.
 * TERN_E_NOT_FOUND (unknown ERROR), TERN_E_BUDGET, TERN_E_INVALID (dense: no such row): all other rows are there.
 */
tern_status tern_table_pull(tern_table *table, const tern_table_pull_params *params, tern_op *op);
tern_status tern_table_pull_wait(tern_table *table, const tern_table_pull_params *params,
				 uint64_t timeout_ns);

/*
 * Gradients (or values) of count keys: row i at rows + i * stride, f32 or as dtype says. Over shm, servers read them where
 * they lie if that is memory of tern_mem_alloc with TERN_ACCESS_READ.
 */
typedef struct tern_table_push_params {
	const uint64_t *keys; /* in use until the completion, as rows */
	uint64_t count;       /* at most 2^32 - 2 */
	const void *rows;
	uint64_t stride;
	tern_dtype dtype; /* 0 = TERN_F32 */
	tern_push_mode mode;
	float lr_scale; /* times the optimiser's lr; 0 = 1 */
	uint64_t step;
} tern_table_push_params;

/*
 * op->length: keys that were applied; of a push that was sent again, because an answer did not come, those that the last
 * one applied: others may have been before. TERN_E_BUDGET, TERN_E_INVALID (dense: no such row): the others were.
 * TERN_E_CORRUPT (nonfinite FAIL): nothing was, at the server that says so.
 */
tern_status tern_table_push(tern_table *table, const tern_table_push_params *params, tern_op *op);
tern_status tern_table_push_wait(tern_table *table, const tern_table_push_params *params,
				 uint64_t timeout_ns);

/* op->length: rows that are gone. Sparse tables. */
tern_status tern_table_erase(tern_table *table, const uint64_t *keys, uint64_t count, tern_op *op);
tern_status tern_table_erase_wait(tern_table *table, const uint64_t *keys, uint64_t count,
				  uint64_t timeout_ns);
/* Give an operation up: it ends soon, with TERN_E_CANCELED unless it is done before. A push may have been applied.
   TERN_E_NOT_FOUND. */
tern_status tern_table_cancel(tern_table *table, tern_op *op);

#ifdef __cplusplus
}
#endif

#endif
