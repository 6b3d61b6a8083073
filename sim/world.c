/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world from its beginning to its end. See world.h.
 *
 *   nodes start -> load and faults -> no fault begins any more -> everything gets done (or "progress" fails) ->
 *   a while of silence -> nodes end, some in good order, some not -> nothing may be left
 *
 * Threads: none. Tests: sim-smoke, sim-same.
 */
#include "sim/world.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/os.h"
#include "link/share.h"
#include "mem/os_mem.h"
#include "rpc/rpc.h"
#include "sim/alloc.h"
#include "sim/check.h"
#include "sim/device.h"
#include "sim/fault.h"
#include "sim/load.h"
#include "tensor/tensor.h"

#define PROGRESS_NS       (30 * TN_NS_PER_SEC) /* after the last fault everything ends within this */
#define SILENCE_NS        (30 * TN_NS_PER_MS)
#define OPTIONS_MAX       48
#define WAIT_PAUSE_MAX_NS TN_NS_PER_MS

static sim_world *current;

void sim_trace_line(sim_world *world, const char *fmt, ...)
{
	uint64_t ns = world->events.now - SIM_START_NS;
	va_list args;

	printf("%5llu.%06llu ", (unsigned long long)(ns / TN_NS_PER_MS),
	       (unsigned long long)(ns % TN_NS_PER_MS));
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
}

/* ---- time ---- */

static uint64_t clock_now(const tn_clock *clock)
{
	return sim_node_now(((const sim_clock *)clock)->node);
}

uint64_t sim_node_now(const sim_node *node)
{
	return node->world->events.now + node->skew;
}

static void on_run(void *arg, uint64_t value);

static void run_at(sim_node *node, uint64_t at)
{
	sim_events *events = &node->world->events;

	at = TN_MAX(at, node->frozen_until);
	if (at == TN_TIME_NEVER || (node->run_event && node->run_at <= at))
		return;
	sim_cancel(events, node->run_event);
	node->run_at = at;
	node->run_event = sim_at(events, at, on_run, node, 0);
}

void sim_poke(sim_node *node)
{
	if (node->ctx && !node->dying)
		run_at(node,
		       node->world->events.now + node->slow_ns + sim_between(&node->world->net, 100, 1500));
}

static void on_run(void *arg, uint64_t value)
{
	sim_node *node = arg;
	sim_world *world = node->world;
	uint64_t wake;

	(void)value;
	node->run_event = 0;
	if (!node->ctx || node->dying || node->in_run)
		return;
	if (node->frozen_until > world->events.now) {
		run_at(node, node->frozen_until);
		return;
	}
	node->in_run = true;
	wake = tn_ctx_run(node->ctx);
	if (sim_load_run(node))
		wake = 0;
	sim_streams_pump(node);
	node->in_run = false;
	if (wake == TN_TIME_NEVER)
		return;
	wake = wake > node->skew ? wake - node->skew : 0;
	run_at(node, TN_MAX(wake, world->events.now + TN_NS_PER_US));
}

/* ---- waiting calls of contexts ---- */

/* It dies: its own time goes on, nobody else's. */
static void turn_alone(sim_node *node, uint64_t until_ns)
{
	uint64_t now = sim_node_now(node), wake = TN_MIN(tn_ctx_run(node->ctx), until_ns);

	if (wake > now && wake != TN_TIME_NEVER)
		node->skew += wake - now;
}

/*
 * What the caller did before it waited wants a run soon. Later ones come with what happens; a few more lest a node
 * forgets to ask for one.
 */
static void poke_waiting(sim_node *node, uint64_t until_ns)
{
	if (node->wait_until != until_ns)
		node->wait_pause_ns = TN_NS_PER_US;
	node->wait_until = until_ns;
	run_at(node, node->world->events.now + node->slow_ns + node->wait_pause_ns);
	node->wait_pause_ns = TN_MIN(2 * node->wait_pause_ns, WAIT_PAUSE_MAX_NS);
}

static void turn(void *arg, uint64_t until_ns)
{
	sim_node *node = arg;
	sim_world *world = node->world;

	if (node->dying) {
		turn_alone(node, until_ns);
	} else if (world->result->failed) {
		node->skew += TN_NS_PER_SEC; /* nobody cares any more: waits end */
	} else {
		poke_waiting(node, until_ns);
		sim_step(&world->events, until_ns == TN_TIME_NEVER ? until_ns : until_ns - node->skew);
	}
}

static void wrote(void *arg)
{
	((sim_node *)arg)->wrote = true;
}

static int dial(void *arg, const char *address)
{
	return sim_stream_dial(arg, address);
}

/* ---- nodes ---- */

__attribute__((format(printf, 3, 0))) static void add_option(char texts[OPTIONS_MAX][64], unsigned *n,
							     const char *fmt, uint64_t value)
{
	snprintf(texts[(*n)++], sizeof(texts[0]), fmt, (unsigned long long)value);
	TN_ASSERT(*n < OPTIONS_MAX);
}

/* How bulk is held back, and how a link that broke comes back. */
static void draw_flow(tn_rand *r, char texts[OPTIONS_MAX][64], unsigned *n)
{
	static const char *const grants[] = {"link.grants=auto", "link.grants=on", "link.grants=off"};

	snprintf(texts[(*n)++], sizeof(texts[0]), "%s", grants[tn_rand_below(r, TN_COUNT_OF(grants))]);
	add_option(texts, n, "link.grant_bytes=%llu", 65536ull << sim_between(r, 0, 3));
	add_option(texts, n, "link.grant_unit=%llu", 16384ull << sim_between(r, 0, 1));
	add_option(texts, n, "link.device_bytes=%llu", 65536ull << sim_between(r, 0, 6));
	if (sim_chance(r, 30))
		snprintf(texts[(*n)++], sizeof(texts[0]), "link.window=adaptive");
	add_option(texts, n, "link.window_min_bytes=%llu", 4096ull << sim_between(r, 0, 4));
	add_option(texts, n, "link.window_target=%lluus", sim_between(r, 5, 500));
	if (sim_chance(r, 25))
		snprintf(texts[(*n)++], sizeof(texts[0]), "link.checksum=messages");
	add_option(texts, n, "link.redial=%llums", sim_between(r, 0, 500));
	add_option(texts, n, "link.probe=%llums", sim_between(r, 5, 500));
	add_option(texts, n, "link.lane_idle=%lluus", sim_chance(r, 60) ? sim_between(r, 200, 20000) : 0);
}

/* Of a stream of its own: what is drawn of the plan otherwise stays what it was. */
static void draw_quota(uint64_t seed, char texts[OPTIONS_MAX][64], unsigned *n)
{
	tn_rand rand = {.state = seed * 0xd1342543de82ef95ull + 19}, *r = &rand;

	add_option(texts, n, "link.device_lanes=%llu", sim_chance(r, 40) ? sim_between(r, 1, 4) : 0);
	add_option(texts, n, "link.lane_rest=%lluus", sim_between(r, 50, 5000));
}

/* The same for all nodes of a world, drawn from its plan. */
static void draw_options(sim_world *world, char texts[OPTIONS_MAX][64])
{
	/* No threads, no choice by the machine. */
	static const char *const fixed[] = {"mem.reserve=1GiB", "mem.grow_ahead=off", "mem.huge_pages=off",
					    "mem.numa=off"};
	tn_rand rand = {world->options.seed * 77 + 5}, *r = &rand;
	unsigned n = 0;

	add_option(texts, &n, "link.keepalive=%llums", sim_between(r, 10, 100));
	add_option(texts, &n, "link.keepalive_misses=%llu", sim_between(r, 2, 5));
	add_option(texts, &n, "link.recover=%llums", sim_between(r, 100, 2000));
	add_option(texts, &n, "link.verdict=%llums", sim_between(r, 1, 30));
	add_option(texts, &n, "link.step_timeout=%llums", sim_between(r, 50, 500));
	add_option(texts, &n, "link.lane_timeout=%llums", sim_between(r, 20, 200));
	add_option(texts, &n, "link.close_timeout=%llums", sim_between(r, 5, 100));
	add_option(texts, &n, "link.connect_timeout=%llums", sim_between(r, 500, 2000));
	add_option(texts, &n, "link.window_bytes=%llu", 65536ull << sim_between(r, 0, 5));
	add_option(texts, &n, "link.chunk_bytes=%llu", 4096ull << sim_between(r, 0, 4));
	add_option(texts, &n, "link.small_bytes=%llu", 256ull << sim_between(r, 0, 6));
	add_option(texts, &n, "link.data_lanes=%llu", sim_between(r, 0, 3));
	add_option(texts, &n, "link.channels_max=%llu", sim_between(r, 24, 64));
	add_option(texts, &n, "link.ops_max=%llu", sim_between(r, 32, 256));
	add_option(texts, &n, "link.wrs_max=%llu", sim_between(r, 32, 256));
	add_option(texts, &n, "channel.inbox_bytes=%llu", 4096ull << sim_between(r, 0, 6));
	add_option(texts, &n, "channel.stage_bytes=%llu", 65536ull << sim_between(r, 0, 3));
	add_option(texts, &n, "rpc.timeout=%llums", sim_between(r, 200, 2000));
	add_option(texts, &n, "link.grant_bytes=%llu", 65536ull << sim_between(r, 0, 3));
	add_option(texts, &n, "link.grant_unit=%llu", TN_GRANT_UNIT_MIN << sim_between(r, 0, 2));
	snprintf(texts[n++], sizeof(texts[0]), "link.window=%s", sim_chance(r, 30) ? "adaptive" : "fixed");
	add_option(texts, &n, "rpc.serve_grace=%llums", sim_between(r, 0, 50));
	draw_flow(r, texts, &n);
	draw_quota(world->options.seed, texts, &n);
	for (unsigned i = 0; i < TN_COUNT_OF(fixed); i++)
		snprintf(texts[n++], sizeof(texts[0]), "%s", fixed[i]);
}

static void set_name(sim_node *node)
{
	snprintf(node->name, sizeof(node->name), "n%u", node->index);
	snprintf(node->address, sizeof(node->address), "127.0.0.1:%u", 41000 + node->index);
}

void sim_node_start(sim_node *node)
{
	sim_world *world = node->world;
	char texts[OPTIONS_MAX][64] = {{0}};
	const char *options[OPTIONS_MAX + 1] = {0};
	tern_ctx_params params = {.flags = TERN_CTX_SINGLE_OWNER,
				  .name = node->name,
				  .listen = "none",
				  .transports = "simrc,simip",
				  .options = options};
	tern_status status;

	TN_ASSERT(!node->ctx);
	draw_options(world, texts);
	for (unsigned i = 0; texts[i][0]; i++)
		options[i] = texts[i];
	params.secret = world->options.seed % 4 == 0 ? "a secret of the world" : "";
	node->incarnation++;
	node->dying = false;
	node->hooks = (tn_ctx_hooks){.clock = &node->clock.clock,
				     .providers = sim_providers,
				     .dial = dial,
				     .wrote = wrote,
				     .turn = turn,
				     .arg = node};
	sim_devices_open_for(node);
	status = tn_ctx_new_with(&params, &node->hooks, &node->ctx);
	SIM_TRACE(world, node->index, status, "%s starts: %s", node->name, tern_status_name(status));
	if (status != TERN_OK) {
		sim_violation(world, "assert", "a context cannot be made: %s", tern_detail());
		node->ctx = NULL;
		return;
	}
	tn_rpc_server_get(node->ctx);
	tn_tensor_state_get(node->ctx);
	sim_load_serve(node);
	tn_ctx_start(node->ctx);
	sim_load_node_up(node);
	sim_poke(node);
}

static void cover_counter(const char *name, uint64_t value, void *arg)
{
	static const struct {
		const char *name;
		sim_cover what;
	} rows[] = {{"link.recoveries", SIM_COVER_RECOVERY},
		    {"link.resent", SIM_COVER_RESENT},
		    {"link.returns", SIM_COVER_RETURN},
		    {"link.lanes_given_up", SIM_COVER_NARROW},
		    {"link.lanes_made_again", SIM_COVER_WIDE},
		    {"link.lanes_reclaimed", SIM_COVER_RECLAIMED},
		    {"link.slots_frames", SIM_COVER_SLOTS_MORE},
		    {"link.relinquished_frames", SIM_COVER_SLOTS_BACK},
		    {"channel.staged", SIM_COVER_STAGED},
		    {"rpc.duplicates", SIM_COVER_RPC_DUPLICATE}};
	sim_world *world = arg;

	for (size_t i = 0; i < TN_COUNT_OF(rows); i++)
		if (strcmp(name, rows[i].name) == 0)
			world->result->coverage[rows[i].what] += (uint32_t)value;
}

static void destroy(sim_node *node)
{
	sim_world *world = node->world;

	tern_ctx_counters(node->ctx, cover_counter, world);
	tern_ctx_destroy(node->ctx);
	node->ctx = NULL;
	sim_load_node_gone(node);
	sim_cancel(&world->events, node->run_event);
	node->run_event = 0;
	SIM_CHECK(world, "leak", !node->devs[0] && !node->devs[1],
		  "%s did not end in time: its memory was given up", node->name);
	node->devs[0] = node->devs[1] = NULL;
	node->frozen_until = node->slow_ns = 0;
}

void sim_node_kill(sim_node *node)
{
	sim_world *world = node->world;

	TN_ASSERT(node->ctx && !node->inside);
	SIM_TRACE(world, node->index, 1, "%s is killed", node->name);
	node->dying = true;
	sim_streams_cut(node, sim_chance(&world->net, 20));
	for (unsigned i = 0; i < SIM_DEVICES; i++)
		if (node->devs[i])
			sim_dev_cut(node->devs[i]);
	sim_load_node_down(node);
	destroy(node);
}

void sim_node_end(sim_node *node)
{
	TN_ASSERT(node->ctx && !node->inside);
	SIM_TRACE(node->world, node->index, 2, "%s ends", node->name);
	node->inside++;
	node->ending = true;
	sim_load_node_down(node);
	destroy(node);
	node->ending = false;
	node->inside--;
}

/* ---- the run ---- */

static void fill_random(void *buf, uint64_t bytes)
{
	uint8_t *at = buf;

	for (uint64_t i = 0; i < bytes; i++)
		at[i] = (uint8_t)(tn_rand_next(&current->secret) >> 24);
}

static void begin(sim_world *world)
{
	uint64_t seed = world->options.seed;
	tn_rand *gens[] = {&world->plan,  &world->net,    &world->device, &world->work,
			   &world->fault, &world->secret, &world->ctrl};
	tn_rand mix = {seed};

	for (size_t i = 0; i < TN_COUNT_OF(gens); i++)
		gens[i]->state = tn_rand_next(&mix);
	sim_events_init(&world->events);
	world->events.now = SIM_START_NS;
	current = world;
	tn_os_random_from(fill_random);
	tn_os_mem_lazy(true);
	tn_fault_clear();
	world->node_count = (unsigned)sim_between(&world->plan, 2, sim_chance(&world->plan, 30) ? 4 : 2);
	world->delay_ns = sim_between(&world->plan, 500, 5000);
	world->ps_per_byte = sim_between(&world->plan, 80, 1000);
	world->jitter_ns = sim_between(&world->plan, 0, 2000);
	world->quiet_ns = SIM_START_NS + sim_between(&world->plan, 2, 40) * TN_NS_PER_MS;
	if (sim_chance(&world->ctrl, 40))
		world->ctrl_jitter_ns = TN_NS_PER_US << sim_between(&world->ctrl, 4, 12);
	if (sim_chance(&world->ctrl, 30))
		world->ctrl_pieces = 1ull << sim_between(&world->ctrl, 3, 9);
	sim_devices_plan(world);
	for (unsigned i = 0; i < world->node_count; i++) {
		sim_node *node = &world->nodes[i];

		node->world = world;
		node->index = i;
		node->clock = (sim_clock){.clock.now_ns = clock_now, .node = node};
		node->skew = sim_between(&world->plan, 0, 1000000);
		set_name(node);
	}
	sim_load_init(world);
	sim_devices_fit(sim_load_links_max(world));
	sim_faults_plan(world);
	for (unsigned i = 0; i < world->node_count; i++)
		sim_node_start(&world->nodes[i]);
}

static void check_now_and_then(sim_world *world)
{
	if (world->events.taken % 512 != 0)
		return;
	for (unsigned i = 0; i < world->node_count; i++)
		if (!world->nodes[i].in_run)
			sim_check_links(&world->nodes[i]);
}

static void run_until_done(sim_world *world)
{
	uint64_t limit = world->quiet_ns + PROGRESS_NS;

	while (!world->result->failed && !sim_load_done(world)) {
		char left[240];

		if (sim_next(&world->events) <= limit && sim_step(&world->events, limit)) {
			check_now_and_then(world);
			continue;
		}
		sim_load_unfinished(world, left, sizeof(left));
		sim_violation(world, "progress", "not done %llu s after the last fault: %s",
			      (unsigned long long)(PROGRESS_NS / TN_NS_PER_SEC), left);
	}
	limit = world->events.now + SILENCE_NS;
	while (!world->result->failed && sim_step(&world->events, limit))
		check_now_and_then(world);
	if (!world->result->failed)
		sim_check_silence(world);
}

static void finish(sim_world *world)
{
	world->calm = false;
	world->over = true;
	for (unsigned i = 0; i < world->node_count; i++) {
		sim_node *node = &world->nodes[i];

		if (!node->ctx || world->result->failed)
			continue;
		if (sim_chance(&world->plan, 50))
			sim_node_end(node);
		else
			sim_node_kill(node);
	}
	if (!world->result->failed)
		sim_check_leaks(world);
}

/* A run that failed leaves its contexts: they may be in any state. */
static void clean(sim_world *world)
{
	sim_result *r = world->result;

	r->virtual_ns = world->events.now - SIM_START_NS;
	r->events = world->events.taken;
	tn_fault_clear();
	if (r->failed)
		return;
	sim_load_fini(world);
	sim_faults_fini(world);
	sim_streams_free(world);
	while (world->items)
		sim_item_free(world->items);
	free(world->lanes);
	sim_events_fini(&world->events);
}

void sim_run(const sim_options *options, sim_result *result)
{
	sim_world *world = sim_alloc(1, sizeof(*world));
	int fd = dup(STDERR_FILENO), after;

	close(fd);
	*result = (sim_result){.seed = options->seed};
	world->options = *options;
	world->result = result;
	begin(world);
	run_until_done(world);
	finish(world);
	clean(world);
	after = dup(STDERR_FILENO);
	close(after);
	SIM_CHECK(world, "leak", result->failed || fd == after, "descriptors are left: %d, then %d", fd,
		  after);
	tn_os_random_from(NULL);
	if (!result->failed)
		free(world);
}
