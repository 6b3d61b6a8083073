/* SPDX-License-Identifier: Apache-2.0 */
/* What verbs says of library, devices and GID tables, over tables of real cards; nothing stays open. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fault.h"
#include "verbs_test.h"

#define FACTS_MAX 128

static struct {
	char key[96], value[256];
} facts[FACTS_MAX];
static unsigned fact_count;

static void collect(const char *key, const char *value, void *arg)
{
	assert_ptr_equal(arg, facts);
	assert_true(fact_count < FACTS_MAX);
	snprintf(facts[fact_count].key, sizeof(facts[0].key), "%s", key);
	snprintf(facts[fact_count++].value, sizeof(facts[0].value), "%s", value);
}

static tern_status describe(void)
{
	fact_count = 0;
	return tn_provider_verbs.describe(collect, facts);
}

static const char *fact(const char *key)
{
	for (unsigned i = 0; i < fact_count; i++) {
		if (strcmp(facts[i].key, key) == 0)
			return facts[i].value;
	}
	return NULL;
}

static void has(const char *key, const char *words)
{
	const char *value = fact(key);

	if (!value || !strstr(value, words))
		print_error("%s = %s, not %s\n", key, value ? value : "(absent)", words);
	assert_non_null(value);
	assert_non_null(strstr(value, words));
}

static void a_card_of_four_entries(void **state)
{
	fake_device card = fake_card_mlx5();
	char key[96];
	tn_dev *dev;
	side s;
	int choice;

	(void)state;
	fake_reset(&card, 1);
	assert_ok(describe());
	has("devices", "1");
	assert_non_null(fact("library"));
	has(card.name, "opens");
	snprintf(key, sizeof(key), "%s.port1.state", card.name);
	has(key, "ACTIVE");
	snprintf(key, sizeof(key), "%s.port1.link_layer", card.name);
	has(key, "Ethernet");
	snprintf(key, sizeof(key), "%s.port1.gid.0", card.name);
	has(key, "not used");
	snprintf(key, sizeof(key), "%s.port1.gid_choice", card.name);
	has(key, "RoCEv2, IPv4");
	choice = atoi(fact(key));
	assert_int_equal(fake_counts_get().contexts, 0);
	nothing_left();
	/* and that is what a device takes */
	assert_ok(side_open_with(&s, NULL, NULL));
	dev = s.dev;
	assert_non_null(dev);
	assert_int_equal(((tn_vb_dev *)dev)->rails[0].port.gid_index[0], choice);
	side_close(&s, NULL);
}

static void infiniband(void **state)
{
	fake_device card = fake_card_ib();
	char key[96];

	(void)state;
	fake_reset(&card, 1);
	assert_ok(describe());
	snprintf(key, sizeof(key), "%s.port1.link_layer", card.name);
	has(key, "InfiniBand");
	snprintf(key, sizeof(key), "%s.port1.lid", card.name);
	has(key, "subnet manager at");
	snprintf(key, sizeof(key), "%s.port1.gid_choice", card.name);
	has(key, "0 InfiniBand");
	nothing_left();
}

static void no_usable_entry(void **state)
{
	fake_device card = fake_device_default();
	char key[96];

	(void)state;
	memset(card.gids, 0, sizeof(card.gids));
	card.gids[1] = (fake_gid){"fe80::1", IBV_GID_TYPE_ROCE_V2};
	card.gids[2] = (fake_gid){"::ffff:127.0.0.1", IBV_GID_TYPE_ROCE_V2};
	card.gids[3] = (fake_gid){"::1", IBV_GID_TYPE_ROCE_V2};
	fake_reset(&card, 1);
	assert_ok(describe());
	snprintf(key, sizeof(key), "%s.port1.gid.1", card.name);
	has(key, "link-local");
	snprintf(key, sizeof(key), "%s.port1.gid.2", card.name);
	has(key, "loopback");
	snprintf(key, sizeof(key), "%s.port1.gid.3", card.name);
	has(key, "loopback");
	snprintf(key, sizeof(key), "%s.port1.gid_choice", card.name);
	has(key, "-1 ");
	has(key, "routed address");
	nothing_left();
}

static void failures_are_facts(void **state)
{
	fake_device cards[2] = {fake_device_default(), fake_device_default()};
	static const char *const calls[] = {"query_device", "query_port"};

	(void)state;
	cards[0].open_errno = EACCES;
	cards[1].name = "other0";
	fake_reset(cards, 2);
	assert_ok(describe());
	has("devices", "2");
	has(cards[0].name, "cannot be opened: Permission denied");
	has("other0", "opens");
	nothing_left();
	for (unsigned i = 0; i < TN_COUNT_OF(calls); i++) {
		fake_reset(NULL, 0);
		fake_fail(calls[i], 1, EIO);
		assert_ok(describe());
		assert_string_equal(fake_failed_call(), calls[i]);
		nothing_left();
	}
	fake_reset(NULL, 0);
	fake_fail("get_device_list", 1, ENOSYS);
	assert_int_equal(describe(), TERN_E_NO_DEVICE);
	assert_non_null(strstr(tn_detail_get(), "ib_uverbs"));
}

/* First: what was loaded once stays. */
static void library_missing(void **state)
{
	(void)state;
	tn_verbs_api_override(NULL);
	assert_int_equal(tn_fault_set("verbs.dlopen", 1, 1), TERN_OK);
	assert_int_equal(describe(), TERN_E_NO_DEVICE);
	assert_int_equal(fact_count, 0);
	assert_non_null(strstr(tn_detail_get(), "install libibverbs1"));
	tn_fault_clear();
	fake_install();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(library_missing),    cmocka_unit_test(a_card_of_four_entries),
		cmocka_unit_test(infiniband),         cmocka_unit_test(no_usable_entry),
		cmocka_unit_test(failures_are_facts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
