/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See redact.h. A word is looked at as a whole: what merely looks like an address in the middle of a word
 * (libibverbs.so.1.14.44.0, a PCI address) stays. Threads: main. Tests: tests/e2e/doctor_test.py.
 */
#include "redact.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <pwd.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

typedef struct names {
	char host[256], host_short[256], user[64], home[256];
} names;

static void find_names(names *n)
{
	const struct passwd *who = getpwuid(geteuid());

	memset(n, 0, sizeof(*n));
	if (gethostname(n->host, sizeof(n->host) - 1) != 0)
		n->host[0] = '\0';
	snprintf(n->host_short, sizeof(n->host_short), "%.*s", (int)strcspn(n->host, "."), n->host);
	if (who && strcmp(who->pw_name, "root") != 0)
		snprintf(n->user, sizeof(n->user), "%s", who->pw_name);
	if (who && strlen(who->pw_dir) > 1)
		snprintf(n->home, sizeof(n->home), "%s", who->pw_dir);
}

/* Short names would be found everywhere ("a", "vm"); whole words only. */
static bool starts(const char *at, const char *name, bool fresh)
{
	size_t n = strlen(name);

	return n >= 3 && fresh && strncmp(at, name, n) == 0 && !isalnum((unsigned char)at[n]);
}

static bool in_address(char c)
{
	return isxdigit((unsigned char)c) || c == ':' || c == '.';
}

static bool redact_v4(FILE *out, const char *word)
{
	struct in_addr a;
	unsigned first, second;

	if (inet_pton(AF_INET, word, &a) != 1 || sscanf(word, "%u.%u", &first, &second) != 2)
		return false;
	if (first == 127 || first == 0)
		return false;
	fprintf(out, "%u.%u.x.x", first, second);
	return true;
}

static bool redact_v6(FILE *out, const char *word)
{
	struct in6_addr a;

	if (inet_pton(AF_INET6, word, &a) != 1 || IN6_IS_ADDR_LOOPBACK(&a) || IN6_IS_ADDR_UNSPECIFIED(&a))
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&a))
		fprintf(out, "::ffff:%u.%u.x.x", a.s6_addr[12], a.s6_addr[13]);
	else if (IN6_IS_ADDR_LINKLOCAL(&a))
		fputs("fe80::x", out);
	else
		fprintf(out, "%02x%02x:%02x%02x::x", a.s6_addr[0], a.s6_addr[1], a.s6_addr[2], a.s6_addr[3]);
	return true;
}

/* Groups of that many digits between colons, so many of them. */
static bool is_groups(const char *word, unsigned digits, unsigned groups)
{
	unsigned in_group = 0, seen = 1;

	for (; *word; word++) {
		if (*word == ':') {
			if (in_group != digits)
				return false;
			in_group = 0;
			seen++;
		} else if (!isxdigit((unsigned char)*word)) {
			return false;
		} else {
			in_group++;
		}
	}
	return in_group == digits && seen == groups;
}

/* A word of digits, colons and dots; full stops and colons behind it belong to the sentence. */
static void put_word(FILE *out, char *word)
{
	size_t n = strlen(word);
	char tail[8] = "";

	while (n > 1 && (word[n - 1] == '.' || (word[n - 1] == ':' && word[n - 2] != ':')) &&
	       strlen(tail) < sizeof(tail) - 1) {
		memmove(tail + 1, tail, strlen(tail) + 1);
		tail[0] = word[--n];
		word[n] = '\0';
	}
	if (is_groups(word, 2, 6))
		fprintf(out, "%.8s:x", word);
	else if (is_groups(word, 4, 4))
		fprintf(out, "%.4s:x", word);
	else if (!redact_v4(out, word) && !redact_v6(out, word))
		fputs(word, out);
	fputs(tail, out);
}

/* "10.0.0.1:7001": the port stays behind the address. */
static void put_address(FILE *out, char *word)
{
	char *colon = strchr(word, ':');

	if (colon && strchr(word, '.') && strchr(word, '.') < colon && strchr(colon + 1, ':') == NULL) {
		*colon = '\0';
		put_word(out, word);
		fprintf(out, ":%s", colon + 1);
		return;
	}
	put_word(out, word);
}

void redact(FILE *out, const char *text)
{
	bool fresh = true; /* a word may begin here */
	names n;

	find_names(&n);
	while (*text) {
		char word[128];
		size_t length = 0;

		if (n.home[0] && strncmp(text, n.home, strlen(n.home)) == 0 && strlen(n.home) > 3) {
			fputc('~', out);
			text += strlen(n.home);
			continue;
		}
		if (starts(text, n.host, fresh) || starts(text, n.host_short, fresh) ||
		    starts(text, n.user, fresh)) {
			const char *which = starts(text, n.host, fresh)         ? n.host
					    : starts(text, n.host_short, fresh) ? n.host_short
										: n.user;

			fputs(which == n.user ? "USER" : "HOST", out);
			text += strlen(which);
			continue;
		}
		while (fresh && in_address(text[length]) && length < sizeof(word) - 1)
			length++;
		if (length > 0 && !isalnum((unsigned char)text[length]) && text[length] != '_') {
			memcpy(word, text, length);
			word[length] = '\0';
			put_address(out, word);
			text += length;
			fresh = false;
			continue;
		}
		fresh = !isalnum((unsigned char)*text) && *text != '.' && *text != '_' && *text != ':';
		fputc(*text++, out);
	}
}
