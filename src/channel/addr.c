/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "host:port" and socket addresses. See addr.h.
 * Threads: any. Tests: tests/unit/channel/test_addr.c.
 */
#include "channel/addr.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/limits.h"

/* Split into host and port. False: not of the form. */
static bool split(const char *text, char host[TN_ADDRESS_MAX], char port[8])
{
	const char *colon = strrchr(text, ':');
	size_t n;

	if (!colon || strlen(colon + 1) == 0 || strlen(colon + 1) > 5 ||
	    strspn(colon + 1, "0123456789") != strlen(colon + 1))
		return false;
	n = (size_t)(colon - text);
	if (n >= TN_ADDRESS_MAX)
		return false;
	if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
		memcpy(host, text + 1, n - 2);
		host[n - 2] = '\0';
	} else {
		memcpy(host, text, n);
		host[n] = '\0';
		if (strchr(host, ':'))
			return false; /* IPv6 needs brackets, else its end looks like a port */
	}
	snprintf(port, 8, "%s", colon + 1);
	return strtoul(port, NULL, 10) <= 65535;
}

tern_status tn_addr_resolve(const char *text, bool passive, tn_addr *addr)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
	struct addrinfo *list = NULL;
	char host[TN_ADDRESS_MAX], port[8];
	const char *node = host;
	int err;

	memset(addr, 0, sizeof(*addr));
	if (!text || !split(text, host, port))
		return tn_fail(TERN_E_INVALID,
			       "\"%s\" is not an address: write host:port, IPv6 as [::1]:port",
			       text ? text : "");
	if (strcmp(host, "localhost") == 0)
		node = "127.0.0.1";
	if (host[0] == '\0' || strcmp(host, "*") == 0) {
		if (!passive)
			return tn_fail(TERN_E_INVALID, "\"%s\" names no host to connect to", text);
		node = "0.0.0.0";
	}
	err = getaddrinfo(node, port, &hints, &list);
	if (err == EAI_NONAME) {
		hints.ai_flags &= ~AI_NUMERICHOST;
		hints.ai_flags |= passive ? AI_PASSIVE : AI_ADDRCONFIG;
		err = getaddrinfo(node, port, &hints, &list);
	}
	if (err != 0 || !list)
		return tn_fail(TERN_E_UNREACHABLE, "host \"%s\" cannot be resolved: %s", host,
			       gai_strerror(err));
	memcpy(&addr->sa, list->ai_addr, list->ai_addrlen);
	addr->bytes = list->ai_addrlen;
	freeaddrinfo(list);
	return TERN_OK;
}

bool tn_addr_is_loopback(const tn_addr *addr)
{
	if (addr->sa.ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)&addr->sa;

		return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
	}
	if (addr->sa.ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&addr->sa;

		return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr) ||
		       (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) && in6->sin6_addr.s6_addr[12] == 127);
	}
	return false;
}

const char *tn_addr_host(const tn_addr *addr, char *buf, size_t size)
{
	if (getnameinfo((const struct sockaddr *)&addr->sa, addr->bytes, buf, (socklen_t)size, NULL, 0,
			NI_NUMERICHOST) != 0)
		snprintf(buf, size, "?");
	return buf;
}

const char *tn_addr_format(const tn_addr *addr, char *buf, size_t size)
{
	char host[TN_ADDRESS_MAX], port[8];

	if (getnameinfo((const struct sockaddr *)&addr->sa, addr->bytes, host, sizeof(host), port,
			sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		snprintf(buf, size, "?");
	else if (addr->sa.ss_family == AF_INET6)
		snprintf(buf, size, "[%s]:%s", host, port);
	else
		snprintf(buf, size, "%s:%s", host, port);
	return buf;
}
