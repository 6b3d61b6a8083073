/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model parallelism: which stage of a worker computes which node.
 *
 * Thread story: pure. Tests: tests/unit/graph/stage_test.c.
 */
#include "base/check.h"
#include "base/fail.h"
#include "graph/plan.h"

static tern_status check_devices(const tern_graph *model, uint32_t stages)
{
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		const tn_node *n = &model->nodes[i];

		if (n->device != TN_DEVICE_NONE && (n->device < 0 || (uint32_t)n->device >= stages)) {
			return tn_fail(TERN_E_INVALID,
				       "node '%s' is placed on device %d, but a worker has %u: plan with "
				       "more stages",
				       n->name, n->device, stages);
		}
	}
	return TERN_OK;
}

tern_status tn_stages(tern_graph *model, uint32_t stages)
{
	TN_TRY(check_devices(model, stages));
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		if (model->nodes[i].device == TN_DEVICE_NONE)
			model->nodes[i].device = 0;
	}
	return TERN_OK;
}
