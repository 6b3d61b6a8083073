/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the counters as others see them, and what the NIC itself counts of receive buffers that were missing
 * (RNR): credits should keep that at 0, so it is shown beside the provider's own.
 *
 * Threads: any. Tests: tests/unit/transport/test_verbs_life.c.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "transport/verbs/verbs.h"

/* Names differ between drivers: mlx5, rxe, bnxt_re, efa and irdma. */
static const char *const rnr_names[] = {"rnr_nak_retry_err", "out_of_buffer", "rcvd_rnr_err",
					"send_rnr_err",      "rnr_naks_rcvd", "rx_rnr_naks"};

TN_COUNTERS_NAMES(counter_names, TN_VB_COUNTERS)

static uint64_t read_number(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	tn_os_close(&fd);
	return n > 0 ? strtoull(text, NULL, 10) : 0;
}

uint64_t tn_vb_rnr_read(const tn_vb_rail *rail)
{
	uint64_t sum = 0;
	char path[192];

	if (tn_verbs_api_is_overridden())
		return 0;
	for (unsigned i = 0; i < TN_COUNT_OF(rnr_names); i++) {
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/hw_counters/%s", rail->name,
			 rail->port.number, rnr_names[i]);
		sum += read_number(path);
	}
	return sum;
}

void tn_vb_counters_each(tn_dev *base, tern_counter_fn fn, void *arg)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	uint64_t rnr = 0;
	char name[96];

	for (uint32_t i = 0; i < dev->rail_count; i++) {
		const tn_vb_rail *rail = &dev->rails[i];

		if (rail->cq)
			rnr += tn_vb_rnr_read(rail) - rail->rnr_at_open;
		if (!fn || !rail->cq)
			continue;
		snprintf(name, sizeof(name), "verbs.registrations.%s", rail->name);
		fn(name, atomic_load_explicit(&rail->registrations, memory_order_relaxed), arg);
	}
	tn_count_set(&dev->counters.rnr, rnr);
	tn_counters_each(counter_names, &dev->counters, "verbs", fn, arg);
}
