/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work as messages both ways. Both sides know the sizes, so that no message needs a header of its own; the engine's
 * rows go from the server's buffer into the client's, gradients from the client's into the engine.
 *
 * Threads: one on each side.
 */
#include <string.h>

#include "harness.h"

static uint8_t *table_of(h_env *e)
{
	if (e->table == NULL)
		e->table = h_table_make();
	return e->table;
}

const uint8_t *h_two_answer(h_env *e, const h_work *w, const uint8_t *request)
{
	const uint64_t *keys = (const uint64_t *)(const void *)(request + 8);

	if (w->op == H_FETCH) {
		h_table_pull(table_of(e), keys, w->size, (float *)(void *)e->out);
		return e->out;
	}
	if (w->op == H_PUSH) {
		h_table_push(table_of(e), keys, w->size, (const float *)(const void *)(keys + w->size));
		return e->out;
	}
	return w->op == H_CALL ? request : e->out;
}

int h_two_request(h_env *e, const h_work *w, struct iovec iov[3])
{
	static uint64_t count;

	if (w->op != H_FETCH && w->op != H_PUSH) {
		iov[0] = (struct iovec){e->out, w->request};
		return 1;
	}
	count = w->size;
	iov[0] = (struct iovec){&count, sizeof(count)};
	iov[1] = (struct iovec){(void *)(uintptr_t)h_keys(e, count), count * sizeof(uint64_t)};
	iov[2] = (struct iovec){e->out, count * H_DIM * sizeof(float)};
	return w->op == H_PUSH ? 3 : 2;
}

void h_two_serve(h_env *e, const h_two *t, const h_work *w)
{
	struct iovec ack = {e->out, H_ACK};

	for (uint64_t i = 0; i < w->count; i++) {
		struct iovec answer = {NULL, w->answer};

		t->recv(e, e->in, w->request);
		if (w->answer == 0)
			continue;
		answer.iov_base = (void *)(uintptr_t)h_two_answer(e, w, e->in);
		t->send(e, &answer, 1);
	}
	if (w->answer == 0)
		t->send(e, &ack, 1);
}

void h_two_run(h_env *e, const h_two *t, const h_work *w)
{
	uint64_t sent = 0;
	struct iovec iov[3];

	if (w->answer == 0) {
		for (; sent < w->count; sent++) {
			t->send(e, iov, h_two_request(e, w, iov));
			h_tick(e);
		}
		t->recv(e, e->in, H_ACK);
		return;
	}
	for (uint64_t done = 0; done < w->count; done++) {
		for (; sent < w->count && sent - done < w->depth; sent++)
			t->send(e, iov, h_two_request(e, w, iov));
		t->recv(e, e->in, w->answer);
		h_tick(e);
	}
}
