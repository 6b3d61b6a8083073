/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the conformance suite runs over, with what each target declares. A new provider is one row here and
 * one in CMakeLists.txt.
 */
#include "conf.h"

#include <string.h>

static const conf_target targets[] = {
	{.name = "loop", .provider = "loop"},
	{.name = "loop_adversarial", .provider = "loop", .seed = 0x7e57},
	{.name = "shm", .provider = "shm", .processes = true},
	{.name = "tcp", .provider = "tcp", .processes = true},
	{.name = "verbs_fake",
	 .provider = "verbs",
	 .key_error_breaks = true,
	 .extent_keys = true,
	 .prepare = conf_fake_nic},
	/* Completions of different queue pairs come in any order, some late. */
	{.name = "verbs_fake_scrambled",
	 .provider = "verbs",
	 .key_error_breaks = true,
	 .extent_keys = true,
	 .prepare = conf_scrambled_fake_nic},
	/* A NIC, or Soft-RoCE; tests/vm runs it in a virtual machine. */
	{.name = "verbs",
	 .provider = "verbs",
	 .processes = true,
	 .key_error_breaks = true,
	 .extent_keys = true},
};

const conf_target *conf_target_at(unsigned i)
{
	return i < TN_COUNT_OF(targets) ? &targets[i] : NULL;
}

const conf_target *conf_target_find(const char *name)
{
	for (unsigned i = 0; i < TN_COUNT_OF(targets); i++) {
		if (strcmp(targets[i].name, name) == 0)
			return &targets[i];
	}
	return NULL;
}
