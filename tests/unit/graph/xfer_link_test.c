/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers over links between two nodes of one process, as the session opens them: device 0 is a worker, which
 * dials, device 1 a server. All ways, over shm and tcp: many edges, what is counted, starts that are
 * cancelled or come too early, and waits that fail; the transfer module of gRPC, if it was built.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "graph/xfer_link.h"
#include "support/nodes.h"

enum { ELEMENTS = 16, BYTES = 4 * ELEMENTS, EDGES_MAX = 600 };

typedef enum way { ZEROCOPY, COPY, RPC, RPC_PIECES, HOLLOW, GRPC_PLAIN, GRPC_TUNED } way;

#ifndef TN_GRPC_MODULE
#define TN_GRPC_MODULE ""
#endif

typedef struct edge {
	tn_xfer_end *tx, *rx;
	int32_t *memory; /* of the sender's transfer */
	unsigned sent, got;
} edge;

static nodes n;
static const char *transport;
static way how;
static tn_xfer *x[2];
static tern_link *links[2][2];
static const bool dialed[2][2] = {{false, true}, {false, false}};
static atomic_bool canceled;
static edge edges[EDGES_MAX];
/* parts: the edges of a direction are parts of one tensor; where its n-th value begins at the receiver */
static uint32_t parts;
static const char *begins[2][64];

static int setup(void **state)
{
	(void)state;
	nodes_start(&n, transport);
	links[0][1] = n.ab;
	links[1][0] = n.ba;
	atomic_store(&canceled, false);
	parts = 0;
	memset(begins, 0, sizeof(begins));
	for (uint32_t i = 0; i < 2; i++) {
		tn_xfer_link_params params = {.ctx = i ? n.b : n.a,
					      .device = i,
					      .devices = 2,
					      .links = links[i],
					      .dialed = dialed[i],
					      .call_bytes = how == RPC_PIECES ? BYTES / 3 + 4 : 0,
					      .canceled = &canceled};

		if (how == RPC || how == RPC_PIECES)
			assert_ok(tn_xfer_rpc_open(&params, &x[i]));
		else if (how == HOLLOW)
			assert_ok(tn_xfer_hollow_open(&params, &x[i]));
		else if (how >= GRPC_PLAIN)
			assert_ok(tn_xfer_module_open(&params, TN_GRPC_MODULE,
						      how == GRPC_TUNED ? "tuned" : "plain", &x[i]));
		else
			assert_ok(tn_xfer_tensor_open(&params, how == COPY, &x[i]));
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		if (x[i])
			x[i]->ops->close(x[i]);
	memset(x, 0, sizeof(x));
	nodes_stop(&n);
	return 0;
}

/* Even edges go from the worker to the server (gradients), odd ones back (weights). */
static uint32_t sender_of(uint32_t id)
{
	return id % 2;
}

static void open_edge(uint32_t id, uint32_t device)
{
	tn_edge_desc desc = {.id = id,
			     .name = "t",
			     .dtype = TERN_I32,
			     .shape = {.rank = 1, .dims = {ELEMENTS}},
			     .bytes = BYTES,
			     .peer = 1 - device,
			     .peer_name = device ? "worker" : "server",
			     .one_sided = true,
			     .whole = 7,
			     .whole_bytes = (uint64_t)parts * BYTES,
			     .whole_offset = (uint64_t)(id / 2) * BYTES};
	void *memory;

	if (sender_of(id) != device) {
		assert_ok(x[device]->ops->recv_open(x[device], &desc, &edges[id].rx));
		return;
	}
	edges[id].sent = edges[id].got = 0;
	assert_ok(x[device]->ops->send_open(x[device], &desc, &edges[id].tx));
	assert_ok(x[device]->ops->alloc(x[device], BYTES, &memory));
	edges[id].memory = memory;
}

static void *start_server(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)x[1]->ops->start(x[1], tn_now() + NODES_WAIT_NS);
}

static void open_all(uint32_t count)
{
	pthread_t thread;
	void *status;

	for (uint32_t device = 0; device < 2; device++)
		for (uint32_t id = 0; id < count; id++)
			open_edge(id, device);
	assert_int_equal(pthread_create(&thread, NULL, start_server, NULL), 0);
	assert_ok(x[0]->ops->start(x[0], tn_now() + NODES_WAIT_NS));
	pthread_join(thread, &status);
	assert_int_equal((intptr_t)status, TERN_OK);
}

/* Everything that this end can do now. */
static void turn(uint32_t id, unsigned limit)
{
	edge *e = &edges[id];
	const tn_xfer_ops *ops = x[0]->ops;
	const void *data;
	tern_status status;

	if (e->sent < limit && ops->send_test(e->tx) == TERN_OK) {
		for (unsigned i = 0; i < ELEMENTS; i++)
			e->memory[i] = (int32_t)(1000 * id + e->sent + 7 * i);
		status = ops->send_post(e->tx, e->memory, BYTES, e->sent);
		assert_true(status == TERN_OK || status == TERN_AGAIN);
		e->sent += status == TERN_OK;
	}
	status = ops->recv_poll(e->rx, &data);
	assert_true(status == TERN_OK || status == TERN_AGAIN);
	if (status != TERN_OK)
		return;
	for (unsigned i = 0; i < ELEMENTS && how != HOLLOW; i++)
		assert_int_equal(((const int32_t *)data)[i], 1000 * id + e->got + 7 * i);
	if (parts) {
		const char **begin = &begins[id % 2][e->got];

		if (!*begin)
			*begin = (const char *)data - id / 2 * BYTES;
		assert_ptr_equal(*begin, (const char *)data - id / 2 * BYTES);
	}
	e->got++;
	assert_ok(ops->recv_release(e->rx));
}

static unsigned slowest(uint32_t count, uint32_t parity)
{
	unsigned least = UINT32_MAX;

	for (uint32_t id = parity; id < count; id += 2)
		least = edges[id].got < least ? edges[id].got : least;
	return least;
}

/*
 * Steps of a synchronous job: weights of step k go out when all gradients of step k are there, gradients of
 * step k + 1 when all weights of step k are. No edge may keep others from moving.
 */
static void run_steps(uint32_t count, unsigned steps)
{
	uint64_t end = tn_now() + NODES_WAIT_NS;

	while (slowest(count, 1) < steps && tn_now() < end) {
		unsigned weights = slowest(count, 1), gradients = slowest(count, 0);

		for (uint32_t id = 0; id < count; id++)
			turn(id, id % 2 ? gradients : weights + 1 < steps ? weights + 1 : steps);
		for (uint32_t i = 0; i < 2; i++)
			assert_ok(x[i]->ops->wait(x[i], 0));
	}
	assert_int_equal(slowest(count, 0), steps);
	assert_int_equal(slowest(count, 1), steps);
}

static void moves_and_counts(void **state)
{
	enum { EDGES = 6, STEPS = 20 };
	tn_xfer_counters c;

	(void)state;
	open_all(EDGES);
	run_steps(EDGES, STEPS);
	for (uint32_t i = 0; i < 2; i++) {
		x[i]->ops->counters(x[i], &c);
		assert_int_equal(c.sends, EDGES / 2 * STEPS);
		assert_int_equal(c.recvs, EDGES / 2 * STEPS);
		assert_int_equal(c.bytes_sent, how == HOLLOW ? 0 : EDGES / 2 * STEPS * BYTES);
		assert_int_equal(c.writes, how == ZEROCOPY || how == COPY ? EDGES / 2 * STEPS : 0);
		if (how == ZEROCOPY || how == HOLLOW)
			assert_int_equal(c.copies, 0);
		else
			assert_true(c.copies >= EDGES / 2 * STEPS);
	}
}

/* Whoever sends them and in whatever order: the n-th parts are one tensor in one memory. */
static void parts_land_in_one_tensor(void **state)
{
	(void)state;
	parts = 5;
	open_all(10);
	run_steps(10, 20);
}

/* More edges per direction than calls fit a client's window, pulls that wait for pushes. */
static void many_edges(void **state)
{
	(void)state;
	open_all(EDGES_MAX);
	run_steps(EDGES_MAX, 3);
}

static void *cancel_soon(void *arg)
{
	(void)arg;
	tern_ctx_wait(n.b, 300000000);
	atomic_store(&canceled, true);
	x[0]->ops->wake(x[0]);
	return NULL;
}

/* The server never opens its end. */
static void canceled_start(void **state)
{
	pthread_t thread;

	(void)state;
	open_edge(0, 0);
	assert_int_equal(pthread_create(&thread, NULL, cancel_soon, NULL), 0);
	assert_status(x[0]->ops->start(x[0], TN_TIME_NEVER), TERN_E_CANCELED);
	pthread_join(thread, NULL);
	assert_non_null(
		strstr(tern_detail(), how == RPC || how == RPC_PIECES || how >= GRPC_PLAIN ? "b" : "server"));
}

static void late_start(void **state)
{
	(void)state;
	open_edge(0, 0);
	assert_status(x[0]->ops->start(x[0], tn_now() + 300000000), TERN_E_DEADLINE);
	assert_non_null(strstr(tern_detail(), "in time"));
}

/* The server opens its end only after the worker has looked for it several times. */
static void *open_late(void *arg)
{
	(void)arg;
	tern_ctx_wait(n.b, TN_XFER_LINK_LOOK_NS);
	tern_ctx_wait(n.b, TN_XFER_LINK_LOOK_NS);
	tern_ctx_wait(n.b, TN_XFER_LINK_LOOK_NS);
	for (uint32_t id = 0; id < 4; id++)
		open_edge(id, 1);
	return start_server(NULL);
}

static void server_opens_late(void **state)
{
	pthread_t thread;
	void *status;

	(void)state;
	for (uint32_t id = 0; id < 4; id++)
		open_edge(id, 0);
	assert_int_equal(pthread_create(&thread, NULL, open_late, NULL), 0);
	assert_ok(x[0]->ops->start(x[0], tn_now() + NODES_WAIT_NS));
	pthread_join(thread, &status);
	assert_int_equal((intptr_t)status, TERN_OK);
	run_steps(4, 3);
}

/* In a child the context is not usable: the wait says so instead of pretending that time passed. */
static void wait_fails_in_a_child(void **state)
{
	int status = 0;
	pid_t pid;

	(void)state;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(x[0]->ops->wait(x[0], tn_now() + 1000000) == TERN_E_FORKED ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- modules ---- */

static void modules_that_are_none(void **state)
{
	tn_xfer_link_params params = {
		.ctx = n.a, .devices = 2, .links = links[0], .dialed = dialed[0], .canceled = &canceled};
	tn_xfer *none;

	(void)state;
	assert_status(tn_xfer_module_open(&params, "/nowhere/libnone.so", "", &none), TERN_E_NOT_FOUND);
	assert_non_null(strstr(tern_detail(), "TERN_GRAPH_GRPC_MODULE"));
	assert_null(none);
	assert_status(tn_xfer_module_open(&params, "libm.so.6", "", &none), TERN_E_VERSION);
	if (!TN_GRPC_MODULE[0])
		return;
	assert_status(tn_xfer_module_open(&params, TN_GRPC_MODULE, "carrier pigeon", &none), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "tuned"));
}

int main(void)
{
	static const char *const transports[] = {"shm", "tcp"};
	static const char *const ways[] = {"zerocopy", "copy",       "rpc",       "rpc in pieces",
					   "hollow",   "grpc plain", "grpc tuned"};
	int failed = 0;

	for (unsigned i = 0; i < 2 * (GRPC_TUNED + 1); i++) {
#define CASE(f)                              \
	{                                    \
#f, f, setup, teardown, NULL \
	}
		const struct CMUnitTest tests[] = {
			CASE(moves_and_counts),
			CASE(many_edges),
			CASE(parts_land_in_one_tensor),
			CASE(canceled_start),
			CASE(late_start),
			CASE(server_opens_late),
			CASE(modules_that_are_none),
			CASE(wait_fails_in_a_child),
		};
		char name[32];

		transport = transports[i / (GRPC_TUNED + 1)];
		how = (way)(i % (GRPC_TUNED + 1));
		/* Its connections are its own, and its threads are no good in a child. */
		if (how >= GRPC_PLAIN && (!TN_GRPC_MODULE[0] || strcmp(transport, "tcp") == 0))
			continue;
		snprintf(name, sizeof(name), "%s %s", transport, ways[how]);
		printf("--- %s ---\n", name);
		failed += how >= GRPC_PLAIN
				  ? _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof(*tests) - 1,
							    NULL, NULL)
				  : cmocka_run_group_tests_name(name, tests, NULL, NULL);
	}
	return failed;
}
