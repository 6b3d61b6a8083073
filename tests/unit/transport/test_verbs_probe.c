/* SPDX-License-Identifier: Apache-2.0 */
/* Is there a device, which one, which GID: the choice and its reason in words, over tables of real cards. */
#include <errno.h>

#include "base/fault.h"
#include "verbs_test.h"

static tern_status probe(char *reason)
{
	return tn_provider_verbs.probe(reason, 240);
}

static void expect(tern_status want, const char *words)
{
	char reason[240] = "";
	tern_status status = probe(reason);

	if (status != want || !strstr(reason, words))
		print_error("%s: %s\n", tern_status_name(status), reason);
	assert_int_equal(status, want);
	assert_non_null(strstr(reason, words));
	nothing_left();
}

/* First: what was loaded once stays. */
static void library_missing(void **state)
{
	(void)state;
	tn_verbs_api_override(NULL);
	assert_int_equal(tn_fault_set("verbs.dlopen", 1, 1), TERN_OK);
	expect(TERN_E_NO_DEVICE, "install libibverbs1");
	tn_fault_clear();
	fake_install();
}

static void no_devices(void **state)
{
	const fake_device none = fake_device_default();

	(void)state;
	fake_reset(&none, 0);
	expect(TERN_E_NO_DEVICE, "no RDMA devices");
	fake_fail("get_device_list", 1, ENOSYS);
	expect(TERN_E_NO_DEVICE, "ib_uverbs");
}

/* brpc#2298, sriov-cni#348: a device that is there but not permitted, or whose ABI does not fit. */
static void not_permitted(void **state)
{
	fake_device dev = fake_device_default();

	(void)state;
	dev.open_errno = EACCES;
	fake_reset(&dev, 1);
	expect(TERN_E_NO_DEVICE, "not permitted");
	expect(TERN_E_NO_DEVICE, "/dev/infiniband/uverbs");
	dev.open_errno = ENODEV;
	fake_reset(&dev, 1);
	expect(TERN_E_NO_DEVICE, "rdma-core");
}

/* byteps#377, tensorpipe#413 */
static void port_down(void **state)
{
	fake_device dev = fake_device_default();

	(void)state;
	dev.state[0] = IBV_PORT_DOWN;
	fake_reset(&dev, 1);
	expect(TERN_E_NO_DEVICE, "port 1 is not ACTIVE");
	dev.ports = 2;
	dev.state[1] = IBV_PORT_ACTIVE;
	fake_reset(&dev, 1);
	expect(TERN_OK, "port 2, GID 3");
}

static void no_shared_receive_queues(void **state)
{
	fake_device dev = fake_device_default();

	(void)state;
	dev.max_srq = 0;
	fake_reset(&dev, 1);
	expect(TERN_E_NO_DEVICE, "shared receive");
}

/* A device that cannot be used is skipped, the next is taken. */
static void next_device(void **state)
{
	fake_device dev[2] = {fake_device_default(), fake_device_default()};

	(void)state;
	dev[0].name = "down0";
	dev[0].state[0] = IBV_PORT_DOWN;
	dev[1].name = "good1";
	fake_reset(dev, 2);
	expect(TERN_OK, "good1: port 1, GID 3");
	dev[1].open_errno = EPERM;
	fake_reset(dev, 2);
	expect(TERN_E_NO_DEVICE, "good1");
}

static void named_device(void **state)
{
	static const char *const good[] = {"verbs.device=good1", NULL}, *const none[] = {
										"verbs.device=mlx9_9", NULL};
	fake_device dev[2] = {fake_device_default(), fake_device_default()};
	side s;

	(void)state;
	dev[0].name = "first0";
	dev[1].name = "good1";
	fake_reset(dev, 2);
	assert_ok(side_open(&s, good));
	assert_string_equal(vb(&s)->name, "good1");
	side_close(&s, NULL);
	assert_int_equal(side_open(&s, none), TERN_E_NO_DEVICE);
	assert_non_null(strstr(tern_detail(), "mlx9_9"));
	nothing_left();
}

/* ---- GID tables of real cards ---- */

static void gids(const fake_gid *table, int count, bool infiniband, tern_status want, const char *words)
{
	fake_device dev = fake_device_default();

	memset(dev.gids, 0, sizeof(dev.gids));
	memcpy(dev.gids, table, sizeof(*table) * (size_t)count);
	dev.infiniband = infiniband;
	fake_reset(&dev, 1);
	expect(want, words);
}

/* NCCL#769, #426; Mooncake PR#113; uccl PR#803 */
static void gid_choice(void **state)
{
	static const fake_gid mlx5[] = {{"fe80::e42:a1ff:fe00:1", IBV_GID_TYPE_ROCE_V1},
					{"fe80::e42:a1ff:fe00:1", IBV_GID_TYPE_ROCE_V2},
					{"::ffff:192.168.1.5", IBV_GID_TYPE_ROCE_V1},
					{"::ffff:192.168.1.5", IBV_GID_TYPE_ROCE_V2}};
	static const fake_gid irdma[] = {{"fe80::1", IBV_GID_TYPE_ROCE_V2},
					 {"::ffff:10.1.1.1", IBV_GID_TYPE_ROCE_V2}};
	static const fake_gid bnxt[] = {{"fe80::2", IBV_GID_TYPE_ROCE_V1},
					{"fe80::2", IBV_GID_TYPE_ROCE_V2},
					{"2001:db8::5", IBV_GID_TYPE_ROCE_V1},
					{"2001:db8::5", IBV_GID_TYPE_ROCE_V2}};
	static const fake_gid both[] = {{"2001:db8::5", IBV_GID_TYPE_ROCE_V2},
					{"::ffff:10.1.1.1", IBV_GID_TYPE_ROCE_V2}};
	static const fake_gid local[] = {{"fe80::2", IBV_GID_TYPE_ROCE_V1},
					 {"fe80::2", IBV_GID_TYPE_ROCE_V2}};
	static const fake_gid v1[] = {{"::ffff:10.1.1.1", IBV_GID_TYPE_ROCE_V1}};
	static const fake_gid ib[] = {{"fe80::9:3a00:1", IBV_GID_TYPE_IB}};

	(void)state;
	gids(mlx5, 4, false, TERN_OK, "GID 3: RoCEv2, IPv4");
	gids(irdma, 2, false, TERN_OK, "GID 1: RoCEv2, IPv4");
	gids(bnxt, 4, false, TERN_OK, "GID 3: RoCEv2, IPv6");
	gids(both, 2, false, TERN_OK, "GID 1: RoCEv2, IPv4");
	gids(local, 2, false, TERN_E_NO_DEVICE, "link-local");
	gids(v1, 1, false, TERN_E_NO_DEVICE, "RoCEv1");
	gids(v1, 0, false, TERN_E_NO_DEVICE, "empty");
	gids(ib, 1, true, TERN_OK, "GID 0: InfiniBand");
}

/* Without the extended query the types are unknown: link-local stays out. */
static void old_library(void **state)
{
	tn_verbs_api api = *fake_api();
	char reason[240];

	(void)state;
	fake_reset(NULL, 0);
	api.query_gid_ex = NULL;
	api.query_gid_table = NULL;
	tn_verbs_api_override(&api);
	assert_int_equal(probe(reason), TERN_OK);
	assert_non_null(strstr(reason, "GID 2: type unknown, IPv4"));
	fake_install();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(library_missing),
		cmocka_unit_test(no_devices),
		cmocka_unit_test(not_permitted),
		cmocka_unit_test(port_down),
		cmocka_unit_test(no_shared_receive_queues),
		cmocka_unit_test(next_device),
		cmocka_unit_test(named_device),
		cmocka_unit_test(gid_choice),
		cmocka_unit_test(old_library),
	};

	return cmocka_run_group_tests(tests, install, NULL);
}
