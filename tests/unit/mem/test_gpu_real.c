/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same on a GPU, if there is one; skipped with the reason where there is none. Needs no toolkit: what the
 * application's side does goes through the driver's own functions.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "mem/foreign.h"
#include "mem/gpu.h"
#include "mem_test.h"

static const tn_cuda_api *cuda;
static cu_context context;

/* The driver, with GPU 0's primary context current, as a framework would have it; else the test is skipped. */
static bool has_gpu(void)
{
	cu_device device;

	if (tn_gpu_start(false) != TERN_OK) {
		print_message("skipped: %s\n", tern_detail());
		return false;
	}
	if (context)
		return true;
	assert_int_equal(tn_cuda_api_get(false, &cuda), TERN_OK);
	assert_int_equal(cuda->device_get(&device, 0), CU_OK);
	assert_int_equal(cuda->context_retain(&context, device), CU_OK);
	assert_int_equal(cuda->context_push(context), CU_OK);
	return true;
}

static void test_allocate_and_copy(void **state)
{
	tern_mem *mem = make_pool(0);
	uint8_t *data = malloc(5 * MiB), *back = malloc(5 * MiB);
	void *ptr;

	(void)state;
	if (!has_gpu()) {
		free(data);
		free(back);
		tn_mem_destroy(mem);
		skip();
	}
	for (uint64_t i = 0; i < 5 * MiB; i++)
		data[i] = (uint8_t)(i * 7 + (i >> 12));
	assert_int_equal(tern_mem_alloc(mem, 6 * MiB, 0, 0, TERN_MEM_DEVICE, &ptr), TERN_OK);
	assert_true(tn_gpu_owns(ptr));
	assert_false(tn_gpu_owns(data));
	assert_int_equal(tn_gpu_copy_in((uint8_t *)ptr + 3, data, 5 * MiB), TERN_OK);
	assert_int_equal(tn_gpu_copy_out(back, (uint8_t *)ptr + 3, 5 * MiB), TERN_OK);
	assert_memory_equal(data, back, 5 * MiB);
	tern_mem_free(mem, ptr);
	assert_false(tn_gpu_owns(ptr));
	tn_mem_destroy(mem);
	free(data);
	free(back);
}

static void test_foreign_pointer_and_dma_buf(void **state)
{
	tern_mem *mem = make_pool(0);
	tern_region *region;
	tern_gpu_info info;
	cu_pointer pointer;

	(void)state;
	if (!has_gpu()) {
		tn_mem_destroy(mem);
		skip();
	}
	assert_int_equal(tern_gpu_probe(0, &info), TERN_OK);
	print_message("%s: %s\n", info.name, info.reason);
	assert_int_equal(cuda->mem_alloc(&pointer, 4 * MiB), CU_OK);
	assert_true(tn_gpu_owns((void *)(uintptr_t)pointer));
	assert_int_equal(tern_mem_register(mem, (void *)(uintptr_t)(pointer + 4096), MiB, 0, &region),
			 TERN_OK);
	assert_true(tn_region_extent(region)->gpu);
	/* a driver may refuse one all the same (no open kernel module): then it is staged */
	if (!info.dma_buf)
		assert_int_equal(tn_region_extent(region)->fd, -1);
	print_message("dma-buf: %s\n", tn_region_extent(region)->fd >= 0 ? "yes" : "no");
	assert_int_equal(tern_mem_unregister(region), TERN_OK);
	assert_int_equal(cuda->mem_free(pointer), CU_OK);
	tn_mem_destroy(mem);
}

static void fired(void *arg)
{
	atomic_store((atomic_int *)arg, 1);
}

static void test_streams_and_events(void **state)
{
	cu_result (*event_create)(cu_event * event, unsigned flags);
	cu_result (*event_record)(cu_event event, cu_stream stream);
	cu_result (*event_destroy)(cu_event event);
	atomic_int done = 0, done2 = 0;
	cu_stream stream;
	cu_event event;
	void *library, *symbol;

	(void)state;
	if (!has_gpu())
		skip();
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(library);
	symbol = dlsym(library, "cuEventCreate");
	memcpy(&event_create, &symbol, sizeof(symbol));
	symbol = dlsym(library, "cuEventRecord");
	memcpy(&event_record, &symbol, sizeof(symbol));
	symbol = dlsym(library, "cuEventDestroy_v2");
	memcpy(&event_destroy, &symbol, sizeof(symbol));
	assert_int_equal(cuda->stream_create(&stream, CU_STREAM_NONBLOCKING), CU_OK);
	assert_int_equal(tn_gpu_when(stream, false, fired, &done), TERN_OK);
	assert_int_equal(event_create(&event, 2), CU_OK);
	assert_int_equal(event_record(event, stream), CU_OK);
	assert_int_equal(tn_gpu_when(event, true, fired, &done2), TERN_OK);
	while (!atomic_load(&done) || !atomic_load(&done2))
		;
	assert_int_equal(event_destroy(event), CU_OK);
	assert_int_equal(cuda->stream_destroy(stream), CU_OK);
	dlclose(library);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_allocate_and_copy),
		cmocka_unit_test(test_foreign_pointer_and_dma_buf),
		cmocka_unit_test(test_streams_and_events),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
