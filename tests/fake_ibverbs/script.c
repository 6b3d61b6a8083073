/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's scripts: which call fails when, what completions and devices do, what is counted. fake.h has the
 * words.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fake_ibverbs/fake_impl.h"

#define SCRIPTS_MAX 16
#define CALLS_MAX   64

static struct {
	char call[32];
	int left; /* calls until it fails; 0 = unused */
	int err;
} scripts[SCRIPTS_MAX];
static struct {
	char call[32];
	uint64_t count;
} calls[CALLS_MAX];
static char failed[32];

void fake_scripts_reset(void)
{
	memset(scripts, 0, sizeof(scripts));
	memset(calls, 0, sizeof(calls));
	failed[0] = 0;
}

/* ---- calls ---- */

void fake_fault(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(fake.fault, sizeof(fake.fault), fmt, args);
	va_end(args);
	fprintf(stderr, "fake ibverbs: %s\n", fake.fault);
	fake.counts.faults++;
}

static void count_call(const char *call)
{
	for (int i = 0; i < CALLS_MAX; i++) {
		if (calls[i].count && strcmp(calls[i].call, call) != 0)
			continue;
		snprintf(calls[i].call, sizeof(calls[i].call), "%s", call);
		calls[i].count++;
		return;
	}
}

int fake_scripted(const char *call)
{
	int err = 0;

	count_call(call);
	for (int i = 0; i < SCRIPTS_MAX; i++) {
		if (scripts[i].left == 0 ||
		    (strcmp(scripts[i].call, call) != 0 && strcmp(scripts[i].call, "*") != 0))
			continue;
		if (--scripts[i].left == 0)
			err = scripts[i].err;
	}
	if (err) {
		snprintf(failed, sizeof(failed), "%s", call);
		errno = err;
	}
	return err;
}

int fake_call(const struct ibv_context *context, const char *call)
{
	int err = fake_scripted(call);

	if (!err && ((const fake_ctx *)context)->nic->dead)
		err = errno = EIO;
	return err;
}

void fake_fail(const char *call, int nth, int err)
{
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < SCRIPTS_MAX; i++) {
		if (scripts[i].left)
			continue;
		snprintf(scripts[i].call, sizeof(scripts[i].call), "%s", call);
		scripts[i].left = nth;
		scripts[i].err = err;
		break;
	}
	pthread_mutex_unlock(&fake_lock);
}

uint64_t fake_calls(const char *call)
{
	bool all = strcmp(call, "*") == 0;
	uint64_t count = 0;

	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < CALLS_MAX; i++) {
		if (calls[i].count && (all || strcmp(calls[i].call, call) == 0))
			count += calls[i].count;
	}
	pthread_mutex_unlock(&fake_lock);
	return count;
}

const char *fake_failed_call(void)
{
	return failed;
}

/* ---- modes ---- */

#define SETTER(name, type, body)                  \
	void name(type value)                     \
	{                                         \
		pthread_mutex_lock(&fake_lock);   \
		body;                             \
		fake_progress();                  \
		pthread_mutex_unlock(&fake_lock); \
	}
SETTER(fake_scramble, uint64_t, {
	fake.scramble = value != 0;
	fake.rand.state = value;
	fake_cqs_release();
})
SETTER(fake_hold_sends, bool, {
	fake.hold_sends = value;
	fake_cqs_release();
})
SETTER(fake_hold_recvs, bool, {
	fake.hold_recvs = value;
	fake_cqs_release();
})
SETTER(fake_hold_reads, bool, fake.hold_reads = value)
SETTER(fake_keep_stale, bool, fake.keep_stale = value)
SETTER(fake_impatient, bool, fake.impatient = value)
SETTER(fake_never_flush, bool, fake.never_flush = value)
SETTER(fake_no_last_wqe, bool, fake.no_last_wqe = value)
SETTER(fake_cut, bool, fake.cut = value)
#undef SETTER

void fake_set_fork(enum ibv_fork_status status)
{
	pthread_mutex_lock(&fake_lock);
	fake.fork = status;
	pthread_mutex_unlock(&fake_lock);
}

void fake_cut_device(int device, bool on)
{
	pthread_mutex_lock(&fake_lock);
	fake.nics[device].cut = on;
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
}

static void fail_next(uint32_t qpn, enum ibv_wc_status status, bool arrives)
{
	pthread_mutex_lock(&fake_lock);
	TN_LIST_FOREACH(node, &fake.qps) {
		fake_qp *qp = TN_LIST_ENTRY(node, fake_qp, all);

		if (qpn != 0 && qp->ibv.qp_num != qpn)
			continue;
		qp->script = status;
		qp->script_arrives = arrives;
	}
	pthread_mutex_unlock(&fake_lock);
}

void fake_fail_request(uint32_t qpn, enum ibv_wc_status status)
{
	fail_next(qpn, status, false);
}

void fake_fail_arrived(uint32_t qpn, enum ibv_wc_status status)
{
	fail_next(qpn, status, true);
}

/* ---- events, and what changes under way ---- */

/* Lock held. device < 0: all. */
static void raise_event(int device, enum ibv_event_type type, uint8_t port, int n)
{
	struct ibv_async_event event = {.event_type = type, .element.port_num = port};

	TN_LIST_FOREACH(node, &fake.contexts) {
		fake_ctx *ctx = TN_LIST_ENTRY(node, fake_ctx, all);

		if (device >= 0 && ctx->nic != &fake.nics[device])
			continue;
		for (int i = 0; i < n; i++)
			fake_async_push(ctx, &event);
	}
}

void fake_async_port(enum ibv_event_type type, uint8_t port)
{
	pthread_mutex_lock(&fake_lock);
	raise_event(-1, type, port, 1);
	pthread_mutex_unlock(&fake_lock);
}

void fake_async_burst(int device, enum ibv_event_type type, uint8_t port, int n)
{
	pthread_mutex_lock(&fake_lock);
	raise_event(device, type, port, n);
	pthread_mutex_unlock(&fake_lock);
}

void fake_set_port_state(enum ibv_port_state state)
{
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < fake.device_count; i++)
		fake.nics[i].is.state[0] = fake.nics[i].is.state[1] = state;
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
}

void fake_port_turns(int device, uint8_t port, enum ibv_port_state state)
{
	pthread_mutex_lock(&fake_lock);
	fake.nics[device].is.state[port - 1] = state;
	raise_event(device, state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port, 1);
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
}

void fake_set_gid(int device, int index, const char *address, uint32_t type)
{
	fake_nic *nic = &fake.nics[device];

	pthread_mutex_lock(&fake_lock);
	nic->is.gids[index] = (fake_gid){0};
	if (address) {
		snprintf(nic->moved[index], sizeof(nic->moved[index]), "%s", address);
		nic->is.gids[index] = (fake_gid){nic->moved[index], type};
	}
	raise_event(device, IBV_EVENT_GID_CHANGE, 1, 1);
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
}

void fake_set_mtu(int device, enum ibv_mtu mtu)
{
	pthread_mutex_lock(&fake_lock);
	fake.nics[device].is.mtu = mtu;
	pthread_mutex_unlock(&fake_lock);
}

void fake_dies(int device)
{
	fake_nic *nic = &fake.nics[device];

	pthread_mutex_lock(&fake_lock);
	nic->dead = true;
	TN_LIST_FOREACH(node, &fake.qps) {
		fake_qp *qp = TN_LIST_ENTRY(node, fake_qp, all);

		if (qp->ctx->nic == nic)
			fake_qp_error(qp);
	}
	raise_event(device, IBV_EVENT_DEVICE_FATAL, 0, 1);
	fake_progress();
	pthread_mutex_unlock(&fake_lock);
}

/* ---- what it saw ---- */

fake_counts fake_counts_get(void)
{
	fake_counts counts;

	pthread_mutex_lock(&fake_lock);
	counts = fake.counts;
	pthread_mutex_unlock(&fake_lock);
	return counts;
}

const char *fake_fault_text(void)
{
	return fake.fault;
}

bool fake_qp_attr_get(uint32_t qpn, struct ibv_qp_attr *attr)
{
	bool found = false;

	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < fake.device_count && !found; i++) {
		const fake_qp *qp = fake_qp_find(&fake.nics[i], qpn);

		found = qp != NULL;
		if (found)
			*attr = qp->attr;
	}
	pthread_mutex_unlock(&fake_lock);
	return found;
}
