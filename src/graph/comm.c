/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The switch for people who compare: TERN_RDMA_OPT turns zero-copy off or on for a job whose command and model stay
 * the same. Threads: any. Tests: tests/unit/graph/plan_test.c, tests/e2e/train_test.py.
 */
#include <tern/graph.h>

#include "base/options.h"

enum { AS_TOLD, OFF, ON };

static const tn_option_row rows[] = {
	{.layer = "graph",
	 .name = "rdma_opt",
	 .env = "TERN_RDMA_OPT",
	 .type = TN_OPT_ENUM,
	 .choices = "auto|0|1",
	 .help = "transfers of graphs: as the job says, Send/Recv by calls (0), or one-sided zero-copy (1)"},
	{0},
};
TN_OPTION_TABLE(graph, rows)

tern_status tern_comm_switched(tern_comm *comm)
{
	tn_options *options;
	tern_status status = tn_options_load(NULL, &options);
	unsigned said;

	if (status != TERN_OK)
		return status;
	said = tn_opt_enum(options, rows, "rdma_opt");
	tn_options_free(options);
	if (said == OFF && *comm == TERN_COMM_ZEROCOPY)
		*comm = TERN_COMM_RPC;
	else if (said == ON && *comm != TERN_COMM_NONE)
		*comm = TERN_COMM_ZEROCOPY;
	return TERN_OK;
}
