/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text cut into words. See tokens.h.
 */
#include "tokens.h"

#include <stdbool.h>
#include <string.h>

static bool is_word(char ch)
{
	return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
	       ((unsigned char)ch & 0x80);
}

static bool is_blank(char ch)
{
	return ch == ' ' || (ch >= '\t' && ch <= '\r');
}

/* The conversion of a format that begins at the '%', or NULL. */
static const char *conversion(const char *at)
{
	const char *end = at + 1 + strspn(at + 1, "0123456789$-+#'.*");

	end += strspn(end, "hlLjzt");
	return *end && strchr("diouxXcsfFeEgGp%", *end) ? end : NULL;
}

static const char *cut_word(const char *at, char **to)
{
	for (; is_word(*at) || (*at == '\'' && is_word(at[1])); at++)
		*(*to)++ = *at >= 'A' && *at <= 'Z' ? (char)(*at | 0x20) : *at;
	return at;
}

char *tokens_cut(const char *text, char *out)
{
	for (const char *at = text; *at;) {
		const char *end = *at == '%' ? conversion(at) : NULL;

		if (is_blank(*at)) {
			at++;
			continue;
		}
		if (end) {
			*out++ = '%';
			*out++ = *end;
			at = end + 1;
		} else if (is_word(*at)) {
			at = cut_word(at, &out);
		} else {
			*out++ = *at++;
		}
		*out++ = '\0';
	}
	return out;
}
