/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a command that works with parameter servers: local servers and members (clients or workers), forked
 * before there are threads, and a board that all of them see.
 *
 *   command    crew_open (servers start) -> crew_add (members start) -> crew_meet (servers serve) -> watch -> crew_close
 *   member     crew_wait_meeting -> crew_join -> its work, looking at crew_stopping() -> its status
 *   server     listens, waits for the list of all, serves until the command ends it
 *
 * Whoever fails says so on the board, the first one counts; the command then ends all of them. Ctrl-C and SIGTERM are
 * the command's to handle; a second one kills. Processes end when the command is killed.
 * Must not: know what the members do. Threads: main of each process. Tests: tests/e2e/bench_test.py.
 */
#ifndef CLI_CREW_H
#define CLI_CREW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <tern/ps.h>

#define CREW_SERVERS_MAX 64
#define CREW_MEMBERS_MAX 256
#define CREW_ADDRESS_MAX 128

typedef struct crew_board {
	_Atomic uint32_t stop;  /* members: end soon, as if done */
	_Atomic uint32_t meet;  /* the list of addresses is complete */
	_Atomic uint32_t ready; /* servers that listen, then that serve: 2 counts each */
	_Atomic uint32_t failed;
	_Atomic uint32_t told; /* error is written */
	char error[1024];
	char address[CREW_SERVERS_MAX][CREW_ADDRESS_MAX];
} crew_board;

/* Zero it, then set what differs. */
typedef struct crew_params {
	const char *command;   /* "tern bench ps", for messages */
	const char *servers;   /* how many to start here, or "host:port,..." of running ones; "0": nobody */
	const char *transport; /* NULL = auto */
	bool spin;             /* clients poll */
	uint64_t shared_bytes; /* zeroed, seen by all */
} crew_params;

typedef struct crew {
	crew_params params;
	crew_board *board;
	void *shared;
	uint64_t map_bytes;
	uint32_t servers;   /* addresses on the board */
	bool local;         /* they are ours */
	bool serving;       /* this process is one of them */
	uint32_t processes; /* in pid: local servers first */
	pid_t pid[CREW_SERVERS_MAX + CREW_MEMBERS_MAX];
	uint32_t first_member, running_members;
	bool killed, spoiled;
} crew;

/* Returns 0, or the exit status after a message. */
int crew_open(crew *c, const crew_params *params);
/* Start members: run(c, index, arg) in a process of its own; its value is the exit status. False: said. */
bool crew_add(crew *c, uint32_t count, int (*run)(crew *c, uint32_t index, void *arg), void *arg);
/* Until all local servers serve. False: it is over (see crew_close). */
bool crew_meet(crew *c);
/* Look after processes and signals, sleep up to ms. False: it is over. */
bool crew_watch(crew *c, unsigned ms);
/* Members that have not ended. */
uint32_t crew_running(const crew *c);
/* CPU time of the local servers, or of the members: seconds. */
double crew_cpu_seconds(const crew *c, bool of_members);
/* Ends everybody. Returns the exit status: 0, 1 after a message that says who failed, or 128 + signal. */
int crew_close(crew *c);

/* ---- in members, too ---- */

/* False: do not begin. */
bool crew_wait_meeting(crew *c);
static inline bool crew_stopping(const crew *c)
{
	return atomic_load_explicit(&c->board->stop, memory_order_relaxed) != 0;
}
/* A context and a client of all servers. False: said on the board. */
bool crew_join(crew *c, const char *name, tern_ctx **ctx, tern_ps **ps);
/* Say on the board that something failed; returns 1. */
int crew_fail(crew *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void crew_sleep_ms(unsigned ms);

#endif
