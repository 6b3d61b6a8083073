/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory through channels, on the fake driver, whose memory crashes who touches it: staged over every
 * provider, by NICs alone where they take dma-bufs, refused in words where no CPU may be the target; streams and
 * events gate operations. Threads: helpers; asserts in the main thread.
 */
#include "base/fault.h"
#include "chan_test.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_ibverbs/fake.h"
#include "mem/foreign.h"
#include "mem/gpu.h"

#define REGION (4u << 20)

typedef struct gpu_pair {
	pair p;
	uint8_t *gpu; /* of the application */
	uint8_t *dst; /* host memory at serve */
	tern_key key;
	tern_op op;
} gpu_pair;

/* Memory regions over dma-bufs, for the fake NIC: it may touch the pages as long as the region lives. */
static const tn_verbs_api *nic;
static tn_verbs_api api;
static struct {
	struct ibv_mr *mr;
	void *at;
	uint64_t bytes;
} dma[8];

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
				    int access)
{
	uint8_t *base = fake_cuda_of_dma_buf(fd);

	TN_ASSERT(base && (uintptr_t)base + offset == iova);
	for (int i = 0; i < 8; i++) {
		if (dma[i].mr)
			continue;
		dma[i].at = base + offset;
		dma[i].bytes = bytes;
		fake_cuda_nic(dma[i].at, bytes, true);
		dma[i].mr = nic->reg_mr(pd, base + offset, bytes, access);
		return dma[i].mr;
	}
	return NULL;
}

static int dereg_mr(struct ibv_mr *mr)
{
	for (int i = 0; i < 8; i++) {
		if (dma[i].mr == mr) {
			fake_cuda_nic(dma[i].at, dma[i].bytes, false);
			dma[i].mr = NULL;
		}
	}
	return nic->dereg_mr(mr);
}

static void begin(gpu_pair *x, const char *provider, bool dma_buf)
{
	memset(x, 0, sizeof(*x));
	transport = provider;
	fake_install();
	nic = fake_api();
	api = *nic;
	api.reg_dmabuf_mr = dma_buf ? reg_dmabuf_mr : NULL;
	api.dereg_mr = dereg_mr;
	tn_verbs_api_override(&api);
	fake_cuda_install(1, dma_buf);
	x->gpu = fake_cuda_malloc(REGION);
	pair_open(&x->p);
	assert_ok(
		tern_mem_alloc(tern_ctx_mem(x->p.serve.ctx), REGION, 0, 3, TERN_MEM_HOST, (void **)&x->dst));
	assert_ok(tern_mem_export(tern_ctx_mem(x->p.serve.ctx), x->dst, REGION, 3, &x->key));
}

static void end(gpu_pair *x)
{
	char text[256];

	if (x->p.dial.ctx)
		pair_close(&x->p);
	fake_cuda_free(x->gpu);
	if (!fake_cuda_remove(text, sizeof(text)))
		fail_msg("%s", text);
	if (fake_counts_get().faults)
		fail_msg("the fake NIC: %s", fake_fault_text());
	assert_int_equal(fake_counts_get().mrs, 0);
}

static uint64_t count_of(const side *s, const char *name)
{
	return tern_ctx_counter(s->ctx, name);
}

static const uint64_t sizes[] = {0, 1, 64, 101, 5000, 16385, 1 << 20, REGION - 7};
static const char *const providers[] = {"loop", "shm", "tcp", "verbs"};

/* Put from, get to and send from a GPU pointer that nobody registered. */
static void staged_over(const char *provider)
{
	int messages = 0;
	gpu_pair x;

	begin(&x, provider, false);
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		uint8_t *from = x.gpu + 5, *bytes = fake_cuda_bytes(from);

		fill(bytes, sizes[i], i);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_put(x.p.dial.channel, from, sizes[i], &x.key, 1, &x.op)));
		assert_true(filled(x.dst + 1, sizes[i], i));
		if (sizes[i] <= 1 << 20) {
			assert_ok(complete(x.p.dial.ctx, &x.op,
					   tern_send(x.p.dial.channel, from, sizes[i], &x.op)));
			assert_comes(&x.p.serve, messages, ++messages);
			assert_true(last_is(&x.p.serve, sizes[i], i));
		}
		memset(bytes, 0, sizes[i]);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_get(x.p.dial.channel, from, sizes[i], &x.key, 1, &x.op)));
		assert_true(filled(bytes, sizes[i], i));
	}
	assert_true(count_of(&x.p.dial, "mem.staging_copies") > 0);
	assert_status(tern_recv(x.p.dial.channel, x.gpu, 100, &x.op), TERN_E_UNSUPPORTED);
	end(&x);
}

static void test_staged(void **state)
{
	(void)state;
	for (size_t i = 0; i < TN_COUNT_OF(providers); i++)
		staged_over(providers[i]);
}

/* Host and GPU pieces in one message. */
static void test_mixed_message(void **state)
{
	gpu_pair x;

	(void)state;
	for (size_t i = 0; i < TN_COUNT_OF(providers); i++) {
		uint8_t whole[3000];
		tern_iovec iov[3];

		begin(&x, providers[i], false);
		fill(whole, sizeof(whole), 9);
		memcpy(fake_cuda_bytes(x.gpu), whole + 1000, 1000);
		iov[0] = (tern_iovec){whole, 1000};
		iov[1] = (tern_iovec){x.gpu, 1000};
		iov[2] = (tern_iovec){whole + 2000, 1000};
		assert_ok(complete(x.p.dial.ctx, &x.op, tern_sendv(x.p.dial.channel, iov, 3, &x.op)));
		assert_comes(&x.p.serve, messages, 1);
		assert_true(last_is(&x.p.serve, sizeof(whole), 9));
		end(&x);
	}
}

/* A peer's access to GPU memory where a CPU would have to make it: refused, and everything goes on. */
static void test_key_to_gpu_memory_refused(void **state)
{
	gpu_pair x;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		tern_key key;
		void *mine;

		begin(&x, providers[i], true);
		assert_ok(tern_mem_alloc(tern_ctx_mem(x.p.serve.ctx), 1000, 0, 3, TERN_MEM_DEVICE, &mine));
		assert_ok(tern_mem_export(tern_ctx_mem(x.p.serve.ctx), mine, 1000, 3, &key));
		assert_status(complete(x.p.dial.ctx, &x.op,
				       tern_put(x.p.dial.channel, x.gpu, 1000, &key, 0, &x.op)),
			      TERN_E_UNSUPPORTED);
		assert_status(complete(x.p.dial.ctx, &x.op,
				       tern_get(x.p.dial.channel, x.gpu, 1000, &key, 0, &x.op)),
			      TERN_E_UNSUPPORTED);
		assert_ok(complete(x.p.dial.ctx, &x.op,
				   tern_put(x.p.dial.channel, x.gpu, 1000, &x.key, 0, &x.op)));
		tern_mem_free(tern_ctx_mem(x.p.serve.ctx), mine);
		end(&x);
	}
}

/* GPU to GPU by NICs that take dma-bufs: no copy, flushed at notification and after a get. */
static void test_gpu_direct(void **state)
{
	uint8_t *from, *to;
	uint64_t flushes;
	gpu_pair x;
	tern_key key;

	(void)state;
	begin(&x, "verbs", true);
	assert_ok(tern_mem_alloc(tern_ctx_mem(x.p.dial.ctx), REGION, 0, 0, TERN_MEM_DEVICE, (void **)&from));
	assert_ok(tern_mem_alloc(tern_ctx_mem(x.p.serve.ctx), REGION, 0, 3, TERN_MEM_DEVICE, (void **)&to));
	assert_ok(tern_mem_export(tern_ctx_mem(x.p.serve.ctx), to, REGION, 3, &key));
	fill(fake_cuda_bytes(from), REGION, 3);
	flushes = fake_cuda_calls("flush_writes");
	assert_ok(complete(x.p.dial.ctx, &x.op,
			   tern_put_notify(x.p.dial.channel, from, REGION, &key, 0, 5, &x.op)));
	assert_comes(&x.p.serve, notifies, 1);
	assert_true(fake_cuda_calls("flush_writes") > flushes);
	assert_true(filled(fake_cuda_bytes(to), REGION, 3));
	assert_int_equal(count_of(&x.p.dial, "channel.staged"), 0);
	fill(fake_cuda_bytes(to), REGION, 4);
	flushes = fake_cuda_calls("flush_writes");
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_get(x.p.dial.channel, from, REGION, &key, 0, &x.op)));
	assert_true(fake_cuda_calls("flush_writes") > flushes);
	assert_true(filled(fake_cuda_bytes(from), REGION, 4));
	assert_int_equal(count_of(&x.p.dial, "channel.staged"), 0);
	assert_int_equal(fake_cuda_calls("copy_in") + fake_cuda_calls("copy_out"), 0);
	/* what is inlined is read by the CPU: staged */
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, from, 8, &key, 0, &x.op)));
	assert_int_equal(fake_cuda_calls("copy_out"), 1);
	tern_mem_free(tern_ctx_mem(x.p.dial.ctx), from);
	tern_mem_free(tern_ctx_mem(x.p.serve.ctx), to);
	end(&x);
}

/* sglang#6894, Mooncake#454: the copy fails, or the NIC refuses the dma-buf. */
static void test_failures(void **state)
{
	tern_region *region;
	gpu_pair x;

	(void)state;
	begin(&x, "tcp", false);
	fake_cuda_fail("copy_out", 1, CU_OUT_OF_MEMORY);
	assert_status(
		complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.gpu, 9000, &x.key, 0, &x.op)),
		TERN_E_NOMEM);
	fake_cuda_fail("copy_in", 1, 999);
	assert_status(
		complete(x.p.dial.ctx, &x.op, tern_get(x.p.dial.channel, x.gpu, 9000, &x.key, 0, &x.op)),
		TERN_E_DEVICE);
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_get(x.p.dial.channel, x.gpu, 9000, &x.key, 0, &x.op)));
	end(&x);
	begin(&x, "verbs", true);
	fake_fail("reg_mr", 1, EINVAL);
	assert_ok(tern_mem_register(tern_ctx_mem(x.p.dial.ctx), x.gpu, REGION, 0, &region));
	fill(fake_cuda_bytes(x.gpu), REGION, 3);
	assert_ok(complete(x.p.dial.ctx, &x.op, tern_put(x.p.dial.channel, x.gpu, REGION, &x.key, 0, &x.op)));
	assert_true(filled(x.dst, REGION, 3));
	assert_true(count_of(&x.p.dial, "channel.staged") > 0);
	assert_ok(tern_mem_unregister(region));
	end(&x);
}

/* ---- streams and events ---- */

static void test_stream_gates(void **state)
{
	for (size_t i = 0; i < TN_COUNT_OF(providers); i++) {
		gpu_pair x;
		cu_stream stream;

		(void)state;
		begin(&x, providers[i], false);
		stream = fake_cuda_stream();
		fake_cuda_stream_hold(stream, true);
		x.op.stream = stream;
		memset(x.dst, 0, 5000);
		assert_ok(tern_put(x.p.dial.channel, x.gpu, 5000, &x.key, 0, &x.op));
		assert_int_equal(tern_op_test(&x.op), TERN_AGAIN);
		/* the "kernel" writes what is to be sent only now */
		fill(fake_cuda_bytes(x.gpu), 5000, 11);
		assert_int_equal(tern_op_test(&x.op), TERN_AGAIN);
		assert_int_equal(count_of(&x.p.dial, "channel.puts"), 0);
		fake_cuda_stream_hold(stream, false);
		assert_ok(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE));
		assert_int_equal(x.op.length, 5000);
		assert_true(filled(x.dst, 5000, 11));
		assert_ok(complete(x.p.dial.ctx, &x.op, tern_send(x.p.dial.channel, x.gpu, 5000, &x.op)));
		assert_comes(&x.p.serve, messages, 1);
		assert_true(last_is(&x.p.serve, 5000, 11));
		end(&x);
	}
}

static void test_event_gates(void **state)
{
	gpu_pair x;
	cu_event event;

	(void)state;
	begin(&x, "tcp", false);
	event = fake_cuda_event();
	x.op.stream = event;
	x.op.flags = TERN_OP_EVENT;
	fill(x.dst, 5000, 2);
	memset(fake_cuda_bytes(x.gpu), 0, 5000);
	assert_ok(tern_get(x.p.dial.channel, x.gpu, 5000, &x.key, 0, &x.op));
	assert_int_equal(tern_op_test(&x.op), TERN_AGAIN);
	assert_int_equal(fake_cuda_bytes(x.gpu)[7], 0);
	assert_status(tern_get(x.p.dial.channel, x.gpu, 5000, &x.key, 0, &x.op), TERN_E_STATE);
	fake_cuda_event_comes(event);
	assert_ok(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE));
	assert_true(filled(fake_cuda_bytes(x.gpu), 5000, 2));
	end(&x);
}

static void test_gate_errors(void **state)
{
	gpu_pair x;
	cu_stream stream;

	(void)state;
	begin(&x, "shm", false);
	stream = fake_cuda_stream();
	x.op.stream = stream;
	fake_cuda_fail("launch_host", 1, 400);
	assert_status(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op), TERN_E_DEVICE);
	assert_ok(tn_fault_set("channel.gate.alloc", 1, 1));
	assert_status(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op), TERN_E_NOMEM);
	tn_fault_clear();
	/* what is wrong with the operation comes out at its completion */
	assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, REGION, &x.op));
	assert_status(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE), TERN_E_BOUNDS);
	/* the deadline counts from the submission, and does not wait for the stream */
	fake_cuda_stream_hold(stream, true);
	x.op.timeout_ns = TN_NS_PER_MS;
	assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op));
	assert_status(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE), TERN_E_DEADLINE);
	/* so does a cancel */
	x.op.timeout_ns = 0;
	assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op));
	assert_ok(tern_cancel(x.p.dial.channel, &x.op));
	assert_status(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE), TERN_E_CANCELED);
	assert_status(tern_cancel(x.p.dial.channel, &x.op), TERN_E_NOT_FOUND);
	/* in flight already: the first one is not touched */
	assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op));
	assert_status(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op), TERN_E_STATE);
	fake_cuda_stream_hold(stream, false);
	assert_ok(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE));
	end(&x);
}

/* Cancel, deadline, stream and end of the link race: each operation ends once. */
static void test_gate_races(void **state)
{
	enum { FLIGHT = 16 };
	static const tern_status fine[] = {TERN_OK, TERN_E_DEADLINE, TERN_E_CANCELED};
	tern_op ops[FLIGHT] = {0};
	cu_stream stream;
	gpu_pair x;

	(void)state;
	begin(&x, "shm", false);
	stream = fake_cuda_stream();
	for (int round = 0; round < 200; round++) {
		fake_cuda_stream_hold(stream, true);
		for (int i = 0; i < FLIGHT; i++) {
			ops[i].stream = stream;
			ops[i].timeout_ns = i % 3 ? 0 : 1 + (uint64_t)round * 1000;
			assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &ops[i]));
		}
		for (int i = 0; i < FLIGHT; i += 2)
			(void)tern_cancel(x.p.dial.channel, &ops[i]);
		fake_cuda_stream_hold(stream, false);
		for (int i = 1; i < FLIGHT; i += 4)
			(void)tern_cancel(x.p.dial.channel, &ops[i]);
		for (int i = 0; i < FLIGHT; i++) {
			tern_status status = tern_op_wait(x.p.dial.ctx, &ops[i], PATIENCE);

			assert_true(status == fine[0] || status == fine[1] || status == fine[2]);
		}
	}
	end(&x);
}

/* The link goes, then the context, while a stream is far from ready: the operations end, once. */
static void test_end_before_the_stream(void **state)
{
	tern_op ops[4] = {0};
	cu_stream stream;
	gpu_pair x;

	(void)state;
	begin(&x, "tcp", false);
	stream = fake_cuda_stream();
	fake_cuda_stream_hold(stream, true);
	for (int i = 0; i < 4; i++) {
		ops[i].stream = stream;
		assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &ops[i]));
	}
	tern_channel_close(x.p.dial.channel);
	tern_link_close(x.p.dial.link);
	for (int i = 0; i < 4; i++)
		assert_int_equal(tern_op_test(&ops[i]), TERN_AGAIN);
	pair_close(&x.p);
	x.p.dial.ctx = NULL;
	for (int i = 0; i < 4; i++)
		assert_int_equal(tern_op_test(&ops[i]), TERN_E_FLUSHED);
	fake_cuda_stream_hold(stream, false); /* the driver's call backs find nobody */
	end(&x);
}

/* A channel that is closed first: they end when the stream comes. */
static void test_channel_closed_before_the_stream(void **state)
{
	cu_stream stream;
	gpu_pair x;

	(void)state;
	begin(&x, "tcp", false);
	stream = fake_cuda_stream();
	fake_cuda_stream_hold(stream, true);
	x.op.stream = stream;
	assert_ok(tern_put(x.p.dial.channel, x.gpu, 50, &x.key, 0, &x.op));
	tern_channel_close(x.p.dial.channel);
	fake_cuda_stream_hold(stream, false);
	assert_status(tern_op_wait(x.p.dial.ctx, &x.op, PATIENCE), TERN_E_STATE);
	end(&x);
}

/* Without a GPU a stream is refused in words. */
static void test_stream_without_gpu(void **state)
{
	gpu_pair x;
	int stream;

	(void)state;
	begin(&x, "loop", false);
	pair_close(&x.p);
	fake_cuda_free(x.gpu);
	fake_cuda_install(0, false);
	pair_open(&x.p);
	x.op.stream = &stream;
	assert_status(tern_send(x.p.dial.channel, "x", 1, &x.op), TERN_E_NO_DEVICE);
	pair_close(&x.p);
	x.p.dial.ctx = NULL;
	x.gpu = fake_cuda_malloc(4096);
	end(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_staged),
		cmocka_unit_test(test_mixed_message),
		cmocka_unit_test(test_key_to_gpu_memory_refused),
		cmocka_unit_test(test_gpu_direct),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_stream_gates),
		cmocka_unit_test(test_event_gates),
		cmocka_unit_test(test_gate_errors),
		cmocka_unit_test(test_gate_races),
		cmocka_unit_test(test_end_before_the_stream),
		cmocka_unit_test(test_channel_closed_before_the_stream),
		cmocka_unit_test(test_stream_without_gpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
