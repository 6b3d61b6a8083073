/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-link: a link as an application sees it. `bench-link --help` says what it measures; docs/PERFORMANCE.md
 * how its rows are read. Exit status: 0 measured, 1 something failed, 2 bad options.
 */
#include <string.h>

#include "bench.h"

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(const options *o);
	} cases[] = {{"channels", case_channels}, {"mixed", case_mixed}, {"stall", case_stall}};
	options o;
	int status = options_parse(&o, argc, argv);

	if (status >= 0)
		return status;
	if (o.tune)
		return tune(&o);
	o.transport = o.transport ? o.transport : "shm";
	status = 0;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!o.test || strcmp(o.test, cases[i].name) == 0)
			status |= cases[i].run(&o);
	}
	return status;
}
