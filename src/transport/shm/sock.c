/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the socket calls of shm (sock.h).
 *
 * Must not block. Threads: one at a time per socket. Tests: tests/unit/transport/test_shm_handshake.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/os.h"
#include "transport/shm/sock.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define NAME_PREFIX "tern-shm-"
#define BACKLOG     1024

static const struct {
	const char *name;
	uint32_t bytes;
	uint32_t fds;
} types[TN_SHM_TYPES] = {
	[TN_SHM_HELLO] = {"HELLO", sizeof(tn_shm_hello), 0},
	[TN_SHM_CHALLENGE] = {"CHALLENGE", sizeof(tn_shm_challenge), 0},
	[TN_SHM_PROOF] = {"PROOF", sizeof(tn_shm_proof), 4},
	[TN_SHM_ACCEPT] = {"ACCEPT", sizeof(tn_shm_accept), 3},
	[TN_SHM_CONFIRM] = {"CONFIRM", sizeof(tn_shm_confirm), 0},
	[TN_SHM_REFUSE] = {"REFUSE", sizeof(tn_shm_refuse), 0},
	[TN_SHM_EXTENT_ASK] = {"EXTENT_ASK", sizeof(tn_shm_extent_ask), 0},
	[TN_SHM_EXTENT] = {"EXTENT", sizeof(tn_shm_extent), 1},
};

uint32_t tn_shm_type_bytes(uint32_t type)
{
	return type < TN_SHM_TYPES ? types[type].bytes : 0;
}

const char *tn_shm_type_name(uint32_t type)
{
	return type < TN_SHM_TYPES && types[type].name ? types[type].name : "?";
}

uint32_t tn_shm_type_fds(const tn_shm_any *msg)
{
	if (msg->head.type == TN_SHM_EXTENT && msg->extent.status != TERN_OK)
		return 0;
	return msg->head.type < TN_SHM_TYPES ? types[msg->head.type].fds : 0;
}

/* Abstract: a leading zero byte, then the text; the length says where it ends. */
static socklen_t name_of(const tn_shm_id *id, struct sockaddr_un *sun)
{
	static const char hex[] = "0123456789abcdef";
	char *at = sun->sun_path + 1;

	memset(sun, 0, sizeof(*sun));
	sun->sun_family = AF_UNIX;
	memcpy(at, NAME_PREFIX, sizeof(NAME_PREFIX) - 1);
	at += sizeof(NAME_PREFIX) - 1;
	for (int i = 0; i < TN_SHM_ID_BYTES; i++) {
		*at++ = hex[id->bytes[i] >> 4];
		*at++ = hex[id->bytes[i] & 15];
	}
	return (socklen_t)(at - (char *)sun);
}

static int new_socket(void)
{
	if (TN_FAULT("shm.socket.create")) {
		errno = EMFILE;
		return -1;
	}
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

tern_status tn_shm_sock_listen(tn_shm_id *id, int *fd)
{
	struct sockaddr_un sun;
	socklen_t bytes;
	tern_status status;

	*fd = -1;
	TN_TRY(tn_os_random(id, sizeof(*id)));
	*fd = new_socket();
	if (*fd < 0)
		return tn_fail_errno(TERN_E_OS, "socket", "a Unix socket for shm (ulimit -n?)");
	bytes = name_of(id, &sun);
	if (bind(*fd, (struct sockaddr *)&sun, bytes) == 0 && listen(*fd, BACKLOG) == 0)
		return TERN_OK;
	status = tn_fail_errno(TERN_E_OS, "bind", "an abstract Unix socket for shm");
	tn_os_close(fd);
	return status;
}

tern_status tn_shm_sock_dial(const tn_shm_id *id, int *fd)
{
	struct sockaddr_un sun;
	socklen_t bytes = name_of(id, &sun);
	tern_status status;

	*fd = new_socket();
	if (*fd < 0)
		return tn_fail_errno(TERN_E_OS, "socket", "a Unix socket for shm (ulimit -n?)");
	if (connect(*fd, (struct sockaddr *)&sun, bytes) == 0)
		return TERN_OK;
	if (errno == EAGAIN || errno == EINTR)
		status = TERN_AGAIN;
	else
		status =
			tn_fail_errno(TERN_E_UNREACHABLE, "connect",
				      "the peer's shm device is not there: its process ended, or it lives in "
				      "another network namespace");
	tn_os_close(fd);
	return status;
}

tern_status tn_shm_sock_accept(int listener, int *fd)
{
	*fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (*fd >= 0)
		return TERN_OK;
	if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
		return TERN_AGAIN;
	return tn_fail_errno(TERN_E_LIMIT, "accept4", "a peer's connection to shm (ulimit -n?)");
}

tern_status tn_shm_sock_peer(int fd, pid_t *pid)
{
	struct ucred cred;
	socklen_t bytes = sizeof(cred);

	*pid = 0;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
		return tn_fail_errno(TERN_E_OS, "SO_PEERCRED", "of a peer on this host");
	if (cred.uid != geteuid())
		return tn_fail(TERN_E_AUTH,
			       "the peer on this host runs as uid %u and this process as uid %u: shm is for "
			       "processes of one user; use tcp",
			       (unsigned)cred.uid, (unsigned)geteuid());
	*pid = cred.pid;
	return TERN_OK;
}

int tn_shm_sock_pidfd(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t bytes = sizeof(pidfd);
	char byte;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0)
		return pidfd;
	if (pid <= 0 || tn_os_pidfd_open(pid, &pidfd) != TERN_OK)
		return -1;
	/* An old kernel: the number could be another process by now. Not while the socket is open. */
	if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		tn_os_close(&pidfd);
	return pidfd;
}

tern_status tn_shm_sock_send(int fd, const void *msg, uint32_t bytes, const int *fds, uint32_t fd_count)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(TN_SHM_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)msg, .iov_len = bytes};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

	TN_ASSERT(fd_count <= TN_SHM_FDS_MAX);
	if (fd_count > 0) {
		struct cmsghdr *cm;

		memset(&control, 0, sizeof(control));
		mh.msg_control = control.space;
		mh.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		cm = CMSG_FIRSTHDR(&mh);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, fd_count * sizeof(int));
	}
	if (sendmsg(fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes)
		return TERN_OK;
	/* ETOOMANYREFS: too many descriptors in flight for this user; they drain as peers receive. */
	if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS)
		return TERN_AGAIN;
	return tn_fail_errno(TERN_E_LANE, "sendmsg", "to a peer on this host");
}

/* Take all descriptors out of the control data, even those that nobody asked for. */
static uint32_t take_fds(struct msghdr *mh, int fds[TN_SHM_FDS_MAX])
{
	uint32_t count = 0;

	for (struct cmsghdr *cm = CMSG_FIRSTHDR(mh); cm; cm = CMSG_NXTHDR(mh, cm)) {
		size_t n;

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(fd));
			if (count < TN_SHM_FDS_MAX)
				fds[count++] = fd;
			else
				close(fd);
		}
	}
	return count;
}

tern_status tn_shm_sock_recv(int fd, tn_shm_any *msg, int fds[TN_SHM_FDS_MAX], uint32_t *fd_count)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(TN_SHM_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = msg, .iov_len = sizeof(*msg)};
	struct msghdr mh = {.msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.space,
			    .msg_controllen = sizeof(control.space)};
	ssize_t n;

	*fd_count = 0;
	memset(msg, 0, sizeof(*msg));
	n = recvmsg(fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return TERN_AGAIN;
	if (n < 0)
		return tn_fail_errno(TERN_E_LANE, "recvmsg", "from a peer on this host");
	*fd_count = take_fds(&mh, fds);
	if (n == 0 && *fd_count == 0)
		return tn_fail(TERN_E_LANE, "the peer on this host closed its socket or ended");
	if ((mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && (size_t)n >= sizeof(msg->head) &&
	    msg->head.magic == TN_SHM_WIRE_MAGIC && msg->head.version == TN_SHM_WIRE_VERSION &&
	    tn_shm_type_bytes(msg->head.type) == (uint32_t)n && tn_shm_type_fds(msg) == *fd_count)
		return TERN_OK;
	for (uint32_t i = 0; i < *fd_count; i++)
		close(fds[i]);
	*fd_count = 0;
	if (mh.msg_flags & MSG_CTRUNC)
		return tn_fail(TERN_E_LIMIT,
			       "descriptors from a peer were lost: too many are open (ulimit -n)");
	return tn_fail(TERN_E_PROTOCOL,
		       "%zd bytes from a peer on this host are no shm message (type %u, version %u)", n,
		       msg->head.type, msg->head.version);
}
