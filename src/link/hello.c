/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hello on the control connection: who the peer is, whether both may talk, and what each has.
 *
 *	dialer                             acceptor
 *	HELLO  ------------------------->  version, job, secret set? shell: rivals?
 *	       <-------------------------  HELLO
 *	AUTH   ------------------------->  knows the secret?
 *	       <-------------------------  AUTH, SETUP
 *	SETUP  ------------------------->
 *
 * The acceptor reveals its devices only to a peer that has proved the secret, and no MAC before one was
 * received, so that a stranger has nothing to guess against. For the same reason no name or hash of a secret
 * is in a HELLO: a dialer with two secrets (one is being replaced by the other) sends a MAC for each, and the
 * acceptor answers with the one that it knows too.
 *
 *	T       = SHA-256(dialer's HELLO || acceptor's HELLO)        nonces, ids, versions, features
 *	AUTH    = HMAC(SHA-256(secret), "tern auth d" or "tern auth a" || T)       the dialer's: one or two
 *	session = HMAC(SHA-256(secret), "tern session" || T)
 *	token   = HMAC(session, "tern lane" || lane || epoch)
 *
 * Without a secret the key is zero: then the MACs prove nothing, and only both sides without one may talk.
 * Threads: none. Tests: tests/unit/link/hello_test.c.
 */
#include "link/internal.h"

#define LABEL_MAX 16

static tern_status labelled_mac(const uint8_t key[TN_SHA256_BYTES], const char *label, const void *data,
				uint64_t bytes, uint8_t mac[TN_HMAC_BYTES])
{
	uint8_t buf[LABEL_MAX + TN_SHA256_BYTES];
	size_t n = strlen(label);

	TN_ASSERT(n <= LABEL_MAX && bytes <= TN_SHA256_BYTES);
	memcpy(buf, label, n);
	memcpy(buf + n, data, bytes);
	return tn_hmac_sha256(key, TN_SHA256_BYTES, buf, n + bytes, mac);
}

static const char *auth_label(bool dialer)
{
	return dialer ? "tern auth d" : "tern auth a";
}

tern_status tn_lk_session_mac(const tn_link *link, const char *label, const void *data, uint64_t bytes,
			      uint8_t mac[TN_HMAC_BYTES])
{
	return labelled_mac(link->session, label, data ? data : "", bytes, mac);
}

void tn_lk_lane_token(tn_link *link, tn_lk_lane *lane)
{
	uint8_t id[8];
	tn_writer w;

	tn_writer_init(&w, id, sizeof(id));
	tn_put_u32(&w, lane->index);
	tn_put_u32(&w, lane->epoch);
	if (labelled_mac(link->session, "tern lane", id, sizeof(id), lane->token) != TERN_OK)
		memset(lane->token, 0, sizeof(lane->token));
}

static tern_status job_hash(const tn_link *link, uint8_t out[16])
{
	uint8_t digest[TN_SHA256_BYTES];

	TN_TRY(tn_sha256(link->shared->job, strlen(link->shared->job), digest));
	memcpy(out, digest, 16);
	return TERN_OK;
}

/* ---- sending ---- */

static uint64_t features_of(const tn_link *link)
{
	uint64_t off = link->config->features_off | (link->config->recover_ns ? 0 : TN_FEATURE_RESUME);

	if (!link->config->recover_ns || !link->config->probe_ns)
		off |= TN_FEATURE_MOVE;
	if ((off & TN_FEATURE_MOVE) || !link->config->lane_idle_ns)
		off |= TN_FEATURE_LANES;
	if (off & TN_FEATURE_LANES)
		off |= TN_FEATURE_NARROW;
	if (!link->config->redial_ns)
		off |= TN_FEATURE_REJOIN;
	if (!link->config->checksum)
		off |= TN_FEATURE_SUMS;
	if (!link->config->grants)
		off |= TN_FEATURE_GRANTS;
	return TN_WIRE_FEATURES & ~off;
}

static tern_status send_hello(tn_link *link, uint64_t now_ns)
{
	tn_wire_hello hello = {
		.version = TN_WIRE_VERSION,
		.version_min = TN_WIRE_VERSION_MIN,
		.features = features_of(link),
		.flags = link->config->secret_bytes ? TN_HELLO_SECRET : 0,
	};
	tn_writer w = tn_lk_out_begin(link);

	TN_TRY(job_hash(link, hello.job));
	memcpy(hello.node, link->config->node, sizeof(hello.node));
	memcpy(hello.incarnation, link->config->incarnation, sizeof(hello.incarnation));
	memcpy(hello.nonce, link->birth->nonce, sizeof(hello.nonce));
	memcpy(hello.name, link->shared->name, sizeof(hello.name));
	tn_wire_put_hello(&w, &hello);
	if (!link->ctrl_out) { /* it ends here */
		tn_lk_out_end(link, &w, now_ns);
		return TERN_OK;
	}
	TN_ASSERT(!w.bad && w.at <= TN_CTRL_HEAD_BYTES + TN_CTRL_HELLO_BYTES);
	link->birth->hello_own_bytes = (uint32_t)(w.at - TN_CTRL_HEAD_BYTES);
	memcpy(link->birth->hello_own, w.buf + TN_CTRL_HEAD_BYTES, link->birth->hello_own_bytes);
	tn_lk_out_end(link, &w, now_ns);
	return TERN_OK;
}

static tern_status auth_mac(const tn_link *link, bool dialer, uint32_t secret, uint8_t mac[TN_HMAC_BYTES])
{
	return labelled_mac(link->birth->secrets[secret], auth_label(dialer), link->birth->transcript,
			    TN_SHA256_BYTES, mac);
}

/* MACs that a dialer sends: an old acceptor takes one. */
static uint32_t dialer_macs(const tn_link *link)
{
	return link->peer.features & TN_FEATURE_ROTATE ? link->birth->secret_count : 1;
}

/* A dialer proves all it knows, an acceptor the one that the dialer proved. */
static tern_status send_auth(tn_link *link, uint64_t now_ns)
{
	bool dialer = link->active;
	uint32_t first = dialer ? 0 : link->peer.secret, count = dialer ? dialer_macs(link) : 1;
	uint8_t macs[TN_SECRETS_MAX][TN_HMAC_BYTES];
	tn_writer w = tn_lk_out_begin(link);

	for (uint32_t i = 0; i < count; i++)
		TN_TRY(auth_mac(link, dialer, first + i, macs[i]));
	tn_wire_put_auth(&w, (const uint8_t(*)[32])macs, count);
	tn_lk_out_end(link, &w, now_ns);
	return TERN_OK;
}

static void send_setup(tn_link *link, uint64_t now_ns)
{
	tn_writer w = tn_lk_out_begin(link);

	/* An older peer knows no grants. */
	uint32_t hidden = link->peer.features & TN_FEATURE_GRANTS ? 0 : (uint32_t)TN_LINK_CAP_GRANTS;

	tn_wire_put_setup(&w, link->config->channels_max, link->shared->providers,
			  link->config->provider_count, hidden);
	tn_lk_out_end(link, &w, now_ns);
}

/* Both HELLOs are known. */
static tern_status make_transcript(tn_link *link)
{
	uint8_t both[2 * TN_CTRL_HELLO_BYTES];
	bool own_first = link->active;
	uint32_t first = own_first ? link->birth->hello_own_bytes : link->birth->hello_peer_bytes;
	uint32_t second = own_first ? link->birth->hello_peer_bytes : link->birth->hello_own_bytes;

	memcpy(both, own_first ? link->birth->hello_own : link->birth->hello_peer, first);
	memcpy(both + first, own_first ? link->birth->hello_peer : link->birth->hello_own, second);
	return tn_sha256(both, first + second, link->birth->transcript);
}

static void arm_step(tn_link *link, uint64_t now_ns)
{
	tn_lk_arm(link, TN_TIMER_STEP, tn_deadline(now_ns, link->config->step_timeout_ns));
}

static void crypto_failed(tn_link *link, uint64_t now_ns)
{
	tn_lk_fail_link(link, now_ns, TERN_E_INTERNAL, "%s", "libcrypto refuses SHA-256 or HMAC");
}

void tn_lk_birth_over(tn_link *link)
{
	if (!link->birth)
		return;
	tn_crypto_wipe(link->birth, sizeof(*link->birth));
	tn_store_back(link->config->store, link->birth, sizeof(*link->birth));
	link->birth = NULL;
}

void tn_lk_hello_start(tn_link *link, uint64_t now_ns)
{
	tn_link_set_state(link, TN_LINK_HELLO);
	arm_step(link, now_ns);
	if (link->active && send_hello(link, now_ns) != TERN_OK)
		crypto_failed(link, now_ns);
}

/* ---- receiving ---- */

/* May both talk? Ends the link in words if not. */
static bool acceptable(tn_link *link, const tn_wire_hello *hello, uint64_t now_ns)
{
	static const uint8_t zero[TN_LINK_ID_BYTES];
	bool secret = link->config->secret_bytes != 0;
	uint8_t job[16];

	if (hello->version_min > TN_WIRE_VERSION || hello->version < TN_WIRE_VERSION_MIN) {
		tn_lk_fail_link(
			link, now_ns, TERN_E_VERSION,
			"%s '%s' speaks wire version %u to %u, its peer %u to %u: upgrade the older one",
			link->active ? "dialer" : "listener", link->shared->name, TN_WIRE_VERSION_MIN,
			TN_WIRE_VERSION, hello->version_min, hello->version);
		return false;
	}
	if (job_hash(link, job) != TERN_OK) {
		crypto_failed(link, now_ns);
		return false;
	}
	if (memcmp(job, hello->job, sizeof(job))) {
		tn_lk_fail_link(link, now_ns, TERN_E_COOKIE,
				"'%s' (job '%.60s') and '%s' belong to different jobs", link->shared->name,
				link->shared->job, hello->name);
		return false;
	}
	if (secret != !!(hello->flags & TN_HELLO_SECRET)) {
		tn_lk_fail_link(link, now_ns, TERN_E_AUTH,
				"'%s' has %s shared secret and '%s' has %s: set TERN_CTX_SECRET or "
				"TERN_CTX_SECRET_FILE alike on both",
				link->shared->name, secret ? "a" : "no", hello->name,
				secret ? "none" : "one");
		return false;
	}
	if (!memcmp(hello->incarnation, zero, sizeof(zero))) {
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s", "HELLO with a zero incarnation");
		return false;
	}
	return true;
}

static const char *on_hello(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	tn_wire_hello hello;
	const char *wrong;

	if (link->state != TN_LINK_HELLO || link->birth->hello_peer_bytes)
		return "a second HELLO";
	wrong = tn_wire_get_hello(payload, bytes, &hello);
	if (wrong)
		return wrong;
	if (!acceptable(link, &hello, now_ns))
		return NULL;
	memcpy(link->birth->hello_peer, payload, bytes);
	link->birth->hello_peer_bytes = bytes;
	memcpy(link->peer.node, hello.node, sizeof(hello.node));
	memcpy(link->peer.incarnation, hello.incarnation, sizeof(hello.incarnation));
	memcpy(link->peer.name, hello.name, sizeof(hello.name));
	link->peer.version = TN_MIN(hello.version, (uint16_t)TN_WIRE_VERSION);
	link->peer.features = hello.features & features_of(link);
	link->sums = (link->peer.features & TN_FEATURE_SUMS) != 0;
	if (link->config->checksum && !link->sums)
		tn_lk_log(link, TN_LOG_WARN, "no checksums: the peer does not want them (link.checksum)");
	link->number_mask = link->peer.features & TN_FEATURE_NUMBERS ? (uint16_t)UINT16_MAX : 0;
	link->resumes = (link->peer.features & TN_FEATURE_RESUME) != 0;
	link->rejoins = (link->peer.features & TN_FEATURE_REJOIN) != 0;
	link->moves = link->resumes && (link->peer.features & TN_FEATURE_MOVE);
	link->reshapes = link->moves && (link->peer.features & TN_FEATURE_LANES);
	link->yields = link->reshapes && (link->peer.features & TN_FEATURE_NARROW);
	link->peer_ask = link->peer_known = true;
	return NULL;
}

void tn_link_on_peer_answer(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	tern_status made = TERN_OK;

	if (link->state != TN_LINK_HELLO || !link->peer_known || link->peer_answered)
		return;
	link->peer_answered = true;
	link->peer_ask = false;
	if (status != TERN_OK) {
		tn_lk_fail_link(link, now_ns, status, "%s", text ? text : tern_status_text(status));
		return;
	}
	if (!link->active)
		made = send_hello(link, now_ns);
	if (made == TERN_OK)
		made = make_transcript(link);
	if (link->state != TN_LINK_HELLO)
		return; /* no memory to say HELLO with */
	tn_link_set_state(link, TN_LINK_AUTH);
	arm_step(link, now_ns);
	if (made == TERN_OK && link->active)
		made = send_auth(link, now_ns);
	if (made != TERN_OK)
		crypto_failed(link, now_ns);
}

/* The first of the peer's MACs that is of a secret of ours; each is compared with each, found or not. */
static tern_status find_secret(tn_link *link, const uint8_t *macs, uint32_t count)
{
	uint8_t want[TN_HMAC_BYTES];
	uint32_t found = TN_NONE;

	for (uint32_t own = 0; own < link->birth->secret_count; own++) {
		TN_TRY(auth_mac(link, !link->active, own, want));
		for (uint32_t i = 0; i < count; i++) {
			bool equal = tn_crypto_equal(want, macs + (size_t)i * TN_HMAC_BYTES, sizeof(want));

			if (equal && (found == TN_NONE || i < found / TN_SECRETS_MAX))
				found = i * TN_SECRETS_MAX + own;
		}
	}
	if (found == TN_NONE)
		return TERN_E_AUTH;
	link->peer.secret = found % TN_SECRETS_MAX;
	return TERN_OK;
}

static const char *on_auth(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	bool two = !link->active && (link->peer.features & TN_FEATURE_ROTATE);
	tern_status made;

	if (link->state != TN_LINK_AUTH || (bytes != TN_HMAC_BYTES && !(two && bytes == 2 * TN_HMAC_BYTES)))
		return "AUTH at a wrong time or of a wrong length";
	made = find_secret(link, payload, bytes / TN_HMAC_BYTES);
	if (made == TERN_E_AUTH) {
		tn_lk_fail_link(link, now_ns, TERN_E_AUTH,
				"'%s' and '%s' have different shared secrets: set TERN_CTX_SECRET or "
				"TERN_CTX_SECRET_FILE alike on both",
				link->shared->name, link->peer.name);
		return NULL;
	}
	if (made == TERN_OK)
		made = labelled_mac(link->birth->secrets[link->peer.secret], "tern session",
				    link->birth->transcript, TN_SHA256_BYTES, link->session);
	if (made == TERN_OK && !link->active)
		made = send_auth(link, now_ns);
	if (made != TERN_OK) {
		crypto_failed(link, now_ns);
		return NULL;
	}
	if (link->state != TN_LINK_AUTH)
		return NULL; /* nor AUTH */
	tn_link_set_state(link, TN_LINK_SETUP);
	arm_step(link, now_ns);
	send_setup(link, now_ns);
	return NULL;
}

/* As much as there is of it; NULL: no memory. */
static tn_lk_peer_setup *keep_setup(tn_link *link, const tn_wire_setup *said)
{
	size_t at = sizeof(tn_lk_peer_setup) + said->provider_count * sizeof(tn_lk_peer_device), bytes = at;
	tn_lk_peer_setup *setup;

	for (uint32_t i = 0; i < said->provider_count; i++)
		bytes += said->providers[i].address_bytes;
	setup = tn_store_lend(link->config->store, bytes);
	if (!setup)
		return NULL;
	*setup = (tn_lk_peer_setup){(uint32_t)bytes, said->channels_max, said->provider_count};
	for (uint32_t i = 0; i < said->provider_count; i++) {
		const tn_wire_provider *p = &said->providers[i];
		tn_lk_peer_device *row = &setup->providers[i];

		memcpy(row->name, p->name, sizeof(row->name));
		row->write_bytes_max = p->write_bytes_max;
		row->send_bytes_max = p->send_bytes_max;
		row->caps = p->caps;
		row->address_bytes = p->address_bytes;
		row->address_at = (uint16_t)at;
		memcpy((uint8_t *)setup + at, p->address, p->address_bytes);
		at += p->address_bytes;
	}
	TN_ASSERT(at == bytes && bytes <= UINT16_MAX);
	return setup;
}

static const char *on_setup(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	tn_wire_setup setup;
	const char *wrong;

	if (link->state != TN_LINK_SETUP)
		return "SETUP at a wrong time";
	wrong = tn_wire_get_setup(payload, bytes, &setup);
	if (wrong)
		return wrong;
	link->peer_setup = keep_setup(link, &setup);
	if (link->peer_setup)
		tn_lk_wiring_start(link, now_ns);
	else
		tn_lk_fail_link(link, now_ns, TERN_E_NOMEM, "%s", "no memory for the peer's devices");
	return NULL;
}

const char *tn_lk_hello_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				uint64_t now_ns)
{
	switch (type) {
	case TN_CTRL_HELLO:
		return on_hello(link, payload, bytes, now_ns);
	case TN_CTRL_AUTH:
		return on_auth(link, payload, bytes, now_ns);
	default:
		return on_setup(link, payload, bytes, now_ns);
	}
}
