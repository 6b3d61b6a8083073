/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experiments as words: see scale_words.h. Keys are rows of a table.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_words.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

typedef enum word_type { WORD_U32, WORD_U64, WORD_BOOL, WORD_PATTERN, WORD_NAME } word_type;

typedef struct word {
	const char *key;
	word_type type;
	size_t at;
	const char *help;
} word;

#define AT(field) offsetof(scale_config, field)

static const word words[] = {
	{"name", WORD_NAME, AT(name), "of the line that is printed"},
	{"pattern", WORD_PATTERN, AT(pattern), "one: all hosts push to host 0; all: each to each"},
	{"order", WORD_U32, AT(order),
	 "whom a host pushes to first if all do: 0 random, 1 the next one, 2 all the same"},
	{"hosts", WORD_U32, AT(net.hosts), "257"},
	{"leaf_hosts", WORD_U32, AT(net.leaf_hosts), "hosts per leaf switch; 0: one switch"},
	{"spines", WORD_U32, AT(net.spines), "uplinks of a leaf"},
	{"bps", WORD_U64, AT(net.host_bps), "of a host's cable"},
	{"trunk_bps", WORD_U64, AT(net.trunk_bps), "of a cable between switches"},
	{"delay_ns", WORD_U64, AT(net.delay_ns), "of a cable, with NIC or switch"},
	{"unit", WORD_U32, AT(net.unit_bytes), "what the network sends at once: a packet, or a chunk"},
	{"buffer", WORD_U64, AT(net.buffer_bytes), "of a switch; 0: what PFC needs for all ports"},
	{"mark", WORD_U64, AT(net.mark_bytes), "ECN threshold of an output queue; 0: none"},
	{"lossless", WORD_BOOL, AT(net.lossless), "PFC"},
	{"xoff", WORD_U64, AT(net.xoff_bytes), "PFC threshold of an input"},
	{"xon", WORD_U64, AT(net.xon_bytes), "where it goes on"},
	{"rto_ns", WORD_U64, AT(net.rto_ns), "after which a sender notices a loss by itself"},
	{"push", WORD_U64, AT(push_bytes), "bytes of a push"},
	{"pushes", WORD_U32, AT(pushes), "of each pair"},
	{"push_depth", WORD_U32, AT(push_depth), "of them at once"},
	{"fetch", WORD_U64, AT(fetch_bytes), "bytes of a fetch"},
	{"fetch_gap_ns", WORD_U64, AT(fetch_gap_ns), "mean time between two fetches of a pair; 0: none"},
	{"messages", WORD_U32, AT(messages), "of each pair"},
	{"message", WORD_U64, AT(message_bytes), "bytes of a message"},
	{"depth", WORD_U32, AT(depth), "messages at once"},
	{"cpu_ns", WORD_U64, AT(cpu_ns), "of a node for each input of a link"},
	{"rnr_ns", WORD_U64, AT(rnr_ns), "between a refused request and its next try"},
	{"slots0", WORD_U32, AT(lane0_slots), "receive slots of lane 0"},
	{"slots", WORD_U32, AT(lane_slots), "receive slots of another lane"},
	{"pool", WORD_U32, AT(pool_slots),
	 "receive slots of a node that all lanes draw from; 0: each its own"},
	{"grant0", WORD_U32, AT(lane0_grant),
	 "what the peer is told of lane 0: more than slots0 = no credits"},
	{"grant", WORD_U32, AT(lane_grant), "and of another lane"},
	{"sample_ns", WORD_U64, AT(sample_ns),
	 "between two lines of --samples: us, bytes queued, pauses so far"},
	{"idle_ns", WORD_U64, AT(idle_ns),
	 "of silence after the load, before the memory of links is counted"},
	{"keepalive_ns", WORD_U64, AT(link.keepalive_ns),
	 "link: between two looks whether the peer lives; 0: none"},
	{"seed", WORD_U64, AT(seed), "of the fetches' times"},
	{"limit_ns", WORD_U64, AT(limit_ns), "of virtual time"},
	{"device", WORD_U64, AT(device_bytes), "bytes of bulk in flight of a node; 0: any"},
	{"adaptive", WORD_BOOL, AT(link.window_adaptive), "link: the window follows the completion delay"},
	{"window_min", WORD_U64, AT(link.window_min_bytes), "link: an adaptive window's least, and its step"},
	{"target_ns", WORD_U64, AT(link.window_target_ns), "link: the delay it holds"},
	{"grants", WORD_U64, AT(grant_bytes),
	 "granted and not arrived, of a receiver; 0: bulk needs no grant"},
	{"quantum", WORD_U64, AT(grant_quantum), "of one grant"},
	{"window", WORD_U64, AT(link.window_bytes), "link: bytes in flight"},
	{"chunk", WORD_U64, AT(link.chunk_bytes), "link: longest piece of a transfer"},
	{"small", WORD_U64, AT(link.small_bytes), "link: what is no bulk"},
	{"lanes", WORD_U32, AT(link.data_lanes), "link: lanes beside lane 0"},
	{"ops", WORD_U32, AT(link.ops_max), "link: rows of operations"},
	{"wrs", WORD_U32, AT(link.wrs_max), "link: rows of work requests"},
	{"pair_links", WORD_U32, AT(pair_links), "links of each pair"},
	{"channels_open", WORD_U32, AT(channels_open), "channels of a link beside those of the load"},
	{"model", WORD_BOOL, AT(model), "the rules of a link in place of its machine"},
	{"channels", WORD_U32, AT(link.channels_max), "link: rows of channels"},
};

void scale_words_start(scale_config *config)
{
	scale_defaults(config, SCALE_TO_ONE, 257);
	config->net.buffer_bytes = 0;
}

void scale_words_end(scale_config *config)
{
	const sim_net_config *net = &config->net;
	uint64_t inputs = net->leaf_hosts ? TN_MAX(net->leaf_hosts + net->spines,
						   net->hosts / TN_MAX(net->leaf_hosts, 1u))
					  : net->hosts;

	if (!net->buffer_bytes)
		config->net.buffer_bytes = inputs * (net->xoff_bytes + sim_net_headroom(net));
}

static bool number(const char *text, uint64_t *value)
{
	static const char units[] = "kMG";
	const char *unit;
	char *end;

	*value = strtoull(text, &end, 10);
	if (end == text)
		return false;
	if (!*end)
		return true;
	unit = strchr(units, *end);
	if (!unit || end[1])
		return false;
	*value <<= 10 * (unit - units + 1);
	return true;
}

static bool set(scale_config *config, const word *w, const char *text)
{
	void *to = (char *)config + w->at;
	uint64_t value = 0;

	if (w->type == WORD_NAME) {
		*(const char **)to = text;
		return true;
	}
	if (w->type == WORD_PATTERN) {
		*(scale_pattern *)to = strcmp(text, "all") ? SCALE_TO_ONE : SCALE_ALL_TO_ALL;
		return !strcmp(text, "all") || !strcmp(text, "one");
	}
	if (!number(text, &value))
		return false;
	if (w->type == WORD_U64)
		*(uint64_t *)to = value;
	else if (w->type == WORD_BOOL)
		*(bool *)to = value != 0;
	else
		*(uint32_t *)to = (uint32_t)value;
	return w->type != WORD_U32 || value <= UINT32_MAX;
}

bool scale_words_set(scale_config *config, const char *text)
{
	for (unsigned i = 0; i < TN_COUNT_OF(words); i++) {
		size_t n = strlen(words[i].key);

		if (!strncmp(text, words[i].key, n) && text[n] == '=')
			return set(config, &words[i], text + n + 1);
	}
	return false;
}

void scale_words_help(FILE *out)
{
	for (unsigned i = 0; i < TN_COUNT_OF(words); i++)
		fprintf(out, "  %-13s %s\n", words[i].key, words[i].help);
}

/* ---- results ---- */

typedef struct cell {
	const char *name;
	int decimals;
	double value;
} cell;

#define CELLS_MAX 40

static double us(const tn_hist *hist, double fraction)
{
	return (double)tn_hist_at(hist, fraction) / 1e3;
}

static unsigned cells_of(const scale_config *config, const scale_result *r, cell *cells)
{
	const cell all[] = {
		{"hosts", 0, config->net.hosts},
		{"links", 0, r->links},
		{"qps", 0, r->qps},
		{"link_B", 0, (double)r->link_bytes},
		{"channel_B", 0, (double)r->channel_bytes},
		{"idle_B", 0, (double)r->idle_bytes},
		{"node_MiB", 2, (double)r->node_bytes / 1048576},
		{"ms", 3, (double)r->ns / 1e6},
		{"goodput_pct", 2, r->goodput * 100},
		{"queue_peak_KiB", 1, (double)r->receiver_queue_peak / 1024},
		{"buffer_peak_KiB", 1, (double)r->net.buffer_peak / 1024},
		{"pauses", 0, (double)r->net.pauses},
		{"pause_ms", 3, (double)r->net.pause_ns / 1e6},
		{"drops", 0, (double)r->net.drops},
		{"resent", 0, (double)r->net.resent_units},
		{"marks", 0, (double)r->net.marks},
		{"slots_peak", 0, (double)r->slots_peak},
		{"rnr", 0, (double)r->rnr},
		{"pushes", 0, (double)r->pushes},
		{"push_p50_us", 1, us(&r->push_ns, 0.5)},
		{"push_p99_us", 1, us(&r->push_ns, 0.99)},
		{"push_max_us", 1, (double)r->push_ns.max / 1e3},
		{"fetches", 0, (double)r->fetches},
		{"fetch_p50_us", 1, us(&r->fetch_ns, 0.5)},
		{"fetch_p99_us", 1, us(&r->fetch_ns, 0.99)},
		{"messages", 0, (double)r->messages},
		{"message_p50_us", 1, us(&r->message_ns, 0.5)},
		{"message_p99_us", 1, us(&r->message_ns, 0.99)},
		{"frames", 0, (double)r->frames},
		{"posts", 0, (double)r->posts},
		{"events", 0, (double)r->events},
	};

	_Static_assert(TN_COUNT_OF(all) <= CELLS_MAX, "all cells fit");
	memcpy(cells, all, sizeof(all));
	if (r->pushes == 0)
		for (unsigned i = 0; i < TN_COUNT_OF(all); i++)
			if (!strncmp(cells[i].name, "push_", 5))
				cells[i].value = 0;
	return TN_COUNT_OF(all);
}

void scale_print_header(FILE *out)
{
	static const scale_config config;
	static scale_result result;
	cell cells[CELLS_MAX];
	unsigned n = cells_of(&config, &result, cells);

	fprintf(out, "name");
	for (unsigned i = 0; i < n; i++)
		fprintf(out, "\t%s", cells[i].name);
	fprintf(out, "\n");
}

void scale_print(FILE *out, const scale_config *config, const scale_result *result)
{
	cell cells[CELLS_MAX];
	unsigned n = cells_of(config, result, cells);

	fprintf(out, "%s", config->name);
	for (unsigned i = 0; i < n; i++)
		fprintf(out, "\t%.*f", cells[i].decimals, cells[i].value);
	fprintf(out, "\n");
}
