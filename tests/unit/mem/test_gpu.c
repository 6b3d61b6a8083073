/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory on the fake driver: detection, blocks, regions, copies, dma-bufs, streams and events, each call of
 * the driver failing in turn, no GPU, forked children.
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "fake_cuda/fake_cuda.h"
#include "mem/foreign.h"
#include "mem/gpu.h"
#include "mem_test.h"

/* Everything the fake saw was right and nothing is left. */
static void gone(void)
{
	char text[256];

	if (!fake_cuda_remove(text, sizeof(text)))
		fail_msg("%s", text);
}

static void *gpu_block(tern_mem *mem, uint64_t bytes, uint32_t access)
{
	void *ptr = NULL;
	tern_status status = tern_mem_alloc(mem, bytes, 0, access, TERN_MEM_DEVICE, &ptr);

	if (status != TERN_OK)
		print_error("%s: %s\n", tern_status_name(status), tern_detail());
	assert_int_equal(status, TERN_OK);
	return ptr;
}

static void test_probe(void **state)
{
	tern_gpu_info info;

	(void)state;
	fake_cuda_install(2, true);
	assert_int_equal(tern_gpu_probe(0, &info), TERN_OK);
	assert_true(info.usable);
	assert_true(info.dma_buf);
	assert_string_equal(info.name, "Fake GPU 0");
	assert_int_equal(info.bytes, 8 * GiB);
	assert_non_null(strstr(info.reason, "12.4"));
	assert_int_equal(tern_gpu_probe(1, &info), TERN_OK);
	assert_int_equal(tern_gpu_probe(2, &info), TERN_E_NOT_FOUND);
	gone();
}

static void test_no_gpu(void **state)
{
	tern_mem *mem = make_pool(0);
	tern_gpu_info info;
	void *ptr;
	int x;

	(void)state;
	fake_cuda_install(0, false);
	assert_int_equal(tern_gpu_probe(0, &info), TERN_OK);
	assert_false(info.usable);
	assert_non_null(strstr(info.reason, "/dev/nvidia"));
	assert_int_equal(tern_gpu_probe(1, &info), TERN_E_NOT_FOUND);
	assert_int_equal(tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_DEVICE, &ptr), TERN_E_UNSUPPORTED);
	assert_null(ptr);
	assert_false(tn_gpu_on());
	assert_false(tn_gpu_owns(&x));
	/* the driver is not asked about pointers */
	assert_int_equal(fake_cuda_calls("pointer_get"), 0);
	assert_int_equal(tern_gpu_flush(&x), TERN_E_NO_DEVICE);
	gone();
	/* without the library */
	assert_int_equal(tn_fault_set("gpu.dlopen", 1, 100), TERN_OK);
	assert_int_equal(tern_gpu_probe(0, &info), TERN_OK);
	assert_false(info.usable);
	assert_non_null(strstr(info.reason, "libcuda"));
	assert_int_equal(tn_gpu_start(true), TERN_E_NO_DEVICE);
	tn_fault_clear();
	tn_mem_destroy(mem);
}

static void test_blocks(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t data[5000], back[5000];
	tern_region *region;
	uint8_t *a, *b;
	void *host;

	(void)state;
	fake_cuda_install(1, false);
	a = gpu_block(mem, 100, 0);
	b = gpu_block(mem, 3 * MiB, TERN_ACCESS_READ);
	assert_true(tn_gpu_owns(a));
	assert_true(tn_gpu_owns(b + 3 * MiB - 1));
	assert_false(tn_gpu_owns(data));
	assert_int_equal(tern_mem_usable(mem, a), 2 * MiB);
	assert_int_equal(tern_mem_usable(mem, b), 4 * MiB);
	assert_int_equal(tern_mem_usable(mem, a + 1), 0);
	assert_true(tn_mem_local_of(mem, a, 100)->gpu);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7);
	assert_int_equal(tn_gpu_copy_in(b + 3, data, sizeof(data)), TERN_OK);
	assert_memory_equal(fake_cuda_bytes(b + 3), data, sizeof(data));
	assert_int_equal(tn_gpu_copy_out(back, b + 3, sizeof(back)), TERN_OK);
	assert_memory_equal(back, data, sizeof(data));
	assert_int_equal(tern_mem_register(mem, b, 100, 0, &region), TERN_E_EXISTS);
	tn_mem_check(mem);
	host = get(mem, 100, 0, 0);
	tern_mem_free(mem, host);
	tern_mem_free(mem, a + 1); /* not a block */
	tern_mem_free(mem, a);
	assert_int_equal(tern_mem_usable(mem, a), 0);
	tern_mem_free(mem, a); /* twice */
	assert_int_equal(tn_counter_read(&mem->refused_frees), 2);
	tn_mem_destroy(mem); /* b goes with it */
	gone();
}

/* Keys of a block end with it. */
static void test_keys(void **state)
{
	tern_mem *mem = make_pool(0);
	uint32_t index;
	uint64_t offset;
	tern_key wire;
	tn_key key;
	void *ptr;

	(void)state;
	fake_cuda_install(1, true);
	ptr = gpu_block(mem, 100, 3);
	assert_int_equal(tern_mem_export(mem, ptr, 2 * MiB + 1, 3, &wire), TERN_E_INVALID);
	assert_int_equal(tern_mem_export(mem, ptr, 100, 3, &wire), TERN_OK);
	assert_true(tn_key_decode(&wire, &key));
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 0, 100, 3, &index, &offset), TERN_OK);
	assert_true(tn_mem_extent(mem, index)->gpu);
	tern_mem_free(mem, ptr);
	assert_int_equal(tn_key_check(tn_mem_keys(mem), &key, 0, 100, 3, &index, &offset), TERN_E_STALE_KEY);
	assert_null(tn_mem_extent(mem, index));
	tn_mem_destroy(mem);
	gone();
}

/* ---- devices that take dma-bufs, or not ---- */

typedef struct nic {
	fake_device base;
	bool takes_gpu;
	tern_status refuses;
	uint64_t offset;
	void *memory;
} nic;

static tern_status nic_reg(void *arg, const tn_extent *ext, void **reg, uint32_t *lkey, uint32_t *rkey)
{
	nic *n = arg;

	if (ext->gpu) {
		if (!n->takes_gpu || ext->fd < 0)
			return n->refuses ? n->refuses : TERN_E_UNSUPPORTED;
		n->offset = ext->fd_offset;
		n->memory = fake_cuda_of_dma_buf(ext->fd);
	}
	return fake_reg(&n->base, ext, reg, lkey, rkey);
}

static void nic_dereg(void *arg, const tn_extent *ext, void *reg)
{
	nic *n = arg;

	fake_dereg(&n->base, ext, reg);
}

static const tn_registrar nic_registrar = {.reg = nic_reg, .dereg = nic_dereg};

static void test_dma_buf(void **state)
{
	nic with = {.base.tag = 1, .takes_gpu = true}, without = {.base.tag = 2};
	tern_mem *mem = make_pool(0);
	uint8_t *app, *own;
	uint32_t slots[2];
	const tn_extent *ext;
	tern_region *region;
	int fds;

	(void)state;
	fake_cuda_install(1, true);
	app = fake_cuda_malloc(4 * MiB);
	assert_int_equal(tn_mem_attach(mem, &nic_registrar, &with, &slots[0]), TERN_OK);
	fds = count_fds();
	/* a slice of an allocation of the application */
	assert_int_equal(tern_mem_register(mem, app + 1000, 5000, 0, &region), TERN_OK);
	ext = tn_region_extent(region);
	assert_true(ext->gpu);
	assert_ptr_equal(with.memory, app);
	assert_int_equal(with.offset, 1000);
	assert_true(tn_mem_known_to_all(mem, ext));
	assert_true(fake_cuda_calls("pointer_set") == 1);
	/* a NIC that comes later and can't: staged from now on */
	assert_int_equal(tn_mem_attach(mem, &nic_registrar, &without, &slots[1]), TERN_OK);
	assert_non_null(ext->reg[slots[0]]);
	assert_null(ext->reg[slots[1]]);
	assert_false(tn_mem_known_to_all(mem, ext));
	assert_int_equal(stats_of(mem).registrations, 1);
	/* but what peers are to reach, all NICs reach or none */
	assert_int_equal(tern_mem_register(mem, app + MiB, MiB, TERN_ACCESS_WRITE, &region),
			 TERN_E_UNSUPPORTED);
	assert_int_equal(with.base.live, 1);
	assert_int_equal(tern_mem_alloc(mem, 100, 0, 3, TERN_MEM_DEVICE, (void **)&own), TERN_E_UNSUPPORTED);
	assert_null(own);
	/* sglang#6894: out of memory is an error, not a reason to stage */
	without.refuses = TERN_E_NOMEM;
	assert_int_equal(tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_DEVICE, (void **)&own), TERN_E_NOMEM);
	tn_mem_detach(mem, slots[1]);
	own = gpu_block(mem, 100, 3);
	assert_int_equal(with.offset, 0);
	assert_int_equal(count_fds(), fds + 3); /* one is the fake's */
	tern_mem_free(mem, own);
	assert_int_equal(tern_mem_unregister((tern_region *)(uintptr_t)ext), TERN_OK);
	assert_int_equal(count_fds(), fds);
	tn_mem_detach(mem, slots[0]);
	assert_int_equal(with.base.live, 0);
	tn_mem_destroy(mem);
	fake_cuda_free(app);
	gone();
}

/* Managed memory is touched by CPUs: it is no GPU memory to tern. */
static void test_managed(void **state)
{
	uint8_t *ptr;

	(void)state;
	fake_cuda_install(1, false);
	assert_int_equal(tn_gpu_start(true), TERN_OK);
	ptr = fake_cuda_managed(4096);
	assert_false(tn_gpu_owns(ptr));
	ptr[5] = 7;
	fake_cuda_free(ptr);
	gone();
}

/* Each call of the driver fails in turn: a status with words, nothing left, and it works afterwards. */
static void test_each_call_fails(void **state)
{
	static const char *const calls[] = {"init",           "device_count",       "device_get",
					    "context_retain", "context_push",       "stream_create",
					    "mem_alloc",      "device_attribute",   "range_handle",
					    "copy_in",        "stream_synchronize", "copy_out",
					    "pointer_get",    "pointer_set",        "mem_free"};
	uint8_t data[64] = {1, 2, 3};

	(void)state;
	for (size_t c = 0; c < TN_COUNT_OF(calls); c++) {
		for (int nth = 1; nth <= 3; nth++) {
			tern_mem *mem = make_pool(0);
			tern_status status, copied;
			void *ptr = NULL;

			fake_cuda_install(1, true);
			fake_cuda_fail(calls[c], nth, CU_OUT_OF_MEMORY);
			status = tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_DEVICE, &ptr);
			assert_true((status == TERN_OK) == (ptr != NULL));
			if (status != TERN_OK)
				assert_true(strlen(tern_detail()) > 10);
			copied = status == TERN_OK ? tn_gpu_copy_in(ptr, data, 64) : status;
			copied = copied == TERN_OK ? tn_gpu_copy_out(data, ptr, 64) : copied;
			if (copied != TERN_OK)
				assert_true(strlen(tern_detail()) > 10);
			if (status == TERN_OK)
				assert_true(tn_mem_local_of(mem, ptr, 100)->gpu);
			fake_cuda_fail(NULL, 0, CU_OK);
			tern_mem_free(mem, ptr);
			/* what failed once, works again */
			if (strcmp(calls[c], "mem_free") != 0)
				tern_mem_free(mem, gpu_block(mem, 1, 3));
			tn_mem_destroy(mem);
			if (strcmp(calls[c], "mem_free") != 0 && strcmp(calls[c], "context_push") != 0)
				gone();
			else
				fake_cuda_forgive();
		}
	}
}

/* ---- streams and events ---- */

static void fired(void *arg)
{
	++*(atomic_int *)arg;
}

static void test_when(void **state)
{
	atomic_int n = 0;
	cu_stream stream;
	cu_event event, other;
	int x;

	(void)state;
	fake_cuda_install(1, false);
	assert_int_equal(tn_gpu_when(&x, false, fired, &n), TERN_E_NO_DEVICE);
	assert_int_equal(tn_gpu_start(false), TERN_OK);
	stream = fake_cuda_stream();
	assert_int_equal(tn_gpu_when(stream, false, fired, &n), TERN_OK);
	assert_int_equal(n, 1);
	fake_cuda_stream_hold(stream, true);
	assert_int_equal(tn_gpu_when(stream, false, fired, &n), TERN_OK);
	assert_int_equal(n, 1);
	fake_cuda_stream_hold(stream, false);
	assert_int_equal(n, 2);
	/* events don't wait for one another */
	event = fake_cuda_event();
	other = fake_cuda_event();
	assert_int_equal(tn_gpu_when(event, true, fired, &n), TERN_OK);
	assert_int_equal(tn_gpu_when(other, true, fired, &n), TERN_OK);
	assert_int_equal(n, 2);
	fake_cuda_event_comes(other);
	assert_int_equal(n, 3);
	fake_cuda_event_comes(event);
	assert_int_equal(n, 4);
	fake_cuda_fail("launch_host", 1, 999);
	assert_int_equal(tn_gpu_when(stream, false, fired, &n), TERN_E_DEVICE);
	fake_cuda_fail("stream_wait", 1, 999);
	assert_int_equal(tn_gpu_when(event, true, fired, &n), TERN_E_DEVICE);
	assert_int_equal(n, 4);
	gone();
}

/* ---- fork ---- */

static int child(tern_mem *mem, void *ptr, tern_region *region)
{
	tern_mem *own = NULL;
	tern_gpu_info info;
	void *other;

	if (tn_gpu_on() || tn_gpu_owns(ptr))
		return 1;
	if (tern_mem_alloc(mem, 100, 0, 0, TERN_MEM_DEVICE, &other) != TERN_E_FORKED)
		return 2;
	tern_mem_free(mem, ptr); /* does nothing */
	if (tern_mem_unregister(region) != TERN_E_FORKED)
		return 3;
	if (tn_mem_create(NULL, &own) != TERN_OK)
		return 4;
	if (tern_mem_alloc(own, 100, 0, 0, TERN_MEM_DEVICE, &other) != TERN_E_FORKED)
		return 5;
	if (tn_gpu_copy_out(&info, ptr, 1) != TERN_E_FORKED || tern_gpu_flush(ptr) != TERN_E_FORKED)
		return 6;
	if (tern_gpu_probe(0, &info) != TERN_OK || info.usable || !strstr(info.reason, "fork"))
		return 7;
	tn_mem_destroy(own);
	tn_mem_destroy(mem);
	return 0;
}

/* The CUDA driver does not survive fork: the child is told, and calls nothing of it. */
static void test_fork(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t data[8] = {1, 2, 3}, back[8];
	tern_region *region;
	void *ptr, *app;
	pid_t pid;

	(void)state;
	fake_cuda_install(1, true);
	app = fake_cuda_malloc(4096);
	ptr = gpu_block(mem, 100, 3);
	assert_int_equal(tern_mem_register(mem, app, 4096, 0, &region), TERN_OK);
	assert_int_equal(tn_gpu_copy_in(ptr, data, 8), TERN_OK);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		uint64_t before = fake_cuda_calls("mem_free") + fake_cuda_calls("context_push");
		int bad = child(mem, ptr, region);

		if (!bad && fake_cuda_calls("mem_free") + fake_cuda_calls("context_push") != before)
			bad = 20;
		_exit(bad);
	}
	child_ends_well(pid);
	assert_int_equal(tn_gpu_copy_out(back, ptr, 8), TERN_OK);
	assert_memory_equal(back, data, 8);
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	tern_mem_free(mem, ptr);
	tn_mem_destroy(mem);
	fake_cuda_free(app);
	gone();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probe),   cmocka_unit_test(test_no_gpu),
		cmocka_unit_test(test_blocks),  cmocka_unit_test(test_keys),
		cmocka_unit_test(test_dma_buf), cmocka_unit_test(test_managed),
		cmocka_unit_test(test_when),    cmocka_unit_test(test_each_call_fails),
		cmocka_unit_test(test_fork),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
