/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer without peers: every receive finds the same preset tensor at once, every send is taken and
 * forgotten. A step over it costs what the step costs without communication, so that the exposed
 * communication time of a real one is the difference.
 *
 * Thread story: one thread. Tests: tests/unit/graph/xfer_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/xfer.h"

typedef struct stub_xfer stub_xfer;

typedef struct stub_end {
	tn_xfer_end base;
	uint64_t bytes;
	void *data; /* receives */
	uint32_t whole;
	void *owned; /* data, or the memory of the whole if this end was the first of its parts */
	struct stub_end *next;
} stub_end;

struct stub_xfer {
	tn_xfer base;
	tn_stub_fill fill;
	void *arg;
	stub_end *ends;
	tn_xfer_counters counters;
};

static tern_status stub_alloc(tn_xfer *xfer, uint64_t bytes, void **ptr)
{
	uint64_t rounded = (TN_MAX(bytes, 1) + 63) / 64 * 64;

	(void)xfer;
	*ptr = aligned_alloc(64, rounded);
	if (!*ptr)
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " bytes", bytes);
	memset(*ptr, 0, rounded);
	return TERN_OK;
}

static void stub_free(tn_xfer *xfer, void *ptr)
{
	(void)xfer;
	free(ptr);
}

/* Numbers of the size of gradients: zeros and denormals would make kernels faster or slower than they are. */
void tn_stub_fill_small(const tn_edge_desc *desc, void *data, void *arg)
{
	float *f = data;
	uint32_t x = 1;

	(void)arg;
	if (desc->dtype != TERN_F32)
		return;
	for (uint64_t i = 0; i < desc->bytes / sizeof(*f); i++) {
		x = x * 1664525u + 1013904223u;
		f[i] = ((float)(x >> 8) * 0x1p-24f - 0.5f) * 1e-3f;
	}
}

/* An end of its own memory, or the first or a further part of a whole. */
static tern_status stub_memory(stub_xfer *x, const tn_edge_desc *desc, stub_end *end)
{
	end->whole = desc->whole_bytes ? desc->whole : UINT32_MAX;
	if (!desc->whole_bytes) {
		TN_TRY(stub_alloc(&x->base, desc->bytes, &end->owned));
		end->data = end->owned;
		return TERN_OK;
	}
	for (stub_end *e = x->ends; e; e = e->next) {
		if (e->whole == desc->whole && e->owned) {
			end->data = (char *)e->owned + desc->whole_offset;
			return TERN_OK;
		}
	}
	TN_TRY(stub_alloc(&x->base, desc->whole_bytes, &end->owned));
	end->data = (char *)end->owned + desc->whole_offset;
	return TERN_OK;
}

static tern_status stub_open(stub_xfer *x, const tn_edge_desc *desc, bool receive, tn_xfer_end **end)
{
	stub_end *e = calloc(1, sizeof(*e));
	tern_status st = TERN_OK;

	if (!e)
		return tn_fail(TERN_E_NOMEM, "no memory for an end");
	e->base.xfer = &x->base;
	e->bytes = desc->bytes;
	if (receive)
		st = stub_memory(x, desc, e);
	if (st != TERN_OK) {
		free(e);
		return st;
	}
	if (receive && x->fill)
		x->fill(desc, e->data, x->arg);
	else if (receive)
		tn_stub_fill_small(desc, e->data, NULL);
	e->next = x->ends;
	x->ends = e;
	*end = &e->base;
	return TERN_OK;
}

static tern_status stub_send_open(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return stub_open((stub_xfer *)xfer, desc, false, end);
}

static tern_status stub_recv_open(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return stub_open((stub_xfer *)xfer, desc, true, end);
}

static tern_status stub_start(tn_xfer *xfer, uint64_t deadline_ns)
{
	(void)xfer;
	(void)deadline_ns;
	return TERN_OK;
}

static tern_status stub_send_post(tn_xfer_end *end, const void *data, uint64_t bytes, uint64_t step)
{
	stub_xfer *x = (stub_xfer *)end->xfer;

	(void)data;
	(void)step;
	x->counters.sends++;
	x->counters.bytes_sent += bytes;
	return TERN_OK;
}

static tern_status stub_send_test(tn_xfer_end *end)
{
	(void)end;
	return TERN_OK;
}

static tern_status stub_recv_poll(tn_xfer_end *end, const void **data)
{
	stub_xfer *x = (stub_xfer *)end->xfer;

	*data = ((stub_end *)end)->data;
	x->counters.recvs++;
	x->counters.bytes_received += ((stub_end *)end)->bytes;
	return TERN_OK;
}

static tern_status stub_recv_release(tn_xfer_end *end)
{
	(void)end;
	return TERN_OK;
}

static tern_status stub_wait(tn_xfer *xfer, uint64_t deadline_ns)
{
	(void)xfer;
	(void)deadline_ns;
	return TERN_OK;
}

static void stub_wake(tn_xfer *xfer)
{
	(void)xfer;
}

static void stub_counters(const tn_xfer *xfer, tn_xfer_counters *counters)
{
	*counters = ((const stub_xfer *)xfer)->counters;
}

static void stub_close(tn_xfer *xfer)
{
	stub_xfer *x = (stub_xfer *)xfer;

	if (!x)
		return;
	while (x->ends) {
		stub_end *e = x->ends;

		x->ends = e->next;
		free(e->owned);
		free(e);
	}
	free(x);
}

static const tn_xfer_ops stub_ops = {
	.name = "stub",
	.send_open = stub_send_open,
	.recv_open = stub_recv_open,
	.alloc = stub_alloc,
	.free = stub_free,
	.start = stub_start,
	.send_post = stub_send_post,
	.send_test = stub_send_test,
	.recv_poll = stub_recv_poll,
	.recv_release = stub_recv_release,
	.wait = stub_wait,
	.wake = stub_wake,
	.counters = stub_counters,
	.close = stub_close,
};

tern_status tn_stub_open(tn_stub_fill fill, void *arg, tn_xfer **xfer)
{
	stub_xfer *x = calloc(1, sizeof(*x));

	if (!x)
		return tn_fail(TERN_E_NOMEM, "no memory for a transfer");
	x->base.ops = &stub_ops;
	x->fill = fill;
	x->arg = arg;
	*xfer = &x->base;
	return TERN_OK;
}
