/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's birth: configuration, its memory, the rows of its channels. Must not: do anything protocol.
 * Threads: none. Tests: tests/unit/link/life_test.c.
 */
#include "link/internal.h"

void tn_link_config_defaults(tn_link_config *config)
{
	*config = (tn_link_config){
		.channels_max = 256,
		.ops_max = 1024,
		.wrs_max = 512,
		.data_lanes = 2,
		.window_bytes = 8ull << 20,
		.grants = true,
		.window_min_bytes = 64ull << 10,
		.window_target_ns = 250 * TN_NS_PER_US,
		.chunk_bytes = 1ull << 20,
		.small_bytes = 8ull << 10,
		.channel_window_bytes = 1ull << 20,
		.lane_data_frames = 64,
		.step_timeout_ns = 5 * TN_NS_PER_SEC,
		.lane_timeout_ns = 5 * TN_NS_PER_SEC,
		.keepalive_ns = TN_NS_PER_SEC,
		.keepalive_misses = 5,
		.close_timeout_ns = 500 * TN_NS_PER_MS,
		.retry_ns = 50 * TN_NS_PER_US,
		.probe_ns = TN_NS_PER_SEC,
		.lane_rest_ns = TN_NS_PER_SEC,
		.redial_ns = TN_NS_PER_SEC,
		.recover_ns = 10 * TN_NS_PER_SEC,
		.verdict_ns = 50 * TN_NS_PER_MS,
	};
}

/* ---- memory: the link, then its tables, each on a cache line ---- */

static size_t round_line(size_t n)
{
	return (n + TN_CACHE_LINE - 1) & ~(size_t)(TN_CACHE_LINE - 1);
}

#define TABLES 3

/* Offsets of the tables; returns the size of all. */
static size_t layout(const tn_link_config *config, size_t at[TABLES])
{
	size_t n = round_line(sizeof(tn_link));

	at[0] = n;
	n += round_line((size_t)config->channels_max * sizeof(tn_lk_chan));
	at[1] = n;
	n += round_line((size_t)config->channels_max * sizeof(tn_lk_fail));
	at[2] = n;
	return n + round_line((size_t)config->channels_max * sizeof(tn_lk_name_row));
}

size_t tn_link_memory_bytes(const tn_link_config *config)
{
	size_t at[TABLES];

	return layout(config, at);
}

static const char *check_provider(const tn_link_provider *p)
{
	const uint32_t need = TN_LINK_CAP_SEND | TN_LINK_CAP_WRITE;

	if (!memchr(p->name, 0, sizeof(p->name)) || !p->name[0])
		return "a provider without a name";
	if ((p->caps & need) != need || p->write_bytes_max == 0 || p->lane_wrs_max == 0)
		return "a provider that can't send or write";
	if (p->send_bytes_max < TN_FRAME_ROOM_MIN)
		return "a provider with receive slots under 512 bytes";
	if (p->address_bytes > TN_LINK_BLOB_MAX)
		return "a provider's address is too long";
	return NULL;
}

static bool may_adapt(const tn_link_config *c)
{
	bool may = c->window_adaptive;

	for (uint32_t i = 0; i < c->provider_count; i++)
		may |= c->providers[i].window_adaptive;
	return may;
}

static const char *check_config(const tn_link_config *c)
{
	static const uint8_t zero[TN_LINK_ID_BYTES];
	const char *wrong = NULL;

	if (!c->store)
		return "no store of memory";
	if (!memcmp(c->incarnation, zero, sizeof(zero)))
		return "the incarnation is zero";
	if (c->channels_max == 0 || c->channels_max > TN_LINK_CHANNELS_MAX)
		return "link.channels_max is out of range (1 to 65535)";
	if (c->ops_max == 0 || c->ops_max > TN_LINK_OPS_MAX || c->channel_ops_max > c->ops_max)
		return "link.ops_max is out of range";
	if (c->wrs_max < 2 * TN_WR_RESERVE || c->wrs_max > TN_LINK_WRS_MAX)
		return "link.wrs_max is out of range (16 to 65536)";
	if (c->data_lanes >= TN_LINK_LANES_MAX)
		return "link.data_lanes is out of range (0 to 7)";
	if (c->window_bytes == 0 || c->chunk_bytes == 0 || c->lane_data_frames == 0)
		return "a window of 0";
	if (may_adapt(c) &&
	    (c->window_min_bytes == 0 || c->window_min_bytes > c->window_bytes || c->window_target_ns == 0))
		return "link.window_min_bytes is 0 or above link.window_bytes, or link.window_target is 0";
	if (c->channel_window_bytes < TN_WINDOW_MIN)
		return "link.channel_window_bytes is under 1024 bytes";
	if (c->secret_next_bytes && !c->secret_bytes)
		return "a next secret without a secret";
	if (c->keepalive_ns && c->keepalive_misses == 0)
		return "link.keepalive_misses is 0";
	if (c->provider_count == 0 || c->provider_count > TN_LINK_PROVIDERS_MAX)
		return "no provider, or more than 8";
	if ((c->name && strnlen(c->name, TN_NAME_MAX) == TN_NAME_MAX) ||
	    (c->job && strnlen(c->job, TN_NAME_MAX) == TN_NAME_MAX))
		return "a name is longer than 127 bytes";
	for (uint32_t i = 0; i < c->provider_count && !wrong; i++)
		wrong = check_provider(&c->providers[i]);
	return wrong;
}

static void init_lists(tn_link *link)
{
	tn_list_init(&link->done);
	tn_list_init(&link->events);
	tn_list_init(&link->ctl);
	tn_list_init(&link->msg_ready);
}

static tern_status take_secrets(tn_lk_birth *birth, const tn_link_config *config)
{
	birth->secret_count = 1;
	if (config->secret_bytes)
		TN_TRY(tn_sha256(config->secret, config->secret_bytes, birth->secrets[0]));
	if (!config->secret_next_bytes)
		return TERN_OK;
	birth->secret_count = 2;
	return tn_sha256(config->secret_next, config->secret_next_bytes, birth->secrets[1]);
}

/* What the links of a node have in common; NULL: no memory. */
static const tn_lk_shared *share_config(const tn_link_config *config)
{
	size_t bytes = offsetof(tn_lk_shared, providers[config->provider_count]);
	tn_lk_shared own, *s = &own;

	memset(&own, 0, sizeof(own));
	s->config = *config;
	s->config.active = false;
	memset(s->config.nonce, 0, sizeof(s->config.nonce));
	s->config.secret = s->config.secret_next = NULL;
	s->config.log_arg = s->config.wake_arg = NULL;
	s->config.name = s->config.job = NULL;
	s->config.providers = NULL;
	if (config->channel_ops_max == 0)
		s->config.channel_ops_max = TN_MAX(config->ops_max / 2, 1u);
	snprintf(s->name, sizeof(s->name), "%s", config->name ? config->name : "");
	snprintf(s->job, sizeof(s->job), "%s", config->job ? config->job : "");
	memcpy(s->providers, config->providers, config->provider_count * sizeof(s->providers[0]));
	for (uint32_t i = 0; i < config->provider_count; i++)
		s->providers[i].caps |= s->providers[i].arbiter ? TN_LINK_CAP_GRANTS : 0;
	return tn_store_share(config->store, s, bytes);
}

static tern_status begin_birth(tn_link *link, const tn_link_config *config)
{
	tern_status status;

	link->birth = tn_store_lend(config->store, sizeof(*link->birth));
	if (!link->birth)
		return tn_fail(TERN_E_NOMEM, "no memory for a link");
	memset(link->birth, 0, sizeof(*link->birth));
	memcpy(link->birth->nonce, config->nonce, sizeof(config->nonce));
	status = take_secrets(link->birth, config);
	if (status != TERN_OK)
		tn_lk_birth_over(link);
	return status;
}

tern_status tn_link_init(void *memory, size_t bytes, const tn_link_config *config, uint64_t now_ns,
			 tn_link **out)
{
	const char *wrong = check_config(config);
	tn_link *link = memory;
	size_t at[TABLES];
	tern_status status;

	(void)now_ns;
	*out = NULL;
	if (!wrong && (bytes < layout(config, at) || (uintptr_t)memory % TN_CACHE_LINE))
		wrong = "too little memory, or not aligned to 64 bytes";
	if (wrong)
		return tn_fail(TERN_E_INVALID, "link: %s", wrong);
	memset(link, 0, sizeof(*link));
	link->active = config->active;
	link->log_arg = config->log_arg;
	link->shared = share_config(config);
	if (!link->shared)
		return tn_fail(TERN_E_NOMEM, "no memory for a link's configuration");
	link->window = config->window_bytes;
	link->budget_seat = (tn_budget_seat){.wake = config->wake, .arg = config->wake_arg};
	link->quota_seat = (tn_quota_seat){.wake = config->wake, .arg = config->wake_arg};
	status = begin_birth(link, config);
	if (status != TERN_OK) {
		tn_store_unshare(config->store, link->shared);
		return status;
	}
	link->chans = (tn_lk_chan *)((uint8_t *)memory + at[0]);
	link->fails = (tn_lk_fail *)((uint8_t *)memory + at[1]);
	link->names = (tn_lk_name_row *)((uint8_t *)memory + at[2]);
	for (uint32_t i = 0; i < TN_LINK_LANES_MAX; i++)
		link->journal[i].mask = (i == 0 ? TN_JOURNAL_ROWS_ALL : TN_JOURNAL_ROWS) - 1;
	link->wr_free = link->op_free = link->chan_free = link->name_free = TN_NONE;
	link->posting = link->provider = TN_NONE;
	init_lists(link);
	for (unsigned i = 0; i < TN_TIMER_COUNT; i++)
		link->timer_at[i] = TN_TIME_NEVER;
	memcpy(&link->rand.state, config->nonce, sizeof(link->rand.state));
	link->told_provider = TN_NONE;
	link->state = config->active ? TN_LINK_DIAL : TN_LINK_INIT;
	*out = link;
	return TERN_OK;
}

void tn_link_fini(tn_link *link)
{
	if (!link->shared)
		return;
	tn_lk_birth_over(link);
	tn_crypto_wipe(link->session, sizeof(link->session));
	tn_lk_spare_fini(link);
	tn_lk_lanes_fini(link);
	tn_lk_wiring_fini(link);
	tn_lk_work_fini(link);
	tn_lk_ctrl_fini(link);
	tn_lk_health_fini(link);
	tn_lk_text_back(link, &link->detail);
	tn_lk_text_back(link, &link->reason);
	tn_store_unshare(link->config->store, link->shared);
	link->shared = NULL;
}

/* ---- views ---- */

size_t tn_link_channel_bytes(void)
{
	return sizeof(tn_lk_chan);
}

tn_link_state tn_link_get_state(const tn_link *link)
{
	return link->state;
}

#define LOG_PAGES 8192u /* of the log, which is long and mostly not touched: a page of rows, one of bytes */

static size_t borrowed(const tn_link *link)
{
	size_t n = link->ctrl_log_bytes;

	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++)
		n += link->lanes[i] ? sizeof(tn_lk_lane) : 0;
	n += link->peer_setup ? link->peer_setup->bytes : 0;
	n += link->birth ? sizeof(*link->birth) : 0;
	n += link->rejoin ? sizeof(*link->rejoin) : 0;
	n += link->ctrl_in ? TN_CTRL_IN_BYTES : 0;
	n += link->ctrl_out ? TN_CTRL_OUT_BYTES : 0;
	n += ((link->detail != NULL) + (link->reason != NULL)) * TN_LINK_TEXT_MAX;
	n += link->health ? link->config->provider_count * sizeof(tn_lk_health) : 0;
	n += link->addr ? link->addr_lanes * sizeof(tn_lk_addr) : 0;
	n += link->ring ? LOG_PAGES : 0;
	return n + (link->spare.addr ? link->spare.lanes * sizeof(tn_lk_addr) : 0);
}

size_t tn_link_held_bytes(const tn_link *link)
{
	return sizeof(*link) + link->wr_high * sizeof(tn_lk_wr) + link->op_high * sizeof(tn_lk_op) +
	       link->chan_high * sizeof(tn_lk_chan) + link->name_high * sizeof(tn_lk_name_row) +
	       borrowed(link);
}

tern_status tn_link_status(const tn_link *link)
{
	return link->status;
}

const char *tn_link_detail(const tn_link *link)
{
	return tn_lk_text(link->detail);
}

const tn_link_peer *tn_link_get_peer(const tn_link *link)
{
	return link->peer_known ? &link->peer : NULL;
}

uint32_t tn_link_provider_index(const tn_link *link)
{
	return link->provider;
}

const char *tn_link_provider_reason(const tn_link *link)
{
	return link->reason                                ? link->reason
	       : link->was_up || link->state == TN_LINK_UP ? "the first choice of both"
							   : "";
}

uint32_t tn_link_caps(const tn_link *link)
{
	return link->caps;
}

const tn_link_counters *tn_link_get_counters(const tn_link *link)
{
	return &link->counters;
}

uint64_t tn_link_in_flight(const tn_link *link)
{
	return link->in_flight;
}

uint64_t tn_link_next_wake(const tn_link *link)
{
	return tn_timer_next(&link->timers);
}

/* Is `old` retired by a newer link of this node to the same peer node? */
tn_link_rivalry tn_link_rivals(const tn_link *older, const tn_link *newer, tern_status *status)
{
	static const uint8_t zero[TN_LINK_ID_BYTES];
	const tn_link_peer *a = tn_link_get_peer(older), *b = tn_link_get_peer(newer);
	const tn_link *dialed_by_peer, *dialed_by_us;
	int order;

	if (!a || !b)
		return TN_RIVALS_NOT;
	if (memcmp(a->incarnation, b->incarnation, TN_LINK_ID_BYTES)) {
		if (memcmp(a->node, b->node, TN_LINK_ID_BYTES) || !memcmp(a->node, zero, sizeof(zero)))
			return TN_RIVALS_NOT;
		*status = TERN_E_PEER_RESTARTED;
		return TN_RIVALS_DROP_OLD;
	}
	/* Only while one of them is not up yet did both dial at once; later a second link is on purpose. */
	if (older->active == newer->active || older->state >= TN_LINK_UP)
		return TN_RIVALS_NOT;
	order = memcmp(older->config->incarnation, a->incarnation, TN_LINK_ID_BYTES);
	if (order == 0)
		return TN_RIVALS_NOT; /* a node that dials itself */
	dialed_by_us = older->active ? older : newer;
	dialed_by_peer = older->active ? newer : older;
	*status = TERN_E_EXISTS;
	if (order < 0)
		return dialed_by_peer == older ? TN_RIVALS_DROP_OLD : TN_RIVALS_DROP_NEW;
	return dialed_by_us == older ? TN_RIVALS_DROP_OLD : TN_RIVALS_DROP_NEW;
}
