/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An etcd of the test's own: on free ports of this host, with a directory that goes away with it.
 *
 * Threads: main.
 */
#ifndef TESTS_UNIT_CLUSTER_ETCD_WORLD_H
#define TESTS_UNIT_CLUSTER_ETCD_WORLD_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cluster/etcd_kv.h"
#include "cmocka_all.h"

static pid_t etcd_pid;
static char etcd_dir[64], etcd_address[64];

static inline int free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
	close(fd);
	return ntohs(at.sin_port);
}

/* False: there is no etcd on this host. */
static inline bool etcd_there(void)
{
	return access("/usr/bin/etcd", X_OK) == 0;
}

static inline void etcd_run(int port)
{
	char client[64], peer[64], cluster[80];
	int log = open("/dev/null", O_WRONLY), peer_port = free_port();

	snprintf(client, sizeof(client), "http://127.0.0.1:%d", port);
	snprintf(peer, sizeof(peer), "http://127.0.0.1:%d", peer_port);
	snprintf(cluster, sizeof(cluster), "default=%s", peer);
	etcd_pid = fork();
	assert_true(etcd_pid >= 0);
	if (etcd_pid > 0) {
		close(log);
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(log, 1);
	dup2(log, 2);
	execl("/usr/bin/etcd", "etcd", "--data-dir", etcd_dir, "--listen-client-urls", client,
	      "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
	      peer, "--initial-cluster", cluster, "--unsafe-no-fsync", (char *)NULL);
	execl("/usr/bin/etcd", "etcd", "--data-dir", etcd_dir, "--listen-client-urls", client,
	      "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
	      peer, "--initial-cluster", cluster, (char *)NULL);
	_exit(127);
}

static inline void etcd_start(void)
{
	int port = free_port();
	tern_status status = TERN_E_UNREACHABLE;
	tn_etcd_state state;
	tn_etcd kv;

	snprintf(etcd_dir, sizeof(etcd_dir), "/tmp/tern-etcd-XXXXXX");
	assert_non_null(mkdtemp(etcd_dir));
	snprintf(etcd_address, sizeof(etcd_address), "etcd:http://127.0.0.1:%d", port);
	etcd_run(port);
	assert_int_equal(tn_etcd_open(&kv, etcd_address, 1000000000), TERN_OK);
	for (int i = 0; i < 3000 && (status = tn_etcd_read(&kv, &state)) != TERN_OK; i++)
		tn_sleep_ns(10000000);
	if (status != TERN_OK)
		fail_msg("etcd does not start: %s", tern_detail());
	tn_etcd_state_free(&state);
	tn_etcd_close(&kv);
}

static inline void etcd_stop(void)
{
	char command[100];

	if (etcd_pid <= 0)
		return;
	kill(etcd_pid, SIGKILL);
	waitpid(etcd_pid, NULL, 0);
	etcd_pid = 0;
	snprintf(command, sizeof(command), "rm -rf %s", etcd_dir);
	assert_int_equal(system(command), 0);
}

#endif
