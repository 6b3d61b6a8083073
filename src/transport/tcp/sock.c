/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how the provider's sockets are made, tuned and named: the listener, dialling, the addresses that
 * peers are told. Must not know lanes or frames. Nothing blocks but the look-up of a host name at open.
 * Threads: any. Tests: tests/unit/transport/test_tcp_lane.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/tcp/tcp.h"

#define LISTEN_BACKLOG   1024
#define KEEPALIVE_PROBES 3

static void set_int(int fd, int level, int name, uint64_t value, const char *what)
{
	int v = value > INT32_MAX ? INT32_MAX : (int)value;

	if (setsockopt(fd, level, name, &v, sizeof(v)) != 0)
		TN_LOG_LIMITED(WARN, TCP, 1, "setsockopt %s = %d: %s", what, v, strerror(errno));
}

void tn_tcp_tune(int fd, const tn_tcp_opts *opts)
{
	uint64_t probe_s = opts->keepalive_ns / (KEEPALIVE_PROBES + 1) / TN_NS_PER_SEC;

	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
	if (opts->user_timeout_ns)
		set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, opts->user_timeout_ns / TN_NS_PER_MS,
			"TCP_USER_TIMEOUT");
	if (opts->keepalive_ns) {
		probe_s = probe_s ? probe_s : 1;
		set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
		set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s, "TCP_KEEPIDLE");
		set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s, "TCP_KEEPINTVL");
		set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES, "TCP_KEEPCNT");
	}
	if (opts->sndbuf)
		set_int(fd, SOL_SOCKET, SO_SNDBUF, opts->sndbuf, "SO_SNDBUF");
	if (opts->rcvbuf)
		set_int(fd, SOL_SOCKET, SO_RCVBUF, opts->rcvbuf, "SO_RCVBUF");
}

/* ---- addresses ---- */

static socklen_t to_sockaddr(const tn_tcp_addr *addr, struct sockaddr_storage *out)
{
	struct sockaddr_in *in = (struct sockaddr_in *)out;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (addr->family == 4) {
		in->sin_family = AF_INET;
		in->sin_port = htons(addr->port);
		memcpy(&in->sin_addr, addr->ip, 4);
		return sizeof(*in);
	}
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(addr->port);
	in6->sin6_scope_id = addr->scope;
	memcpy(&in6->sin6_addr, addr->ip, 16);
	return sizeof(*in6);
}

static bool from_sockaddr(const struct sockaddr *sa, tn_tcp_addr *addr)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

	memset(addr, 0, sizeof(*addr));
	if (sa->sa_family == AF_INET) {
		addr->family = 4;
		addr->port = ntohs(in->sin_port);
		memcpy(addr->ip, &in->sin_addr, 4);
		return true;
	}
	if (sa->sa_family != AF_INET6)
		return false;
	addr->family = 6;
	addr->port = ntohs(in6->sin6_port);
	addr->scope = in6->sin6_scope_id;
	memcpy(addr->ip, &in6->sin6_addr, 16);
	return true;
}

bool tn_tcp_addr_is_loopback(const tn_tcp_addr *addr)
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	static const uint8_t one[16] = {[15] = 1};

	if (addr->family == 4)
		return addr->ip[0] == 127;
	return memcmp(addr->ip, one, 16) == 0 || (memcmp(addr->ip, mapped, 12) == 0 && addr->ip[12] == 127);
}

static bool is_link_local(const tn_tcp_addr *addr)
{
	if (addr->family == 4)
		return addr->ip[0] == 169 && addr->ip[1] == 254;
	return addr->ip[0] == 0xfe && (addr->ip[1] & 0xc0) == 0x80;
}

static bool is_wildcard(const tn_tcp_addr *addr)
{
	static const uint8_t zero[16];

	return memcmp(addr->ip, zero, 16) == 0;
}

static bool same_ip(const tn_tcp_addr *a, const tn_tcp_addr *b)
{
	return a->family == b->family && memcmp(a->ip, b->ip, 16) == 0;
}

void tn_tcp_addr_print(const tn_tcp_addr *addr, char *out, size_t bytes)
{
	char ip[INET6_ADDRSTRLEN] = "?";

	inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->ip, ip, sizeof(ip));
	if (addr->family == 4)
		snprintf(out, bytes, "%s:%u", ip, addr->port);
	else if (addr->scope)
		snprintf(out, bytes, "[%s%%%u]:%u", ip, addr->scope, addr->port);
	else
		snprintf(out, bytes, "[%s]:%u", ip, addr->port);
}

/* ---- what peers are told ---- */

/* The address that the kernel would send from towards the outside: no packet leaves. */
static bool default_source(uint8_t family, tn_tcp_addr *addr)
{
	/* documentation addresses (RFC 5737, RFC 3849): routed by default, owned by nobody */
	tn_tcp_addr far = {.family = family, .port = 9, .ip = {192, 0, 2, 1}};
	static const uint8_t far6[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = 1};
	struct sockaddr_storage sa;
	socklen_t bytes;
	bool found = false;
	int fd = socket(family == 4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return false;
	if (family == 6)
		memcpy(far.ip, far6, 16);
	bytes = to_sockaddr(&far, &sa);
	if (connect(fd, (struct sockaddr *)&sa, bytes) == 0) {
		bytes = sizeof(sa);
		if (getsockname(fd, (struct sockaddr *)&sa, &bytes) == 0)
			found = from_sockaddr((struct sockaddr *)&sa, addr);
	}
	tn_os_close(&fd);
	return found;
}

static void add_addr(tn_tcp_dev_blob *self, tn_tcp_addr addr, uint16_t port)
{
	for (uint32_t i = 0; i < self->count; i++) {
		if (same_ip(&self->addrs[i], &addr))
			return;
	}
	if (self->count == TN_TCP_ADDRS_MAX)
		return;
	addr.port = port;
	self->addrs[self->count++] = addr;
}

/* Addresses of running interfaces; loopback ones last, link-local ones never (ambiguous at the peer). */
static void add_interfaces(tn_tcp_dev_blob *self, const tn_tcp_addr *bound, bool loopback)
{
	struct ifaddrs *list = NULL;
	tn_tcp_addr addr;

	if (getifaddrs(&list) != 0) {
		TN_LOG(WARN, TCP, "getifaddrs: %s", strerror(errno));
		return;
	}
	for (struct ifaddrs *i = list; i; i = i->ifa_next) {
		if (!i->ifa_addr || (i->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
			continue;
		if (!from_sockaddr(i->ifa_addr, &addr) || is_link_local(&addr))
			continue;
		/* an IPv6 wildcard listens for IPv4 as well */
		if (bound->family == 4 && addr.family == 6)
			continue;
		if (tn_tcp_addr_is_loopback(&addr) == loopback)
			add_addr(self, addr, bound->port);
	}
	freeifaddrs(list);
}

static uint64_t fnv1a(const void *data, size_t bytes)
{
	const uint8_t *p = data;
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ p[i]) * 0x100000001b3ull;
	return hash;
}

static void host_facts(tn_tcp_dev_blob *self)
{
	tn_os_limits limits;
	struct stat st;
	uint64_t id[2];

	tn_os_limits_get(&limits);
	self->host = limits.boot_id[0] ? fnv1a(limits.boot_id, strlen(limits.boot_id)) : 0;
	self->netns = 0;
	if (stat("/proc/self/ns/net", &st) == 0) {
		id[0] = st.st_dev;
		id[1] = st.st_ino;
		self->netns = fnv1a(id, sizeof(id));
	}
}

tern_status tn_tcp_self(const struct sockaddr_storage *bound, tn_tcp_dev_blob *self)
{
	tn_tcp_addr addr, source;

	memset(self, 0, sizeof(*self));
	host_facts(self);
	if (!from_sockaddr((const struct sockaddr *)bound, &addr))
		return tn_fail(TERN_E_INTERNAL, "a listener of family %d", bound->ss_family);
	if (!is_wildcard(&addr)) {
		add_addr(self, addr, addr.port);
		return TERN_OK;
	}
	/* the address of the default route first: bridges of containers are up and running as well */
	if (default_source(4, &source))
		add_addr(self, source, addr.port);
	if (addr.family == 6 && default_source(6, &source) && !is_link_local(&source))
		add_addr(self, source, addr.port);
	add_interfaces(self, &addr, false);
	add_interfaces(self, &addr, true);
	if (self->count == 0)
		return tn_fail(TERN_E_NO_DEVICE,
			       "no network interface with an address is up: bind to 127.0.0.1");
	return TERN_OK;
}

/* ---- listening and dialling ---- */

static tern_status resolve(const char *host, uint64_t port, struct sockaddr_storage *out, socklen_t *bytes)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *list = NULL;
	char service[8], name[256];
	size_t n = strlen(host);
	int rc;

	if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
		host++;
		n -= 2;
	}
	if (n >= sizeof(name))
		return tn_fail(TERN_E_INVALID, "the host to bind to is longer than %zu bytes",
			       sizeof(name) - 1);
	memcpy(name, host, n);
	name[n] = '\0';
	snprintf(service, sizeof(service), "%u", (unsigned)port);
	rc = getaddrinfo(name, service, &hints, &list);
	if (rc != 0)
		return tn_fail(TERN_E_NOT_FOUND, "host \"%s\" to bind to: %s: give an address of this host",
			       name, gai_strerror(rc));
	*bytes = list->ai_addrlen;
	memcpy(out, list->ai_addr, list->ai_addrlen);
	freeaddrinfo(list);
	return TERN_OK;
}

tern_status tn_tcp_listen(const char *host, const tn_tcp_opts *opts, int *fd, struct sockaddr_storage *bound)
{
	socklen_t bytes = 0;
	int off = 0, on = 1;
	tern_status status;

	*fd = -1;
	TN_TRY(resolve(host, opts->port, bound, &bytes));
	*fd = TN_FAULT("tcp.listener.socket")
		      ? (errno = EMFILE, -1)
		      : socket(bound->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "socket", "to listen on %s", host);
	if (bound->ss_family == AF_INET6)
		setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	/* a fixed port must be usable again at once after a restart; a port in use is refused all the same */
	if (opts->port)
		setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	/* buffers are inherited by accepted connections, and the window is negotiated from them */
	tn_tcp_tune(*fd, opts);
	if (bind(*fd, (struct sockaddr *)bound, bytes) != 0 || listen(*fd, LISTEN_BACKLOG) != 0) {
		status = tn_fail_errno(
			tn_status_of_errno(errno), "bind", "%s port %u%s", host, (unsigned)opts->port,
			errno == EADDRINUSE ? ": choose another TERN_TCP_PORT, 0 for any" : "");
		tn_os_close(fd);
		return status;
	}
	bytes = sizeof(*bound);
	if (getsockname(*fd, (struct sockaddr *)bound, &bytes) != 0) {
		status = tn_fail_errno(TERN_E_OS, "getsockname", "%s", "");
		tn_os_close(fd);
		return status;
	}
	return TERN_OK;
}

int tn_tcp_dial(const tn_tcp_addr *addr, const tn_tcp_opts *opts, int *fd)
{
	struct sockaddr_storage sa;
	socklen_t bytes = to_sockaddr(addr, &sa);
	int err;

	*fd = TN_FAULT("tcp.dial.socket")
		      ? (errno = EMFILE, -1)
		      : socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return errno;
	tn_tcp_tune(*fd, opts);
	if (connect(*fd, (struct sockaddr *)&sa, bytes) == 0 || errno == EINPROGRESS)
		return 0;
	err = errno;
	tn_os_close(fd);
	return err;
}

ssize_t tn_tcp_discard(int fd, size_t bytes)
{
	/* Not recv: the thread sanitizer takes its length for bytes that are written, at NULL. */
	return syscall(SYS_recvfrom, fd, NULL, bytes, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);
}

void tn_tcp_timer_set(int timer, uint64_t after_ns)
{
	struct itimerspec spec = {.it_value = {.tv_sec = (time_t)(after_ns / TN_NS_PER_SEC),
					       .tv_nsec = (long)(after_ns % TN_NS_PER_SEC)}};

	if (timerfd_settime(timer, 0, &spec, NULL) != 0)
		TN_LOG(ERROR, TCP, "timerfd_settime: %s", strerror(errno));
}
