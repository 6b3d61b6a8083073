/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers in other processes: a child is this program executed anew (so that it inherits nothing), which opens
 * a device, connects one lane and then behaves by its mode until its socket says stop or it is killed. It
 * dies with its parent.
 */
#ifndef TN_TESTS_CONFORMANCE_PROC_H
#define TN_TESTS_CONFORMANCE_PROC_H

#include "conf.h"

typedef enum child_mode {
	CHILD_SERVE,  /* returns buffers, answers each message with the same bytes */
	CHILD_HOLD,   /* keeps every buffer */
	CHILD_FLOOD,  /* sends as fast as it can */
	CHILD_SILENT, /* makes its lane but never connects it */
	CHILD_SLEEP,  /* connects, then makes no progress at all */
} child_mode;

#define CHILD_REGION_BYTES (1u << 20)

typedef struct child {
	pid_t pid;
	int sock;
	conf_end end; /* the parent's side */
	tn_blob dev, lane;
	tn_key key; /* of a region that may be read and written */
} child;

/* Start a child and make the parent's end on node; not yet connected. The parent dials if active. */
void child_start(child *c, conf_node *node, child_mode mode, bool active, uint64_t timeout_ns);
void child_connect(child *c);
void child_up(conf_pair *pair, child *c); /* connect and wait for LANE_UP */
/* Ask it to end in good order, with the lane closed by the child; its exit status must be 0. */
void child_stop(conf_pair *pair, child *c);
void child_kill(child *c); /* kill -9 and reap */
void child_signal(child *c, int signal);

/* The child's own main; does not return to the caller's tests. */
int child_main(int argc, char **argv);

#endif
