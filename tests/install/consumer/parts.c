/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another one, which uses the libraries of parts: a graph of libtern-graph, the endpoint of libtern-http.
 */
#include <stdio.h>

#include <tern/graph.h>
#include <tern/http.h>

int main(void)
{
	tern_ctx_params params = {.name = "parts"};
	tern_graph_info info;
	tern_graph *graph;
	tern_http *http;
	tern_ctx *ctx;

	if (tern_graph_model("mlp", NULL, &graph) != TERN_OK || tern_graph_check(graph) != TERN_OK) {
		fprintf(stderr, "graph: %s\n", tern_detail());
		return 1;
	}
	tern_graph_info_get(graph, &info);
	if (tern_ctx_create(&params, &ctx) != TERN_OK || tern_http_start(ctx, NULL, &http) != TERN_OK) {
		fprintf(stderr, "http: %s\n", tern_detail());
		return 1;
	}
	printf("%llu parameters, %s\n", (unsigned long long)info.parameters, tern_http_address(http));
	tern_http_stop(http);
	tern_ctx_destroy(ctx);
	tern_graph_destroy(graph);
	return 0;
}
