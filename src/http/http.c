/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon: listening, routes, answers. It only reads, and says so: GET and HEAD alone.
 *
 * Threads: http.h. Tests: tests/e2e/http_test.py.
 */
#include "http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"

#define CONNECTIONS_MAX 32u
#define IDLE_SECONDS    10u

typedef struct page {
	unsigned status;
	const char *type;
	uint64_t since; /* of the query, 0 without */
	tn_str text;
} page;

/* ---- answers ---- */

static bool is_alive(tern_http *http)
{
	return tern_ctx_address(http->ctx) != NULL && tern_ctx_fd(http->ctx) >= 0;
}

static void health(tern_http *http, page *p)
{
	p->status = is_alive(http) ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
	tn_str_add(&p->text, p->status == MHD_HTTP_OK ? "ok\n" : "the context has ended\n");
}

static void readiness(tern_http *http, page *p)
{
	char why[256] = "not ready";
	bool ready = is_alive(http) &&
		     (!http->params.ready || http->params.ready(why, sizeof(why), http->params.arg));

	p->status = ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
	tn_str_addf(&p->text, "%s\n", ready ? "ready" : why);
}

static void front(tern_http *http, page *p)
{
	(void)http;
	p->type = "text/html; charset=utf-8";
	tn_str_addn(&p->text, (const char *)tn_http_page, tn_http_page_bytes);
}

static void metrics(tern_http *http, page *p)
{
	p->type = "text/plain; version=0.0.4; charset=utf-8";
	tn_http_metrics(http, &p->text);
}

static void status(tern_http *http, page *p)
{
	p->type = "application/json";
	tn_http_status(http, &p->text);
}

static void state(tern_http *http, page *p)
{
	tn_http_state(http, &p->text);
}

static void waits(tern_http *http, page *p)
{
	tn_http_waits(http, &p->text);
}

static void trace(tern_http *http, page *p)
{
	p->type = "application/json";
	tn_http_trace(http, p->since, &p->text);
}

typedef struct route {
	const char *path;
	void (*make)(tern_http *http, page *p);
} route;

static const route routes[] = {{"/", front},           {"/metrics", metrics},    {"/healthz", health},
			       {"/readyz", readiness}, {"/status.json", status}, {"/state", state},
			       {"/trace.json", trace}, {"/waits", waits}};

static void make_page(tern_http *http, const char *path, page *p)
{
	for (unsigned i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		if (strcmp(routes[i].path, path) == 0) {
			routes[i].make(http, p);
			return;
		}
	}
	p->status = MHD_HTTP_NOT_FOUND;
	tn_str_add(
		&p->text,
		"There are /, /metrics, /healthz, /readyz, /status.json, /waits, /trace.json and /state.\n");
}

/* A web page could have its own name point to loopback: a browser says in Host which name it followed. */
static bool host_is_fine(const tern_http *http, struct MHD_Connection *connection)
{
	const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");

	return !http->loopback || !host || strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]", 5) == 0 ||
	       strcmp(host, "localhost") == 0 || strncmp(host, "localhost:", 10) == 0;
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *connection, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_bytes, void **seen)
{
	tern_http *http = arg;
	page p = {.status = MHD_HTTP_OK, .type = "text/plain; charset=utf-8"};
	const char *since = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "since");
	struct MHD_Response *response;
	enum MHD_Result result = MHD_NO;
	char *text;

	(void)version, (void)upload;
	if (!*seen) { /* the head alone: come again with the rest */
		*seen = http;
		return MHD_YES;
	}
	if (*upload_bytes) { /* nobody reads it; the answer comes after */
		*upload_bytes = 0;
		return MHD_YES;
	}
	tn_str_init(&p.text);
	p.since = since ? strtoull(since, NULL, 10) : 0;
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD)) {
		p.status = MHD_HTTP_METHOD_NOT_ALLOWED;
		tn_str_add(&p.text, "Nothing here can be changed: GET and HEAD.\n");
	} else if (!host_is_fine(http, connection)) {
		p.status = MHD_HTTP_FORBIDDEN;
		tn_str_add(&p.text, "This is for loopback: ask for 127.0.0.1 or localhost.\n");
	} else {
		make_page(http, url, &p);
	}
	text = tn_str_take(&p.text);
	response = text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
	if (!response) {
		free(text);
		return MHD_NO;
	}
	if (MHD_add_response_header(response, "Content-Type", p.type) == MHD_YES &&
	    MHD_add_response_header(response, "Cache-Control", "no-store") == MHD_YES &&
	    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff") == MHD_YES)
		result = MHD_queue_response(connection, p.status, response);
	MHD_destroy_response(response);
	return result;
}

/* ---- life ---- */

/* "127.0.0.1:9400" or "[::1]:9400". */
static tern_status parse_address(const char *text, struct sockaddr_storage *out, socklen_t *bytes,
				 bool *loopback)
{
	const char *colon = strrchr(text, ':');
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
	char host[64];
	char *end;
	unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 65536;

	memset(out, 0, sizeof(*out));
	if (!colon || !colon[1] || *end || port > 65535 || (size_t)(colon - text) >= sizeof(host))
		return tn_fail(TERN_E_INVALID, "'%s': HOST:PORT, the host as a number, like 127.0.0.1:9400",
			       text);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = '\0';
		memmove(host, host + 1, strlen(host));
	}
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		*bytes = sizeof(*v4);
		*loopback = (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
	} else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
		*bytes = sizeof(*v6);
		*loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
	} else {
		return tn_fail(TERN_E_INVALID, "'%s': the host is an address in numbers, like 127.0.0.1",
			       text);
	}
	return TERN_OK;
}

static void format_address(tern_http *http, int fd)
{
	struct sockaddr_storage own;
	socklen_t bytes = sizeof(own);
	char host[64] = "?";
	uint16_t port = 0;

	if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0)
		return;
	if (own.ss_family == AF_INET) {
		struct sockaddr_in *a = (struct sockaddr_in *)(void *)&own;

		inet_ntop(AF_INET, &a->sin_addr, host, sizeof(host));
		port = ntohs(a->sin_port);
	} else {
		struct sockaddr_in6 *a = (struct sockaddr_in6 *)(void *)&own;

		inet_ntop(AF_INET6, &a->sin6_addr, host, sizeof(host));
		port = ntohs(a->sin6_port);
	}
	snprintf(http->address, sizeof(http->address), own.ss_family == AF_INET ? "%.45s:%u" : "[%.45s]:%u",
		 host, port);
}

static tern_status open_socket(const char *text, tern_http *http, int *out)
{
	struct sockaddr_storage address;
	socklen_t bytes = 0;
	int fd, yes = 1;

	TN_TRY(parse_address(text, &address, &bytes, &http->loopback));
	if (!http->loopback && !(http->params.flags & TERN_HTTP_INSECURE))
		return tn_fail(TERN_E_INSECURE,
			       "%s is beyond loopback, where anybody could read the state of this process: "
			       "listen on "
			       "127.0.0.1, or say that it may be (TERN_HTTP_INSECURE, --insecure)",
			       text);
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return tn_fail_errno(TERN_E_OS, "socket", "for %s", text);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, CONNECTIONS_MAX) != 0) {
		tern_status status =
			tn_fail_errno(errno == EADDRINUSE ? TERN_E_IN_USE : TERN_E_OS, "listen", "%s", text);

		close(fd);
		return status;
	}
	format_address(http, fd);
	*out = fd;
	return TERN_OK;
}

tern_status tern_http_start(tern_ctx *ctx, const tern_http_params *params, tern_http **out)
{
	tern_http *http = calloc(1, sizeof(*http));
	tern_status status;
	int fd;

	*out = NULL;
	if (!http)
		return tn_fail(TERN_E_NOMEM, "no memory for an HTTP endpoint");
	http->ctx = ctx;
	http->params = params ? *params : (tern_http_params){0};
	status = tern_ctx_record(ctx, 0);
	if (status == TERN_OK)
		status = open_socket(http->params.listen ? http->params.listen : "127.0.0.1:0", http, &fd);
	if (status != TERN_OK) {
		free(http);
		return status;
	}
	http->params.listen = NULL; /* the caller's string */
	http->daemon =
		MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, 0, NULL, NULL, answer, http,
				 MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
				 MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_END);
	if (!http->daemon) {
		close(fd);
		free(http);
		return tn_fail(TERN_E_NOMEM, "the HTTP endpoint can't start its thread");
	}
	*out = http;
	return TERN_OK;
}

const char *tern_http_address(const tern_http *http)
{
	return http->address;
}

void tern_http_stop(tern_http *http)
{
	if (!http)
		return;
	MHD_stop_daemon(http->daemon); /* closes the socket, and waits for answers under way */
	free(http);
}
