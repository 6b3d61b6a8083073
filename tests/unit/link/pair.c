/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of the pair from their start to their end, its decisions, and what is printed when it is broken. See pair.h. */
#include "unit/link/pair.h"

void pair_broken(pair_world *world, const char *what, const char *file, int line)
{
	static char text[1 << 16];

	fprintf(stderr, "%s:%d: %s\nat step %llu, time %llu\n", file, line, what,
		(unsigned long long)world->steps, (unsigned long long)world->now);
	for (int i = 0; i < 2; i++) {
		if (!world->node[i].link)
			continue;
		tn_link_print(world->node[i].link, text, sizeof(text));
		fprintf(stderr, "%s", text);
	}
	fflush(stderr);
	__builtin_trap();
}

uint32_t pair_pick(pair_world *world, uint32_t n)
{
	if (n <= 1)
		return 0;
	if (world->bytes_left > 0) {
		world->bytes_left--;
		return *world->bytes++ % n;
	}
	return (uint32_t)tn_rand_below(&world->rand, n);
}

bool pair_chance(pair_world *world, unsigned percent)
{
	return percent > 0 && pair_pick(world, 100) < percent;
}

static void pair_log(int level, const char *line, void *arg)
{
	pair_node *node = arg;

	if (getenv("PAIR_LOG"))
		fprintf(stderr, "%llu n%d [%d] %s\n", (unsigned long long)node->world->steps, node->side,
			level, line);
}

/* ---- set-up ---- */

void pair_provider(tn_link_provider *p, const char *name, uint32_t caps, uint64_t send_max)
{
	*p = (tn_link_provider){
		.caps = caps,
		.lane_wrs_max = 64,
		.write_bytes_max = 1u << 20,
		.send_bytes_max = send_max,
		.data_lanes = UINT32_MAX,
		.address_bytes = 4,
		.address = "dev",
	};
	snprintf(p->name, sizeof(p->name), "%s", name);
}

/* Each block by itself, and filled: a link must not count on zeroes, and ASan sees what it touches too late. */
static void *store_get(size_t bytes, void *arg)
{
	pair_world *world = arg;
	void *memory;

	if (world->memory_left == 0)
		return NULL;
	world->memory_left -= world->memory_left > 0;
	memory = aligned_alloc(64, bytes);
	PAIR_CHECK(world, memory);
	memset(memory, 0xa5, bytes);
	return memory;
}

static void store_put(void *memory, size_t bytes, void *arg)
{
	(void)arg;
	memset(memory, 0x5a, bytes);
	free(memory);
}

void pair_init(pair_world *world, uint64_t seed)
{
	tn_store_source source = {.get = store_get, .put = store_put, .arg = world, .each = true};

	memset(world, 0, sizeof(*world));
	world->rand.state = seed;
	world->now = 1000000;
	world->check_level = 2;
	world->memory_left = -1;
	for (int i = 0; i < 2; i++) {
		pair_node *node = &world->node[i];

		node->world = world;
		node->side = i;
		tn_link_config_defaults(&node->config);
		tn_link_store_init(&world->store[i], &source, NULL);
		node->config.store = &world->store[i];
		node->config.active = i == 0;
		memset(node->config.incarnation, 0x11 * (i + 1), TN_LINK_ID_BYTES);
		memset(node->config.node, 0x21 + i, TN_LINK_ID_BYTES);
		memset(node->config.nonce, 0x31 + i, TN_LINK_NONCE_BYTES);
		node->config.name = i ? "bob" : "alice";
		node->config.providers = node->providers;
		node->config.provider_count = 1;
		node->config.log = pair_log;
		node->config.log_arg = node;
		pair_provider(&node->providers[0], "mem", PAIR_CAPS, 4096);
		pair_provider(&node->providers[1], "alt", PAIR_CAPS, 2048);
	}
}

static void pair_wake(void *arg)
{
	pair_node *node = arg;

	node->pump_due = true;
}

void pair_start_node(pair_world *world, int side)
{
	pair_node *node = &world->node[side];
	size_t bytes;

	node->config.wake = pair_wake;
	node->config.wake_arg = node;
	for (uint32_t i = 0; i < node->config.provider_count; i++) {
		if (world->budget.cap)
			node->providers[i].budget = &world->budget;
		if (world->arbiter.capacity)
			node->providers[i].arbiter = &world->arbiter;
		node->providers[i].pool = world->pools[side];
		if (world->quota[side].cap)
			node->providers[i].quota = &world->quota[side];
	}
	bytes = tn_link_memory_bytes(&node->config);

	node->memory = aligned_alloc(64, bytes);
	memset(node->memory, 0xa5, bytes); /* the link must not count on zeroes */
	PAIR_CHECK(world,
		   tn_link_init(node->memory, bytes, &node->config, world->now, &node->link) == TERN_OK);
	tn_link_on_ctrl_up(node->link, world->now);
	node->ctrl_up = true;
	node->pump_due = true;
}

void pair_start(pair_world *world)
{
	pair_start_node(world, 0);
	pair_start_node(world, 1);
}

void pair_free_events(pair_end *end)
{
	for (uint32_t i = 0; i < end->event_count; i++)
		free(end->events[i].frame);
	end->event_count = 0;
}

void pair_fini(pair_world *world)
{
	for (uint32_t i = 0; i < world->path_count; i++)
		for (int s = 0; s < 2; s++)
			pair_free_events(&world->paths[i].end[s]);
	for (int i = 0; i < 2; i++) {
		if (world->node[i].link)
			tn_link_fini(world->node[i].link);
		free(world->node[i].memory);
		world->node[i].memory = NULL;
		world->node[i].link = NULL;
		tn_link_store_fini(&world->store[i]);
	}
}
