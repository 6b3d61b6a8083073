/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads secrets, see secret.h. A file has one line, or two while a fleet goes from one secret to the other:
 *
 *	the secret
 *	another one that is good as well
 *
 * Threads: any. Tests: tests/unit/channel/test_secret.c.
 */
#include "channel/secret.h"

#include <string.h>

#include "base/crypto.h"
#include "base/fail.h"
#include "base/log.h"
#include "channel/ctx_impl.h"

#define FILE_BYTES_MAX (2 * TN_SECRET_BYTES + 2)

/* The next line of a file, without its end. False: too long, or with a NUL. */
static bool take_line(const char **at, const char *end, char text[TN_SECRET_BYTES])
{
	const char *stop = memchr(*at, '\n', (size_t)(end - *at));
	size_t n = (size_t)((stop ? stop : end) - *at);

	if (n > 0 && (*at)[n - 1] == '\r')
		n--;
	if (n >= TN_SECRET_BYTES || memchr(*at, 0, n))
		return false;
	memcpy(text, *at, n);
	text[n] = '\0';
	*at = stop ? stop + 1 : end;
	return true;
}

static tern_status parse(const char *path, const char *bytes, uint64_t n, tn_secret_texts *texts)
{
	const char *at = bytes, *end = bytes + n;

	if (!take_line(&at, end, texts->text[0]) || !take_line(&at, end, texts->text[1]) || at != end)
		return tn_fail(TERN_E_OPTION,
			       "%s: one line with the secret is expected, or two while it is being replaced; "
			       "each of at most %d bytes",
			       path, TN_SECRET_BYTES - 1);
	if (!texts->text[0][0])
		return tn_fail(TERN_E_OPTION, "%s: the secret in its first line is empty", path);
	return TERN_OK;
}

/* On an error *texts means nothing, but holds no secret. */
static tern_status read_file(const char *path, tn_os_stamp *stamp, tn_secret_texts *texts)
{
	char bytes[FILE_BYTES_MAX];
	uint64_t n = 0;
	tern_status status = tn_os_read_private(path, bytes, sizeof(bytes), &n, stamp);

	if (status == TERN_OK)
		status = parse(path, bytes, n, texts);
	tn_crypto_wipe(bytes, sizeof(bytes));
	if (status != TERN_OK)
		tn_crypto_wipe(texts, sizeof(*texts));
	return status;
}

static tern_status copy(char text[TN_SECRET_BYTES], const char *from, const char *what)
{
	if (strlen(from) >= TN_SECRET_BYTES)
		return tn_fail(TERN_E_INVALID, "%s has %zu bytes, at most %d are allowed", what, strlen(from),
			       TN_SECRET_BYTES - 1);
	memcpy(text, from, strlen(from) + 1);
	return TERN_OK;
}

tern_status tn_secrets_load(tn_secrets *secrets, const char *given, const tn_options *options, bool single)
{
	const char *path = tn_opt_string(options, tn_ctx_option_rows, "secret_file");
	const char *next = tn_opt_string(options, tn_ctx_option_rows, "secret_next");

	tn_lock_init(&secrets->lock, single);
	if (!given && path[0]) {
		secrets->path = path;
		TN_TRY(read_file(path, &secrets->stamp, &secrets->now));
		secrets->any = true;
		return TERN_OK;
	}
	if (!given)
		given = tn_opt_string(options, tn_ctx_option_rows, "secret");
	TN_TRY(copy(secrets->now.text[0], given, "the secret"));
	TN_TRY(copy(secrets->now.text[1], next, "ctx.secret_next"));
	if (next[0] && !given[0])
		return tn_fail(TERN_E_OPTION, "ctx.secret_next is set, ctx.secret is not");
	secrets->any = given[0] != '\0';
	return TERN_OK;
}

/* Lock held. One try for each change of the file, so that a bad one is told once. */
static void read_again(tn_secrets *secrets)
{
	tn_secret_texts texts = {0};
	tn_os_stamp stamp;

	if (!tn_os_stamp_of(secrets->path, &stamp) || memcmp(&stamp, &secrets->stamp, sizeof(stamp)) == 0)
		return;
	if (read_file(secrets->path, &stamp, &texts) == TERN_OK) {
		secrets->now = texts;
		TN_LOG(INFO, CTX, "%s was read again: %s", secrets->path,
		       texts.text[1][0] ? "two secrets" : "one secret");
	} else {
		TN_LOG(WARN, CTX, "the secrets stay as they were: %s", tn_detail_get());
	}
	secrets->stamp = stamp;
	tn_crypto_wipe(&texts, sizeof(texts));
}

void tn_secrets_get(tn_secrets *secrets, tn_secret_texts *texts)
{
	tn_lock_take(&secrets->lock);
	if (secrets->path)
		read_again(secrets);
	*texts = secrets->now;
	tn_lock_drop(&secrets->lock);
}

void tn_secrets_wipe(tn_secrets *secrets)
{
	tn_crypto_wipe(&secrets->now, sizeof(secrets->now));
}
