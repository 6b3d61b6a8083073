/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST over libcurl, which is loaded at first need. Threads: one per object; loading from any.
 * Tests: tests/unit/cluster/etcd_test.c.
 */
#include "cluster/etcd_kv.h"

#include "base/fail.h"

#ifdef TN_HAVE_CURL

#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"

#define ANSWER_MAX (16u << 20)

static struct {
	void *library;
	__typeof__(&curl_global_init) global_init;
	__typeof__(&curl_easy_init) init;
	CURLcode (*setopt)(CURL *, CURLoption, ...);
	__typeof__(&curl_easy_perform) perform;
	CURLcode (*getinfo)(CURL *, CURLINFO, ...);
	__typeof__(&curl_easy_cleanup) cleanup;
	__typeof__(&curl_easy_strerror) text;
} curl;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
	bool whole = library != NULL;

#define GET(field, name)                                                     \
	do {                                                                 \
		*(void **)&curl.field = whole ? dlsym(library, name) : NULL; \
		whole = whole && curl.field != NULL;                         \
	} while (0)
	GET(global_init, "curl_global_init");
	GET(init, "curl_easy_init");
	GET(setopt, "curl_easy_setopt");
	GET(perform, "curl_easy_perform");
	GET(getinfo, "curl_easy_getinfo");
	GET(cleanup, "curl_easy_cleanup");
	GET(text, "curl_easy_strerror");
#undef GET
	if (whole && curl.global_init(CURL_GLOBAL_DEFAULT) == 0)
		curl.library = library;
}

struct tn_http {
	CURL *easy;
	char *answer;
	uint64_t bytes, room;
	char error[CURL_ERROR_SIZE];
};

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
	tn_http *http = arg;
	uint64_t bytes = (uint64_t)size * n, room = http->room ? http->room : 4096;

	if (bytes > ANSWER_MAX - http->bytes)
		return 0;
	while (room < http->bytes + bytes + 1)
		room *= 2;
	if (room > http->room) {
		char *more = realloc(http->answer, room);

		if (!more)
			return 0;
		http->answer = more;
		http->room = room;
	}
	memcpy(http->answer + http->bytes, data, bytes);
	http->bytes += bytes;
	http->answer[http->bytes] = '\0';
	return bytes;
}

tern_status tn_http_open(tn_http **out)
{
	tn_http *http = calloc(1, sizeof(*http));

	*out = NULL;
	pthread_once(&once, load);
	if (http && curl.library)
		http->easy = curl.init();
	if (http && http->easy) {
		*out = http;
		return TERN_OK;
	}
	free(http);
	return curl.library ? tn_fail(TERN_E_NOMEM, "no memory for an HTTP client")
			    : tn_fail(TERN_E_UNSUPPORTED, "etcd needs libcurl.so.4, which is not on this "
							  "host: apt-get install libcurl4");
}

void tn_http_close(tn_http *http)
{
	if (!http)
		return;
	curl.cleanup(http->easy);
	free(http->answer);
	free(http);
}

tern_status tn_http_post(tn_http *http, const char *url, const char *body, uint64_t timeout_ns,
			 const char **answer)
{
	long code = 0;
	CURLcode rc;

	http->bytes = 0;
	http->error[0] = '\0';
	curl.setopt(http->easy, CURLOPT_URL, url);
	curl.setopt(http->easy, CURLOPT_POST, 1L);
	curl.setopt(http->easy, CURLOPT_POSTFIELDS, body);
	curl.setopt(http->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
	curl.setopt(http->easy, CURLOPT_WRITEFUNCTION, on_body);
	curl.setopt(http->easy, CURLOPT_WRITEDATA, http);
	curl.setopt(http->easy, CURLOPT_TIMEOUT_MS, (long)(timeout_ns / TN_NS_PER_MS + 1));
	curl.setopt(http->easy, CURLOPT_NOSIGNAL, 1L);
	curl.setopt(http->easy, CURLOPT_NOPROXY, "*");
	curl.setopt(http->easy, CURLOPT_ERRORBUFFER, http->error);
	rc = curl.perform(http->easy);
	if (rc == CURLE_OPERATION_TIMEDOUT)
		return tn_fail(TERN_E_DEADLINE, "etcd at %s does not answer", url);
	if (rc != CURLE_OK)
		return tn_fail(TERN_E_UNREACHABLE, "etcd at %s: %s", url,
			       http->error[0] ? http->error : curl.text(rc));
	curl.getinfo(http->easy, CURLINFO_RESPONSE_CODE, &code);
	*answer = http->bytes ? http->answer : "";
	return code == 200 ? TERN_OK
			   : tn_fail(TERN_E_REMOTE, "etcd at %s says %ld: %.200s", url, code, *answer);
}

#else

tern_status tn_http_open(tn_http **http)
{
	*http = NULL;
	return tn_fail(TERN_E_UNSUPPORTED, "tern was built without libcurl, so without etcd: apt-get install "
					   "libcurl4-openssl-dev, build again");
}

void tn_http_close(tn_http *http)
{
	(void)http;
}

tern_status tn_http_post(tn_http *http, const char *url, const char *body, uint64_t timeout_ns,
			 const char **answer)
{
	(void)http, (void)url, (void)body, (void)timeout_ns, (void)answer;
	return TERN_E_UNSUPPORTED;
}

#endif
