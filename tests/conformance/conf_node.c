/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of the conformance suite: opening and closing, the ledger that judges completions, the filing of
 * events by the rules of transport.h. conf.h has the nouns.
 */
#include "conf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

#define POLL_MAX 16

static _Atomic uint32_t next_salt = 0xc0de;

conf_node *conf_node_open(const char *name)
{
	conf_node *node = calloc(1, sizeof(*node));
	const tn_mem_params mem = {0};
	tn_dev_params params = {.seed = conf->seed, .options = conf_options};
	const tn_provider *provider = tn_provider_find(conf->provider);

	assert_non_null(node);
	assert_non_null(provider);
	node->name = name;
	node->poll_max = POLL_MAX;
	node->ops = calloc(CONF_OPS_MAX, sizeof(*node->ops));
	assert_non_null(node->ops);
	node->ops_salt = atomic_fetch_add(&next_salt, 1);
	CONF_OK(tn_mem_create(&mem, &node->mem));
	params.mem = node->mem;
	CONF_OK(provider->open(&params, &node->dev));
	assert_non_null(node->dev);
	assert_ptr_equal(node->dev->provider, provider);
	assert_ptr_equal(node->dev->mem, node->mem);
	node->dev->ops->caps(node->dev, &node->caps);
	node->dev->ops->address(node->dev, &node->addr);
	return node;
}

void conf_node_close(conf_node *node)
{
	conf_pair alone = {.a = node, .rand = {1}};

	for (unsigned i = 0; i < CONF_ENDS_MAX; i++) {
		if (node->ends[i])
			conf_end_close(node->ends[i]);
	}
	for (unsigned i = 0; i < CONF_ENDS_MAX; i++) {
		if (node->ends[i])
			conf_end_destroy(&alone, node->ends[i]);
	}
	conf_ledger_settle(node);
	CONF_CHECK(conf_node_poll(node) == 0, "events after the last lane was destroyed");
	node->dev->ops->close(node->dev);
	tn_mem_destroy(node->mem);
	free(node->ops);
	free(node);
}

/* ---- the ledger ---- */

bool conf_ledger_done(conf_node *node)
{
	uint32_t used = atomic_load(&node->ops_used);

	for (uint32_t i = 0; i < used; i++) {
		if (atomic_load(&node->ops[i].accepted) && atomic_load(&node->ops[i].completions) == 0)
			return false;
	}
	return true;
}

void conf_ledger_settle(conf_node *node)
{
	uint32_t used = atomic_load(&node->ops_used);

	for (uint32_t i = 0; i < used; i++) {
		const conf_op *op = &node->ops[i];

		CONF_CHECK(op->completions == op->accepted, "op %u of %s: accepted %u, completed %u times", i,
			   node->name, op->accepted, op->completions);
	}
	memset(node->ops, 0, used * sizeof(*node->ops));
	atomic_store(&node->ops_used, 0);
	node->ops_salt =
		atomic_fetch_add(&next_salt, 1); /* a completion of an old op is a stranger from now on */
}

static void file_done(conf_node *node, const tn_event *event)
{
	uint32_t i = (uint32_t)event->cookie;
	conf_op *op;

	CONF_CHECK((uint32_t)(event->cookie >> 32) == node->ops_salt && i < atomic_load(&node->ops_used),
		   "a completion with cookie %llx, which %s never posted", (unsigned long long)event->cookie,
		   node->name);
	if ((uint32_t)(event->cookie >> 32) != node->ops_salt || i >= CONF_OPS_MAX)
		return;
	op = &node->ops[i];
	atomic_store(&op->status, (int)event->status);
	CONF_CHECK(atomic_fetch_add(&op->completions, 1) == 0, "op %u of %s completed twice", i, node->name);
	CONF_CHECK(event->status <= 0, "a completion with status %s", tern_status_name(event->status));
}

/* ---- events ---- */

static conf_end *end_of(conf_node *node, const tn_event *event)
{
	conf_end *end = event->lane_arg;

	for (unsigned i = 0; i < CONF_ENDS_MAX; i++) {
		if (node->ends[i] && node->ends[i] == end) {
			CONF_CHECK(end->lane == event->lane,
				   "lane and lane_arg of event %d do not belong together", (int)event->type);
			return end;
		}
	}
	CONF_CHECK(false, "event %d for a lane that %s does not have", (int)event->type, node->name);
	return NULL;
}

static void file_received(conf_node *node, const conf_end *end, const tn_event *event)
{
	CONF_CHECK(end->up, "a message or an immediate before LANE_UP");
	CONF_CHECK(!end->down && !end->closed, "a message or an immediate after LANE_DOWN or lane_close");
	if (event->type == TN_EV_RECV) {
		CONF_CHECK(event->bytes <= node->caps.send_bytes_max, "a message of %llu bytes",
			   (unsigned long long)event->bytes);
		CONF_CHECK(event->bytes == 0 || event->buf, "a message without its bytes");
	}
	CONF_CHECK(node->inbox_tail - node->inbox_head < CONF_INBOX_MAX, "the inbox is full");
	node->inbox[node->inbox_tail++ % CONF_INBOX_MAX] = *event;
}

static void file_event(conf_node *node, const tn_event *event)
{
	conf_end *end;

	if (event->type == TN_EV_DEVICE)
		return;
	end = end_of(node, event);
	if (!end)
		return;
	switch (event->type) {
	case TN_EV_DONE:
		file_done(node, event);
		break;
	case TN_EV_RECV:
	case TN_EV_IMM:
		file_received(node, end, event);
		break;
	case TN_EV_LANE_UP:
		CONF_CHECK(!end->up && !end->down && !end->closed, "LANE_UP twice, or after the end");
		end->up = true;
		break;
	case TN_EV_LANE_DOWN:
		CONF_CHECK(!end->down && !end->closed, "LANE_DOWN twice, or after lane_close");
		CONF_CHECK(event->status < 0, "LANE_DOWN with status %s", tern_status_name(event->status));
		end->down = true;
		end->down_status = event->status;
		break;
	default:
		CONF_CHECK(false, "poll returned an event of type %d", (int)event->type);
	}
}

int conf_node_poll(conf_node *node)
{
	tn_event events[POLL_MAX];
	int n;

	memset(events, 0xa5, sizeof(events));
	n = tn_dev_poll(node->dev, events, node->poll_max);
	CONF_CHECK(n >= 0 && n <= node->poll_max, "poll returned %d", n);
	for (int i = 0; i < n; i++)
		file_event(node, &events[i]);
	return n;
}

/* ---- pairs ---- */

void conf_pair_open(conf_pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	pair->rand.state = 42;
	pair->a = conf_node_open("a");
	pair->b = conf_node_open("b");
}

void conf_pair_close(conf_pair *pair)
{
	if (pair->a)
		conf_node_close(pair->a);
	if (pair->b)
		conf_node_close(pair->b);
	pair->a = pair->b = NULL;
}

int conf_pump(conf_pair *pair)
{
	const struct timespec rest = {.tv_nsec = 50000};
	int n = pair->a ? conf_node_poll(pair->a) : 0;

	if (pair->b)
		n += conf_node_poll(pair->b);
	pair->idle = n > 0 ? 0 : pair->idle + 1;
	if (pair->idle > 200)
		(void)nanosleep(&rest, NULL);
	return n;
}

void conf_pump_n(conf_pair *pair, unsigned n)
{
	while (n-- > 0)
		(void)conf_pump(pair);
}

/* ---- what was received ---- */

const tn_event *conf_inbox_peek(conf_node *node)
{
	return node->inbox_head == node->inbox_tail ? NULL : &node->inbox[node->inbox_head % CONF_INBOX_MAX];
}

bool conf_inbox_take(conf_node *node, tn_event *event)
{
	const tn_event *first = conf_inbox_peek(node);

	if (!first)
		return false;
	*event = *first;
	node->inbox_head++;
	return true;
}

tn_event conf_inbox_wait(conf_pair *pair, conf_node *node)
{
	tn_event event = {0};

	CONF_UNTIL(pair, conf_inbox_peek(node));
	(void)conf_inbox_take(node, &event);
	return event;
}

void conf_recv_done(conf_node *node, const tn_event *event)
{
	node->dev->ops->recv_done(node->dev, event);
}

/* ---- the rest ---- */

unsigned conf_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n;
}

struct find_counter {
	const char *name;
	uint64_t value;
	bool found;
};

static void find_counter(const char *name, uint64_t value, void *arg)
{
	struct find_counter *find = arg;

	if (strcmp(name, find->name) != 0)
		return;
	find->value = value;
	find->found = true;
}

uint64_t conf_counter(conf_node *node, const char *name, bool *found)
{
	char full[64];
	struct find_counter find = {.name = full};

	(void)snprintf(full, sizeof(full), "%s.%s", conf->provider, name);
	node->dev->ops->counters(node->dev, find_counter, &find);
	if (found)
		*found = find.found;
	return find.value;
}
