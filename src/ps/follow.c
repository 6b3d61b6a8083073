/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which version a follower serves, and when. See follow.h.
 *
 *   look: the version that is wanted (the last one, or the pinned one), its chain
 *     what is shown is a link of it   the links after it, in order
 *     else                            anew from the base: a later base, an earlier version, a chain that was replaced
 *
 * Files are verified before a row changes. A failure leaves what is shown as it is, and is tried again.
 *
 * Threads: the follower's; handlers take follow->lock. Tests: tests/unit/ps/follow_test.c.
 */
#include "ps/follow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/wirebuf.h"
#include "ps/save.h"

#define POLL_NS  (200 * TN_NS_PER_MS)
#define HEARD_NS (30 * TN_NS_PER_SEC) /* how often it says that it is there, when nothing changes */

void tn_ps_refuse_follower(tern_rpc_request *request)
{
	static const char words[] =
		"this server follows checkpoints and is read only: push, create and save at "
		"the servers that train";

	tern_rpc_reply(request, TERN_E_STATE, words, sizeof(words) - 1);
}

/* ---- to a version ---- */

static tern_status go_on(uint64_t bytes, void *arg)
{
	tn_ps_follow *f = arg;

	(void)bytes;
	return atomic_load(&f->stop) ? tn_fail(TERN_E_CANCELED, "the server ends") : TERN_OK;
}

/* The copy becomes the chain's last version, from link `from` on if that is one, else anew. Verified already. */
static tern_status bring(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_chain *chain)
{
	unsigned at = copy->whole ? tn_restore_link_of(chain, copy->sequence, copy->crc) : chain->count;

	if (at == chain->count)
		return tn_follow_build(f, copy, chain);
	return tn_follow_advance(f, copy, chain, at + 1);
}

static tern_status verify_from(tn_ps_follow *f, const tn_ckpt_chain *chain, const tn_follow_copy *copy)
{
	unsigned at = copy->whole ? tn_restore_link_of(chain, copy->sequence, copy->crc) : chain->count;

	for (unsigned i = at == chain->count ? 0 : at + 1; i < chain->count; i++)
		TN_TRY(tn_ckpt_verify(&chain->links[i], go_on, f));
	return TERN_OK;
}

/* IN_PLACE: deltas into what is shown; anything else beside it. */
static tern_status change_in_place(tn_ps_follow *f, const tn_ckpt_chain *chain)
{
	tn_follow_copy *shown = &f->copies[f->shown], *other = &f->copies[!f->shown];

	if (shown->whole && tn_restore_link_of(chain, shown->sequence, shown->crc) < chain->count) {
		TN_TRY(bring(f, shown, chain));
		tn_follow_show(f, shown);
		return TERN_OK;
	}
	TN_TRY(tn_follow_build(f, other, chain));
	tn_follow_show(f, other);
	f->shown = !f->shown;
	tn_follow_reset(shown);
	return TERN_OK;
}

static tern_status change(tn_ps_follow *f, const tn_ckpt_chain *chain)
{
	tn_follow_copy *shown = &f->copies[f->shown], *other = &f->copies[!f->shown];

	TN_TRY(verify_from(f, chain, f->in_place ? shown : other));
	if (f->in_place)
		return change_in_place(f, chain);
	TN_TRY(bring(f, other, chain));
	tn_follow_show(f, other);
	f->shown = !f->shown;
	/* The other one now, when no pull looks at it any more. If that fails it is built with the next version. */
	if (tn_follow_unseen(f, shown) && bring(f, shown, chain) != TERN_OK)
		TN_LOG(WARN, PS, "the second copy of the tables: %s", tn_detail_get());
	return TERN_OK;
}

/* ---- a look at the directory ---- */

static void acknowledge(tn_ps_follow *f, const tn_ckpt_reader *served)
{
	uint64_t now = tn_wall();

	if (!f->ack.name[0] || (f->ack.id == served->id && f->ack.sequence == served->sequence &&
				now < f->acked_ns + HEARD_NS && now >= f->acked_ns))
		return;
	f->ack.sequence = served->sequence;
	f->ack.id = served->id;
	f->ack.at_ns = f->acked_ns = now;
	if (tn_ckpt_acknowledge(f->dir, &f->ack) != TERN_OK)
		TN_LOG(WARN, PS, "an acknowledgement can't be written: %s", tn_detail_get());
}

/* What is served now, beside the newest: the thread's own until it is published. */
static void note(tn_ps_follow *f, const tn_ckpt_reader *served, const tn_ckpt_reader *newest, uint64_t later,
		 bool changed)
{
	tern_ps_follow_stats *s = &f->draft;

	f->noted = true;
	s->sequence = served->sequence;
	s->saved_ns = served->saved_ns;
	s->newest = newest->sequence;
	s->behind = later;
	s->behind_ns = newest->saved_ns > served->saved_ns ? newest->saved_ns - served->saved_ns : 0;
	s->behind_steps = newest->step > served->step ? newest->step - served->step : 0;
	s->applied += changed;
}

/* Lock held: what was noted and how the look went are told together. */
static void publish(tn_ps_follow *f)
{
	const tern_ps_follow_stats *from = &f->draft;
	tern_ps_follow_stats *to = &f->stats;

	if (!f->noted)
		return;
	f->noted = false;
	to->sequence = from->sequence;
	to->saved_ns = from->saved_ns;
	to->newest = from->newest;
	to->behind = from->behind;
	to->behind_ns = from->behind_ns;
	to->behind_steps = from->behind_steps;
	to->applied = from->applied;
}

static uint64_t count_later(const uint64_t *sequences, unsigned count, uint64_t sequence)
{
	uint64_t later = 0;

	for (unsigned i = 0; i < count; i++)
		later += sequences[i] > sequence;
	return later;
}

static tern_status look_at(tn_ps_follow *f, const uint64_t *sequences, unsigned count, uint64_t wanted)
{
	const tn_follow_copy *shown = &f->copies[f->shown];
	tn_ckpt_reader newest;
	tn_ckpt_chain chain;
	tern_status status;
	bool changed;

	TN_TRY(tn_ckpt_chain_open(&chain, f->dir, wanted));
	changed = !shown->whole || shown->sequence != wanted || shown->crc != tn_ckpt_chain_last(&chain)->crc;
	status = changed ? change(f, &chain) : TERN_OK;
	if (status == TERN_OK)
		status = tn_ckpt_open(&newest, f->dir, sequences[count - 1]);
	if (status == TERN_OK) {
		const tn_ckpt_reader *served = tn_ckpt_chain_last(&chain);

		note(f, served, &newest, count_later(sequences, count, wanted), changed);
		acknowledge(f, served);
		if (changed)
			TN_LOG(INFO, PS, "serving version %" PRIu64, wanted);
		tn_ckpt_close(&newest);
	}
	tn_ckpt_chain_close(&chain);
	return status;
}

static tern_status look(tn_ps_follow *f, uint64_t *wanted_out)
{
	uint64_t *sequences = NULL, wanted;
	tern_status status;
	unsigned count = 0;

	pthread_mutex_lock(&f->lock);
	*wanted_out = wanted = f->stats.pinned;
	f->looked = true;
	pthread_mutex_unlock(&f->lock);
	status = tn_ckpt_list(f->dir, &sequences, &count);
	if (status == TERN_E_NOT_FOUND)
		return TERN_OK; /* it is made by the first save */
	if (status == TERN_OK && count)
		status = look_at(f, sequences, count,
				 wanted == TERN_PS_FOLLOW_LAST ? sequences[count - 1] : wanted);
	free(sequences);
	return status;
}

static tern_status look_and_say(tn_ps_follow *f)
{
	uint64_t wanted;
	tern_status status = look(f, &wanted);

	pthread_mutex_lock(&f->lock);
	publish(f);
	f->stats.looked =
		wanted == f->stats.pinned && f->looked; /* not if it was asked for while it looked */
	f->stats.status = status;
	f->stats.failed += status != TERN_OK;
	snprintf(f->stats.error, sizeof(f->stats.error), "%s", status == TERN_OK ? "" : tn_detail_get());
	pthread_mutex_unlock(&f->lock);
	if (status != TERN_OK)
		TN_LOG(WARN, PS, "following %s: %s", f->dir, tn_detail_get());
	return status;
}

/* ---- the thread ---- */

static void rest(tn_ps_follow *f)
{
	uint64_t until = tn_now() + f->poll_ns;
	struct timespec at = {.tv_sec = (time_t)(until / TN_NS_PER_SEC),
			      .tv_nsec = (long)(until % TN_NS_PER_SEC)};

	pthread_mutex_lock(&f->lock);
	while (!atomic_load(&f->stop) && f->looked && tn_now() < until)
		pthread_cond_timedwait(&f->wake, &f->lock, &at);
	pthread_mutex_unlock(&f->lock);
}

static void *run(void *arg)
{
	tn_ps_follow *f = arg;

	for (rest(f); !atomic_load(&f->stop); rest(f))
		(void)look_and_say(f);
	return NULL;
}

/* ---- asked ---- */

static void on_follow(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	uint8_t out[TN_PS_FOLLOW_BYTES + sizeof(((tern_ps_follow_stats *)NULL)->error)];
	tn_ps_follow *f = arg;
	tern_ps_follow_stats stats;
	uint64_t sequence, now = tn_wall();
	uint8_t version, op;
	tn_reader r;

	tn_reader_init(&r, args, bytes);
	version = tn_get_u8(&r);
	op = tn_get_u8(&r);
	(void)tn_get_view(&r, 6);
	sequence = tn_get_u64(&r);
	if (r.bad || version != TN_PS_FOLLOW_VERSION || op < TN_FOLLOW_GET || op > TN_FOLLOW_SET) {
		tern_rpc_reply(request, TERN_E_PROTOCOL, NULL, 0);
		return;
	}
	pthread_mutex_lock(&f->lock);
	if (op == TN_FOLLOW_SET) {
		f->stats.pinned = sequence;
		f->stats.looked = 0;
		f->looked = false;
		pthread_cond_signal(&f->wake);
	}
	stats = f->stats;
	pthread_mutex_unlock(&f->lock);
	stats.age_ns = stats.saved_ns && now > stats.saved_ns ? now - stats.saved_ns : 0;
	tern_rpc_reply(request, TERN_OK, out, tn_ps_follow_encode(out, sizeof(out), &stats));
}

/* ---- life ---- */

static void free_follow(tn_ps_follow *f)
{
	tn_follow_reset(&f->copies[0]);
	tn_follow_reset(&f->copies[1]);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->wake);
	free(f->dir);
	free(f);
}

static tn_ps_follow *new_follow(tern_ps_server *server, const tern_ps_follow_params *p)
{
	tn_ps_follow *f = calloc(1, sizeof(*f));
	pthread_condattr_t attr;

	if (!f)
		return NULL;
	f->server = server;
	f->dir = strdup(p->dir);
	if (p->name)
		snprintf(f->ack.name, sizeof(f->ack.name), "%s", p->name);
	f->in_place = p->flags & TERN_PS_FOLLOW_IN_PLACE;
	f->poll_ns = p->poll_ns ? p->poll_ns : POLL_NS;
	f->stats.pinned = p->sequence ? p->sequence : TERN_PS_FOLLOW_LAST;
	pthread_mutex_init(&f->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&f->wake, &attr);
	pthread_condattr_destroy(&attr);
	if (f->dir)
		return f;
	free_follow(f);
	return NULL;
}

/* Read only from here on, if it has no tables. */
static tern_status claim(tern_ps_server *server, tn_ps_follow *f)
{
	tern_status status = TERN_OK;

	pthread_mutex_lock(&server->tables_lock);
	if (atomic_load(&server->follow))
		status = tn_fail(TERN_E_STATE, "the server follows a chain already");
	else if (server->share_count)
		status = tn_fail(TERN_E_STATE, "the server has tables: one that follows has none of its own");
	else
		atomic_store(&server->follow, f);
	pthread_mutex_unlock(&server->tables_lock);
	return status;
}

tern_status tern_ps_server_follow(tern_ps_server *server, const tern_ps_follow_params *p)
{
	tern_status status;
	tn_ps_follow *f;

	if (server->alone)
		return tn_fail(
			TERN_E_UNSUPPORTED,
			"a server that follows checkpoints needs a thread; this context has a single owner");
	if (!p->dir || !p->dir[0])
		return tn_fail(TERN_E_INVALID, "which directory of checkpoints is to be followed?");
	if (p->name && strlen(p->name) >= sizeof(((tn_ckpt_ack *)NULL)->name))
		return tn_fail(TERN_E_INVALID, "a follower's name has at most 63 characters: %s", p->name);
	f = new_follow(server, p);
	if (!f)
		return tn_fail(TERN_E_NOMEM, "no memory to follow checkpoints");
	status = claim(server, f);
	if (status != TERN_OK) {
		free_follow(f);
		return status;
	}
	status = look_and_say(f);
	if (status == TERN_OK)
		status = tern_rpc_serve(server->ctx, TN_PS_FOLLOW, on_follow, f);
	if (status == TERN_OK)
		status = tn_os_thread_start(&f->thread, "tern-follow", run, f);
	if (status != TERN_OK) {
		tern_rpc_unserve(server->ctx, TN_PS_FOLLOW);
		atomic_store(&server->follow, NULL);
		free_follow(f);
	}
	return status;
}

void tn_ps_follow_close(tern_ps_server *server)
{
	tn_ps_follow *f = atomic_load(&server->follow);

	if (!f)
		return;
	tern_rpc_unserve(server->ctx, TN_PS_FOLLOW);
	pthread_mutex_lock(&f->lock);
	atomic_store(&f->stop, true);
	pthread_cond_signal(&f->wake);
	pthread_mutex_unlock(&f->lock);
	tn_os_thread_join(&f->thread);
	free_follow(f); /* the flag stays: the server ends as a follower */
}
