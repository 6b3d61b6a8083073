/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the context and of channels, and tern_option_get.
 * Threads: constant tables. Tests: tests/unit/channel/test_ctx.c.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "channel/ctx_impl.h"
#include "link/link.h"
#include "link/share.h"

const tn_option_row tn_ctx_option_rows[] = {
	{.layer = "ctx",
	 .name = "name",
	 .type = TN_OPT_STRING,
	 .dflt = "",
	 .help = "this node's name in logs and in peers' messages"},
	{.layer = "ctx",
	 .name = "listen",
	 .type = TN_OPT_STRING,
	 .dflt = "127.0.0.1:0",
	 .help = "address of the control listener, host:port; port 0 = any; \"none\" = do not listen"},
	{.layer = "ctx",
	 .name = "transports",
	 .type = TN_OPT_STRING,
	 .dflt = "auto",
	 .help = "providers in order of preference: auto, or a list of shm, tcp, loop"},
	{.layer = "ctx",
	 .name = "secret",
	 .type = TN_OPT_STRING,
	 .dflt = "",
	 .secret = true,
	 .help = "shared secret of the job; needed to listen beyond loopback"},
	{.layer = "ctx",
	 .name = "secret_next",
	 .type = TN_OPT_STRING,
	 .dflt = "",
	 .secret = true,
	 .help = "a second secret that is good as well, while the nodes of a job go from one to the other"},
	{.layer = "ctx",
	 .name = "secret_file",
	 .type = TN_OPT_STRING,
	 .dflt = "",
	 .help = "file with the secret in its first line and a next one, if any, in its second; wins over "
		 "ctx.secret; read again when it was replaced"},
	{.layer = "ctx",
	 .name = "job",
	 .type = TN_OPT_STRING,
	 .dflt = "",
	 .help = "job cookie: nodes of another job are refused"},
	{.layer = "ctx",
	 .name = "spin_ns",
	 .type = TN_OPT_U64,
	 .dflt = "20000",
	 .help = "nanoseconds that a waiting thread spins before it sleeps, four times as many behind two "
		 "short sleeps, and then the helper too, none for a while if that was in vain again and "
		 "again; 0 = sleep at once, 18446744073709551615 = never sleep"},
	{.layer = "ctx",
	 .name = "backlog",
	 .type = TN_OPT_U64,
	 .dflt = "64",
	 .min = 1,
	 .max = 65536,
	 .help = "connections that may be in their hello at a time; then the oldest of the busiest address "
		 "makes room"},
	{.layer = "ctx",
	 .name = "backlog_per_address",
	 .type = TN_OPT_U64,
	 .dflt = "0",
	 .max = 65536,
	 .help = "of them from one address (IPv6: one /64); more are closed. 0 = as many as there is room"},
	{.layer = "ctx",
	 .name = "hello_grace",
	 .type = TN_OPT_DURATION,
	 .dflt = "200ms",
	 .min = TN_NS_PER_MS,
	 .help = "how long a connection in its hello keeps its place when others wait"},
	{0},
};
TN_OPTION_TABLE(ctx, tn_ctx_option_rows)

const tn_option_row tn_link_option_rows[] = {
	{.layer = "link",
	 .name = "connect_timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "10s",
	 .min = TN_NS_PER_MS,
	 .help = "for connect, hello and lanes together, unless the caller says otherwise"},
	{.layer = "link",
	 .name = "step_timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "5s",
	 .min = TN_NS_PER_MS,
	 .help = "each step of the hello"},
	{.layer = "link",
	 .name = "lane_timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "5s",
	 .min = TN_NS_PER_MS,
	 .help = "connecting all lanes with one provider"},
	{.layer = "link",
	 .name = "keepalive",
	 .type = TN_OPT_DURATION,
	 .dflt = "1s",
	 .help = "a link that is silent that long is asked whether it lives; 0 = never"},
	{.layer = "link",
	 .name = "keepalive_misses",
	 .type = TN_OPT_U64,
	 .dflt = "5",
	 .min = 1,
	 .max = 1000,
	 .help = "unanswered questions until the peer counts as lost"},
	{.layer = "link",
	 .name = "recover",
	 .type = TN_OPT_DURATION,
	 .dflt = "10s",
	 .help = "lanes that break are rebuilt within this time, or the link ends; 0 = a broken lane ends "
		 "it"},
	{.layer = "link",
	 .name = "probe",
	 .type = TN_OPT_DURATION,
	 .dflt = "1s",
	 .help = "after a fall-back: how long until the better transport is tried again, ever longer "
		 "while it fails; 0 = never"},
	{.layer = "link",
	 .name = "lane_idle",
	 .type = TN_OPT_DURATION,
	 .dflt = "60s",
	 .help = "data lanes that nobody uses for so long are given up, until there is bulk again; 0 = "
		 "never"},
	{.layer = "link",
	 .name = "device_lanes",
	 .type = TN_OPT_U64,
	 .dflt = "512",
	 .max = 1u << 20,
	 .help = "data lanes of a device over all its links; while there are more, links that have not used "
		 "theirs for link.lane_rest give them up, the longest first: NICs keep the state of some "
		 "hundred queue pairs at hand; 0 = any number"},
	{.layer = "link",
	 .name = "lane_rest",
	 .type = TN_OPT_DURATION,
	 .dflt = "1s",
	 .help = "data lanes that were used less long ago are in use: for link.device_lanes nobody gives "
		 "them "
		 "up. Giving up and making again takes some milliseconds"},
	{.layer = "link",
	 .name = "checksum",
	 .type = TN_OPT_ENUM,
	 .choices = "off|messages",
	 .dflt = "off",
	 .help = "CRC-32C over messages from memory to memory, if the peer has it on too; a wrong one "
		 "ends the link"},
	{.layer = "link",
	 .name = "redial",
	 .type = TN_OPT_DURATION,
	 .dflt = "1s",
	 .help = "how long a control connection that ended may be away while the lanes stand; 0 = its "
		 "end is the link's"},
	{.layer = "link",
	 .name = "verdict",
	 .type = TN_OPT_DURATION,
	 .dflt = "500ms",
	 .min = TN_NS_PER_MS,
	 .help = "after a lane broke: how long to wait for the control connection to say that the peer died"},
	{.layer = "link",
	 .name = "close_timeout",
	 .type = TN_OPT_DURATION,
	 .dflt = "500ms",
	 .min = TN_NS_PER_MS,
	 .help = "an orderly close that takes longer becomes a hard one"},
	{.layer = "link",
	 .name = "window_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "8MiB",
	 .min = 65536,
	 .max = 1ull << 40,
	 .help = "bytes of bulk in flight per link; of an adaptive window: at most"},
	{.layer = "link",
	 .name = "window",
	 .type = TN_OPT_ENUM,
	 .dflt = "auto",
	 .choices = "auto|fixed|adaptive",
	 .help = "adaptive: only so much bulk in flight that it takes at most link.window_target longer than "
		 "the path needs, so that what comes behind it waits little; auto: over tcp, whose kernel "
		 "buffers hold more than helps bulk; fixed is best where bulk alone counts"},
	{.layer = "link",
	 .name = "window_min_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "64KiB",
	 .min = 4096,
	 .max = 1ull << 40,
	 .help = "an adaptive window's least and its step: what a fast network has under way at any time"},
	{.layer = "link",
	 .name = "window_target",
	 .type = TN_OPT_DURATION,
	 .dflt = "250us",
	 .min = TN_NS_PER_US,
	 .help = "an adaptive window's target: how much longer than on the empty path bulk may take, which "
		 "is what "
		 "the others of the link wait for it"},
	{.layer = "link",
	 .name = "device_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "64MiB",
	 .min = 65536,
	 .max = 1ull << 40,
	 .help = "bytes of bulk in flight per device, over all its links: more only queues in it"},
	{.layer = "link",
	 .name = "grants",
	 .type = TN_OPT_ENUM,
	 .dflt = "auto",
	 .choices = "auto|on|off",
	 .help = "the receiver says who may send bulk, so that many senders do not fill the network in "
		 "front of it; auto: to devices that nothing else protects (verbs; not shm, not tcp, "
		 "which has its own control); off: nor does this side wait for grants"},
	{.layer = "link",
	 .name = "grant_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "512KiB",
	 .min = 65536,
	 .max = 1ull << 40,
	 .help = "bytes of bulk that are let come to a device at a time: two to four times its rate x "
		 "(round trip + software); less leaves it idle, more queues in switches"},
	{.layer = "link",
	 .name = "grant_unit",
	 .type = TN_OPT_BYTES,
	 .dflt = "32KiB",
	 .min = TN_GRANT_UNIT_MIN,
	 .max = 1ull << 30,
	 .help = "they are granted in units of this: small enough for several senders at a time and "
		 "for what a switch holds per port, large enough that a frame for each costs nothing"},
	{.layer = "link",
	 .name = "chunk_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "1MiB",
	 .min = 4096,
	 .max = 1ull << 40,
	 .help = "longest piece of a one-sided transfer"},
	{.layer = "link",
	 .name = "small_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "8KiB",
	 .max = 1ull << 30,
	 .help = "transfers up to this go ahead of bulk"},
	{.layer = "link",
	 .name = "data_lanes",
	 .type = TN_OPT_U64,
	 .dflt = "2",
	 .max = TN_LINK_LANES_MAX - 1,
	 .help = "lanes for one-sided transfers beside the one for messages; none over shm, where nothing "
		 "queues, "
		 "and where a device has little room left"},
	{.layer = "link",
	 .name = "channels_max",
	 .type = TN_OPT_U64,
	 .dflt = "256",
	 .min = 2,
	 .max = TN_LINK_CHANNELS_MAX,
	 .help = "channels per link; each side opens at most as many as the other one has. A row takes "
		 "memory when it is used first"},
	{.layer = "link",
	 .name = "ops_max",
	 .type = TN_OPT_U64,
	 .dflt = "1024",
	 .min = 16,
	 .max = TN_LINK_OPS_MAX,
	 .help = "operations in flight per link; more are told to come again"},
	{.layer = "link",
	 .name = "wrs_max",
	 .type = TN_OPT_U64,
	 .dflt = "512",
	 .min = 16,
	 .max = TN_LINK_WRS_MAX,
	 .help = "work requests in flight per link"},
	{0},
};
TN_OPTION_TABLE(link, tn_link_option_rows)

const tn_option_row tn_channel_option_rows[] = {
	{.layer = "channel",
	 .name = "message_max",
	 .type = TN_OPT_BYTES,
	 .dflt = "64MiB",
	 .min = 1,
	 .max = 1ull << 40,
	 .help = "longest message that a channel receives unless it says otherwise"},
	{.layer = "channel",
	 .name = "inbox_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "1MiB",
	 .min = 4096,
	 .max = 1ull << 40,
	 .help = "bytes of messages that wait for tern_recv in one channel before its link stops receiving"},
	{.layer = "channel",
	 .name = "stage_bytes",
	 .type = TN_OPT_BYTES,
	 .dflt = "8MiB",
	 .min = 65536,
	 .max = 1ull << 40,
	 .help = "registered memory per context for transfers from and to memory that is not registered"},
	{0},
};
TN_OPTION_TABLE(channel, tn_channel_option_rows)

tern_status tern_option_get(unsigned i, tern_option_info *info)
{
	tn_option_view view;
	tn_options *options = NULL;
	bool found;

	memset(info, 0, sizeof(*info));
	TN_TRY(tn_options_load(NULL, &options));
	found = tn_options_view(options, i, &view);
	if (found) {
		snprintf(info->name, sizeof(info->name), "%s", view.name);
		snprintf(info->env, sizeof(info->env), "%s", view.env);
		snprintf(info->value, sizeof(info->value), "%.127s", view.value);
		snprintf(info->dflt, sizeof(info->dflt), "%s", view.dflt);
		info->source = tn_opt_source_name(view.source);
		info->type = tn_opt_type_name(view.row->type);
		info->help = view.row->help;
	}
	tn_options_free(options);
	return found ? TERN_OK : TERN_E_NOT_FOUND;
}
