/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the provider's option rows, "verbs.*". No state. Threads: any. Tests:
 * tests/unit/transport/test_verbs_life.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "transport/verbs/verbs.h"

/* clang-format off */
static const tn_option_row rows[] = {
	{.layer = "verbs", .name = "mode", .type = TN_OPT_ENUM, .dflt = "auto", .choices = "auto|off|required",
	 .help = "auto: used where it can be, with one warning if there is a device that can't; required: a "
		 "context doesn't open without it; off: never"},
	{.layer = "verbs", .name = "device", .type = TN_OPT_STRING, .dflt = "auto",
	 .help = "auto: the fastest usable port; all: up to 4 usable ports, lanes spread over them; else a list "
		 "of NAME or NAME:PORT (\"mlx5_0,mlx5_1:2\")"},
	{.layer = "verbs", .name = "lane_wrs", .type = TN_OPT_U64, .dflt = "128", .min = 8, .max = 8192,
	 .help = "unfinished work requests per lane"},
	{.layer = "verbs", .name = "recv_slots", .type = TN_OPT_U64, .dflt = "512", .min = 16, .max = 32768,
	 .help = "receive buffers of each rail, shared by its lanes"},
	{.layer = "verbs", .name = "send_bytes", .type = TN_OPT_BYTES, .dflt = "8KiB", .min = 1024,
	 .max = 1u << 20, .help = "longest message = size of a receive buffer"},
	{.layer = "verbs", .name = "bounces", .type = TN_OPT_U64, .dflt = "128", .min = 8, .max = 8192,
	 .help = "registered buffers for messages that lie in foreign memory"},
	{.layer = "verbs", .name = "keepalive", .type = TN_OPT_DURATION, .dflt = "2s", .min = 10000000,
	 .help = "an idle lane is tried with an empty write so often"},
	{.layer = "verbs", .name = "stuck", .type = TN_OPT_DURATION, .dflt = "30s",
	 .help = "a lane on which no request ends for so long is given up, since a NIC waits for a receive buffer "
		 "for ever; longer than the longest transfer of one request; 0 = never"},
	{.layer = "verbs", .name = "probation", .type = TN_OPT_DURATION, .dflt = "2s",
	 .help = "a port that came back is only used for want of another for so long"},
	{.layer = "verbs", .name = "timeout", .type = TN_OPT_U64, .dflt = "14", .min = 1, .max = 31,
	 .help = "the NIC sends a packet again after 4.096 us x 2^this (14: 67 ms); up for long or lossy paths"},
	{.layer = "verbs", .name = "retry_count", .type = TN_OPT_U64, .dflt = "6", .max = 7,
	 .help = "so often, then the lane is broken: with timeout 14 after 0.5 to 2 s. 7 is for ever with Soft-RoCE, "
		 "which then never tells of a dead peer"},
	{.layer = "verbs", .name = "min_rnr_timer", .type = TN_OPT_U64, .dflt = "12", .min = 1, .max = 31,
	 .help = "code of the pause before a peer without a receive buffer is tried again (12: 0.64 ms); a net "
		 "only, since credits keep buffers ahead of messages"},
	{.layer = "verbs", .name = "cq_moderation", .type = TN_OPT_U64, .dflt = "0", .max = 1024,
	 .help = "a sleeping thread is woken after so many completions or cq_period; 0 = by the first. For fewer "
		 "interrupts, at the price of latency"},
	{.layer = "verbs", .name = "cq_period", .type = TN_OPT_DURATION, .dflt = "16us", .max = 65535000,
	 .help = "longest that a completion waits for cq_moderation"},
	{.layer = "verbs", .name = "traffic_class", .type = TN_OPT_U64, .dflt = "0", .max = 255,
	 .help = "RoCE: DSCP and ECN bits of packets, for PFC and ECN classes"},
	{.layer = "verbs", .name = "service_level", .type = TN_OPT_U64, .dflt = "0", .max = 15,
	 .help = "InfiniBand service level; RoCE: the priority of VLAN frames"},
	{.layer = "verbs", .name = "bulk_traffic_class", .type = TN_OPT_U64, .dflt = "256", .max = 256,
	 .help = "traffic_class of lanes that carry no messages, so that switches queue bulk apart; 256 = the same"},
	{.layer = "verbs", .name = "bulk_service_level", .type = TN_OPT_U64, .dflt = "16", .max = 16,
	 .help = "service_level of lanes that carry no messages; 16 = the same"},
	{0},
};
/* clang-format on */
TN_OPTION_TABLE(verbs, rows)

static uint8_t or_same(const tn_options *options, const char *name, uint64_t none, uint8_t same)
{
	uint64_t value = tn_opt_u64(options, rows, name);

	return value == none ? same : (uint8_t)value;
}

void tn_vb_opts_load(const tn_options *options, tn_vb_opts *opts)
{
	memset(opts, 0, sizeof(*opts));
	snprintf(opts->device, sizeof(opts->device), "%s", tn_opt_string(options, rows, "device"));
	opts->lane_wrs = tn_opt_u64(options, rows, "lane_wrs");
	opts->recv_slots = tn_opt_u64(options, rows, "recv_slots");
	opts->send_bytes = (tn_opt_u64(options, rows, "send_bytes") + 63) & ~63ull;
	opts->bounces = tn_opt_u64(options, rows, "bounces");
	opts->keepalive_ns = tn_opt_u64(options, rows, "keepalive");
	opts->stuck_ns = tn_opt_u64(options, rows, "stuck");
	opts->probation_ns = tn_opt_u64(options, rows, "probation");
	opts->timeout = (uint8_t)tn_opt_u64(options, rows, "timeout");
	opts->retry_count = (uint8_t)tn_opt_u64(options, rows, "retry_count");
	opts->min_rnr_timer = (uint8_t)tn_opt_u64(options, rows, "min_rnr_timer");
	opts->cq_moderation = (uint16_t)tn_opt_u64(options, rows, "cq_moderation");
	opts->cq_period_us = (uint16_t)(tn_opt_u64(options, rows, "cq_period") / 1000);
	opts->traffic_class = (uint8_t)tn_opt_u64(options, rows, "traffic_class");
	opts->service_level = (uint8_t)tn_opt_u64(options, rows, "service_level");
	opts->bulk_traffic_class = or_same(options, "bulk_traffic_class", 256, opts->traffic_class);
	opts->bulk_service_level = or_same(options, "bulk_service_level", 16, opts->service_level);
}

tn_want tn_vb_want(const tn_options *options)
{
	static const tn_want wants[] = {TN_WANT_AUTO, TN_WANT_OFF, TN_WANT_REQUIRED};
	tn_want want = wants[tn_opt_enum(options, rows, "mode")];
	const char *device = tn_opt_string(options, rows, "device");

	if (want == TN_WANT_AUTO && device[0] && strcmp(device, "auto") != 0)
		return TN_WANT_NAMED;
	return want;
}
