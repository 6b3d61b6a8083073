/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link that is up and idle has touched of its memory: the rest of it costs nothing, whatever the options allow.
 * The figures of src/link/README.md.
 */
#include "unit/link/record.h"

#define PAGE 4096u

/* Pages in which a byte is not what the pair filled the memory with. */
static unsigned touched(int side)
{
	const uint8_t *at = world.node[side].memory;
	size_t bytes = tn_link_memory_bytes(&world.node[side].config);
	unsigned n = 0;

	for (size_t page = 0; page < bytes; page += PAGE) {
		size_t end = TN_MIN(page + PAGE, bytes), i = page;

		while (i < end && at[i] == 0xa5)
			i++;
		n += i < end;
	}
	return n;
}

static void idle_link(void **state)
{
	(void)state;
	record_init();
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world.node[i].config;

		c->channels_max = c->ops_max = 4096;
		c->wrs_max = 1024;
		c->recover_ns = 10 * TN_NS_PER_SEC;
		c->redial_ns = TN_NS_PER_SEC;
	}
	record_start();
	open_channel("service", NULL);
	/* Ten thousand keepalives: what is said again and again stays in a ring. */
	PAIR_UNTIL(&world, world.now > 10000 * TN_NS_PER_SEC, 1000000);
	assert_true(pair_both_up(&world));
	for (int i = 0; i < 2; i++) {
		print_message("an idle link has touched %u KiB of %zu\n", touched(i) * PAGE >> 10,
			      tn_link_memory_bytes(&world.node[i].config) >> 10);
		assert_in_range(touched(i), 1, 12);
	}
	pair_fini(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(idle_link)};

	return RUN(tests);
}
