/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of `tern doctor` that looks at libibverbs, RDMA devices and their ports: presence, permission, state,
 * MTU, GIDs, PCI. What the kernel shows comes from /sys, what only libibverbs knows from its facts. Reads, opens
 * device nodes and closes them, changes nothing. Threads: main. Tests: tests/e2e/doctor_test.py.
 */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

#define SYS "/sys/class/infiniband/%s"

/* ---- library and kernel ---- */

void doctor_library(doctor *d)
{
	const char *library = doctor_fact_get(d, "library"), *error = doctor_fact_get(d, "error");
	char abi[32];

	if (strcmp(d->mode, "off") == 0)
		doctor_say(d, VERDICT_OK, "verbs.mode", NULL, "off: verbs are not used, by option");
	else
		doctor_say(d, VERDICT_OK, "verbs.mode", NULL, "%s", d->mode);
	if (library)
		doctor_say(d, VERDICT_OK, "libibverbs", NULL, "%s", library);
	else
		doctor_say(d, doctor_missing(d), "libibverbs",
			   "install libibverbs1 and ibverbs-providers (Debian), rdma-core (others)", "%s",
			   error ? error : "this build of tern has no verbs");
	doctor_say(d, VERDICT_OK, "librdmacm", NULL,
		   "not needed: lanes are wired over the control connection");
	if (host_read(abi, sizeof(abi), "/sys/class/infiniband_verbs/abi_version"))
		doctor_say(d, VERDICT_OK, "ib_uverbs", NULL, "kernel ABI %s", abi);
	else
		doctor_say(d, doctor_missing(d), "ib_uverbs",
			   "modprobe ib_uverbs and the driver of the NIC (mlx5_ib, irdma, bnxt_re, ...); "
			   "without a "
			   "NIC, for tests: modprobe rdma_rxe",
			   "the kernel shows no verbs (/sys/class/infiniband_verbs)");
}

/* ---- a device ---- */

/* /sys/class/infiniband_verbs/uverbsN/ibdev names the device. */
static bool find_uverbs(const char *device, char node[64])
{
	host_names names;
	char text[64];

	host_list(&names, "/sys/class/infiniband_verbs");
	for (unsigned i = 0; i < names.count; i++) {
		if (!host_read(text, sizeof(text), "/sys/class/infiniband_verbs/%s/ibdev", names.name[i]) ||
		    strcmp(text, device) != 0)
			continue;
		snprintf(node, 64, "%s", names.name[i]);
		return true;
	}
	return false;
}

static void check_permission(doctor *d, const char *device)
{
	const char *opens = doctor_fact_get(d, "%s", device);
	char node[64], check[96];
	int fd = -1, err = 0;

	snprintf(check, sizeof(check), "permission.%s", device);
	if (!find_uverbs(device, node)) {
		doctor_say(d, VERDICT_FAIL, check, "modprobe ib_uverbs",
			   "no uverbs device belongs to it in /sys/class/infiniband_verbs");
		return;
	}
	if (!host_exists("/dev/infiniband/%s", node)) {
		doctor_say(
			d, VERDICT_FAIL, check,
			"in a container pass the device in (docker run --device /dev/infiniband/...), else "
			"udevadm trigger",
			"/dev/infiniband/%s is not there", node);
		return;
	}
	if (host_is_real()) {
		char path[96];

		snprintf(path, sizeof(path), "/dev/infiniband/%s", node);
		fd = open(path, O_RDWR | O_CLOEXEC);
		err = fd < 0 ? errno : 0;
		if (fd >= 0)
			close(fd);
	}
	if (err)
		doctor_say(d, VERDICT_FAIL, check,
			   "give this user read and write (the kernel's own mode is 0666: look for udev "
			   "rules); in a container also the device cgroup (--device)",
			   "/dev/infiniband/%s: %s", node, strerror(err));
	else if (doctor_fact_get(d, "library") && (!opens || strcmp(opens, "opens") != 0))
		doctor_say(d, VERDICT_FAIL, check,
			   "install the user-space driver of this NIC (ibverbs-providers), of a version that "
			   "fits "
			   "the kernel's",
			   "/dev/infiniband/%s can be opened, libibverbs says: %s", node,
			   opens ? opens : "no such device");
	else
		doctor_say(d, VERDICT_OK, check, NULL, "/dev/infiniband/%s can be opened", node);
}

static double number_in(const char *text)
{
	return strtod(text, NULL);
}

/* "16.0 GT/s PCIe" and "16": a link that came up narrower or slower than both ends can. */
static void check_pci(doctor *d, const char *device)
{
	char speed[32], speed_max[32], width[16], width_max[16], check[96];

	snprintf(check, sizeof(check), "pci.%s", device);
	if (!host_read(speed, sizeof(speed), SYS "/device/current_link_speed", device) ||
	    !host_read(speed_max, sizeof(speed_max), SYS "/device/max_link_speed", device) ||
	    !host_read(width, sizeof(width), SYS "/device/current_link_width", device) ||
	    !host_read(width_max, sizeof(width_max), SYS "/device/max_link_width", device))
		return;
	if (number_in(speed) < number_in(speed_max) || number_in(width) < number_in(width_max))
		doctor_say(
			d, VERDICT_WARN, check,
			"another slot, or the slot's speed in the firmware; the NIC gets no more than this",
			"the PCIe link runs at %s x%s, the NIC can do %s x%s", speed, width, speed_max,
			width_max);
	else
		doctor_say(d, VERDICT_OK, check, NULL, "PCIe %s x%s, as the NIC can", speed, width);
}

/* The Device Control register of the PCI Express capability: bit 4 allows relaxed ordering. */
static void check_relaxed(doctor *d, const char *device)
{
	unsigned char config[256];
	size_t n = host_bytes(config, sizeof(config), SYS "/device/config", device);
	unsigned at = n >= 64 ? config[0x34] & ~3u : 0;
	char check[96];

	snprintf(check, sizeof(check), "pci_order.%s", device);
	for (unsigned hops = 0; at >= 64 && at + 10u <= n && hops < 48; hops++, at = config[at + 1] & ~3u) {
		unsigned control;

		if (config[at] != 0x10)
			continue;
		control = config[at + 8] | (unsigned)config[at + 9] << 8;
		doctor_say(d, VERDICT_OK, check, NULL,
			   "relaxed ordering %s, payload up to %u bytes, reads up to %u (tern asks for "
			   "strict order)",
			   control & 0x10 ? "allowed" : "not allowed", 128u << (control >> 5 & 7),
			   128u << (control >> 12 & 7));
		return;
	}
}

static bool in_list(const char *list, long wanted)
{
	char *end;

	for (const char *at = list; *at; at = *end ? end + 1 : end) {
		long low = strtol(at, &end, 10), high = low;

		if (end == at)
			return false;
		if (*end == '-')
			high = strtol(end + 1, &end, 10);
		if (low <= wanted && wanted <= high)
			return true;
	}
	return false;
}

static void check_numa(doctor *d, const char *device)
{
	char node[16], allowed[128], check[96];

	snprintf(check, sizeof(check), "numa.%s", device);
	if (!host_read(node, sizeof(node), SYS "/device/numa_node", device) || atoi(node) < 0)
		return;
	if (host_keyed(allowed, sizeof(allowed), "/proc/self/status", "Mems_allowed_list") &&
	    !in_list(allowed, atoi(node)))
		doctor_say(d, VERDICT_WARN, check,
			   "run the job on the NIC's node (numactl, taskset, cpuset of the container)",
			   "the NIC is on NUMA node %s, this process may use memory of %s only", node,
			   allowed);
	else
		doctor_say(d, VERDICT_OK, check, NULL, "NUMA node %s", node);
}

static void check_iommu(doctor *d, const char *device)
{
	char type[32], check[96];

	snprintf(check, sizeof(check), "iommu.%s", device);
	if (!host_read(type, sizeof(type), SYS "/device/iommu_group/type", device))
		return;
	if (strncmp(type, "DMA", 3) == 0)
		doctor_say(d, VERDICT_WARN, check,
			   "boot with iommu=pt (bare metal), for speed and for GPUDirect; leave it where "
			   "devices are "
			   "not trusted",
			   "the IOMMU translates for this NIC (%s)", type);
	else
		doctor_say(d, VERDICT_OK, check, NULL, "IOMMU: %s", type);
}

/* ---- ports ---- */

static void port_netdev(const char *device, const char *port, char netdev[64])
{
	if (!host_read(netdev, 64, SYS "/ports/%s/gid_attrs/ndevs/0", device, port)) {
		host_names names;

		netdev[0] = '\0';
		if (host_list(&names, SYS "/device/net", device))
			snprintf(netdev, 64, "%s", names.name[0]);
	}
}

static bool check_state(doctor *d, const char *check, const char *device, const char *port,
			const char *link_layer, const char *netdev)
{
	char state[64] = "unknown", rate[64] = "rate unknown", physical[64] = "";
	bool infiniband = strcmp(link_layer, "InfiniBand") == 0;

	host_read(state, sizeof(state), SYS "/ports/%s/state", device, port);
	host_read(rate, sizeof(rate), SYS "/ports/%s/rate", device, port);
	host_read(physical, sizeof(physical), SYS "/ports/%s/phys_state", device, port);
	if (strstr(state, "ACTIVE")) {
		doctor_say(d, VERDICT_OK, check, NULL, "ACTIVE, %s, %s%s%s", link_layer, rate,
			   netdev[0] ? ", interface " : "", netdev);
		return true;
	}
	doctor_say(d, VERDICT_WARN, check,
		   infiniband && strstr(physical, "LinkUp") ? "the link is up and nobody manages the subnet: "
							      "start a subnet manager (opensm, or the "
							      "switch's)"
		   : infiniband                             ? "check the cable and the switch port"
				: "check the cable and the switch port; ip link set the interface up",
		   "%s (%s), %s%s%s", state, physical[0] ? physical : "no physical state", link_layer,
		   netdev[0] ? ", interface " : "", netdev);
	return false;
}

static void check_mtu(doctor *d, const char *device, const char *port, const char *netdev, bool ethernet)
{
	const char *active = doctor_fact_get(d, "%s.port%s.active_mtu", device, port);
	const char *most = doctor_fact_get(d, "%s.port%s.max_mtu", device, port);
	char interface[80] = "", mtu[16], check[96];

	snprintf(check, sizeof(check), "mtu.%s/%s", device, port);
	if (!active)
		return;
	if (netdev[0] && host_read(mtu, sizeof(mtu), "/sys/class/net/%s/mtu", netdev))
		snprintf(interface, sizeof(interface), ", %s has %s", netdev, mtu);
	if (most && atoi(active) < atoi(most))
		doctor_say(d, VERDICT_WARN, check,
			   ethernet ? "ip link set the interface's mtu to 4200 or more (9000), on all hosts "
				      "and on "
				      "the switches"
				    : "set the MTU of the partition at the subnet manager",
			   "active MTU %s of %s%s", active, most, interface);
	else
		doctor_say(d, VERDICT_OK, check, NULL, "active MTU %s%s", active, interface);
}

/* What the table holds, from the facts; "2 of 4 entries are usable". */
static void count_gids(const doctor *d, const char *device, const char *port, unsigned *all, unsigned *usable)
{
	char prefix[128];
	int n = snprintf(prefix, sizeof(prefix), "%s.port%s.gid.", device, port);

	*all = *usable = 0;
	for (unsigned i = 0; i < d->fact_count; i++) {
		if (strncmp(d->facts[i].key, prefix, (size_t)n) != 0)
			continue;
		++*all;
		*usable += strstr(d->facts[i].value, "usable: ") != NULL;
	}
}

static void check_gid(doctor *d, const char *device, const char *port)
{
	const char *choice = doctor_fact_get(d, "%s.port%s.gid_choice", device, port), *chosen;
	unsigned all, usable;
	char check[96];

	snprintf(check, sizeof(check), "gid.%s/%s", device, port);
	if (!choice)
		return;
	count_gids(d, device, port, &all, &usable);
	chosen = doctor_fact_get(d, "%s.port%s.gid.%d", device, port, atoi(choice));
	if (atoi(choice) >= 0 && chosen)
		doctor_say(d, VERDICT_OK, check, NULL, "GID %d: %s (of %u entries %u usable)", atoi(choice),
			   chosen, all, usable);
	else
		doctor_say(d, VERDICT_WARN, check,
			   "give the interface a routed address (ip addr add ADDRESS/PREFIX dev IF): its "
			   "RoCEv2 entry "
			   "follows by itself",
			   "none of %u entries is usable: RoCEv1, link-local or empty", all);
}

/* rdma_cm's default; tern takes no notice of it, other programs on the host do. */
static void check_roce_mode(doctor *d, const char *device, const char *port)
{
	char mode[64], check[96];

	if (!host_read(mode, sizeof(mode), "/sys/kernel/config/rdma_cm/%s/ports/%s/default_roce_mode", device,
		       port))
		return;
	snprintf(check, sizeof(check), "roce_mode.%s/%s", device, port);
	doctor_say(d, VERDICT_OK, check, NULL, "rdma_cm's default is %s; tern always takes RoCEv2", mode);
}

static bool check_port(doctor *d, const char *device, const char *port)
{
	char layer[32] = "unknown link layer", netdev[64], check[96];
	bool ethernet, active;

	host_read(layer, sizeof(layer), SYS "/ports/%s/link_layer", device, port);
	ethernet = strcmp(layer, "Ethernet") == 0;
	port_netdev(device, port, netdev);
	snprintf(check, sizeof(check), "port.%s/%s", device, port);
	active = check_state(d, check, device, port, layer, netdev);
	if (active) {
		check_mtu(d, device, port, netdev, ethernet);
		check_gid(d, device, port);
		if (ethernet)
			check_roce_mode(d, device, port);
	}
	doctor_counters(d, device, port);
	if (ethernet && netdev[0])
		doctor_netdev(d, netdev);
	return active;
}

static void check_device(doctor *d, const char *device)
{
	char driver[64] = "", firmware[64] = "", board[64] = "", where[64] = "", check[96];
	host_names ports;
	bool active = false;

	host_link(driver, sizeof(driver), SYS "/device/driver", device);
	host_link(where, sizeof(where), SYS "/device", device);
	host_read(firmware, sizeof(firmware), SYS "/fw_ver", device);
	host_read(board, sizeof(board), SYS "/board_id", device);
	snprintf(check, sizeof(check), "device.%s", device);
	doctor_say(d, VERDICT_OK, check, NULL, "driver %s%s%s%s%s%s%s", driver[0] ? driver : "in software",
		   where[0] ? ", at " : "", where, firmware[0] ? ", firmware " : "", firmware,
		   board[0] ? ", board " : "", board);
	check_permission(d, device);
	check_pci(d, device);
	check_relaxed(d, device);
	check_numa(d, device);
	check_iommu(d, device);
	host_list(&ports, SYS "/ports", device);
	for (unsigned i = 0; i < ports.count; i++)
		active |= check_port(d, device, ports.name[i]);
	if (!active)
		doctor_say(d, VERDICT_FAIL, check, "bring one of its ports up",
			   "no port is ACTIVE: it cannot be used");
}

/* Exclusive: a device is seen only in the network namespace that owns it. */
static void check_namespaces(doctor *d)
{
	char mode[16];

	if (!host_read(mode, sizeof(mode), "/sys/module/ib_core/parameters/netns_mode"))
		return;
	doctor_say(d, VERDICT_OK, "rdma_netns", NULL,
		   mode[0] == 'Y'
			   ? "shared: devices are seen in all network namespaces, GIDs only in their "
			     "interface's own"
			   : "exclusive: devices are seen in the network namespace that they were moved to");
}

void doctor_devices(doctor *d)
{
	host_names names;

	if (!host_list(&names, "/sys/class/infiniband")) {
		doctor_say(d, doctor_missing(d), "devices",
			   "load the NIC's driver, or pass the device into the container; nothing, if there "
			   "is no "
			   "RDMA NIC",
			   "no RDMA device (/sys/class/infiniband)");
		return;
	}
	check_namespaces(d);
	for (unsigned i = 0; i < names.count; i++)
		check_device(d, names.name[i]);
}
