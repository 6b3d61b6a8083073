/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets of shm: an abstract listener, connections, records with descriptors, the peer's credentials.
 * All non-blocking. Nothing here appears in a file system, so nothing is left after a kill.
 *
 * Must not know lanes. Threads: one at a time per socket. Tests: tests/unit/transport/test_shm_handshake.c.
 */
#ifndef TN_TRANSPORT_SHM_SOCK_H
#define TN_TRANSPORT_SHM_SOCK_H

#include <stdbool.h>
#include <sys/types.h>

#include "transport/shm/wire.h"

/* Listen under a fresh random name, which becomes the device's id. */
tern_status tn_shm_sock_listen(tn_shm_id *id, int *fd);
/* TERN_OK: *fd is connected; TERN_AGAIN: its backlog is full, dial again later; else an error. */
tern_status tn_shm_sock_dial(const tn_shm_id *id, int *fd);
/* TERN_OK, TERN_AGAIN (nobody there), or an error. */
tern_status tn_shm_sock_accept(int listener, int *fd);
/* Who is at the other end, said by the kernel: same uid or TERN_E_AUTH. *pid is 0 if we can't see it. */
tern_status tn_shm_sock_peer(int fd, pid_t *pid);
/* A pidfd of the process at the other end, or -1 where that can't be had safely. */
int tn_shm_sock_pidfd(int fd, pid_t pid);
/* One record. TERN_OK, TERN_AGAIN (socket buffer full), TERN_E_LANE (the peer is gone). Descriptors stay ours. */
tern_status tn_shm_sock_send(int fd, const void *msg, uint32_t bytes, const int *fds, uint32_t fd_count);
/*
 * One record: *msg, complete and of its type's exact size and number of descriptors, which are the caller's.
 * TERN_AGAIN: none; TERN_E_LANE: the peer is gone; TERN_E_PROTOCOL: not a message (descriptors are closed).
 */
tern_status tn_shm_sock_recv(int fd, tn_shm_any *msg, int fds[TN_SHM_FDS_MAX], uint32_t *fd_count);

#endif
