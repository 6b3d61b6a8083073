/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the provider's option rows, "verbs.*". No state. Threads: any. Tests:
 * tests/unit/transport/test_verbs_life.c.
 */
#include "base/options.h"
#include "transport/verbs/verbs.h"

/* clang-format off */
static const tn_option_row rows[] = {
	{.layer = "verbs", .name = "device", .type = TN_OPT_STRING, .dflt = "",
	 .help = "name of the RDMA device (\"mlx5_0\"); empty = the first that is usable"},
	{.layer = "verbs", .name = "lane_wrs", .type = TN_OPT_U64, .dflt = "128", .min = 8, .max = 8192,
	 .help = "unfinished work requests per lane"},
	{.layer = "verbs", .name = "recv_slots", .type = TN_OPT_U64, .dflt = "512", .min = 16, .max = 32768,
	 .help = "receive buffers of the device, shared by its lanes"},
	{.layer = "verbs", .name = "send_bytes", .type = TN_OPT_BYTES, .dflt = "8KiB", .min = 1024,
	 .max = 1u << 20,  .help = "longest message = size of a receive buffer"},
	{.layer = "verbs", .name = "bounces", .type = TN_OPT_U64, .dflt = "128", .min = 8, .max = 8192,
	 .help = "registered buffers for messages that lie in foreign memory"},
	{.layer = "verbs", .name = "keepalive", .type = TN_OPT_DURATION, .dflt = "2s", .min = 10000000,
	 .help = "an idle lane is tried with an empty write so often"},
	{.layer = "verbs", .name = "traffic_class", .type = TN_OPT_U64, .dflt = "0", .max = 255,
	 .help = "RoCE: DSCP and ECN bits of packets, for PFC and ECN classes"},
	{.layer = "verbs", .name = "service_level", .type = TN_OPT_U64, .dflt = "0", .max = 15,
	 .help = "InfiniBand service level"},
	{0},
};
/* clang-format on */
TN_OPTION_TABLE(verbs, rows)

void tn_vb_opts_load(const tn_options *options, tn_vb_opts *opts)
{
	opts->device = tn_opt_string(options, rows, "device");
	opts->lane_wrs = tn_opt_u64(options, rows, "lane_wrs");
	opts->recv_slots = tn_opt_u64(options, rows, "recv_slots");
	opts->send_bytes = (tn_opt_u64(options, rows, "send_bytes") + 63) & ~63ull;
	opts->bounces = tn_opt_u64(options, rows, "bounces");
	opts->keepalive_ns = tn_opt_u64(options, rows, "keepalive");
	opts->traffic_class = tn_opt_u64(options, rows, "traffic_class");
	opts->service_level = tn_opt_u64(options, rows, "service_level");
}
