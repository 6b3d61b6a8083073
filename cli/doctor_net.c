/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of `tern doctor` that looks at the network: counters of ports and interfaces which tell of loss,
 * pauses and congestion marks, and the way to a peer. Sends nothing: a route is asked for by connecting a
 * datagram socket. Threads: main. Tests: tests/e2e/doctor_test.py.
 */
#include "doctor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"

#define STATS_MAX 16384u /* of one driver: more is no answer */
#define SYS       "/sys/class/infiniband/%s"

typedef struct counter_row {
	const char *name;
	bool bad; /* not 0 is worth a warning */
	const char *meaning;
} counter_row;

/* Names of mlx5, irdma, bnxt_re, rxe and of the InfiniBand port counters. */
static const counter_row counters[] = {
	{"out_of_sequence", true, "packets were lost or overtaken"},
	{"packet_seq_err", true, "the peer saw packets missing"},
	{"rcvd_seq_err", true, "the peer saw packets missing"},
	{"out_of_seq_request", true, "packets were lost or overtaken"},
	{"local_ack_timeout_err", true, "acknowledgements did not come in time"},
	{"retry_exceeded_err", true, "a path was given up"},
	{"to_retransmits", true, "acknowledgements did not come in time"},
	{"rnr_nak_retry_err", true, "a receiver had no buffer posted (tern's credits keep this at 0)"},
	{"rcvd_rnr_err", true, "a receiver had no buffer posted (tern's credits keep this at 0)"},
	{"rx_icrc_encapsulated", true, "packets were damaged on the way"},
	{"symbol_error", true, "a bad cable or transceiver"},
	{"port_rcv_errors", true, "packets came damaged"},
	{"port_xmit_discards", true, "packets were dropped for congestion"},
	{"link_downed", true, "the link went down"},
	{"excessive_buffer_overrun_errors", true, "flow control failed"},
	{"np_ecn_marked_roce_packets", false, "marked by switches (ECN)"},
	{"np_cnp_sent", false, "told senders to slow down"},
	{"rp_cnp_handled", false, "was told to slow down"},
	{"roce_slow_restart", false, "slowed down after idling"},
	{"port_xmit_wait", false, "waited to send"},
};
#define COUNTERS (sizeof(counters) / sizeof(counters[0]))

static bool counter_read(uint64_t *value, const char *device, const char *port, const char *name)
{
	return host_u64(value, SYS "/ports/%s/hw_counters/%s", device, port, name) ||
	       host_u64(value, SYS "/ports/%s/counters/%s", device, port, name) ||
	       host_u64(value, SYS "/hw_counters/%s", device, name);
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t bytes, const char *fmt, ...)
{
	size_t n = strlen(text);
	va_list args;

	va_start(args, fmt);
	vsnprintf(text + n, bytes - n, fmt, args);
	va_end(args);
}

void doctor_counters(doctor *d, const char *device, const char *port)
{
	char bad[600] = "", good[300] = "", check[96];
	unsigned seen = 0;

	for (unsigned i = 0; i < COUNTERS; i++) {
		const counter_row *row = &counters[i];
		uint64_t value;

		if (!counter_read(&value, device, port, row->name))
			continue;
		seen++;
		if (value == 0)
			continue;
		if (row->bad)
			append(bad, sizeof(bad), "%s%s %llu (%s)", bad[0] ? ", " : "", row->name,
			       (unsigned long long)value, row->meaning);
		else
			append(good, sizeof(good), ", %s %llu (%s)", row->name, (unsigned long long)value,
			       row->meaning);
	}
	snprintf(check, sizeof(check), "counters.%s/%s", device, port);
	if (bad[0])
		doctor_say(d, VERDICT_WARN, check,
			   "if they grow during jobs: PFC for the priority of RDMA on NICs and all switches "
			   "on the "
			   "way, or ECN (DCQCN); check cables",
			   "since the driver was loaded: %s%s", bad, good);
	else if (seen)
		doctor_say(d, VERDICT_OK, check, NULL, "no losses in %u counters%s", seen, good);
}

/* ---- what the driver counts for ethtool -S ---- */

static bool ethtool(int fd, const char *netdev, void *request)
{
	struct ifreq r = {0};

	snprintf(r.ifr_name, sizeof(r.ifr_name), "%.15s", netdev);
	r.ifr_data = request;
	return ioctl(fd, SIOCETHTOOL, &r) == 0;
}

static unsigned list_pauses(const struct ethtool_gstrings *names, const struct ethtool_stats *values,
			    char *text, size_t bytes)
{
	unsigned seen = 0;

	for (unsigned i = 0; i < names->len && i < values->n_stats; i++) {
		const char *name = (const char *)names->data + (size_t)i * ETH_GSTRING_LEN;
		unsigned long long value = values->data[i];

		if (!memmem(name, ETH_GSTRING_LEN, "pause", 5) ||
		    memmem(name, ETH_GSTRING_LEN, "duration", 8))
			continue;
		seen++;
		if (value)
			append(text, bytes, "%s%.31s %llu", text[0] ? ", " : "", name, value);
	}
	return seen;
}

/* Pause frames by priority, as drivers name them: rx_prio3_pause, tx_pause_ctrl_phy, ... */
static unsigned read_pauses(int fd, const char *netdev, char *text, size_t bytes)
{
	struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
	struct ethtool_gstrings *names;
	struct ethtool_stats *values;
	unsigned seen = 0;

	if (!ethtool(fd, netdev, &driver) || driver.n_stats == 0 || driver.n_stats > STATS_MAX)
		return 0;
	names = calloc(1, sizeof(*names) + (size_t)driver.n_stats * ETH_GSTRING_LEN);
	values = calloc(1, sizeof(*values) + driver.n_stats * sizeof(values->data[0]));
	if (names && values) {
		names->cmd = ETHTOOL_GSTRINGS;
		names->string_set = ETH_SS_STATS;
		names->len = driver.n_stats;
		values->cmd = ETHTOOL_GSTATS;
		values->n_stats = driver.n_stats;
		if (ethtool(fd, netdev, names) && ethtool(fd, netdev, values))
			seen = list_pauses(names, values, text, bytes);
	}
	free(names);
	free(values);
	return seen;
}

static void check_pauses(doctor *d, const char *netdev)
{
	struct ethtool_pauseparam global = {.cmd = ETHTOOL_GPAUSEPARAM};
	char pauses[600] = "", check[96];
	int fd = host_is_real() ? socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
	unsigned seen;
	bool known;

	if (fd < 0)
		return;
	seen = read_pauses(fd, netdev, pauses, sizeof(pauses));
	known = ethtool(fd, netdev, &global);
	close(fd);
	if (!seen && !known)
		return;
	snprintf(check, sizeof(check), "pause.%s", netdev);
	if (pauses[0])
		doctor_say(d, VERDICT_WARN, check,
			   "if they grow during jobs, receivers are too slow or senders too many: ECN "
			   "(DCQCN), a "
			   "smaller TERN_LINK_WINDOW_BYTES",
			   "pauses: %s", pauses);
	else
		doctor_say(d, VERDICT_OK, check, NULL, "no pauses in %u counters; global pause rx %s, tx %s",
			   seen,
			   !known            ? "unknown"
			   : global.rx_pause ? "on"
					     : "off",
			   !known            ? "unknown"
			   : global.tx_pause ? "on"
					     : "off");
}

/* mlx5 shows for which priorities it marks and obeys. */
static void check_ecn(doctor *d, const char *netdev)
{
	char notify[32] = "", react[32] = "", check[96];
	uint64_t on;

	if (!host_exists("/sys/class/net/%s/ecn/roce_np/enable", netdev))
		return;
	for (int i = 0; i < 8; i++) {
		if (host_u64(&on, "/sys/class/net/%s/ecn/roce_np/enable/%d", netdev, i) && on)
			append(notify, sizeof(notify), " %d", i);
		if (host_u64(&on, "/sys/class/net/%s/ecn/roce_rp/enable/%d", netdev, i) && on)
			append(react, sizeof(react), " %d", i);
	}
	snprintf(check, sizeof(check), "ecn.%s", netdev);
	if (notify[0] && react[0])
		doctor_say(d, VERDICT_OK, check, NULL, "congestion control for priorities%s, reacting for%s",
			   notify, react);
	else
		doctor_say(d, VERDICT_WARN, check,
			   "write 1 to ecn/roce_np/enable/PRIO and ecn/roce_rp/enable/PRIO of the interface, "
			   "and let "
			   "switches mark",
			   "RoCE congestion control is off");
}

void doctor_netdev(doctor *d, const char *netdev)
{
	static const char *const names[] = {"rx_crc_errors", "rx_errors", "tx_errors", "rx_missed_errors"};
	char text[300] = "", check[96];
	unsigned seen = 0;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		uint64_t value;

		if (!host_u64(&value, "/sys/class/net/%s/statistics/%s", netdev, names[i]))
			continue;
		seen++;
		if (value)
			append(text, sizeof(text), "%s%s %llu", text[0] ? ", " : "", names[i],
			       (unsigned long long)value);
	}
	snprintf(check, sizeof(check), "interface.%s", netdev);
	if (text[0])
		doctor_say(d, VERDICT_WARN, check,
			   "if they grow: cable, transceiver, ring sizes (ethtool -G)", "%s", text);
	else if (seen)
		doctor_say(d, VERDICT_OK, check, NULL, "no errors");
	check_pauses(d, netdev);
	check_ecn(d, netdev);
}

/* ---- the way to a peer ---- */

/* The interface that has an address of ours. */
static bool interface_of(const struct sockaddr *own, char netdev[64])
{
	struct ifaddrs *all;
	bool found = false;

	if (getifaddrs(&all) != 0)
		return false;
	for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != own->sa_family)
			continue;
		found = own->sa_family == AF_INET
				? memcmp(&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
					 &((const struct sockaddr_in *)(const void *)own)->sin_addr, 4) == 0
				: memcmp(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr,
					 &((const struct sockaddr_in6 *)(const void *)own)->sin6_addr,
					 16) == 0;
		if (found)
			snprintf(netdev, 64, "%s", i->ifa_name);
	}
	freeifaddrs(all);
	return found;
}

/* The RDMA device whose port is on that interface. */
static bool rdma_of(const char *netdev, char device[64])
{
	host_names names, ports;
	char text[64];

	host_list(&names, "/sys/class/infiniband");
	for (unsigned i = 0; i < names.count; i++) {
		host_list(&ports, SYS "/ports", names.name[i]);
		for (unsigned p = 0; p < ports.count; p++) {
			if (!host_read(text, sizeof(text), SYS "/ports/%s/gid_attrs/ndevs/0", names.name[i],
				       ports.name[p]) ||
			    strcmp(text, netdev) != 0)
				continue;
			snprintf(device, 64, "%s", names.name[i]);
			return true;
		}
	}
	return false;
}

static void say_route(doctor *d, const struct addrinfo *to, int fd)
{
	struct sockaddr_storage own;
	socklen_t length = sizeof(own);
	char from[64] = "?", netdev[64] = "?", device[64];
	int mtu = 0;

	if (getsockname(fd, (struct sockaddr *)&own, &length) != 0 ||
	    getnameinfo((struct sockaddr *)&own, length, from, sizeof(from), NULL, 0, NI_NUMERICHOST) != 0) {
		doctor_say(d, VERDICT_FAIL, "peer", "ip route", "the route has no source address");
		return;
	}
	interface_of((struct sockaddr *)&own, netdev);
	length = sizeof(mtu);
	getsockopt(fd, to->ai_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6,
		   to->ai_family == AF_INET ? IP_MTU : IPV6_MTU, &mtu, &length);
	if (rdma_of(netdev, device))
		doctor_say(d, VERDICT_OK, "peer", NULL, "route from %s on %s (RDMA device %s), path MTU %d",
			   from, netdev, device, mtu);
	else
		doctor_say(d, d->device ? VERDICT_WARN : VERDICT_OK, "peer",
			   d->device ? "route it through the RDMA NIC's interface, or name the peer by its "
				       "address "
				       "there"
				     : NULL,
			   "route from %s on %s%s, path MTU %d", from, netdev,
			   d->device ? ", which is no RDMA device's" : "", mtu);
}

void doctor_peer(doctor *d)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
	struct addrinfo *list;
	int rc = getaddrinfo(d->peer, "9", &hints, &list);
	int fd;

	if (rc != 0) {
		doctor_say(d, VERDICT_FAIL, "peer", "a host name that resolves, or an address without port",
			   "%s: %s", d->peer, gai_strerror(rc));
		return;
	}
	fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen) != 0)
		doctor_say(d, VERDICT_FAIL, "peer", "ip route, and the firewall of this host",
			   "no route to %s: %s", d->peer, strerror(errno));
	else
		say_route(d, list, fd);
	if (fd >= 0)
		close(fd);
	freeaddrinfo(list);
}
