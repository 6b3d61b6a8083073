/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One round of progress: poll devices, serve control connections, dispatch. Everything here but the watch
 * list is for the thread that has the role.
 *
 *   watch   a descriptor in the context's epoll and what to do when it is ready
 *   round   poll each device with lanes, links that want attention, the dispatch queue; now and then
 *           (by the clock) the descriptors as well, so that spinning does not starve control connections
 *   arm     every device that was polled since it was armed; BUSY = one more round first
 *
 * Must not block but in tn_progress_sleep and tn_progress_epoll. Threads: the driver's; watch calls from
 * any. Tests: tests/unit/channel/test_roles.c.
 */
#ifndef TN_CHANNEL_PROGRESS_H
#define TN_CHANNEL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include <tern/ctx.h>

#define TN_EPOLL_MAX        32       /* descriptors per epoll_wait */
#define TN_POLL_BATCH       32       /* events per device poll */
#define TN_CONTROL_EVERY_NS 50000ull /* a spinning driver looks at descriptors so often, */
#define TN_CONTROL_BUSY_NS \
	1000000ull /* and while devices have work for it: a look takes as long as a small call */

typedef struct tn_watch {
	int (*ready)(struct tn_watch *watch, uint32_t events); /* returns the number of things handled */
	int fd;
} tn_watch;

/* Add, change and remove. The watch must stay until removed; an event of this batch may still follow if it
   is removed by another thread than the driver. */
tern_status tn_progress_watch(tern_ctx *ctx, tn_watch *watch, uint32_t events);
void tn_progress_rewatch(tern_ctx *ctx, tn_watch *watch, uint32_t events);
void tn_progress_unwatch(tern_ctx *ctx, tn_watch *watch);

/* The ready function of devices' watches. */
int tn_progress_device_ready(tn_watch *watch, uint32_t events);

/* Returns the number of things handled. */
int tn_progress_round(tern_ctx *ctx);
/* True: armed. keen: the caller polls for a while after it was woken. */
bool tn_progress_arm(tern_ctx *ctx, bool keen);
/* Work is queued for the driver (by another thread). */
bool tn_progress_pending(tern_ctx *ctx);
/* epoll_wait until until_ns at most; the number of events, 0 on a signal. */
int tn_progress_epoll(tern_ctx *ctx, struct epoll_event events[TN_EPOLL_MAX], uint64_t until_ns);
/* Handle n events and what they led to. */
void tn_progress_ready(tern_ctx *ctx, struct epoll_event *events, int n);
/* Both, for a waiter: it says that it is awake in between. */
tern_status tn_progress_sleep(tern_ctx *ctx, uint64_t until_ns);

#endif
