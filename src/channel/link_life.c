/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a link's shell: made, dialed or accepted, met, up, down, freed.
 *
 *   CONNECTING -> UP -> (CLOSING) -> DOWN        the public state; CONNECTING -> DOWN when it never came up
 *
 * Threads: the driver but for refs. Tests: tests/unit/channel/test_link.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/crypto.h"
#include "base/fail.h"
#include "base/os.h"
#include "base/log.h"
#include "channel/channel_impl.h"
#include "channel/shell.h"
#include "channel/stage.h"
#include "mem/gpu.h"

#define REDIAL_MIN_NS  (5 * TN_NS_PER_MS)
#define REDIAL_MAX_NS  (200 * TN_NS_PER_MS)
#define STRANGER_LINES 4 /* a second */
#define RIVAL_TEXT     "there is another connection between these nodes"

_Static_assert((int)TN_LINK_CAP_WRITE == (int)TN_CAP_WRITE &&
		       (int)TN_LINK_CAP_WRITE_IMM == (int)TN_CAP_WRITE_IMM &&
		       (int)TN_LINK_CAP_READ == (int)TN_CAP_READ &&
		       (int)TN_LINK_CAP_SEND == (int)TN_CAP_SEND &&
		       (int)TN_LINK_CAP_REMOTE_DONE == (int)TN_CAP_REMOTE_DONE &&
		       (int)TN_LINK_CAP_ORDERED_WRITES == (int)TN_CAP_ORDERED_WRITES &&
		       (int)TN_LINK_CAP_TAIL_BYTE == (int)TN_CAP_TAIL_BYTE &&
		       (int)TN_LINK_CAP_PASSIVE_TARGET == (int)TN_CAP_PASSIVE_TARGET &&
		       (int)TN_LINK_CAP_SAME_HOST == (int)TN_CAP_SAME_HOST,
	       "capabilities of machine and transport are the same bits");
_Static_assert(TN_LINK_BLOB_MAX == TN_BLOB_MAX && TN_LINK_TOKEN_BYTES == TN_LANE_TOKEN_BYTES &&
		       TN_LINK_KEY_BYTES == sizeof(tern_key) && TN_LINK_NOTIFY_BITS == TERN_NOTIFY_BITS,
	       "sizes of machine and transport agree");

/* ---- making ---- */

/* What strangers do is told a few times a second at most: they could fill a disk. */
static void log_line(int level, const char *line, void *arg)
{
	static tn_log_limit limit;
	const tern_link *link = arg;

	if (atomic_load_explicit(&tn_log_levels[TN_LOG_C_LINK], memory_order_relaxed) < level)
		return;
	if (!link->incoming || link->proved)
		tn_log_write((tn_log_level)level, TN_LOG_C_LINK, "%s", line);
	else if (tn_log_limit_pass(&limit, STRANGER_LINES))
		tn_log_write_limited(&limit, (tn_log_level)level, TN_LOG_C_LINK, "%s", line);
}

enum { WINDOW_AUTO, WINDOW_FIXED, WINDOW_ADAPTIVE }; /* as the choices of link.window */

static void fill_sizes(const tern_ctx *ctx, tn_link_config *config)
{
	const tn_option_row *rows = tn_link_option_rows;
	const tn_options *o = ctx->options;

	config->channels_max = (uint32_t)tn_opt_u64(o, rows, "channels_max");
	config->ops_max = (uint32_t)tn_opt_u64(o, rows, "ops_max");
	config->wrs_max = (uint32_t)tn_opt_u64(o, rows, "wrs_max");
	config->data_lanes = (uint32_t)tn_opt_u64(o, rows, "data_lanes");
	config->window_bytes = tn_opt_u64(o, rows, "window_bytes");
	config->window_adaptive = tn_opt_enum(o, rows, "window") == WINDOW_ADAPTIVE;
	config->window_min_bytes = tn_opt_u64(o, rows, "window_min_bytes");
	config->window_target_ns = tn_opt_u64(o, rows, "window_target");
	config->chunk_bytes = tn_opt_u64(o, rows, "chunk_bytes");
	config->small_bytes = tn_opt_u64(o, rows, "small_bytes");
	config->step_timeout_ns = tn_opt_u64(o, rows, "step_timeout");
	config->lane_timeout_ns = tn_opt_u64(o, rows, "lane_timeout");
	config->keepalive_ns = tn_opt_u64(o, rows, "keepalive");
	config->keepalive_misses = (uint32_t)tn_opt_u64(o, rows, "keepalive_misses");
	config->grants = tn_opt_enum(o, rows, "grants") != TN_GRANTS_OFF;
	config->copy = tn_stage_copy;
	config->copy_arg = ctx->mem;
	config->checksum = tn_opt_enum(o, rows, "checksum") == 1;
	config->recover_ns = tn_opt_u64(o, rows, "recover");
	config->probe_ns = tn_opt_u64(o, rows, "probe");
	config->lane_idle_ns = tn_opt_u64(o, rows, "lane_idle");
	config->lane_rest_ns = tn_opt_u64(o, rows, "lane_rest");
	config->redial_ns = tn_opt_u64(o, rows, "redial");
	config->verdict_ns = tn_opt_u64(o, rows, "verdict");
	config->close_timeout_ns = tn_opt_u64(o, rows, "close_timeout");
}

/* The link's devices, in its order of preference, as providers of the machine. */
static void fill_providers(tern_link *link, const char *transports, tn_link_provider *providers)
{
	tern_ctx *ctx = link->ctx;
	unsigned window = tn_opt_enum(ctx->options, tn_link_option_rows, "window");

	for (int rank = 0; rank < TN_LINK_PROVIDERS_MAX; rank++) {
		for (unsigned i = 0; i < ctx->dev_count; i++) {
			tn_shell_dev *sdev = &ctx->devs[i];
			tn_link_provider *p = &providers[link->dev_count];

			if (transports ? tn_transports_rank(transports, sdev->name) != rank : (int)i != rank)
				continue;
			snprintf(p->name, sizeof(p->name), "%s", sdev->name);
			p->caps = sdev->caps.flags;
			p->lane_wrs_max = sdev->caps.lane_wrs_max;
			p->write_bytes_max = sdev->caps.write_bytes_max;
			p->send_bytes_max = sdev->caps.send_bytes_max;
			/* A longer copy is made without the lock, which its immediate is not. */
			p->imm_bytes_max = sdev->caps.copies ? TN_SHELL_COPY_BYTES : 0;
			/* Where transfers are copies of this host's nothing queues in front of a message. */
			p->data_lanes = sdev->caps.flags & TN_CAP_SAME_HOST ? 0 : UINT32_MAX;
			p->budget = sdev->caps.flags & TN_CAP_SAME_HOST ? NULL : &sdev->budget;
			p->window_adaptive = window == WINDOW_AUTO && sdev->caps.streams;
			p->streams = sdev->caps.streams && sdev->caps.batches;
			p->arbiter = sdev->grants ? &sdev->arbiter : NULL;
			p->pool = &sdev->pool;
			p->quota = sdev->quota.cap ? &sdev->quota : NULL;
			tn_lock_take(&ctx->table_lock);
			p->address_bytes = sdev->address.length;
			memcpy(p->address, sdev->address.bytes, sdev->address.length);
			tn_lock_drop(&ctx->table_lock);
			link->devs[link->dev_count++] = sdev;
		}
	}
}

/* Pieces have to fit a staging chunk where a device takes registered memory alone, or there is a GPU. */
static bool needs_staging(const tern_link *link)
{
	for (unsigned i = 0; i < link->dev_count; i++) {
		if (link->devs[i]->caps.needs_registered)
			return true;
	}
	return tn_gpu_on();
}

/* The machine keeps hashes: the texts go at once. */
static tern_status init_with_secrets(tern_link *link, size_t bytes, tn_link_config *config)
{
	tn_secret_texts secrets;
	tern_status status;

	tn_secrets_get(&link->ctx->secrets, &secrets);
	config->secret = secrets.text[0];
	config->secret_bytes = (uint32_t)strlen(secrets.text[0]);
	config->secret_next = secrets.text[1];
	config->secret_next_bytes = (uint32_t)strlen(secrets.text[1]);
	status = tn_link_init(link->memory, bytes, config, tn_ctx_now(link->ctx), &link->m);
	tn_crypto_wipe(&secrets, sizeof(secrets));
	return status;
}

/* Another link of the device made room for this one: the driver runs it. */
static void wake_link(void *arg)
{
	tn_shell_attention(arg);
}

static tern_status init_machine(tern_link *link, const char *transports)
{
	tern_ctx *ctx = link->ctx;
	tn_link_provider providers[TN_LINK_PROVIDERS_MAX] = {0};
	tn_link_config config;
	size_t bytes;

	fill_providers(link, transports, providers);
	if (link->dev_count == 0)
		return tn_fail(TERN_E_NO_DEVICE, "none of the transports \"%s\" is open in this context (%s)",
			       transports ? transports : "", ctx->transports);
	tn_link_config_defaults(&config);
	fill_sizes(ctx, &config);
	if (needs_staging(link))
		config.chunk_bytes = TN_MIN(config.chunk_bytes, tn_stage_piece_max(&ctx->stage));
	config.active = !link->incoming;
	memcpy(config.node, ctx->node_id, sizeof(config.node));
	memcpy(config.incarnation, ctx->incarnation, sizeof(config.incarnation));
	TN_TRY(tn_os_random(config.nonce, sizeof(config.nonce)));
	config.name = ctx->name;
	config.job = ctx->job;
	config.providers = providers;
	config.provider_count = link->dev_count;
	config.log = log_line;
	config.log_arg = link;
	config.wake = wake_link;
	config.wake_arg = link;
	config.store = &ctx->store;
	bytes = tn_link_memory_bytes(&config);
	bytes = (bytes + 63) & ~(size_t)63;
	link->memory = aligned_alloc(64, bytes);
	if (!link->memory)
		return tn_fail(TERN_E_NOMEM, "no memory for a link (%zu bytes)", bytes);
	return init_with_secrets(link, bytes, &config);
}

tern_status tn_shell_link_new(tern_ctx *ctx, bool incoming, const char *transports, tern_link **out)
{
	tern_link *link = aligned_alloc(64, (sizeof(*link) + 63) & ~(size_t)63);
	tern_status status;

	*out = NULL;
	if (!link)
		return tn_fail(TERN_E_NOMEM, "no memory for a link");
	memset(link, 0, sizeof(*link));
	link->ctx = ctx;
	link->incoming = incoming;
	link->inbox_bytes_max = tn_opt_u64(ctx->options, tn_channel_option_rows, "inbox_bytes");
	tn_lock_init(&link->lock, ctx->single_owner);
	tn_list_init(&link->channels);
	tn_list_init(&link->lanes);
	atomic_init(&link->refs, 1);
	atomic_init(&link->public_state, TERN_LINK_CONNECTING);
	link->timer.run = tn_shell_timer;
	link->timer_at = link->connect_deadline_ns = link->redial_at_ns = TN_TIME_NEVER;
	status = init_machine(link, transports);
	if (status != TERN_OK) {
		free(link->memory);
		free(link);
		return status;
	}
	tn_lock_take(&ctx->table_lock);
	if (ctx->ending) {
		status = TERN_E_STATE;
	} else if (ctx->link_count >= TN_LINKS_MAX) {
		status = TERN_E_LIMIT;
	} else {
		link->number = ++ctx->link_number;
		ctx->link_count++;
		ctx->hello_count += incoming;
		link->counted_hello = incoming;
		tn_list_push_back(&ctx->links, &link->node);
	}
	tn_lock_drop(&ctx->table_lock);
	if (status != TERN_OK) {
		tn_link_fini(link->m);
		free(link->memory);
		free(link);
		return status == TERN_E_STATE ? tn_fail(status, "the context ends")
					      : tn_fail(status, "at most %d links per context", TN_LINKS_MAX);
	}
	*out = link;
	return TERN_OK;
}

void tn_shell_ref(tern_link *link)
{
	atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed);
}

void tn_shell_unref(tern_link *link)
{
	tern_ctx *ctx = link->ctx;

	if (atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel) != 1)
		return;
	TN_ASSERT(link->gone && tn_list_empty(&link->channels) && tn_list_empty(&link->lanes) && !link->conn);
	tn_lock_take(&ctx->table_lock);
	tn_list_remove(&link->node);
	tn_lock_drop(&ctx->table_lock);
	tn_stage_tags_fini(&link->staged);
	free(link->memory);
	free(link);
}

const char *tn_shell_label(const tern_link *link, char *buf, size_t size)
{
	const tn_link_peer *peer = link->m ? tn_link_get_peer(link->m) : NULL;
	const char *name = link->names.peer_name[0] ? link->names.peer_name : peer ? peer->name : "";

	if (name[0])
		snprintf(buf, size, "peer '%s' at %s", name, link->names.peer_address);
	else
		snprintf(buf, size, "peer at %s", link->names.peer_address);
	return buf;
}

/* ---- the control connection ---- */

static void on_opened(tn_conn *conn, void *arg)
{
	tern_link *link = arg;
	uint64_t now = tn_ctx_now(link->ctx);

	tn_lock_take(&link->lock);
	tn_conn_opened(conn);
	link->redial_pause_ns = 0;
	tn_link_on_ctrl_up(link->m, now);
	tn_shell_run(link, now);
	tn_lock_drop(&link->lock);
}

static void on_writable(tn_conn *conn, void *arg)
{
	tern_link *link = arg;

	tn_lock_take(&link->lock);
	tn_conn_writable(conn);
	tn_lock_drop(&link->lock);
}

static void on_bytes(tn_conn *conn, const uint8_t *bytes, uint64_t n, void *arg)
{
	tern_link *link = arg;
	uint64_t now = tn_ctx_now(link->ctx);
	tn_link_state state;

	(void)conn;
	tn_lock_take(&link->lock);
	if (!link->gone)
		tn_link_on_ctrl_bytes(link->m, bytes, n, now);
	state = tn_link_get_state(link->m);
	link->proved |= state >= TN_LINK_SETUP && state < TN_LINK_DRAINING;
	tn_shell_run(link, now);
	tn_lock_drop(&link->lock);
}

/* Lock held. True: the dial is tried again later. */
static bool try_later(tern_link *link, tern_status status, uint64_t now)
{
	/* After a cable came back, a host counts as unreachable for a moment. */
	bool passes = status == TERN_E_REFUSED || status == TERN_E_UNREACHABLE;

	if (!link->retry || !passes || link->connect_deadline_ns <= now ||
	    tn_link_get_state(link->m) != TN_LINK_DIAL)
		return false;
	link->redial_pause_ns =
		link->redial_pause_ns ? TN_MIN(link->redial_pause_ns * 2, REDIAL_MAX_NS) : REDIAL_MIN_NS;
	link->redial_at_ns = now + link->redial_pause_ns;
	return true;
}

static void on_broken(tn_conn *conn, tern_status status, void *arg)
{
	tern_link *link = arg;
	uint64_t now = tn_ctx_now(link->ctx);
	bool dialing = conn->dialing;
	char text[TN_LINK_TEXT_MAX];

	snprintf(text, sizeof(text), "%s", tn_detail_get());
	tn_lock_take(&link->lock);
	if (link->conn == conn)
		link->conn = NULL;
	tn_conn_close(conn);
	if (!link->gone && !(dialing && try_later(link, status, now)))
		tn_link_on_ctrl_down(link->m, status, text, now);
	tn_shell_run(link, now);
	tn_lock_drop(&link->lock);
}

void tn_shell_adopt(tern_link *link, tn_conn *conn)
{
	conn->opened = on_opened;
	conn->writable = on_writable;
	conn->bytes = on_bytes;
	conn->broken = on_broken;
	conn->arg = link;
	link->conn = conn;
}

void tn_shell_dial(tern_link *link)
{
	uint64_t now = tn_ctx_now(link->ctx);
	tern_status status;
	tn_conn *conn;

	if (link->conn || link->gone || tn_link_get_state(link->m) >= TN_LINK_CLOSING)
		return;
	status = tn_conn_dial(link->ctx, &link->target, &conn);
	if (status == TERN_OK) {
		tn_shell_adopt(link, conn);
		status = tn_conn_start(conn);
		if (status == TERN_OK)
			return;
		link->conn = NULL;
		tn_conn_close(conn);
	}
	if (!try_later(link, status, now))
		tn_link_on_ctrl_down(link->m, status, tn_detail_get(), now);
}

/* ---- meeting rivals ---- */

/* All other links, each with a reference. NULL: none, or no memory (then nobody is retired). */
static tern_link **others_of(tern_link *link, unsigned *count)
{
	tern_ctx *ctx = link->ctx;
	tern_link **others;
	unsigned n = 0;

	tn_lock_take(&ctx->table_lock);
	others = calloc(ctx->link_count + 1, sizeof(tern_link *));
	TN_LIST_FOREACH(node, &ctx->links) {
		tern_link *other = TN_LIST_ENTRY(node, tern_link, node);
		uint32_t refs = atomic_load_explicit(&other->refs, memory_order_relaxed);

		if (!others || other == link || n >= ctx->link_count)
			continue;
		/* One whose last reference is going is about to leave the table. */
		while (refs &&
		       !atomic_compare_exchange_weak_explicit(&other->refs, &refs, refs + 1,
							      memory_order_relaxed, memory_order_relaxed))
			;
		if (refs)
			others[n++] = other;
	}
	tn_lock_drop(&ctx->table_lock);
	*count = n;
	return others;
}

/*
 * Both locks are taken here and nowhere else, by the driver alone. retire: the older link may be ended.
 * Returns what this link is refused with.
 */
static tern_status meet_one(tern_link *link, tern_link *other, bool retire)
{
	tern_link *older = other->number < link->number ? other : link;
	tern_link *newer = older == link ? other : link, *victim = NULL;
	tern_status status = TERN_OK;
	tn_link_rivalry rivalry = TN_RIVALS_NOT;
	uint64_t now = tn_ctx_now(link->ctx);

	tn_lock_take(&link->lock);
	tn_lock_take(&other->lock);
	if (!link->gone && !other->gone && tn_link_get_peer(link->m) && tn_link_get_peer(other->m) &&
	    tn_link_status(other->m) == TERN_OK && tn_link_get_state(other->m) < TN_LINK_CLOSING)
		rivalry = tn_link_rivals(older->m, newer->m, &status);
	tn_lock_drop(&link->lock);
	if (rivalry != TN_RIVALS_NOT)
		victim = rivalry == TN_RIVALS_DROP_OLD ? older : newer;
	if (victim == other && retire) {
		tn_link_abort(other->m, status, "another connection took its place", now);
		tn_shell_run(other, now);
	}
	tn_lock_drop(&other->lock);
	return victim == link ? status : TERN_OK;
}

static tern_status meet(tern_link *link, bool retire)
{
	tern_status status = TERN_OK;
	unsigned count = 0;
	tern_link **others = others_of(link, &count);

	for (unsigned i = 0; others && i < count; i++) {
		tern_status one = meet_one(link, others[i], retire);

		if (one != TERN_OK)
			status = one;
		tn_shell_unref(others[i]);
	}
	free(others);
	return status;
}

/* Driver, lock not held. A connection that belongs to a link that has lost its own goes to that one. */
void tn_shell_rejoin(tern_link *link, const void *rejoin, uint64_t bytes)
{
	uint64_t now = tn_ctx_now(link->ctx);
	unsigned count = 0;
	tern_link **others = others_of(link, &count);
	bool found = false;
	tn_conn *conn;

	tn_lock_take(&link->lock);
	conn = link->conn;
	link->conn = NULL;
	tn_lock_drop(&link->lock);
	for (unsigned i = 0; others && i < count; i++) {
		tern_link *other = others[i];

		tn_lock_take(&other->lock);
		if (conn && !found && !other->gone && tn_link_rejoin(other->m, rejoin, bytes, now)) {
			found = true;
			if (other->conn)
				tn_conn_close(other->conn);
			tn_shell_adopt(other, conn);
			tn_shell_run(other, now);
		}
		tn_lock_drop(&other->lock);
		tn_shell_unref(other);
	}
	free(others);
	tn_lock_take(&link->lock);
	if (!found)
		link->conn = conn;
	if (!link->gone) {
		tn_link_abort(link->m, found ? TERN_E_PEER_CLOSED : TERN_E_PEER_RESTARTED,
			      found ? "its connection belongs to another link"
				    : "this session is not known here: the node was restarted, or gave it up",
			      now);
		tn_shell_run(link, now);
	}
	tn_lock_drop(&link->lock);
}

/* With a secret nobody is retired for a peer that has only claimed who it is: that waits for LINK_UP. */
void tn_shell_meet(tern_link *link)
{
	tern_status status = meet(link, !link->ctx->secrets.any);
	uint64_t now = tn_ctx_now(link->ctx);

	tn_lock_take(&link->lock);
	if (!link->gone)
		tn_link_on_peer_answer(link->m, status, status == TERN_OK ? "" : RIVAL_TEXT, now);
	tn_lock_drop(&link->lock);
}

/* ---- up and down ---- */

static void set_public_state(tern_link *link, tern_link_state state)
{
	atomic_store_explicit(&link->public_state, state, memory_order_release);
	tn_roles_check_waiters(link->ctx);
}

void tn_shell_hello_over(tern_link *link)
{
	tern_ctx *ctx = link->ctx;
	bool counted;

	tn_lock_take(&ctx->table_lock);
	counted = link->counted_hello;
	ctx->hello_count -= counted;
	link->counted_hello = false;
	tn_lock_drop(&ctx->table_lock);
	if (counted)
		tn_listener_room(ctx);
}

/* Lock held: what the lanes in use are and can. */
static void publish_path(tern_link *link)
{
	uint32_t caps = tn_link_caps(link->m), provider = tn_link_provider_index(link->m);

	if (provider < link->dev_count)
		atomic_store_explicit(&link->transport, link->devs[provider]->name, memory_order_release);
	atomic_store_explicit(&link->caps,
			      (caps & TN_LINK_CAP_ORDERED_WRITES ? TERN_LINK_CAN_FLAG : 0) |
				      (caps & TN_LINK_CAP_PASSIVE_TARGET ? TERN_LINK_CAN_PASSIVE : 0),
			      memory_order_release);
}

static void publish_names(tern_link *link)
{
	tn_lock_take(&link->lock);
	publish_path(link);
	snprintf(link->names.peer_name, sizeof(link->names.peer_name), "%s", tn_link_get_peer(link->m)->name);
	snprintf(link->names.reason, sizeof(link->names.reason), "%s", tn_link_provider_reason(link->m));
	tn_lock_drop(&link->lock);
	atomic_store_explicit(&link->names_final, true, memory_order_release);
}

void tn_shell_link_moved(tern_link *link)
{
	char label[TN_NAME_MAX + TN_ADDRESS_MAX + 32];
	const char *before = atomic_load_explicit(&link->transport, memory_order_relaxed);

	publish_path(link);
	TN_LOG(WARN, CHANNEL, "%s: over %s now, before over %s", tn_shell_label(link, label, sizeof(label)),
	       atomic_load_explicit(&link->transport, memory_order_relaxed), before ? before : "");
}

void tn_shell_report(tern_link *link)
{
	tern_ctx *ctx = link->ctx;
	void (*on_up)(tern_link * up, void *arg);
	void *arg;

	if (!link->incoming || link->reported ||
	    atomic_load_explicit(&link->public_state, memory_order_relaxed) != TERN_LINK_UP)
		return;
	tn_lock_take(&ctx->table_lock);
	on_up = ctx->on_link;
	arg = ctx->on_link_arg;
	link->on_down = ctx->on_link_down;
	link->on_down_arg = arg;
	atomic_store_explicit(&ctx->on_link_thread, on_up ? tn_os_thread_id() : 0, memory_order_relaxed);
	tn_lock_drop(&ctx->table_lock);
	if (!on_up)
		return;
	link->reported = true;
	tn_shell_ref(link);
	on_up(link, arg);
	atomic_store_explicit(&ctx->on_link_thread, 0, memory_order_release);
}

static void tell_dialer(tern_link *link)
{
	bool tell;

	tn_lock_take(&link->lock);
	tell = !link->closed_here && link->on_up;
	tn_lock_drop(&link->lock);
	if (tell)
		link->on_up(link, link->on_down_arg);
}

void tn_shell_link_up(tern_link *link)
{
	char label[TN_NAME_MAX + TN_ADDRESS_MAX + 32];

	if (link->ctx->secrets.any) {
		tern_status status = meet(link, true);

		if (status != TERN_OK) { /* the other one stays: this one is not shown to anybody */
			tn_lock_take(&link->lock);
			tn_link_abort(link->m, status, RIVAL_TEXT, tn_ctx_now(link->ctx));
			tn_lock_drop(&link->lock);
			return;
		}
	}
	publish_names(link);
	tn_shell_hello_over(link);
	tn_count(&link->ctx->counters.links_up, 1);
	tn_count(&link->ctx->counters.links_next_secret, tn_link_get_peer(link->m)->secret);
	TN_LOG(INFO, CHANNEL, "%s: up over %s (%s)", tn_shell_label(link, label, sizeof(label)),
	       atomic_load_explicit(&link->transport, memory_order_relaxed), link->names.reason);
	set_public_state(link, TERN_LINK_UP);
	tell_dialer(link);
	tn_shell_report(link);
}

void tn_shell_link_down(tern_link *link, tern_status status, const char *detail)
{
	tern_ctx *ctx = link->ctx;
	char label[TN_NAME_MAX + TN_ADDRESS_MAX + 32];
	bool tell;

	tn_lock_take(&link->lock);
	tell = !link->closed_here && link->on_down;
	if (link->conn)
		tn_conn_close(link->conn);
	link->conn = NULL;
	snprintf(link->down_text, sizeof(link->down_text), "%s: %s",
		 tn_shell_label(link, label, sizeof(label)),
		 detail && detail[0] ? detail : tern_status_text(status));
	tn_lock_drop(&link->lock);
	tn_ctx_timer_cancel(ctx, &link->timer);
	tn_shell_hello_over(link);
	tn_count(&ctx->counters.links_down, 1);
	tn_shell_count_link(link);
	tn_lock_take(&ctx->table_lock);
	ctx->link_count--;
	tn_lock_drop(&ctx->table_lock);
	if (status != TERN_OK)
		TN_LOG(INFO, CHANNEL, "link is down: %s", link->down_text);
	atomic_store_explicit(&link->status, status == TERN_OK ? TERN_E_FLUSHED : status,
			      memory_order_release);
	set_public_state(link, TERN_LINK_DOWN);
	if (tell) {
		tn_detail_set("%s", link->down_text);
		link->on_down(link, status == TERN_OK ? TERN_E_FLUSHED : status, link->down_text,
			      link->on_down_arg);
	}
	tn_link_fini(link->m);
	tn_shell_unref(link); /* the context's */
}
