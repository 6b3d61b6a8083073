/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the meaning of the handshake (the drawing is in wire.h): who may speak for a lane, what is passed
 * when, and the probe that proves that both sides see the same memory.
 *
 * An inbound connection carries no lane until its PROOF was right: an impostor that knows a lane's number
 * costs nothing but its own connection.
 *
 * Must not trust a field before its check. Threads: the polling thread.
 * Tests: tests/unit/transport/test_shm_handshake.c.
 */
#include <string.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/shm/shm.h"

/* What both MACs cover. */
typedef struct transcript {
	char label[16];
	tn_shm_id from, to;
	uint64_t lane_from, lane_to;
	uint8_t nonce_a[TN_SHM_NONCE_BYTES];
	uint8_t nonce_p[TN_SHM_NONCE_BYTES];
} transcript;
_Static_assert(sizeof(transcript) == 128, "no padding goes into the MAC");

static tern_status lane_mac(const tn_shm_conn *conn, const tn_shm_lane *lane, const char *label,
			    uint8_t mac[TN_SHM_MAC_BYTES])
{
	transcript t = {.from = conn->hello.from,
			.to = conn->hello.to,
			.lane_from = conn->hello.lane_from,
			.lane_to = conn->hello.lane_to};

	memcpy(t.label, label, strlen(label));
	memcpy(t.nonce_a, conn->hello.nonce, sizeof(t.nonce_a));
	memcpy(t.nonce_p, conn->nonce_p, sizeof(t.nonce_p));
	return tn_hmac_sha256(lane->token, sizeof(lane->token), &t, sizeof(t), mac);
}

static tern_status check_mac(const tn_shm_conn *conn, const tn_shm_lane *lane, const char *label,
			     const uint8_t mac[TN_SHM_MAC_BYTES])
{
	uint8_t want[TN_SHM_MAC_BYTES];

	TN_TRY(lane_mac(conn, lane, label, want));
	if (!tn_crypto_equal(want, mac, sizeof(want)))
		return tn_fail(TERN_E_AUTH, "the peer on this host does not know the token of the lane");
	return TERN_OK;
}

static tn_shm_facts own_facts(const tn_shm_dev *dev)
{
	return (tn_shm_facts){
		.key_rows = dev->keys->count, .node_tag = dev->keys->node_tag, .light = dev->light};
}

/* ---- active: HELLO, then CHALLENGE -> PROOF, then ACCEPT -> CONFIRM ---- */

tern_status tn_shm_handshake_hello(tn_shm_conn *conn, tn_shm_lane *lane)
{
	tn_shm_any msg = {.hello = {.from = conn->dev->address.id,
				    .to = lane->peer_id,
				    .lane_from = lane->id,
				    .lane_to = lane->peer_lane}};

	TN_TRY(tn_os_random(msg.hello.nonce, sizeof(msg.hello.nonce)));
	conn->hello = msg.hello;
	tn_shm_conn_set_state(conn, TN_SHM_CONN_GREETED);
	return tn_shm_conn_send(conn, TN_SHM_HELLO, &msg, NULL, 0);
}

static tern_status active_prove(tn_shm_conn *conn, tn_shm_lane *lane, const tn_shm_challenge *challenge)
{
	tn_shm_dev *dev = conn->dev;
	const tn_shm_config *config = &dev->config;
	uint64_t bytes = tn_shm_lane_bytes(config->slots, config->buf_bytes);
	tn_shm_any msg = {
		.proof = {.slots = config->slots, .buf_bytes = config->buf_bytes, .facts = own_facts(dev)}};
	tn_shm_head *head;
	void *segment;
	tern_status status;
	int fd;

	memcpy(conn->nonce_p, challenge->nonce, sizeof(conn->nonce_p));
	TN_TRY(check_mac(conn, lane, "shm passive", challenge->mac));
	TN_TRY(lane_mac(conn, lane, "shm active", msg.proof.mac));
	TN_TRY(tn_os_random(&conn->probe, sizeof(conn->probe)));
	TN_TRY(tn_shm_seg_create("tern-shm-lane", bytes, false, &fd, &segment));
	status = tn_shm_lane_attach(lane, segment, bytes, config->slots, config->buf_bytes);
	if (status == TERN_OK) {
		head = segment;
		head->magic = TN_SHM_SEG_MAGIC;
		head->slots = config->slots;
		head->buf_bytes = config->buf_bytes;
		atomic_store_explicit(&head->probe[0], conn->probe, memory_order_release);
		status = tn_shm_conn_send(conn, TN_SHM_PROOF, &msg,
					  (int[]){fd, lane->own_wake_fd, dev->keys_fd, dev->page_fd}, 4);
	}
	if (status == TERN_OK)
		tn_shm_conn_set_state(conn, TN_SHM_CONN_PROVED);
	tn_os_close(&fd);
	return status;
}

static tern_status active_confirm(tn_shm_conn *conn, tn_shm_lane *lane, const tn_shm_accept *accept, int *fds)
{
	tn_shm_head *head = lane->segment;
	tn_shm_any msg = {.confirm = {.probe = 0}};

	if (accept->probe != conn->probe)
		return tn_fail(TERN_E_UNREACHABLE,
			       "the peer does not see what this process wrote to shared memory: use tcp");
	TN_TRY(tn_shm_peer_get(conn, &lane->peer_id, &accept->facts, fds[1], fds[2], &lane->peer));
	tn_shm_guard_lane(lane);
	lane->light = conn->dev->light && accept->facts.light == 1;
	lane->wake_fd = fds[0];
	fds[0] = -1;
	msg.confirm.probe = atomic_load_explicit(&head->probe[1], memory_order_acquire);
	TN_TRY(tn_shm_conn_send(conn, TN_SHM_CONFIRM, &msg, NULL, 0));
	tn_shm_conn_set_state(conn, TN_SHM_CONN_READY);
	tn_shm_lane_up(lane);
	return TERN_OK;
}

static tern_status active_refused(const tn_shm_refuse *refuse)
{
	if (refuse->status == TERN_E_AUTH)
		return tn_fail(TERN_E_AUTH, "the peer on this host says that the token of the lane is wrong");
	return tn_fail(TERN_E_REFUSED, "the peer on this host refused the lane (%s)",
		       tern_status_name((tern_status)refuse->status));
}

/* ---- passive: HELLO -> CHALLENGE, then PROOF -> ACCEPT, then CONFIRM ---- */

static tern_status passive_hello(tn_shm_conn *conn, const tn_shm_hello *hello)
{
	tn_shm_lane *lane;

	if (memcmp(&hello->to, &conn->dev->address.id, sizeof(hello->to)) != 0)
		return tn_fail(TERN_E_REFUSED, "a HELLO for another device");
	lane = tn_shm_lane_find(conn->dev, hello->lane_to);
	if (!lane || lane->active)
		return tn_fail(TERN_E_REFUSED, "a HELLO for a lane that does not wait for one");
	conn->hello = *hello;
	conn->lane_id = lane->id;
	if (atomic_load_explicit(&lane->state, memory_order_relaxed) == TN_SHM_LANE_INIT) {
		/* Its own end stops it if lane_connect never comes. */
		conn->deadline_ns = TN_TIME_NEVER;
		tn_shm_conn_set_state(conn, TN_SHM_CONN_PARKED);
		return TERN_OK;
	}
	return tn_shm_handshake_challenge(conn, lane);
}

tern_status tn_shm_handshake_challenge(tn_shm_conn *conn, tn_shm_lane *lane)
{
	tn_shm_any msg = {0};

	if (lane->active || lane->conn ||
	    atomic_load_explicit(&lane->state, memory_order_relaxed) != TN_SHM_LANE_CONNECTING)
		return tn_fail(TERN_E_REFUSED, "a HELLO for a lane that does not wait for one");
	if (memcmp(&conn->hello.from, &lane->peer_id, sizeof(lane->peer_id)) != 0 ||
	    conn->hello.lane_from != lane->peer_lane)
		return tn_fail(TERN_E_REFUSED, "a HELLO from another device or lane than the one awaited");
	TN_TRY(tn_os_random(conn->nonce_p, sizeof(conn->nonce_p)));
	memcpy(msg.challenge.nonce, conn->nonce_p, sizeof(conn->nonce_p));
	TN_TRY(lane_mac(conn, lane, "shm passive", msg.challenge.mac));
	tn_shm_conn_set_state(conn, TN_SHM_CONN_CHALLENGED);
	return tn_shm_conn_send(conn, TN_SHM_CHALLENGE, &msg, NULL, 0);
}

static tern_status passive_map(tn_shm_lane *lane, const tn_shm_proof *proof, int fd)
{
	uint64_t want, bytes;
	tn_shm_seg_id id;
	void *segment;
	tern_status status;

	if (!tn_shm_sizes_valid(proof->slots, proof->buf_bytes))
		return tn_fail(TERN_E_PROTOCOL, "a lane of %u slots of %u bytes: out of range", proof->slots,
			       proof->buf_bytes);
	want = tn_shm_lane_bytes(proof->slots, proof->buf_bytes);
	TN_TRY(tn_shm_seg_check(fd, want, &bytes, &id));
	TN_TRY(tn_shm_seg_map(fd, want, TN_SHM_RW, &segment));
	status = tn_shm_lane_attach(lane, segment, want, proof->slots, proof->buf_bytes);
	return status;
}

static tern_status passive_accept(tn_shm_conn *conn, tn_shm_lane *lane, const tn_shm_proof *proof, int *fds)
{
	tn_shm_dev *dev = conn->dev;
	tn_shm_any msg = {.accept = {.facts = own_facts(dev)}};
	tn_shm_head *head;

	if (lane->conn || atomic_load_explicit(&lane->state, memory_order_relaxed) != TN_SHM_LANE_CONNECTING)
		return tn_fail(TERN_E_REFUSED, "the lane was taken or closed meanwhile");
	TN_TRY(check_mac(conn, lane, "shm active", proof->mac));
	lane->conn = conn; /* from here on the two live and die together */
	TN_TRY(passive_map(lane, proof, fds[0]));
	TN_TRY(tn_shm_peer_get(conn, &lane->peer_id, &proof->facts, fds[2], fds[3], &lane->peer));
	tn_shm_guard_lane(lane);
	lane->light = dev->light && proof->facts.light == 1;
	lane->wake_fd = fds[1];
	fds[1] = -1;
	head = lane->segment;
	TN_TRY(tn_os_random(&conn->probe, sizeof(conn->probe)));
	msg.accept.probe = atomic_load_explicit(&head->probe[0], memory_order_acquire);
	atomic_store_explicit(&head->probe[1], conn->probe, memory_order_release);
	tn_shm_conn_set_state(conn, TN_SHM_CONN_ACCEPTED);
	return tn_shm_conn_send(conn, TN_SHM_ACCEPT, &msg,
				(int[]){lane->own_wake_fd, dev->keys_fd, dev->page_fd}, 3);
}

static tern_status passive_confirm(tn_shm_conn *conn, tn_shm_lane *lane, const tn_shm_confirm *confirm)
{
	if (confirm->probe != conn->probe)
		return tn_fail(TERN_E_UNREACHABLE,
			       "the peer does not see what this process wrote to shared memory: use tcp");
	conn->deadline_ns = TN_TIME_NEVER;
	tn_shm_conn_set_state(conn, TN_SHM_CONN_READY);
	tn_shm_lane_up(lane);
	return TERN_OK;
}

/* One message in a state that is not READY. Descriptors that are kept are set to -1 in fds. */
tern_status tn_shm_handshake(tn_shm_conn *conn, const tn_shm_any *msg, int *fds)
{
	tn_shm_lane *lane;
	uint16_t type = msg->head.type;

	if (conn->state == TN_SHM_CONN_HELLO && type == TN_SHM_HELLO)
		return passive_hello(conn, &msg->hello);
	lane = tn_shm_lane_find(conn->dev, conn->lane_id);
	if (!lane)
		return tn_fail(TERN_E_REFUSED, "the lane was closed meanwhile");
	if (conn->state == TN_SHM_CONN_GREETED && type == TN_SHM_CHALLENGE)
		return active_prove(conn, lane, &msg->challenge);
	if (conn->state == TN_SHM_CONN_PROVED && type == TN_SHM_ACCEPT)
		return active_confirm(conn, lane, &msg->accept, fds);
	if (conn->active && type == TN_SHM_REFUSE)
		return active_refused(&msg->refuse);
	if (conn->state == TN_SHM_CONN_CHALLENGED && type == TN_SHM_PROOF)
		return passive_accept(conn, lane, &msg->proof, fds);
	if (conn->state == TN_SHM_CONN_ACCEPTED && type == TN_SHM_CONFIRM)
		return passive_confirm(conn, lane, &msg->confirm);
	return tn_fail(TERN_E_PROTOCOL, "%s out of turn in the handshake of a lane", tn_shm_type_name(type));
}
