/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared secrets of a context: one, and a second while a fleet goes from one to the other. From the
 * options, or from a file that is read again when it was replaced, so that a fleet needs no restart.
 *
 *   any      whether there is one; never changes: a file that became empty or unreadable changes nothing
 *   text[1]  "" = no second one
 *
 * Must not: log or tell a secret. Threads: any after the start. Tests: tests/unit/channel/test_secret.c.
 */
#ifndef TN_CHANNEL_SECRET_H
#define TN_CHANNEL_SECRET_H

#include <stdbool.h>

#include <tern/ctx.h>

#include "base/options.h"
#include "base/os.h"
#include "channel/lock.h"

#define TN_SECRET_BYTES 256 /* with NUL */

typedef struct tn_secret_texts {
	char text[2][TN_SECRET_BYTES];
} tn_secret_texts;

typedef struct tn_secrets {
	bool any;
	const char *path; /* of the file, in the options' snapshot; NULL = none */
	tn_lock lock;     /* what follows */
	tn_os_stamp stamp;
	tn_secret_texts now;
} tn_secrets;

/*
 * From params->secret, else ctx.secret_file, else ctx.secret; beside the latter ctx.secret_next. TERN_E_INSECURE:
 * others may read the file; TERN_E_IO; TERN_E_OPTION: what it holds, or a next secret without a first.
 */
tern_status tn_secrets_load(tn_secrets *secrets, const char *given, const tn_options *options, bool single);
/* Those in force; a file that was replaced is read. The caller wipes *texts. */
void tn_secrets_get(tn_secrets *secrets, tn_secret_texts *texts);
void tn_secrets_wipe(tn_secrets *secrets);

#endif
