/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses: what is one, what is loopback, how it reads. Threads: one. */
#include "channel/addr.h"

#include <net/if.h>
#include <netinet/in.h>

#include "cmocka_all.h"

static void good(const char *text, bool passive, const char *formatted, bool loopback)
{
	tn_addr addr;
	char buf[128];

	assert_ok(tn_addr_resolve(text, passive, &addr));
	assert_string_equal(tn_addr_format(&addr, buf, sizeof(buf)), formatted);
	assert_int_equal(tn_addr_is_loopback(&addr), loopback);
}

static void test_good(void **state)
{
	(void)state;
	good("127.0.0.1:4001", false, "127.0.0.1:4001", true);
	good("localhost:4001", false, "127.0.0.1:4001", true);
	good("127.9.9.9:0", true, "127.9.9.9:0", true);
	good("[::1]:65535", false, "[::1]:65535", true);
	good("[::ffff:127.0.0.1]:1", false, "[::ffff:127.0.0.1]:1", true);
	good("0.0.0.0:7", true, "0.0.0.0:7", false);
	good(":7", true, "0.0.0.0:7", false);
	good("*:7", true, "0.0.0.0:7", false);
	good("[::]:7", true, "[::]:7", false);
	good("10.1.2.3:7", false, "10.1.2.3:7", false);
}

/* curl#22079: the scope of an IPv6 address was lost. It is kept, and written out again. */
static void test_scope(void **state)
{
	const struct sockaddr_in6 *in6;
	tn_addr addr;

	(void)state;
	good("[fe80::1%lo]:7", false, "[fe80::1%lo]:7", false);
	assert_ok(tn_addr_resolve("[fe80::1%lo]:7", false, &addr));
	in6 = (const struct sockaddr_in6 *)&addr.sa;
	assert_int_equal(addr.bytes, sizeof(*in6));
	assert_int_equal(in6->sin6_scope_id, if_nametoindex("lo"));
}

static void bad(const char *text, bool passive)
{
	tn_addr addr;

	assert_status(tn_addr_resolve(text, passive, &addr), TERN_E_INVALID);
}

static void test_bad(void **state)
{
	(void)state;
	bad(NULL, false);
	bad("", false);
	bad("127.0.0.1", false);
	bad("127.0.0.1:", false);
	bad("127.0.0.1:port", false);
	bad("127.0.0.1:65536", false);
	bad("127.0.0.1:-1", false);
	bad("::1:4001", false); /* which of the colons is the port's? */
	bad(":4001", false);
	bad("*:4001", false);
}

static void test_host(void **state)
{
	tn_addr addr;
	char buf[128];

	(void)state;
	assert_ok(tn_addr_resolve("[::1]:5", false, &addr));
	assert_string_equal(tn_addr_host(&addr, buf, sizeof(buf)), "::1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_scope),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_host),
	};

	return RUN(tests);
}
