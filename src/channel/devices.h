/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of a context: one per usable provider, in order of preference.
 *
 *   "auto"       shm, tcp and whatever the registry puts before loop; unusable ones are skipped, with the
 *                reason in the log
 *   "shm,tcp"    exactly these, in this order; one that is not usable is an error
 *
 * Threads: set-up and end by one thread; the driver in between. Tests: tests/unit/channel/test_ctx.c.
 */
#ifndef TN_CHANNEL_DEVICES_H
#define TN_CHANNEL_DEVICES_H

#include "channel/lock.h"
#include "channel/progress.h"
#include "link/share.h"
#include "transport/transport.h"

#define TN_CTX_DEVICES_MAX 4

enum { TN_GRANTS_AUTO, TN_GRANTS_ON, TN_GRANTS_OFF }; /* option link.grants */

typedef struct tn_shell_dev {
	tern_ctx *ctx;
	tn_dev *dev;
	const char *name; /* of the provider */
	tn_watch watch;
	tn_dev_caps caps;
	tn_blob address;
	unsigned lanes; /* not destroyed yet; driver only */
	tn_lock share_lock;
	tn_link_budget budget; /* of all links that use it */
	tn_link_arbiter arbiter;
	bool grants;         /* the arbiter is in use */
	tn_link_pool pool;   /* receive slots that lanes may use */
	tn_link_quota quota; /* of data lanes; cap 0 = any number */
	bool armed;          /* since the last poll; driver only */
	uint64_t placed;     /* the device's, as of the last poll */
	char reason[240];
} tn_shell_dev;

/* TERN_E_NO_DEVICE: a named one is unknown or unusable, or none is left. */
tern_status tn_devices_open(tern_ctx *ctx, const char *transports, const char *bind_host);
/* Lanes must be gone. */
void tn_devices_close(tern_ctx *ctx);

/* A tn_lock as what links share takes it (link/share.h). */
void tn_share_lock_take(void *lock);
void tn_share_lock_drop(void *lock);

/* ---- store.c ---- */

void tn_shell_store_init(tern_ctx *ctx);
/* Is the provider in the comma list (or the list "auto" and not loop)? Index of its place, -1 if not. */
int tn_transports_rank(const char *transports, const char *name);

#endif
