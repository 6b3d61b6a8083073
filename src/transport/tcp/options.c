/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the provider's option rows, "tcp.*", and their reading at open. No state. Threads: any.
 * Tests: tests/unit/transport/test_tcp_lane.c.
 */
#include "base/fail.h"
#include "base/options.h"
#include "transport/tcp/tcp.h"

static const tn_option_row rows[] = {
	{.layer = "tcp",
	 .name = "port",
	 .type = TN_OPT_U64,
	 .dflt = "0",
	 .max = 65535,
	 .help = "port that data connections are accepted on; 0 = any"},
	{.layer = "tcp",
	 .name = "sndbuf",
	 .type = TN_OPT_BYTES,
	 .dflt = "0",
	 .max = 1ull << 30,
	 .help = "socket send buffer; 0 = the kernel tunes it"},
	{.layer = "tcp",
	 .name = "rcvbuf",
	 .type = TN_OPT_BYTES,
	 .dflt = "0",
	 .max = 1ull << 30,
	 .help = "socket receive buffer; 0 = the kernel tunes it"},
	{.layer = "tcp",
	 .name = "rx_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "16KiB",
	 .min = 8192,
	 .max = 1u << 20,
	 .help = "per lane: small frames received by one system call"},
	{.layer = "tcp",
	 .name = "send_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "68KiB",
	 .min = 1024,
	 .max = TN_TCP_SEND_BYTES_LIMIT,
	 .help = "longest message = size of a receive slot"},
	{.layer = "tcp",
	 .name = "recv_slots",
	 .type = TN_OPT_U64,
	 .dflt = "4096",
	 .min = 1,
	 .max = 1u << 20,
	 .help = "receive slots of the device, shared by its lanes: about 45 a peer; pages are touched on "
		 "first use"},
	{.layer = "tcp",
	 .name = "lane_recv_slots",
	 .type = TN_OPT_U64,
	 .dflt = "128",
	 .min = 1,
	 .max = 1u << 20,
	 .help = "receive slots that one lane may hold; beyond it the lane is not read"},
	{.layer = "tcp",
	 .name = "lane_wrs",
	 .type = TN_OPT_U64,
	 .dflt = "256",
	 .min = 2,
	 .max = TN_TCP_WRS_LIMIT,
	 .help = "unfinished work requests per lane, rounded up to a power of two"},
	{.layer = "tcp",
	 .name = "pending_max",
	 .type = TN_OPT_U64,
	 .dflt = "64",
	 .min = 1,
	 .max = 4096,
	 .help = "connections that have not proven themselves; the oldest makes room"},
	{.layer = "tcp",
	 .name = "handshake_timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "5s",
	 .min = 1000000,
	 .help = "how long a connection may take to prove itself"},
	{.layer = "tcp",
	 .name = "user_timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "20s",
	 .help = "data that the peer does not take for so long ends the lane; 0 = the kernel's rule"},
	{.layer = "tcp",
	 .name = "keepalive",
	 .type = TN_OPT_DURATION,
	 .dflt = "8s",
	 .help = "an idle peer that vanished is noticed after about this time; 0 = never"},
	{0},
};
TN_OPTION_TABLE(tcp, rows)

tern_status tn_tcp_opts_load(const struct tn_options *options, tn_tcp_opts *opts)
{
	uint64_t wrs = 2;

	opts->port = tn_opt_u64(options, rows, "port");
	opts->sndbuf = tn_opt_u64(options, rows, "sndbuf");
	opts->rcvbuf = tn_opt_u64(options, rows, "rcvbuf");
	opts->rx_bytes = tn_opt_u64(options, rows, "rx_bytes");
	opts->send_bytes = tn_opt_u64(options, rows, "send_bytes");
	opts->recv_slots = tn_opt_u64(options, rows, "recv_slots");
	opts->lane_recv_slots = tn_opt_u64(options, rows, "lane_recv_slots");
	opts->lane_wrs = tn_opt_u64(options, rows, "lane_wrs");
	opts->pending_max = tn_opt_u64(options, rows, "pending_max");
	opts->handshake_ns = tn_opt_u64(options, rows, "handshake_timeout");
	opts->user_timeout_ns = tn_opt_u64(options, rows, "user_timeout");
	opts->keepalive_ns = tn_opt_u64(options, rows, "keepalive");

	while (wrs < opts->lane_wrs)
		wrs *= 2;
	opts->lane_wrs = wrs;
	opts->send_bytes = (opts->send_bytes + 63) & ~63ull;
	if (opts->send_bytes > TN_TCP_SEND_BYTES_LIMIT)
		opts->send_bytes = TN_TCP_SEND_BYTES_LIMIT;
	if (opts->lane_recv_slots > opts->recv_slots)
		opts->lane_recv_slots = opts->recv_slots;
	if (opts->recv_slots * opts->send_bytes > 1ull << 36)
		return tn_fail(TERN_E_OPTION,
			       "TERN_TCP_RECV_SLOTS x TERN_TCP_SEND_BYTES is more than 64 GiB: lower one");
	return TERN_OK;
}
