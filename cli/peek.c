/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See peek.h. HTTP/1.0, so that an answer ends where the connection does; the text format of Prometheus 0.0.4.
 */
#include "peek.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "progress.h"

#define PAGE_MAX (256u << 20)

size_t peek_addresses(const char *addresses[PEEK_MAX])
{
	size_t n = 0;

	while (n < PEEK_MAX && addresses[n])
		n++;
	if (n == 0)
		addresses[n++] = "127.0.0.1:" PEEK_PORT;
	return n;
}

/* ---- pages ---- */

static int dial(const char *address, char *why, size_t why_bytes)
{
	const struct timeval patience = {.tv_sec = 5};
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *list = NULL;
	const char *colon = strrchr(address, ':');
	char host[256];
	int fd = -1, rc;

	if (strncmp(address, "http://", 7) == 0) {
		address += 7;
		colon = strrchr(address, ':');
	}
	snprintf(host, sizeof(host), "%.*s",
		 (int)(colon ? colon - address : (ptrdiff_t)strcspn(address, "/")), address);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = '\0';
		memmove(host, host + 1, strlen(host));
	}
	rc = getaddrinfo(host, colon ? colon + 1 : PEEK_PORT, &hints, &list);
	if (rc != 0) {
		snprintf(why, why_bytes,
			 "'%s': %s (an endpoint is HOST:PORT, as `tern server --http` says it)", address,
			 gai_strerror(rc));
		return -1;
	}
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
			snprintf(why, why_bytes, "%s: %s (does a process run there with --http?)", address,
				 strerror(errno == EINPROGRESS ? ETIMEDOUT : errno));
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd;
}

/* All that comes until the connection ends, with a NUL behind. */
static char *read_all(int fd)
{
	size_t room = 65536, n = 0;
	char *text = malloc(room);

	while (text) {
		ssize_t got = read(fd, text + n, room - n - 1);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 || n > PAGE_MAX)
			break;
		n += (size_t)got;
		text[n] = '\0';
		if (got == 0)
			return text;
		if (room - n < 4096) {
			char *more = realloc(text, room *= 2);

			if (!more)
				break;
			text = more;
		}
	}
	free(text);
	return NULL;
}

char *peek(const char *address, const char *path, char *why, size_t why_bytes)
{
	int fd = dial(address, why, why_bytes), status = 0;
	char request[512];
	char *text, *body;

	if (fd < 0)
		return NULL;
	snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", path);
	text = send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request) ? read_all(fd)
											    : NULL;
	close(fd);
	body = text ? strstr(text, "\r\n\r\n") : NULL;
	if (!body || sscanf(text, "HTTP/%*s %d", &status) != 1 || status != 200) {
		snprintf(why, why_bytes,
			 text && status ? "%s%s: HTTP %d: not a tern endpoint, or an older one"
					: "%s%s: no answer",
			 address, path, status);
		free(text);
		return NULL;
	}
	memmove(text, body + 4, strlen(body + 4) + 1);
	return text;
}

/* ---- samples ---- */

/* One line into *out; it is cut up in place. False: a comment, or nonsense. */
static bool parse_line(char *line, sample *out)
{
	char *brace = strchr(line, '{'), *space = strrchr(line, ' ');
	char *end;

	if (line[0] == '#' || !space)
		return false;
	*space = '\0';
	out->name = line;
	out->labels = "";
	if (brace && brace < space && space[-1] == '}') {
		space[-1] = '\0';
		*brace = '\0';
		out->labels = brace + 1;
	}
	out->value = strtod(space + 1, &end);
	return end != space + 1;
}

bool samples_get(samples *s, const char *address, char *why, size_t why_bytes)
{
	size_t room = 0;
	char *rest;

	*s = (samples){0};
	s->text = peek(address, "/metrics", why, why_bytes);
	if (!s->text)
		return false;
	s->at_ns = progress_now_ns();
	rest = s->text;
	for (char *line = strtok_r(rest, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (s->n == room) {
			sample *more = realloc(s->row, (room = room ? 2 * room : 512) * sizeof(*more));

			if (!more)
				break;
			s->row = more;
		}
		if (parse_line(line, &s->row[s->n]))
			s->n++;
	}
	return true;
}

void samples_free(samples *s)
{
	free(s->text);
	free(s->row);
	*s = (samples){0};
}

double samples_value(const samples *s, const char *name, const char *part, double missing)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->row[i].name, name) == 0 && (!part || strstr(s->row[i].labels, part)))
			return s->row[i].value;
	return missing;
}

double samples_sum(const samples *s, const char *name)
{
	double sum = 0;

	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->row[i].name, name) == 0)
			sum += s->row[i].value;
	return sum;
}

const char *sample_label(const sample *s, const char *label, char *buf, size_t bytes)
{
	size_t n = strlen(label), at = 0;
	const char *p = s->labels;

	buf[0] = '\0';
	while ((p = strstr(p, label)) != NULL &&
	       !((p == s->labels || p[-1] == ',') && p[n] == '=' && p[n + 1] == '"'))
		p += n;
	if (!p)
		return buf;
	for (p += n + 2; *p && *p != '"' && at + 1 < bytes; p++) {
		if (*p == '\\' && p[1])
			p++;
		buf[at++] = *p;
	}
	buf[at] = '\0';
	return buf;
}

double samples_rate(const samples *s, const samples *before, double now, double was)
{
	double seconds = (double)(s->at_ns - before->at_ns) * 1e-9;

	return before->n && seconds > 0 && now > was ? (now - was) / seconds : 0;
}
