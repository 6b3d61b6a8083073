/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of etcd's JSON gateway. Keys and values are base64, 64-bit numbers are strings of digits. What comes back is
 * taken for what it is: missing or of another kind is an error, never a crash.
 *
 * Threads: one per object. Tests: tests/unit/cluster/etcd_test.c.
 */
#include "cluster/etcd_kv.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/options.h"

/* ---- base64 ---- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *tn_base64(const void *data, uint64_t bytes)
{
	const uint8_t *p = data;
	char *out = malloc((bytes + 2) / 3 * 4 + 1), *at = out;

	for (uint64_t i = 0; out && i < bytes; i += 3) {
		uint32_t have = bytes - i > 2 ? 3 : (uint32_t)(bytes - i);
		uint32_t v = (uint32_t)p[i] << 16 | (have > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
			     (have > 2 ? p[i + 2] : 0u);

		*at++ = digits[v >> 18];
		*at++ = digits[v >> 12 & 63];
		*at++ = have > 1 ? digits[v >> 6 & 63] : '=';
		*at++ = have > 2 ? digits[v & 63] : '=';
	}
	if (out)
		*at = '\0';
	return out;
}

static int digit(char c)
{
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

uint8_t *tn_unbase64(const char *text, uint64_t *bytes)
{
	uint64_t n = strlen(text);
	uint8_t *out = n % 4 == 0 ? malloc(n / 4 * 3 + 1) : NULL;

	*bytes = 0;
	for (uint64_t i = 0; out && i < n; i += 4) {
		int pad = (text[i + 3] == '=') + (text[i + 2] == '=' && text[i + 3] == '=');
		int a = digit(text[i]), b = digit(text[i + 1]);
		int c = pad > 1 ? 0 : digit(text[i + 2]), d = pad ? 0 : digit(text[i + 3]);
		uint32_t v;

		if (a < 0 || b < 0 || c < 0 || d < 0 || (pad && i + 4 < n)) {
			free(out);
			return NULL;
		}
		v = (uint32_t)a << 18 | (uint32_t)b << 12 | (uint32_t)c << 6 | (uint32_t)d;
		out[(*bytes)++] = (uint8_t)(v >> 16);
		if (pad < 2)
			out[(*bytes)++] = (uint8_t)(v >> 8);
		if (pad < 1)
			out[(*bytes)++] = (uint8_t)v;
	}
	return out;
}

static json_t *json_base64(const void *data, uint64_t bytes)
{
	char *text = tn_base64(data, bytes);
	json_t *j = text ? json_string(text) : NULL;

	free(text);
	return j;
}

static json_t *json_number(uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	return json_string(text);
}

/* Of a string of digits; 0 if it is none (etcd leaves zeros out). */
static uint64_t number_at(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	uint64_t value = 0;

	return text && tn_parse_u64(text, &value) ? value : 0;
}

/* ---- requests ---- */

tern_status tn_etcd_open(tn_etcd *etcd, const char *address, uint64_t timeout_ns)
{
	char text[TN_ETCD_PATH], *save = NULL, *path;

	memset(etcd, 0, sizeof(*etcd));
	etcd->timeout_ns = timeout_ns;
	snprintf(etcd->prefix, sizeof(etcd->prefix), "/tern");
	if (strncmp(address, "etcd:", 5) != 0 || strlen(address) >= sizeof(text))
		return tn_fail(TERN_E_INVALID, "etcd:http://host:port[,http://...][/prefix], not \"%s\"",
			       address);
	snprintf(text, sizeof(text), "%s", address + 5);
	for (char *url = strtok_r(text, ",", &save); url; url = strtok_r(NULL, ",", &save)) {
		if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) ||
		    etcd->urls == TN_ETCD_URLS)
			return tn_fail(TERN_E_INVALID, "etcd: at most %u of http://host:port, not \"%s\"",
				       TN_ETCD_URLS, url);
		path = strchr(strstr(url, "://") + 3, '/');
		if (path && path[1])
			snprintf(etcd->prefix, sizeof(etcd->prefix), "%s", path);
		if (path)
			*path = '\0';
		snprintf(etcd->url[etcd->urls++], TN_ETCD_PATH, "%s", url);
	}
	if (etcd->urls == 0)
		return tn_fail(TERN_E_INVALID, "etcd: which server? etcd:http://host:port");
	return tn_http_open(&etcd->http);
}

void tn_etcd_close(tn_etcd *etcd)
{
	tn_http_close(etcd->http);
	etcd->http = NULL;
}

/* Takes the request. The next server is asked when one does not answer. */
static tern_status ask(tn_etcd *etcd, const char *path, json_t *request, json_t **answer)
{
	char *body = request ? json_dumps(request, JSON_COMPACT) : NULL, url[2 * TN_ETCD_PATH];
	tern_status status = body ? TERN_E_UNREACHABLE : tn_fail(TERN_E_NOMEM, "no memory for a request");
	const char *text = NULL;

	json_decref(request);
	for (unsigned i = 0; body && i < etcd->urls; i++) {
		snprintf(url, sizeof(url), "%s%s", etcd->url[etcd->at], path);
		status = tn_http_post(etcd->http, url, body, etcd->timeout_ns, &text);
		if (status != TERN_E_UNREACHABLE && status != TERN_E_DEADLINE)
			break;
		etcd->at = (etcd->at + 1) % etcd->urls;
	}
	free(body);
	if (status != TERN_OK)
		return status;
	*answer = json_loads(text, 0, NULL);
	return *answer ? TERN_OK : tn_fail(TERN_E_PROTOCOL, "etcd's answer is no JSON");
}

tern_status tn_etcd_grant(tn_etcd *etcd, uint64_t seconds, uint64_t *lease, uint64_t *ttl_s)
{
	json_t *answer;

	TN_TRY(ask(etcd, "/v3/lease/grant", json_pack("{s:o}", "TTL", json_number(seconds)), &answer));
	*lease = number_at(answer, "ID");
	*ttl_s = number_at(answer, "TTL");
	json_decref(answer);
	return *lease && *ttl_s ? TERN_OK : tn_fail(TERN_E_PROTOCOL, "etcd grants no lease");
}

tern_status tn_etcd_keep(tn_etcd *etcd, uint64_t lease, uint64_t *ttl_s)
{
	json_t *answer;

	TN_TRY(ask(etcd, "/v3/lease/keepalive", json_pack("{s:o}", "ID", json_number(lease)), &answer));
	*ttl_s = number_at(json_object_get(answer, "result"), "TTL");
	json_decref(answer);
	return TERN_OK;
}

tern_status tn_etcd_revoke(tn_etcd *etcd, uint64_t lease)
{
	json_t *answer;

	TN_TRY(ask(etcd, "/v3/lease/revoke", json_pack("{s:o}", "ID", json_number(lease)), &answer));
	json_decref(answer);
	return TERN_OK;
}

static json_t *key(const tn_etcd *etcd, const char *name)
{
	char text[2 * TN_ETCD_PATH];
	int n = snprintf(text, sizeof(text), "%s/%s", etcd->prefix, name);

	return json_base64(text, (uint64_t)n);
}

static json_t *member_key(const tn_etcd *etcd, uint64_t incarnation)
{
	char name[40];

	snprintf(name, sizeof(name), "members/%016" PRIx64, incarnation);
	return key(etcd, name);
}

tern_status tn_etcd_member(tn_etcd *etcd, uint64_t incarnation, uint64_t lease, uint32_t maps)
{
	char value[16];
	int n = snprintf(value, sizeof(value), "%u", maps);
	json_t *answer, *request = json_pack("{s:o,s:o,s:o}", "key", member_key(etcd, incarnation), "value",
					     json_base64(value, (uint64_t)n), "lease", json_number(lease));

	TN_TRY(ask(etcd, "/v3/kv/put", request, &answer));
	json_decref(answer);
	return TERN_OK;
}

/* ---- the state ---- */

void tn_etcd_state_free(tn_etcd_state *state)
{
	free(state->blob);
	free(state->members);
	free(state->maps);
	*state = (tn_etcd_state){0};
}

static const json_t *kvs_of(const json_t *answer, size_t i)
{
	const json_t *one = json_array_get(json_object_get(answer, "responses"), i);

	return json_object_get(json_object_get(one, "response_range"), "kvs");
}

static bool take_map(const json_t *answer, tn_etcd_state *state)
{
	const json_t *kv = json_array_get(kvs_of(answer, 0), 0);
	const char *value = json_string_value(json_object_get(kv, "value"));

	if (!kv)
		return true; /* none yet */
	state->revision = number_at(kv, "mod_revision");
	state->blob = value ? tn_unbase64(value, &state->blob_bytes) : NULL;
	return state->revision && state->blob;
}

/* 0: it says nothing of that. */
static uint32_t maps_of(const json_t *kv)
{
	const char *text = json_string_value(json_object_get(kv, "value"));
	uint64_t bytes = 0;
	uint8_t *value = text ? tn_unbase64(text, &bytes) : NULL;
	uint32_t maps = value && bytes == 1 && value[0] >= '0' && value[0] <= '9' ? value[0] - '0' : 0;

	free(value);
	return maps;
}

static bool take_members(const json_t *answer, tn_etcd_state *state)
{
	const json_t *kvs = kvs_of(answer, 1);
	size_t n = json_array_size(kvs);

	state->members = calloc(n + 1, sizeof(*state->members));
	state->maps = calloc(n + 1, sizeof(*state->maps));
	for (size_t i = 0; state->members && state->maps && i < n; i++) {
		const char *text = json_string_value(json_object_get(json_array_get(kvs, i), "key"));
		uint64_t bytes = 0;
		uint8_t *name = text ? tn_unbase64(text, &bytes) : NULL;
		char hex[17] = "";

		if (name && bytes > 16) {
			memcpy(hex, name + bytes - 16, 16);
			state->maps[state->member_count] = maps_of(json_array_get(kvs, i));
			state->members[state->member_count++] = strtoull(hex, NULL, 16);
		}
		free(name);
	}
	return state->members && state->maps;
}

tern_status tn_etcd_read(tn_etcd *etcd, tn_etcd_state *state)
{
	json_t *map = json_pack("{s:{s:o}}", "request_range", "key", key(etcd, "map"));
	json_t *members = json_pack("{s:{s:o,s:o}}", "request_range", "key", key(etcd, "members/"),
				    "range_end", key(etcd, "members0")); /* '0' follows '/' */
	json_t *answer;
	bool good;

	memset(state, 0, sizeof(*state));
	TN_TRY(ask(etcd, "/v3/kv/txn", json_pack("{s:[o,o]}", "success", map, members), &answer));
	good = take_map(answer, state) && take_members(answer, state);
	json_decref(answer);
	if (good)
		return TERN_OK;
	tn_etcd_state_free(state);
	return tn_fail(TERN_E_PROTOCOL, "what etcd keeps under %s can't be read", etcd->prefix);
}

tern_status tn_etcd_swap(tn_etcd *etcd, uint64_t revision, const uint64_t *dead, uint32_t dead_count,
			 const void *blob, uint64_t bytes)
{
	json_t *compare = json_array(), *answer;
	json_t *put = json_pack("{s:{s:o,s:o}}", "request_put", "key", key(etcd, "map"), "value",
				json_base64(blob, bytes));
	bool done;

	/* a key that is not there has revision 0 */
	json_array_append_new(compare,
			      json_pack("{s:o,s:s,s:s,s:o}", "key", key(etcd, "map"), "target", "MOD",
					"result", "EQUAL", "mod_revision", json_number(revision)));
	for (uint32_t i = 0; i < dead_count; i++)
		json_array_append_new(compare,
				      json_pack("{s:o,s:s,s:s,s:s}", "key", member_key(etcd, dead[i]),
						"target", "VERSION", "result", "EQUAL", "version", "0"));
	TN_TRY(ask(etcd, "/v3/kv/txn", json_pack("{s:o,s:[o]}", "compare", compare, "success", put),
		   &answer));
	done = json_is_true(json_object_get(answer, "succeeded"));
	json_decref(answer);
	return done ? TERN_OK : TERN_AGAIN;
}
