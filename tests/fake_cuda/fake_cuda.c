/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_cuda.h. */
#include "fake_cuda/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "mem/gpu.h"

#define BLOCKS_MAX  256
#define THINGS_MAX  64
#define WORK_MAX    256
#define SCRIPTS_MAX 8

enum { INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_PERMITTED = 800 };

typedef struct block {
	uint8_t *gpu, *cpu; /* the same pages: untouchable, touchable */
	uint64_t bytes;
	ino_t inode;
	int fd, device;
	bool managed, app;
} block;

typedef struct work {
	void *event; /* wait for it, or: */
	cu_host_fn fn;
	void *arg;
} work;

typedef struct stream {
	bool used, held, app, dying, running;
	work work[WORK_MAX];
	int first, count;
} stream;

typedef struct event {
	bool used, came;
} event;

typedef struct script {
	char call[32];
	int left;
	cu_result result;
} script;

static struct {
	pthread_mutex_t lock;
	int gpus;
	bool dma_buf, started;
	int retained[2];
	block blocks[BLOCKS_MAX];
	stream streams[THINGS_MAX];
	event events[THINGS_MAX];
	script scripts[SCRIPTS_MAX];
	struct {
		char name[32];
		uint64_t calls;
	} counts[THINGS_MAX];
	uint64_t faults;
	char fault[128];
} f = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int stack[8], depth;
static _Thread_local bool in_host_fn;

static void fault(const char *what)
{
	f.faults++;
	snprintf(f.fault, sizeof(f.fault), "%s", what);
}

/* Begin a call: counted, scripted failures played. The lock is held afterwards. */
static cu_result begin(const char *call, bool needs_context)
{
	cu_result result = CU_OK;

	pthread_mutex_lock(&f.lock);
	for (int i = 0; i < THINGS_MAX; i++) {
		if (!f.counts[i].name[0])
			snprintf(f.counts[i].name, sizeof(f.counts[i].name), "%s", call);
		if (strcmp(f.counts[i].name, call) == 0) {
			f.counts[i].calls++;
			break;
		}
	}
	for (int i = 0; i < SCRIPTS_MAX; i++) {
		script *s = &f.scripts[i];

		if (s->left > 0 && strcmp(s->call, call) == 0 && --s->left == 0)
			result = s->result;
	}
	if (in_host_fn)
		fault("CUDA was called out of a host function"), result = NOT_PERMITTED;
	if (needs_context && depth == 0)
		fault("no context is current"), result = INVALID_CONTEXT;
	if (!f.started && strcmp(call, "init") != 0 && result == CU_OK)
		result = CU_NOT_INITIALIZED;
	return result;
}

static cu_result end(cu_result result)
{
	pthread_mutex_unlock(&f.lock);
	return result;
}

/* ---- memory ---- */

static block *block_of(uint64_t pointer)
{
	for (int i = 0; i < BLOCKS_MAX; i++) {
		block *b = &f.blocks[i];

		if (b->gpu && pointer >= (uintptr_t)b->gpu && pointer < (uintptr_t)b->gpu + b->bytes)
			return b;
	}
	return NULL;
}

static block *block_make(uint64_t bytes, int device, bool managed, bool app)
{
	struct stat st = {0};
	block *b = NULL;
	bool made;

	for (int i = 0; i < BLOCKS_MAX && !b; i++)
		b = f.blocks[i].gpu ? NULL : &f.blocks[i];
	if (!b || bytes == 0)
		return NULL;
	bytes = (bytes + 4095) / 4096 * 4096;
	*b = (block){.bytes = bytes, .device = device, .managed = managed, .app = app};
	b->fd = memfd_create("fake-gpu", MFD_CLOEXEC);
	made = b->fd >= 0 && ftruncate(b->fd, (off_t)bytes) == 0 && fstat(b->fd, &st) == 0;
	TN_ASSERT(made);
	b->inode = st.st_ino;
	b->cpu = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
	b->gpu = mmap(NULL, bytes, managed ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED, b->fd, 0);
	TN_ASSERT(b->cpu != MAP_FAILED && b->gpu != MAP_FAILED);
	return b;
}

static void block_end(block *b)
{
	munmap(b->cpu, b->bytes);
	munmap(b->gpu, b->bytes);
	close(b->fd);
	*b = (block){0};
}

static cu_result copy(uint64_t device, void *host, size_t bytes, bool out)
{
	block *b = block_of(device);
	uint64_t offset = b ? device - (uintptr_t)b->gpu : 0;

	if (!b || bytes > b->bytes - offset)
		return CU_INVALID_VALUE;
	if (out)
		memcpy(host, b->cpu + offset, bytes);
	else
		memcpy(b->cpu + offset, host, bytes);
	return CU_OK;
}

/* ---- the table ---- */

static cu_result do_init(unsigned flags)
{
	cu_result result = begin("init", false);

	(void)flags;
	if (result == CU_OK && f.gpus == 0)
		result = CU_NO_DEVICE;
	f.started = f.started || result == CU_OK;
	return end(result);
}

static cu_result do_error_string(cu_result result, const char **text)
{
	*text = result == CU_OUT_OF_MEMORY ? "out of memory" : "as scripted";
	return CU_OK;
}

static cu_result do_driver_version(int *version)
{
	cu_result result = begin("driver_version", false);

	*version = 12040;
	return end(result);
}

static cu_result do_device_count(int *count)
{
	cu_result result = begin("device_count", false);

	*count = f.gpus;
	return end(result);
}

static cu_result do_device_get(cu_device *device, int ordinal)
{
	cu_result result = begin("device_get", false);

	*device = ordinal;
	return end(result);
}

static cu_result do_device_name(char *name, int bytes, cu_device device)
{
	cu_result result = begin("device_name", false);

	snprintf(name, (size_t)bytes, "Fake GPU %d", device);
	return end(result);
}

static cu_result do_device_bytes(size_t *bytes, cu_device device)
{
	cu_result result = begin("device_bytes", false);

	(void)device;
	*bytes = 8ull << 30;
	return end(result);
}

static cu_result do_device_attribute(int *value, int attribute, cu_device device)
{
	cu_result result = begin("device_attribute", false);

	(void)device;
	*value = attribute == CU_ATTRIBUTE_DMA_BUF && f.dma_buf;
	return end(result);
}

static cu_result do_context_retain(cu_context *context, cu_device device)
{
	cu_result result = begin("context_retain", false);

	if (result == CU_OK)
		f.retained[device]++;
	*context = &f.retained[device];
	return end(result);
}

static cu_result do_context_release(cu_device device)
{
	cu_result result = begin("context_release", false);

	f.retained[device]--;
	return end(result);
}

static cu_result do_context_push(cu_context context)
{
	cu_result result = begin("context_push", false);

	if (result == CU_OK) {
		TN_ASSERT(depth < 8);
		stack[depth++] = (int)((int *)context - f.retained);
	}
	return end(result);
}

static cu_result do_context_pop(cu_context *context)
{
	cu_result result = begin("context_pop", true);

	if (depth > 0)
		*context = &f.retained[stack[--depth]];
	return end(result);
}

static cu_result do_mem_alloc(cu_pointer *pointer, size_t bytes)
{
	cu_result result = begin("mem_alloc", true);
	block *b = result == CU_OK ? block_make(bytes, stack[depth - 1], false, false) : NULL;

	if (result == CU_OK && !b)
		result = CU_OUT_OF_MEMORY;
	if (b)
		*pointer = (uintptr_t)b->gpu;
	return end(result);
}

static cu_result do_mem_free(cu_pointer pointer)
{
	cu_result result = begin("mem_free", true);
	block *b = block_of(pointer);

	if (!b || (uintptr_t)b->gpu != pointer)
		fault("free of no allocation"), result = CU_INVALID_VALUE;
	else
		block_end(b);
	return end(result);
}

static cu_result do_pointer_get(void *value, int attribute, cu_pointer pointer)
{
	cu_result result = begin("pointer_get", false);
	block *b = block_of(pointer);

	if (result == CU_OK && !b)
		result = CU_INVALID_VALUE;
	if (result == CU_OK) {
		cu_pointer base = (uintptr_t)b->gpu;
		size_t bytes = b->bytes;
		unsigned type = CU_TYPE_DEVICE, managed = b->managed;

		switch (attribute) {
		case CU_POINTER_MEMORY_TYPE:
			memcpy(value, &type, sizeof(type));
			break;
		case CU_POINTER_IS_MANAGED:
			memcpy(value, &managed, sizeof(managed));
			break;
		case CU_POINTER_DEVICE_ORDINAL:
			memcpy(value, &b->device, sizeof(b->device));
			break;
		case CU_POINTER_RANGE_START:
			memcpy(value, &base, sizeof(base));
			break;
		case CU_POINTER_RANGE_SIZE:
			memcpy(value, &bytes, sizeof(bytes));
			break;
		default:
			result = CU_INVALID_VALUE;
		}
	}
	return end(result);
}

static cu_result do_pointer_set(const void *value, int attribute, cu_pointer pointer)
{
	cu_result result = begin("pointer_set", true);

	(void)value;
	if (attribute != CU_POINTER_SYNC_MEMOPS || !block_of(pointer))
		result = CU_INVALID_VALUE;
	return end(result);
}

static stream *stream_of(cu_stream handle)
{
	stream *s = handle;

	if (s >= f.streams && s < f.streams + THINGS_MAX && s->used)
		return s;
	fault("no such stream");
	return NULL;
}

static cu_result do_copy_out(void *host, cu_pointer device, size_t bytes, cu_stream handle)
{
	cu_result result = begin("copy_out", true);

	if (result == CU_OK && !stream_of(handle))
		result = INVALID_HANDLE;
	return end(result == CU_OK ? copy(device, host, bytes, true) : result);
}

static cu_result do_copy_in(cu_pointer device, const void *host, size_t bytes, cu_stream handle)
{
	cu_result result = begin("copy_in", true);

	if (result == CU_OK && !stream_of(handle))
		result = INVALID_HANDLE;
	return end(result == CU_OK ? copy(device, (void *)(uintptr_t)host, bytes, false) : result);
}

/* ---- streams ---- */

static stream *stream_make(bool app)
{
	for (int i = 0; i < THINGS_MAX; i++) {
		if (!f.streams[i].used) {
			memset(&f.streams[i], 0, sizeof(f.streams[i]));
			f.streams[i].used = true;
			f.streams[i].app = app;
			return &f.streams[i];
		}
	}
	return NULL;
}

/* Lock held; dropped over host functions. */
static void stream_run(stream *s)
{
	if (s->running)
		return;
	s->running = true;
	while (!s->held && s->count > 0) {
		work w = s->work[s->first];

		if (w.event && !((event *)w.event)->came)
			break;
		s->first = (s->first + 1) % WORK_MAX;
		s->count--;
		if (!w.fn)
			continue;
		pthread_mutex_unlock(&f.lock);
		in_host_fn = true;
		w.fn(w.arg);
		in_host_fn = false;
		pthread_mutex_lock(&f.lock);
	}
	s->running = false;
	if (s->dying && s->count == 0)
		s->used = false;
}

static cu_result stream_add(cu_stream handle, work w)
{
	stream *s = stream_of(handle);

	if (!s || s->dying)
		return INVALID_HANDLE;
	TN_ASSERT(s->count < WORK_MAX);
	s->work[(s->first + s->count++) % WORK_MAX] = w;
	stream_run(s);
	return CU_OK;
}

static cu_result do_stream_create(cu_stream *handle, unsigned flags)
{
	cu_result result = begin("stream_create", true);

	(void)flags;
	if (result == CU_OK) {
		*handle = stream_make(false);
		result = *handle ? CU_OK : CU_OUT_OF_MEMORY;
	}
	return end(result);
}

static cu_result do_stream_destroy(cu_stream handle)
{
	cu_result result = begin("stream_destroy", false);
	stream *s = stream_of(handle);

	if (s) {
		s->dying = true;
		stream_run(s);
	}
	return end(result);
}

static cu_result do_stream_synchronize(cu_stream handle)
{
	cu_result result = begin("stream_synchronize", true);
	stream *s = stream_of(handle);

	if (s && s->count > 0)
		fault("waiting for a stream that may never run dry");
	return end(s ? result : INVALID_HANDLE);
}

static cu_result do_stream_wait(cu_stream handle, cu_event handle_of_event, unsigned flags)
{
	cu_result result = begin("stream_wait", true);
	event *e = handle_of_event;

	(void)flags;
	if (e < f.events || e >= f.events + THINGS_MAX || !e->used)
		result = INVALID_HANDLE;
	if (result == CU_OK)
		result = stream_add(handle, (work){.event = e});
	return end(result);
}

static cu_result do_launch_host(cu_stream handle, cu_host_fn fn, void *arg)
{
	cu_result result = begin("launch_host", true);

	if (result == CU_OK)
		result = stream_add(handle, (work){.fn = fn, .arg = arg});
	return end(result);
}

static cu_result do_range_handle(void *handle, cu_pointer pointer, size_t bytes, int type,
				 unsigned long long flags)
{
	cu_result result = begin("range_handle", true);
	block *b = block_of(pointer);

	(void)flags;
	if (result == CU_OK && (!f.dma_buf || type != CU_HANDLE_DMA_BUF))
		result = CU_NOT_SUPPORTED;
	if (result == CU_OK && (!b || pointer % 4096 || bytes % 4096 || (uintptr_t)b->gpu != pointer))
		result = CU_INVALID_VALUE;
	if (result == CU_OK)
		*(int *)handle = dup(b->fd);
	return end(result);
}

static cu_result do_flush_writes(int target, int scope)
{
	cu_result result = begin("flush_writes", true);

	if (target != CU_FLUSH_CURRENT_CONTEXT || scope != CU_FLUSH_TO_OWNER)
		result = CU_INVALID_VALUE;
	return end(result);
}

static const tn_cuda_api table = {
#define MEMBER(member, symbol, optional, parameters) .member = do_##member,
	TN_CUDA_SYMBOLS(MEMBER)
#undef MEMBER
};

/* ---- for tests ---- */

void fake_cuda_install(int gpus, bool dma_buf)
{
	tn_gpu_stop();
	f.gpus = gpus;
	f.dma_buf = dma_buf;
	f.started = false;
	f.faults = 0;
	f.fault[0] = '\0';
	memset(f.scripts, 0, sizeof(f.scripts));
	memset(f.counts, 0, sizeof(f.counts));
	tn_cuda_api_override(&table);
}

bool fake_cuda_remove(char *text, size_t bytes)
{
	int blocks = 0, streams = 0;

	tn_gpu_stop();
	tn_cuda_api_override(NULL);
	for (int i = 0; i < BLOCKS_MAX; i++)
		blocks += f.blocks[i].gpu != NULL;
	for (int i = 0; i < THINGS_MAX; i++) {
		streams += f.streams[i].used && !f.streams[i].app;
		f.streams[i].used = f.events[i].used = false;
	}
	snprintf(text, bytes, "%d blocks, %d streams, %d + %d contexts left over, %llu faults: %s", blocks,
		 streams, f.retained[0], f.retained[1], (unsigned long long)f.faults, f.fault);
	return !blocks && !streams && !f.retained[0] && !f.retained[1] && !f.faults;
}

void fake_cuda_forgive(void)
{
	char text[256];

	(void)fake_cuda_remove(text, sizeof(text));
	for (int i = 0; i < BLOCKS_MAX; i++) {
		if (f.blocks[i].gpu)
			block_end(&f.blocks[i]);
	}
	memset(f.retained, 0, sizeof(f.retained));
	depth = 0;
}

void fake_cuda_fail(const char *call, int nth, cu_result result)
{
	pthread_mutex_lock(&f.lock);
	if (!call)
		memset(f.scripts, 0, sizeof(f.scripts));
	for (int i = 0; call && i < SCRIPTS_MAX; i++) {
		script *s = &f.scripts[i];

		if (s->left > 0)
			continue;
		*s = (script){.left = nth, .result = result};
		snprintf(s->call, sizeof(s->call), "%s", call);
		break;
	}
	pthread_mutex_unlock(&f.lock);
}

uint64_t fake_cuda_calls(const char *call)
{
	uint64_t calls = 0;

	pthread_mutex_lock(&f.lock);
	for (int i = 0; i < THINGS_MAX; i++) {
		if (strcmp(f.counts[i].name, call) == 0)
			calls = f.counts[i].calls;
	}
	pthread_mutex_unlock(&f.lock);
	return calls;
}

static void *app_block(uint64_t bytes, bool managed)
{
	block *b;

	pthread_mutex_lock(&f.lock);
	b = block_make(bytes, 0, managed, true);
	pthread_mutex_unlock(&f.lock);
	TN_ASSERT(b != NULL);
	return b->gpu;
}

void *fake_cuda_malloc(uint64_t bytes)
{
	return app_block(bytes, false);
}

void *fake_cuda_managed(uint64_t bytes)
{
	return app_block(bytes, true);
}

void fake_cuda_free(void *ptr)
{
	block *b;

	pthread_mutex_lock(&f.lock);
	b = block_of((uintptr_t)ptr);
	TN_ASSERT(b && b->gpu == ptr && b->app);
	block_end(b);
	pthread_mutex_unlock(&f.lock);
}

uint8_t *fake_cuda_bytes(const void *ptr)
{
	uint8_t *bytes;
	block *b;

	pthread_mutex_lock(&f.lock);
	b = block_of((uintptr_t)ptr);
	TN_ASSERT(b != NULL);
	bytes = b->cpu + ((uintptr_t)ptr - (uintptr_t)b->gpu);
	pthread_mutex_unlock(&f.lock);
	return bytes;
}

void fake_cuda_nic(void *ptr, uint64_t bytes, bool on)
{
	uintptr_t from = (uintptr_t)ptr / 4096 * 4096;
	uintptr_t to = ((uintptr_t)ptr + bytes + 4095) / 4096 * 4096;

	TN_ASSERT(mprotect((void *)from, to - from, on ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

void *fake_cuda_of_dma_buf(int fd)
{
	struct stat st;
	void *found = NULL;

	if (fstat(fd, &st) != 0)
		return NULL;
	pthread_mutex_lock(&f.lock);
	for (int i = 0; i < BLOCKS_MAX; i++) {
		if (f.blocks[i].gpu && f.blocks[i].inode == st.st_ino)
			found = f.blocks[i].gpu;
	}
	pthread_mutex_unlock(&f.lock);
	return found;
}

cu_stream fake_cuda_stream(void)
{
	stream *s;

	pthread_mutex_lock(&f.lock);
	s = stream_make(true);
	pthread_mutex_unlock(&f.lock);
	TN_ASSERT(s != NULL);
	return s;
}

void fake_cuda_stream_hold(cu_stream handle, bool on)
{
	stream *s = handle;

	pthread_mutex_lock(&f.lock);
	s->held = on;
	stream_run(s);
	pthread_mutex_unlock(&f.lock);
}

cu_event fake_cuda_event(void)
{
	event *e = NULL;

	pthread_mutex_lock(&f.lock);
	for (int i = 0; i < THINGS_MAX && !e; i++)
		e = f.events[i].used ? NULL : &f.events[i];
	TN_ASSERT(e != NULL);
	*e = (event){.used = true};
	pthread_mutex_unlock(&f.lock);
	return e;
}

void fake_cuda_event_comes(cu_event handle)
{
	event *e = handle;

	pthread_mutex_lock(&f.lock);
	e->came = true;
	for (int i = 0; i < THINGS_MAX; i++) {
		if (f.streams[i].used)
			stream_run(&f.streams[i]);
	}
	pthread_mutex_unlock(&f.lock);
}
