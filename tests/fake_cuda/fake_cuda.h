/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake CUDA driver behind mem's function table: up to two GPUs whose memory lies in this process at addresses
 * that no CPU instruction may touch (PROT_NONE): the fake's copies go through a second mapping of the same
 * pages. So a part of tern that reads or writes GPU memory by itself crashes its test.
 *
 *   stream   runs at once, unless it waits for an event that has not come or is held by the test
 *   fault    tern did what the driver forbids: no current context, CUDA out of a host function, a stale handle
 *
 * Threads: any; one lock, not held over host functions.
 */
#ifndef TN_TESTS_FAKE_CUDA_H
#define TN_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "mem/cuda_api.h"

/* Use the fake from now on, with so many GPUs (0..2), dma-buf or not. Turns GPUs off first. */
void fake_cuda_install(int gpus, bool dma_buf);
/* The real library again. True: nothing was left over and nothing was wrong, else text says what. */
bool fake_cuda_remove(char *text, size_t bytes);

/* After a failed release: forget what is left. */
void fake_cuda_forgive(void);

/* The nth next call of a function of the table (its member name) fails with the result; NULL: none does. */
void fake_cuda_fail(const char *call, int nth, cu_result result);
uint64_t fake_cuda_calls(const char *call);

/* The test's own use of the "GPU": memory as an application has it, and a look at its bytes. */
void *fake_cuda_malloc(uint64_t bytes);
void *fake_cuda_managed(uint64_t bytes); /* CPUs may touch it */
void fake_cuda_free(void *ptr);
/* The same bytes where a CPU may touch them: as a kernel would. */
uint8_t *fake_cuda_bytes(const void *ptr);
/* A NIC reaches [ptr, ptr + bytes) from now on, or no more. */
void fake_cuda_nic(void *ptr, uint64_t bytes, bool on);
/* The allocation behind a dma-buf of range_handle; NULL if the descriptor is none. */
void *fake_cuda_of_dma_buf(int fd);

/* A stream and an event of the application. */
cu_stream fake_cuda_stream(void);
void fake_cuda_stream_hold(cu_stream stream, bool on);
cu_event fake_cuda_event(void);
void fake_cuda_event_comes(cu_event event);

#endif
