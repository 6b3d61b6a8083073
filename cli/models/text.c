/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts as they are. See text.h.
 */
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIBLE "LC_ALL=C bible -f gen1:1-rev22:21 2>/dev/null </dev/null"

static char *read_all(FILE *file, uint64_t *bytes)
{
	uint64_t room = 1 << 20, used = 0;
	char *text = malloc(room);

	while (text) {
		size_t n = fread(text + used, 1, room - used - 1, file);

		used += n;
		if (n == 0)
			break;
		if (room - used < 2) {
			char *more = realloc(text, room *= 2);

			if (!more)
				free(text);
			text = more;
		}
	}
	if (text)
		text[used] = '\0';
	*bytes = used;
	return text;
}

static char *failed(char *text, char *error, size_t bytes, const char *what, const char *why)
{
	free(text);
	snprintf(error, bytes, "%s: %s", what, why);
	return NULL;
}

char *text_read(const char *path, uint64_t *bytes, char *error, size_t error_bytes)
{
	FILE *file = path ? fopen(path, "re") : popen(BIBLE, "re");
	char *text;
	bool bad;

	if (!file)
		return failed(NULL, error, error_bytes, path ? path : "bible", strerror(errno));
	errno = 0;
	text = read_all(file, bytes);
	bad = !text || ferror(file);
	if (path ? fclose(file) != 0 : pclose(file) != 0)
		bad = true;
	if (!bad && (path || *bytes))
		return text;
	if (!path)
		return failed(text, error, error_bytes, "the command bible prints nothing",
			      "install Debian's bible-kjv and bible-kjv-text, or give --text FILE");
	return failed(text, error, error_bytes, path, errno ? strerror(errno) : "cannot be read");
}

uint64_t text_strip_places(char *text)
{
	char *to = text;

	for (const char *at = text; *at;) {
		while (*at && *at != ' ' && *at != '\n')
			at++;
		at += *at == ' ';
		while (*at && *at != '\n')
			*to++ = *at++;
		if (*at)
			*to++ = *at++;
	}
	*to = '\0';
	return (uint64_t)(to - text);
}

/* Bytes of the character at s, of n that are there; 0: none. */
static uint64_t character(const unsigned char *s, uint64_t n)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	uint64_t length = s[0] < 0x80       ? 1
			  : s[0] >> 5 == 6  ? 2
			  : s[0] >> 4 == 14 ? 3
			  : s[0] >> 3 == 30 ? 4
					    : 0;
	uint32_t code = length < 2 ? s[0] : s[0] & (0x7fu >> length);

	if (!length || length > n)
		return 0;
	for (uint64_t i = 1; i < length; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		code = code << 6 | (s[i] & 0x3fu);
	}
	if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
		return 0;
	return length;
}

bool text_is_utf8(const char *text, uint64_t bytes)
{
	const unsigned char *s = (const unsigned char *)text;

	for (uint64_t at = 0, n; at < bytes; at += n) {
		n = character(s + at, bytes - at);
		if (!n)
			return false;
	}
	return true;
}

uint64_t text_hash(const char *text)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
	return h;
}
