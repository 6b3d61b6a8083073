/* SPDX-License-Identifier: Apache-2.0 */
/*
 * etcd's key-value API, version 3, as JSON over HTTP: the few requests that a membership needs.
 *
 *   PREFIX/map             the state of the coordinator, changed by compare-and-swap of its revision
 *   PREFIX/members/HEX     one per server that is alive, by its incarnation; goes away with the lease of that server
 *
 * libcurl is loaded when it is first needed, so nothing else needs it. Threads: one per object.
 * Tests: tests/unit/cluster/etcd_test.c.
 */
#ifndef TN_CLUSTER_ETCD_KV_H
#define TN_CLUSTER_ETCD_KV_H

#include <stdbool.h>

#include <tern/status.h>

#include "cluster/map.h"

#define TN_ETCD_URLS 8u
#define TN_ETCD_PATH 256u

/* Answers of HTTP servers. TERN_E_UNSUPPORTED: this build, or this host, has no libcurl. */
typedef struct tn_http tn_http;
tern_status tn_http_open(tn_http **http);
void tn_http_close(tn_http *http);
/* POST a JSON body. *answer lives until the next one. TERN_E_UNREACHABLE, _DEADLINE, _REMOTE (with what it said). */
tern_status tn_http_post(tn_http *http, const char *url, const char *body, uint64_t timeout_ns,
			 const char **answer);

typedef struct tn_etcd {
	tn_http *http;
	char url[TN_ETCD_URLS][TN_ETCD_PATH];
	unsigned urls, at; /* the one in use */
	char prefix[TN_ETCD_PATH];
	uint64_t timeout_ns;
} tn_etcd;

/* "etcd:http://host:port[,http://...][/prefix]". TERN_E_INVALID. */
tern_status tn_etcd_open(tn_etcd *etcd, const char *address, uint64_t timeout_ns);
void tn_etcd_close(tn_etcd *etcd);

/* A lease for seconds, or longer: *ttl_s is what was granted. */
tern_status tn_etcd_grant(tn_etcd *etcd, uint64_t seconds, uint64_t *lease, uint64_t *ttl_s);
/* *ttl_s 0: the lease is over. */
tern_status tn_etcd_keep(tn_etcd *etcd, uint64_t lease, uint64_t *ttl_s);
tern_status tn_etcd_revoke(tn_etcd *etcd, uint64_t lease);
/* A member's key, under the lease; its value is the newest version of maps that it reads. */
tern_status tn_etcd_member(tn_etcd *etcd, uint64_t incarnation, uint64_t lease, uint32_t maps);

typedef struct tn_etcd_state {
	uint64_t revision; /* of the map; 0: there is none */
	uint8_t *blob;     /* malloc'ed */
	uint64_t blob_bytes;
	uint64_t *members; /* incarnations, malloc'ed */
	uint32_t *maps;    /* what each reads, malloc'ed; 0: it does not say */
	uint32_t member_count;
} tn_etcd_state;

/* The map and the members of one moment. */
tern_status tn_etcd_read(tn_etcd *etcd, tn_etcd_state *state);
void tn_etcd_state_free(tn_etcd_state *state);
/*
 * Another blob, if the map is still of that revision and none of the dead is a member. TERN_AGAIN: it is not so any more.
 */
tern_status tn_etcd_swap(tn_etcd *etcd, uint64_t revision, const uint64_t *dead, uint32_t dead_count,
			 const void *blob, uint64_t bytes);

/* ---- base64 (RFC 4648) ---- */

/* malloc'ed; NULL: no memory. */
char *tn_base64(const void *data, uint64_t bytes);
/* malloc'ed; NULL: it is none, or no memory. */
uint8_t *tn_unbase64(const char *text, uint64_t *bytes);

#endif
