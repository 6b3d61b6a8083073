/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake against peers that lie: nothing but their own connection or lane suffers, no descriptor is
 * kept, and the right peer still gets through.
 */
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm_test.h"

/* The lane still takes its real peer. */
static void right_one_gets_through(evil *e, node *n, const tn_blob *blob)
{
	evil_up(e, n, blob);
	assert_int_equal(n->downs, 0);
}

/* The node hangs up, or says REFUSE with the status first. */
static void hung_up(evil *e, node *n, tern_status refused)
{
	tn_shm_any msg;
	int fds[TN_SHM_FDS_MAX];
	tern_status status = evil_recv(e, n, &msg, fds);

	if (status == TERN_OK) {
		assert_int_equal(msg.head.type, TN_SHM_REFUSE);
		assert_int_equal(msg.refuse.status, refused);
		status = evil_recv(e, n, &msg, fds);
	}
	assert_int_equal(status, TERN_E_LANE);
}

typedef struct fixture {
	node n;
	evil e;
	tn_blob blob;
	tn_lane *lane;
	unsigned fds;
} fixture;

static void set_up(fixture *f)
{
	node_open(&f->n);
	evil_make(&f->e);
	f->lane = evil_lane(&f->e, &f->n, &f->blob);
	f->fds = descriptors();
}

/* Nothing leaked by the lies; then the right peer; then all of it goes. */
static void finish(fixture *f)
{
	tn_os_close(&f->e.fd);
	polls(&f->n, 200);
	assert_int_equal(descriptors(), f->fds);
	right_one_gets_through(&f->e, &f->n, &f->blob);
	lane_free(&f->n, f->lane);
	evil_free(&f->e);
	node_close(&f->n);
}

static void test_honest(void **state)
{
	fixture f;

	(void)state;
	set_up(&f);
	finish(&f);
}

static void test_garbage(void **state)
{
	fixture f;
	tn_rand rand = {1};
	tn_shm_address address;

	(void)state;
	set_up(&f);
	memcpy(&address, f.n.addr.bytes, sizeof(address));
	for (unsigned i = 0; i < 300; i++) {
		uint8_t junk[400];
		size_t bytes = 1 + tn_rand_below(&rand, sizeof(junk));
		tn_shm_head_msg head = {TN_SHM_WIRE_MAGIC, TN_SHM_WIRE_VERSION,
					(uint16_t)tn_rand_below(&rand, 10)};

		for (size_t k = 0; k < bytes; k++)
			junk[k] = (uint8_t)tn_rand_next(&rand);
		if (i % 2 && bytes >= sizeof(head)) {
			memcpy(junk, &head, sizeof(head));
			if (i % 4 == 1 && tn_shm_type_bytes(head.type))
				bytes = tn_shm_type_bytes(head.type);
		}
		assert_ok(tn_shm_sock_dial(&address.id, &f.e.fd));
		assert_int_equal(send(f.e.fd, junk, bytes, MSG_NOSIGNAL), bytes);
		if (i % 5 == 0)
			(void)send(f.e.fd, junk, bytes, MSG_NOSIGNAL);
		if (i % 3) {
			tn_shm_any msg;
			int fds[TN_SHM_FDS_MAX];

			while (evil_recv(&f.e, &f.n, &msg, fds) == TERN_OK)
				assert_int_equal(msg.head.type, TN_SHM_REFUSE);
		}
		tn_os_close(&f.e.fd);
	}
	finish(&f);
}

static void test_hello_of_others(void **state)
{
	fixture f;
	tn_shm_lane_address la;
	tn_blob blob;
	evil other;

	(void)state;
	set_up(&f);
	/* a lane that isn't there */
	blob = f.blob;
	memcpy(&la, blob.bytes, sizeof(la));
	la.lane += 1000;
	memcpy(blob.bytes, &la, sizeof(la));
	evil_hello(&f.e, &f.n, &blob);
	hung_up(&f.e, &f.n, TERN_E_REFUSED);
	/* another device than the one that the lane waits for; another lane of it */
	other = f.e;
	assert_ok(tn_os_random(&other.id, sizeof(other.id)));
	evil_hello(&other, &f.n, &f.blob);
	hung_up(&other, &f.n, TERN_E_REFUSED);
	tn_os_close(&other.fd);
	f.e.fd = -1;
	f.e.lane++;
	evil_hello(&f.e, &f.n, &f.blob);
	hung_up(&f.e, &f.n, TERN_E_REFUSED);
	f.e.lane--;
	/* a lane that dials itself */
	blob = f.blob;
	(void)lane_make(&f.n, true, &blob);
	evil_hello(&f.e, &f.n, &blob);
	hung_up(&f.e, &f.n, TERN_E_REFUSED);
	finish(&f);
}

/* Descriptors with a message that has none. */
static void test_unwanted_descriptors(void **state)
{
	fixture f;

	(void)state;
	set_up(&f);
	for (int i = 0; i < 20; i++) {
		tn_shm_any msg = {0};
		tn_shm_address address;

		memcpy(&address, f.n.addr.bytes, sizeof(address));
		assert_ok(tn_shm_sock_dial(&address.id, &f.e.fd));
		evil_head(&msg, TN_SHM_HELLO);
		assert_ok(tn_shm_sock_send(f.e.fd, &msg, sizeof(msg.hello), (int[]){f.e.keys_fd, f.e.page_fd},
					   2));
		hung_up(&f.e, &f.n, TERN_E_PROTOCOL);
		tn_os_close(&f.e.fd);
	}
	finish(&f);
}

static void test_wrong_token(void **state)
{
	fixture f;

	(void)state;
	set_up(&f);
	for (int i = 0; i < 10; i++) {
		f.e.token[i] ^= 0x10;
		evil_challenged(&f.e, &f.n, &f.blob);
		evil_prove(&f.e);
		hung_up(&f.e, &f.n, TERN_E_AUTH);
		f.e.token[i] ^= 0x10;
	}
	assert_int_equal(f.n.downs, 0); /* the lane waits on for the right one */
	finish(&f);
}

/* A right proof of yesterday, said again. */
static void test_replay(void **state)
{
	fixture f;
	tn_shm_any msg = {0};

	(void)state;
	set_up(&f);
	evil_challenged(&f.e, &f.n, &f.blob);
	evil_mac(&f.e, "shm active", msg.proof.mac);
	msg.proof.slots = f.e.slots;
	msg.proof.buf_bytes = f.e.buf_bytes;
	evil_challenged(&f.e, &f.n, &f.blob);
	evil_send(&f.e, TN_SHM_PROOF, &msg, (int[]){f.e.segment_fd, f.e.wake_fd, f.e.keys_fd, f.e.page_fd},
		  4);
	hung_up(&f.e, &f.n, TERN_E_AUTH);
	/* The other side's MAC sent back is not a proof. */
	evil_challenged(&f.e, &f.n, &f.blob);
	evil_mac(&f.e, "shm passive", msg.proof.mac);
	evil_send(&f.e, TN_SHM_PROOF, &msg, (int[]){f.e.segment_fd, f.e.wake_fd, f.e.keys_fd, f.e.page_fd},
		  4);
	hung_up(&f.e, &f.n, TERN_E_AUTH);
	finish(&f);
}

static void test_out_of_turn(void **state)
{
	fixture f;

	(void)state;
	set_up(&f);
	for (uint32_t type = TN_SHM_HELLO; type < TN_SHM_TYPES; type++) {
		tn_shm_any msg = {0};
		uint32_t fds;

		if (type == TN_SHM_PROOF)
			continue;
		evil_challenged(&f.e, &f.n, &f.blob);
		msg.head.type = (uint16_t)type;
		fds = tn_shm_type_fds(&msg);
		evil_send(&f.e, (tn_shm_type)type, &msg, (int[]){f.e.page_fd, f.e.page_fd, f.e.page_fd}, fds);
		hung_up(&f.e, &f.n, TERN_E_PROTOCOL);
	}
	finish(&f);
}

/* Many silent connections: the right peer gets through, the silent ones don't add up. */
static void test_silent_crowd(void **state)
{
	fixture f;
	int fds[300];
	tn_shm_address address;

	(void)state;
	set_up(&f);
	memcpy(&address, f.n.addr.bytes, sizeof(address));
	for (int i = 0; i < 300; i++) {
		assert_ok(tn_shm_sock_dial(&address.id, &fds[i]));
		polls(&f.n, 2);
	}
	polls(&f.n, 500);
	assert_true(descriptors() <= f.fds + 300 + TN_SHM_CONNS_MAX);
	right_one_gets_through(&f.e, &f.n, &f.blob);
	for (int i = 0; i < 300; i++)
		close(fds[i]);
	lane_free(&f.n, f.lane);
	polls(&f.n, 500);
	evil_free(&f.e);
	node_close(&f.n);
}

/* ---- a peer that proved itself and then lies: its lane goes down, no other ---- */

static void lying_proof(void (*lie)(evil *e), tern_status status)
{
	node n;
	evil good, e;
	tn_blob good_blob, blob;
	tn_lane *good_lane, *lane;
	unsigned fds;

	node_open(&n);
	evil_make(&good);
	good_lane = evil_lane(&good, &n, &good_blob);
	evil_up(&good, &n, &good_blob);
	evil_make(&e);
	fds = descriptors();
	lane = evil_lane(&e, &n, &blob);
	evil_challenged(&e, &n, &blob);
	lie(&e);
	evil_prove(&e);
	wait_down(&n, 1, status);
	assert_ptr_equal(n.last_down.lane, lane);
	lane_free(&n, lane);
	tn_os_close(&e.fd);
	assert_true(descriptors() <= fds + 1); /* one of them is the lie's */
	evil_free(&e);
	lane_free(&n, good_lane);
	assert_int_equal(n.downs, 1);
	evil_free(&good);
	node_close(&n);
}

static void lie_sizes(evil *e)
{
	e->slots = 1u << 30;
}

static void lie_buf(evil *e)
{
	e->buf_bytes = 12345;
}

static void lie_short(evil *e)
{
	e->buf_bytes *= 2; /* the segment is not that large */
}

static void lie_unsealed(evil *e)
{
	tn_os_close(&e->segment_fd);
	e->segment_fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(e->segment_fd, (off_t)e->segment_bytes), 0);
}

static void lie_keys_unsealed(evil *e)
{
	tn_os_close(&e->keys_fd);
	e->keys_fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(e->keys_fd, 1 << 16), 0);
}

static void lie_keys_short(evil *e)
{
	e->row_count = 1u << 20;
}

static void lie_keys_huge(evil *e)
{
	e->row_count = UINT32_MAX;
}

static void lie_keys_none(evil *e)
{
	e->row_count = 0;
}

static void lie_page(evil *e)
{
	tn_os_close(&e->page_fd);
	e->page_fd = dup(e->wake_fd);
}

static void test_lying_proofs(void **state)
{
	(void)state;
	lying_proof(lie_sizes, TERN_E_PROTOCOL);
	lying_proof(lie_buf, TERN_E_PROTOCOL);
	lying_proof(lie_short, TERN_E_PROTOCOL);
	lying_proof(lie_unsealed, TERN_E_PROTOCOL);
	lying_proof(lie_keys_unsealed, TERN_E_PROTOCOL);
	lying_proof(lie_page, TERN_E_PROTOCOL);
	lying_proof(lie_keys_short, TERN_E_PROTOCOL);
	lying_proof(lie_keys_huge, TERN_E_PROTOCOL);
	lying_proof(lie_keys_none, TERN_E_PROTOCOL);
}

static void test_blind_probe(void **state)
{
	node n;
	evil e;
	tn_blob blob;
	tn_lane *lane;
	tn_shm_any msg;
	int fds[TN_SHM_FDS_MAX];

	(void)state;
	node_open(&n);
	evil_make(&e);
	lane = evil_lane(&e, &n, &blob);
	evil_challenged(&e, &n, &blob);
	evil_prove(&e);
	assert_ok(evil_recv(&e, &n, &msg, fds));
	for (int i = 0; i < TN_SHM_FDS_MAX; i++)
		tn_os_close(&fds[i]);
	memset(&msg, 0, sizeof(msg));
	msg.confirm.probe = 0; /* did not look */
	evil_send(&e, TN_SHM_CONFIRM, &msg, NULL, 0);
	wait_down(&n, 1, TERN_E_UNREACHABLE);
	assert_int_equal(n.ups, 0);
	lane_free(&n, lane);
	evil_free(&e);
	node_close(&n);
}

/* On a lane that is up: each message that has no business there. */
static void test_up_lane_lies(void **state)
{
	(void)state;
	for (uint32_t type = TN_SHM_HELLO; type < TN_SHM_TYPES; type++) {
		node n;
		evil e;
		tn_blob blob;
		tn_lane *lane;
		tn_shm_any msg = {0};

		if (type == TN_SHM_EXTENT_ASK)
			continue;
		node_open(&n);
		evil_make(&e);
		lane = evil_lane(&e, &n, &blob);
		evil_up(&e, &n, &blob);
		msg.head.type = (uint16_t)type;
		evil_send(&e, (tn_shm_type)type, &msg, (int[]){e.page_fd, e.page_fd, e.page_fd, e.page_fd},
			  tn_shm_type_fds(&msg));
		wait_down(&n, 1, TERN_E_PROTOCOL);
		lane_free(&n, lane);
		evil_free(&e);
		node_close(&n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_honest),          cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_hello_of_others), cmocka_unit_test(test_unwanted_descriptors),
		cmocka_unit_test(test_wrong_token),     cmocka_unit_test(test_replay),
		cmocka_unit_test(test_out_of_turn),     cmocka_unit_test(test_silent_crowd),
		cmocka_unit_test(test_lying_proofs),    cmocka_unit_test(test_blind_probe),
		cmocka_unit_test(test_up_lane_lies),
	};

	return RUN(tests);
}
