/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor of a million floats moves from one process to another, three times.
 *
 *	./first_transfer receive            prints where it listens
 *	./first_transfer send HOST:PORT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/ctx.h>
#include <tern/mem.h>
#include <tern/tensor.h>

#define ROUNDS 3
#define COUNT  1000000

static const tern_tensor_params tensor = {
	.name = "weights", .dtype = TERN_F32, .shape = {.rank = 1, .dims = {COUNT}}};

static void check(tern_status status, const char *what)
{
	if (status == TERN_OK)
		return;
	fprintf(stderr, "%s: %s\n", what, tern_detail()); /* cause, limit, remedy */
	exit(1);
}

static void receive(tern_ctx *ctx)
{
	tern_tensor_rx *rx;

	check(tern_tensor_rx_create(ctx, &tensor, &rx), "publish");
	printf("%s\n", tern_ctx_address(ctx));
	fflush(stdout);
	for (int round = 0; round < ROUNDS; round++) {
		const void *data;
		tern_status status;

		while ((status = tern_tensor_rx_poll(rx, &data)) == TERN_AGAIN)
			tern_ctx_wait(ctx, 100000000);
		check(status, "receive");
		/* It lies where the sender wrote it; nothing was copied. */
		printf("round %d: first %.1f, last %.1f\n", round, ((const float *)data)[0],
		       ((const float *)data)[COUNT - 1]);
		check(tern_tensor_rx_release(rx), "release"); /* the slot goes back to the sender */
	}
	tern_tensor_rx_destroy(rx);
}

static void send_all(tern_ctx *ctx, const char *address)
{
	tern_link *link;
	tern_tensor_tx *tx;
	void *memory;
	float *data;

	/* Registered memory: peers and NICs reach it without a copy. */
	check(tern_mem_alloc(tern_ctx_mem(ctx), COUNT * sizeof(float), 0, TERN_ACCESS_NONE, TERN_MEM_HOST,
			     &memory),
	      "memory");
	data = memory;
	check(tern_link_connect(ctx, address, NULL, &link), "connect");
	check(tern_link_wait(link, 5000000000), "connect");
	printf("over %s: %s\n", tern_link_transport(link), tern_link_transport_reason(link));
	check(tern_tensor_tx_open(link, &tensor, 5000000000, &tx), "open");
	for (int round = 0; round < ROUNDS; round++) {
		tern_op op = {0};
		tern_status status;

		for (int i = 0; i < COUNT; i++)
			data[i] = (float)(round + 1) * (i == 0 ? 1.0f : 0.5f);
		while ((status = tern_tensor_send(tx, data, &op)) == TERN_AGAIN)
			tern_ctx_wait(ctx, 100000000); /* all slots are with the receiver */
		check(status, "send");
		check(tern_op_wait(ctx, &op, 0), "send"); /* data may be changed again */
	}
	tern_tensor_tx_close(tx);
	tern_link_release(link);
	tern_mem_free(tern_ctx_mem(ctx), memory);
}

int main(int argc, char **argv)
{
	tern_ctx *ctx;

	if (argc < 2 || (strcmp(argv[1], "receive") && (strcmp(argv[1], "send") || argc < 3))) {
		fprintf(stderr, "usage: first_transfer receive | send HOST:PORT\n");
		return 2;
	}
	check(tern_ctx_create(&(tern_ctx_params){.name = argv[1]}, &ctx), "context");
	if (argc == 2)
		receive(ctx);
	else
		send_all(ctx, argv[2]);
	tern_ctx_destroy(ctx);
	return 0;
}
