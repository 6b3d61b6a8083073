/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts the fake NIC under the verbs provider before the first open. Main thread only.
 */
#include "conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef TN_HAVE_VERBS

#include "fake_ibverbs/fake.h"

/* What the NIC saw go wrong without a case noticing, or what was left over, fails the run. */
static void judge(void)
{
	fake_counts counts = fake_counts_get();

	if (counts.faults || counts.qps || counts.mrs || counts.contexts || counts.unacked) {
		(void)fprintf(stderr, "fake NIC: %llu faults, left over: %llu queue pairs, %llu regions\n",
			      (unsigned long long)counts.faults, (unsigned long long)counts.qps,
			      (unsigned long long)counts.mrs);
		_exit(97);
	}
}

bool conf_fake_nic(char *why, size_t why_bytes)
{
	(void)why;
	(void)why_bytes;
	fake_install();
	(void)atexit(judge);
	return true;
}

bool conf_scrambled_fake_nic(char *why, size_t why_bytes)
{
	(void)conf_fake_nic(why, why_bytes);
	fake_scramble(0x5eed);
	return true;
}

#else

bool conf_fake_nic(char *why, size_t why_bytes)
{
	(void)snprintf(why, why_bytes, "built without <infiniband/verbs.h>");
	return false;
}

bool conf_scrambled_fake_nic(char *why, size_t why_bytes)
{
	return conf_fake_nic(why, why_bytes);
}

#endif
