/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts the fake NIC under the verbs provider before the first open. Main thread only.
 */
#include "conf.h"

#include <stdio.h>

#ifdef TN_HAVE_VERBS

#include "fake_ibverbs/fake.h"

bool conf_fake_nic(char *why, size_t why_bytes)
{
	(void)why;
	(void)why_bytes;
	/* What the NIC saw go wrong without a case noticing, or what was left over, fails the run. */
	fake_install_judged();
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
