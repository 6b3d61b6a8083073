/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers in other processes: a child is this program executed anew (so that it inherits nothing), which opens
 * a device, connects one lane and then behaves by its mode until its socket says stop or it is killed. It
 * dies with its parent.
 *
 * With --peer the children run on another host, below a server (--serve) that starts them and passes on
 * signals. Per child two TCP connections, in this order: the control connection, on which the parent sends
 * signal numbers (0 = wait for its end) and the server answers each (0, or the exit status); and the child's own
 * socket. The end of the control connection kills the child.
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
	pid_t pid;   /* 0: on another host */
	int control; /* to the server there; -1: here */
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

/* "ADDRESS:PORT" of a server that starts the children; NULL = this process does. */
extern const char *child_host;
/* The server: until it is ended. */
int child_serve(const char *address);
int child_dial(const char *address); /* a connection to it; -1 = none */
/* Run this program anew as a child with this socket. */
pid_t child_execute(int sock);

/* The child's own main; does not return to the caller's tests. */
int child_main(int argc, char **argv);

#endif
