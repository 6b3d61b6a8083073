/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of verbs share: two devices over the fake NIC, one lane between them, and a count of the
 * events of each side. No assertion is about time; loops end when their condition holds or ctest's limit.
 */
#ifndef TN_TESTS_VERBS_TEST_H
#define TN_TESTS_VERBS_TEST_H

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/options.h"
#include "cmocka_all.h"
#include "fake_ibverbs/fake.h"
#include "transport/verbs/verbs.h"

#define DONE_MAX 4096

typedef struct side {
	tern_mem *mem;
	tn_dev *dev;
	tn_blob addr;
	tn_lane *lane;
	tn_blob lane_addr;
	uint32_t ups, downs, recvs, imms, dones, devices;
	tern_status down_status, device_status;
	struct {
		uint64_t cookie;
		tern_status status;
	} done[DONE_MAX];
	bool hold;     /* keep receive buffers */
	bool borrowed; /* the memory belongs to another side */
	bool bulk;     /* of the lane to be made */
} side;

/* mem: of another side, which is to outlive this one; NULL: its own. */
static inline tern_status side_open_with(side *s, tern_mem *mem, const char *const *pairs)
{
	tn_mem_params mem_params = {.reserve_bytes = 1ull << 30};
	tn_dev_params params = {0};
	tn_options *options = NULL;
	tern_status status;

	memset(s, 0, sizeof(*s));
	assert_ok(tn_options_load(pairs, &options));
	s->borrowed = mem != NULL;
	s->mem = mem;
	if (!mem)
		assert_ok(tn_mem_create(&mem_params, &s->mem));
	params.mem = s->mem;
	params.options = options;
	status = tn_provider_verbs.open(&params, &s->dev);
	tn_options_free(options);
	if (status != TERN_OK) {
		assert_null(s->dev);
		if (!s->borrowed)
			tn_mem_destroy(s->mem);
		s->mem = NULL;
		return status;
	}
	s->dev->ops->address(s->dev, &s->addr);
	return TERN_OK;
}

static inline tern_status side_open(side *s, const char *const *pairs)
{
	return side_open_with(s, NULL, pairs);
}

static inline tn_vb_dev *vb(const side *s)
{
	return (tn_vb_dev *)s->dev;
}

static inline int side_poll(side *s)
{
	tn_event events[8];
	int n = s->dev ? tn_dev_poll(s->dev, events, 8) : 0;

	for (int i = 0; i < n; i++) {
		const tn_event *e = &events[i];

		s->ups += e->type == TN_EV_LANE_UP;
		s->recvs += e->type == TN_EV_RECV;
		s->imms += e->type == TN_EV_IMM;
		if ((e->type == TN_EV_RECV || e->type == TN_EV_IMM) && !s->hold)
			s->dev->ops->recv_done(s->dev, e);
		if (e->type == TN_EV_LANE_DOWN) {
			s->downs++;
			s->down_status = e->status;
		}
		if (e->type == TN_EV_DEVICE) {
			s->devices++;
			s->device_status = e->status;
		}
		if (e->type == TN_EV_DONE) {
			s->done[s->dones % DONE_MAX].cookie = e->cookie;
			s->done[s->dones++ % DONE_MAX].status = e->status;
		}
	}
	return n;
}

static inline void pump(side *a, side *b)
{
	if (side_poll(a) + (b ? side_poll(b) : 0) == 0)
		usleep(100);
}

#define UNTIL(a, b, cond)           \
	do {                        \
		while (!(cond))     \
			pump(a, b); \
	} while (0)

/* Make both ends; the statuses of lane_create are the caller's to judge. */
static inline tern_status lane_make(side *s, bool active)
{
	tn_lane_params params = {.arg = s, .active = active, .bulk = s->bulk, .token = {1, 2, 3}};

	return s->dev->ops->lane_create(s->dev, &params, &s->lane, &s->lane_addr);
}

static inline void lane_up(side *a, side *b)
{
	assert_ok(lane_make(a, true));
	assert_ok(lane_make(b, false));
	a->ups = a->downs = b->ups = b->downs = 0;
	assert_ok(b->dev->ops->lane_connect(b->lane, &a->addr, &a->lane_addr));
	assert_ok(a->dev->ops->lane_connect(a->lane, &b->addr, &b->lane_addr));
	UNTIL(a, b, (a->ups && b->ups) || a->downs || b->downs);
	assert_int_equal(a->downs + b->downs, 0);
}

static inline void lane_free(side *s, side *other)
{
	if (!s->lane)
		return;
	s->dev->ops->lane_close(s->lane);
	UNTIL(s, other, s->dev->ops->lane_drained(s->lane));
	s->dev->ops->lane_destroy(s->lane);
	s->lane = NULL;
}

static inline void side_close(side *s, side *other)
{
	if (!s->dev)
		return;
	lane_free(s, other);
	s->dev->ops->close(s->dev);
	s->dev = NULL;
	if (!s->borrowed)
		tn_mem_destroy(s->mem);
}

static inline void pair_open(side *a, side *b, const char *const *pairs)
{
	assert_ok(side_open(a, pairs));
	assert_ok(side_open(b, pairs));
	lane_up(a, b);
}

/* Nothing of the NIC is left, and it saw no fault. */
static inline void nothing_left(void)
{
	fake_counts c = fake_counts_get();

	assert_string_equal(fake_fault_text(), "");
	assert_int_equal(c.faults, 0);
	assert_int_equal(c.qps + c.cqs + c.srqs + c.mrs + c.pds + c.channels + c.contexts + c.unacked, 0);
}

static inline void pair_close(side *a, side *b)
{
	if (a->lane && b->lane) { /* both say goodbye before either waits */
		a->dev->ops->lane_close(a->lane);
		b->dev->ops->lane_close(b->lane);
	}
	lane_free(a, b);
	lane_free(b, a);
	side_close(a, NULL);
	side_close(b, NULL);
	nothing_left();
}

typedef struct region {
	uint8_t *ptr;
	tn_key key;
} region;

static inline region region_make(side *s, uint64_t bytes, uint32_t access)
{
	region r = {0};
	tern_key wire;
	void *ptr;

	assert_ok(tern_mem_alloc(s->mem, bytes, 0, access, TERN_MEM_HOST, &ptr));
	r.ptr = ptr;
	if (access) {
		assert_ok(tern_mem_export(s->mem, ptr, bytes, access, &wire));
		assert_true(tn_key_decode(&wire, &r.key));
	}
	return r;
}

static inline tern_status send_bytes(side *s, const void *ptr, uint64_t bytes, uint64_t cookie, bool *done)
{
	tn_iov iov = {.base = ptr, .bytes = bytes};

	return tn_lane_send(s->lane, &iov, 1, cookie, done);
}

/* Counters by name, so that tests don't look into the device. */
typedef struct counter_look {
	const char *name;
	uint64_t value;
} counter_look;

static inline void counter_seen(const char *name, uint64_t value, void *arg)
{
	counter_look *look = arg;

	if (strcmp(name, look->name) == 0)
		look->value = value;
}

static inline uint64_t counter(const side *s, const char *name)
{
	counter_look look = {.name = name};

	s->dev->ops->counters(s->dev, counter_seen, &look);
	return look.value;
}

static inline tn_dev_caps caps_of(const side *s)
{
	tn_dev_caps caps;

	s->dev->ops->caps(s->dev, &caps);
	return caps;
}

/* Every buffer of the device is where it belongs: none leaked. No lane is up. */
static inline void assert_all_home(const side *s)
{
	const tn_vb_dev *dev = vb(s);

	assert_int_equal(dev->bounce_left, dev->bounce_count);
	for (uint32_t i = 0; i < dev->recv_slots + TN_VB_RECV_RESERVE; i++)
		assert_true(dev->rails[0].bufs[i].posted);
}

static inline uint32_t qpn_of(const side *s)
{
	return ((const tn_vb_lane *)s->lane)->own.qpn;
}

/* Both ends end, whatever state they are in, and come up again. */
static inline void lane_again(side *a, side *b)
{
	lane_free(a, b);
	lane_free(b, a);
	a->dev->ops->address(a->dev, &a->addr);
	b->dev->ops->address(b->dev, &b->addr);
	lane_up(a, b);
}

static inline int install(void **state)
{
	(void)state;
	tn_log_set_level(TN_LOG_C_VERBS, TN_LOG_NONE);
	fake_install();
	return 0;
}

#endif
