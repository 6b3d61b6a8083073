/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many threads of a process run ops of its graph: a setting of the host, which no result depends on, so it is an option
 * and no parameter of a session. Threads: any. Tests: tests/unit/graph/exec_crew_test.c.
 */
#include "graph/exec_threads.h"

#include "base/fail.h"
#include "base/options.h"
#include "graph/crew.h"

static const tn_option_row rows[] = {
	{.layer = "graph",
	 .name = "threads",
	 .type = TN_OPT_U64,
	 .dflt = "1",
	 .min = 1,
	 .max = TN_CREW_MAX,
	 .help = "threads of a process that run ops of its graph side by side; no result depends on it"},
	{0},
};
TN_OPTION_TABLE(graph_exec, rows)

tern_status tn_exec_threads(uint32_t *threads)
{
	tn_options *options;

	TN_TRY(tn_options_load(NULL, &options));
	*threads = (uint32_t)tn_opt_u64(options, rows, "threads");
	tn_options_free(options);
	return TERN_OK;
}
