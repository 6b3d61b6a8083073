/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX models: whatever the bytes are, import ends with a graph that passes its own check, or with a text.
 */
#include "base/check.h"
#include "graph/ir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_line(void *arg, const char *line)
{
	TN_ASSERT(*line);
	(*(unsigned *)arg)++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned lines = 0;
	tern_onnx_params params = {.report = count_line, .report_arg = &lines};
	tern_graph *graph = NULL;
	tern_status status = tern_graph_import_onnx_bytes(data, size, &params, &graph);

	TN_ASSERT((status == TERN_OK) == (graph != NULL));
	if (status == TERN_OK) {
		TN_ASSERT(lines == 0 && tern_graph_check(graph) == TERN_OK);
		tern_graph_text_free(tern_graph_dot(graph));
	} else {
		TN_ASSERT(*tern_detail() && status != TERN_E_INTERNAL);
	}
	tern_graph_destroy(graph);
	return 0;
}
