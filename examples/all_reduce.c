/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a job add up an array: every rank gets the sum.
 *
 *	./all_reduce 127.0.0.1:7100,127.0.0.1:7101 RANK        once for each rank
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/coll.h>

#define COUNT     1000
#define RANKS_MAX 64

static void check(tern_status status, const char *what)
{
	if (status == TERN_OK)
		return;
	fprintf(stderr, "%s: %s\n", what, tern_detail());
	exit(1);
}

int main(int argc, char **argv)
{
	const char *addresses[RANKS_MAX];
	static float values[COUNT];
	tern_comm_params params = {.name = "example", .addresses = addresses};
	tern_communicator *comm;
	tern_ctx *ctx;
	char name[32];

	if (argc != 3) {
		fprintf(stderr, "usage: all_reduce HOST:PORT,HOST:PORT... RANK\n");
		return 2;
	}
	for (char *part = strtok(argv[1], ","); part && params.size < RANKS_MAX; part = strtok(NULL, ","))
		addresses[params.size++] = part;
	params.rank = (uint32_t)strtoul(argv[2], NULL, 10);
	if (params.rank >= params.size) {
		fprintf(stderr, "rank %u of %u\n", params.rank, params.size);
		return 2;
	}
	snprintf(name, sizeof(name), "rank%u", params.rank);
	check(tern_ctx_create(&(tern_ctx_params){.name = name, .listen = addresses[params.rank]}, &ctx),
	      "context");
	check(tern_comm_create(ctx, &params, &comm), "communicator");
	for (int i = 0; i < COUNT; i++)
		values[i] = (float)(params.rank + 1);
	check(tern_all_reduce(comm, values, values, COUNT, TERN_F32, TERN_SUM), "all-reduce");
	printf("rank %u of %u: every element is %.0f\n", params.rank, params.size, values[COUNT - 1]);
	check(tern_barrier(comm), "barrier"); /* nobody leaves while another still receives */
	tern_comm_destroy(comm);
	tern_ctx_destroy(ctx);
	return 0;
}
