/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives against a naive oracle: every operation, sizes around each threshold, groups that are and are not powers of
 * two, one level and two; then ranks that disagree, die or never come. The transport is the program's argument.
 */
#include <math.h>

#include "world.h"

#ifdef TN_HAVE_VERBS
#include "fake_ibverbs/fake.h"
#endif

typedef struct load {
	uint64_t count;
	tern_dtype dtype;
	tern_reduce reduce;
	uint32_t root;
} load;

/* Element i of a rank's input: small integers, so that sums are exact in any order and type. */
static double input(uint32_t r, uint64_t i)
{
	return (double)((i * 7 + r * 13) % 5) - 1;
}

static void store(void *at, uint64_t i, tern_dtype dtype, double x)
{
	if (dtype == TERN_F32)
		((float *)at)[i] = (float)x;
	else if (dtype == TERN_F64)
		((double *)at)[i] = x;
	else if (dtype == TERN_I32)
		((int32_t *)at)[i] = (int32_t)x;
	else
		((int8_t *)at)[i] = (int8_t)x;
}

static double fetch(const void *at, uint64_t i, tern_dtype dtype)
{
	return dtype == TERN_F32   ? ((const float *)at)[i]
	       : dtype == TERN_F64 ? ((const double *)at)[i]
	       : dtype == TERN_I32 ? ((const int32_t *)at)[i]
				   : ((const int8_t *)at)[i];
}

static double wanted(const world *w, uint64_t i, tern_dtype dtype, tern_reduce reduce)
{
	double x = input(0, i);

	for (uint32_t r = 1; r < w->size; r++) {
		double y = input(r, i);

		x = reduce == TERN_PROD  ? x * y
		    : reduce == TERN_MIN ? fmin(x, y)
		    : reduce == TERN_MAX ? fmax(x, y)
					 : x + y;
	}
	if (reduce == TERN_AVG)
		x /= w->size;
	return dtype == TERN_F32 ? (double)(float)x : dtype == TERN_I8 ? (double)(int8_t)(int64_t)x : x;
}

static void *block_of(rank *r, uint64_t bytes)
{
	void *p = NULL;

	if (tern_mem_alloc(tern_ctx_mem(r->ctx), bytes + 1, 0, TERN_ACCESS_NONE, TERN_MEM_HOST, &p) !=
	    TERN_OK)
		return NULL;
	memset(p, 0x5a, bytes + 1);
	return p;
}

static void give(rank *r, void *p)
{
	tern_mem_free(tern_ctx_mem(r->ctx), p);
}

static void all_reduces(rank *r)
{
	const load *l = r->w->arg;
	uint64_t bytes = l->count * tern_dtype_bytes(l->dtype);
	void *in = block_of(r, bytes), *out = block_of(r, bytes);

	for (uint64_t i = 0; i < l->count; i++)
		store(in, i, l->dtype, input(r->rank, i));
	NEED(r, tern_all_reduce(r->comm, in, out, l->count, l->dtype, l->reduce));
	NEED(r, tern_all_reduce(r->comm, in, in, l->count, l->dtype, l->reduce));
	for (uint64_t i = 0; i < l->count; i++)
		if (fetch(out, i, l->dtype) != wanted(r->w, i, l->dtype, l->reduce))
			WRONG(r, "rank %u of %u: element %llu of %llu is %g, not %g", r->rank, r->w->size,
			      (unsigned long long)i, (unsigned long long)l->count, fetch(out, i, l->dtype),
			      wanted(r->w, i, l->dtype, l->reduce));
	if (memcmp(in, out, bytes) || ((uint8_t *)out)[bytes] != 0x5a)
		WRONG(r, "in place is not the same, or too much was written");
	give(r, in);
	give(r, out);
}

static const uint64_t counts[] = {0, 1, 7, 500, 2048, 2049, 5000, 130000, 131072, 400001};

static void every_all_reduce(world *w)
{
	for (unsigned c = 0; c < sizeof(counts) / sizeof(*counts); c++)
		world_run(w, all_reduces, &(load){counts[c], TERN_F32, TERN_SUM, 0});
	for (int reduce = TERN_SUM; reduce <= TERN_AVG; reduce++) {
		world_run(w, all_reduces, &(load){3000, TERN_F64, (tern_reduce)reduce, 0});
		if (reduce != TERN_AVG)
			world_run(w, all_reduces, &(load){3000, TERN_I32, (tern_reduce)reduce, 0});
		if (reduce != TERN_AVG)
			world_run(w, all_reduces, &(load){601, TERN_I8, (tern_reduce)reduce, 0});
	}
}

static void test_all_reduce(void **state)
{
	static const uint32_t sizes[] = {1, 2, 3, 4, 5, 8};

	(void)state;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		world w = {0};

		world_open(&w, sizes[i]);
		every_all_reduce(&w);
		world_close(&w);
	}
}

static void test_two_levels(void **state)
{
	static const char *const even[] = {"x", "y", "x", "z", "y", "z"}, *const odd[] = {"x", "x", "x",
											  "y", "y", "z"};
	const char *const *const hosts[] = {even, odd};

	(void)state;
	for (int i = 0; i < 2; i++) {
		world w = {.hosts = hosts[i]};

		world_open(&w, 6);
		every_all_reduce(&w);
		world_close(&w);
	}
}

static void reduces_to(rank *r)
{
	const load *l = r->w->arg;
	uint64_t bytes = l->count * 4;
	void *in = block_of(r, bytes), *out = block_of(r, bytes);

	for (uint64_t i = 0; i < l->count; i++)
		store(in, i, TERN_F32, input(r->rank, i));
	NEED(r, tern_reduce_to(r->comm, in, out, l->count, TERN_F32, l->reduce, l->root));
	for (uint64_t i = 0; r->rank == l->root && i < l->count; i++)
		if (fetch(out, i, TERN_F32) != wanted(r->w, i, TERN_F32, l->reduce))
			WRONG(r, "root %u: element %llu", l->root, (unsigned long long)i);
	give(r, in);
	give(r, out);
}

static void scatters(rank *r)
{
	const load *l = r->w->arg;
	uint64_t all = l->count * r->w->size;
	void *in = block_of(r, all * 4), *out = block_of(r, l->count * 4);

	for (uint64_t i = 0; i < all; i++)
		store(in, i, TERN_F32, input(r->rank, i));
	NEED(r, tern_reduce_scatter(r->comm, in, out, l->count, TERN_F32, l->reduce));
	for (uint64_t i = 0; i < l->count; i++)
		if (fetch(out, i, TERN_F32) != wanted(r->w, i + r->rank * l->count, TERN_F32, l->reduce))
			WRONG(r, "rank %u: element %llu", r->rank, (unsigned long long)i);
	give(r, in);
	give(r, out);
}

static uint8_t byte_of(uint32_t from, uint32_t to, uint64_t i)
{
	return (uint8_t)(i * 31 + from * 7 + to * 3);
}

static void moves(rank *r)
{
	const load *l = r->w->arg;
	uint32_t n = r->w->size;
	uint64_t b = l->count;
	uint8_t *in = block_of(r, b * n), *out = block_of(r, b * n);

	for (uint32_t to = 0; to < n; to++)
		for (uint64_t i = 0; i < b; i++)
			in[to * b + i] = byte_of(r->rank, to, i);
	NEED(r, tern_all_to_all(r->comm, in, out, b));
	for (uint32_t from = 0; from < n; from++)
		for (uint64_t i = 0; i < b; i++)
			if (out[from * b + i] != byte_of(from, r->rank, i))
				WRONG(r, "all-to-all: rank %u, block %u, byte %llu", r->rank, from,
				      (unsigned long long)i);
	NEED(r, tern_all_gather(r->comm, in, out, b));
	for (uint32_t from = 0; from < n; from++)
		for (uint64_t i = 0; i < b; i++)
			if (out[from * b + i] != byte_of(from, 0, i))
				WRONG(r, "all-gather: rank %u, block %u", r->rank, from);
	if (r->rank == l->root)
		memcpy(out, in, b);
	NEED(r, tern_broadcast(r->comm, out, b, l->root));
	for (uint64_t i = 0; i < b; i++)
		if (out[i] != byte_of(l->root, 0, i))
			WRONG(r, "broadcast: rank %u, byte %llu of %llu", r->rank, (unsigned long long)i,
			      (unsigned long long)b);
	NEED(r, tern_barrier(r->comm));
	give(r, in);
	give(r, out);
}

static void test_others(void **state)
{
	static const uint32_t sizes[] = {1, 2, 3, 5, 8};
	static const uint64_t bytes[] = {0, 1, 8192, 8193, 300000, 700001};

	(void)state;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		world w = {0};

		world_open(&w, sizes[i]);
		for (uint32_t root = 0; root < sizes[i]; root += 2) {
			world_run(&w, reduces_to, &(load){1000, 0, TERN_SUM, root});
			world_run(&w, reduces_to, &(load){100000, 0, TERN_AVG, root});
			world_run(&w, moves, &(load){bytes[(root / 2) % 6], 0, 0, root});
		}
		for (unsigned b = 0; b < sizeof(bytes) / sizeof(*bytes); b++)
			world_run(&w, moves, &(load){bytes[b], 0, 0, 0});
		world_run(&w, scatters, &(load){0, 0, TERN_SUM, 0});
		world_run(&w, scatters, &(load){3, 0, TERN_MAX, 0});
		world_run(&w, scatters, &(load){90001, 0, TERN_SUM, 0});
		world_close(&w);
	}
}

/* A ring of messages beside collectives. */
static void sends(rank *r)
{
	uint32_t n = r->w->size, next = (r->rank + 1) % n, before = (r->rank + n - 1) % n;

	for (uint64_t bytes = 1; bytes < 1000000; bytes *= 30) {
		uint8_t *out = block_of(r, bytes), *in = block_of(r, bytes);

		memset(out, (int)r->rank, bytes);
		if (r->rank % 2 == 0)
			NEED(r, tern_comm_send(r->comm, next, out, bytes));
		NEED(r, tern_comm_recv(r->comm, before, in, bytes));
		if (r->rank % 2 == 1)
			NEED(r, tern_comm_send(r->comm, next, out, bytes));
		NEED(r, tern_barrier(r->comm));
		for (uint64_t i = 0; i < bytes; i++)
			if (in[i] != before)
				WRONG(r, "message of %llu bytes", (unsigned long long)bytes);
		give(r, in);
		give(r, out);
	}
}

static void test_messages(void **state)
{
	world w = {0};

	(void)state;
	world_open(&w, 4);
	world_run(&w, sends, NULL);
	world_close(&w);
}

/* ---- what goes wrong ---- */

static void expect(rank *r, tern_status status, tern_status wanted_status, const char *words)
{
	if (status != wanted_status || !strstr(tern_detail(), words))
		WRONG(r, "rank %u: %s \"%s\", not %s \"%s\"", r->rank, tern_status_name(status),
		      tern_detail(), tern_status_name(wanted_status), words);
}

static void disagrees(rank *r)
{
	float x[4] = {0};

	NEED(r, tern_all_reduce(r->comm, x, x, 4, TERN_F32, TERN_SUM));
	if (r->rank == 0)
		expect(r, tern_all_reduce(r->comm, x, x, 4, TERN_F32, TERN_SUM), TERN_E_PROTOCOL,
		       "ranks disagree");
	else
		expect(r, tern_all_reduce(r->comm, x, x, 3, TERN_F32, TERN_SUM), TERN_E_PROTOCOL,
		       "ranks disagree");
	expect(r, tern_barrier(r->comm), TERN_E_PROTOCOL, "failed before");
}

static void dies(rank *r)
{
	NEED(r, tern_barrier(r->comm));
	if (r->rank == 1) {
		tern_comm_destroy(r->comm);
		r->comm = NULL;
		return;
	}
	if (tern_barrier(r->comm) == TERN_OK)
		WRONG(r, "a barrier without rank 1");
	if (!strstr(tern_detail(), "rank 1"))
		WRONG(r, "rank %u: \"%s\" does not name rank 1", r->rank, tern_detail());
}

static void waits(rank *r)
{
	if (r->rank == 0)
		expect(r, tern_barrier(r->comm), TERN_E_DEADLINE, "rank 1");
}

static void refused(rank *r)
{
	int32_t x = 0;

	expect(r, tern_all_reduce(r->comm, &x, &x, 1, TERN_I32, TERN_AVG), TERN_E_UNSUPPORTED, "average");
	expect(r, tern_all_reduce(r->comm, &x, &x, 1, (tern_dtype)77, TERN_SUM), TERN_E_INVALID, "dtype");
	expect(r, tern_broadcast(r->comm, &x, 4, 2), TERN_E_INVALID, "rank 2");
	expect(r, tern_comm_send(r->comm, r->rank, &x, 4), TERN_E_INVALID, "this one");
	NEED(r, tern_barrier(r->comm)); /* nothing of it broke anything */
}

static void in_a_pair(void (*fn)(rank *r), uint64_t timeout_ns)
{
	world w = {.timeout_ns = timeout_ns};

	world_open(&w, 2);
	world_run(&w, fn, NULL);
	world_close(&w);
}

static void test_failures(void **state)
{
	(void)state;
	in_a_pair(refused, 0);
	in_a_pair(disagrees, 0);
	in_a_pair(dies, 0);
	in_a_pair(waits, 300000000);
}

static void test_params(void **state)
{
	tern_ctx *ctx;
	tern_communicator *one, *two;
	tern_comm_params p = {.name = "a", .rank = 0, .size = 1};

	(void)state;
	assert_ok(tern_ctx_create(&(tern_ctx_params){.listen = "", .transports = "loop"}, &ctx));
	assert_ok(tern_comm_create(ctx, &p, &one));
	assert_int_equal(tern_comm_size(one), 1);
	assert_ok(tern_barrier(one));
	assert_int_equal(tern_comm_create(ctx, &p, &two), TERN_E_EXISTS);
	p.name = "";
	assert_int_equal(tern_comm_create(ctx, &p, &two), TERN_E_INVALID);
	p = (tern_comm_params){.name = "b", .rank = 2, .size = 2};
	assert_int_equal(tern_comm_create(ctx, &p, &two), TERN_E_INVALID);
	p = (tern_comm_params){
		.name = "b", .rank = 1, .size = 2, .addresses = (const char *[]){"h:1", "h:2"}};
	assert_int_equal(tern_comm_create(ctx, &p, &two), TERN_E_INVALID); /* does not listen */
	tern_comm_destroy(one);
	tern_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_params),   cmocka_unit_test(test_all_reduce),
		cmocka_unit_test(test_others),   cmocka_unit_test(test_two_levels),
		cmocka_unit_test(test_messages), cmocka_unit_test(test_failures),
	};

	transport = argc > 1 ? argv[1] : transport;
#ifdef TN_HAVE_VERBS
	if (strcmp(transport, "verbs") == 0 && !getenv("TERN_TEST_NIC"))
		fake_install_judged(); /* no NIC is needed */
#endif
	return RUN(tests);
}
