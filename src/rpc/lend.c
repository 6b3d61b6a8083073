/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel of a client, lent for one-sided accesses to the server's memory: it ends with the link that it is of, and
 * the client dials another one as for its calls. Threads: any. Tests: tests/unit/ps/onesided_test.c.
 */
#include "rpc/client.h"
#include "rpc/direct.h"

tern_channel *tn_rpc_channel_lend(tern_rpc *rpc, tern_rpc_class service_class, void **loan)
{
	rpc_stream *stream;
	rpc_pipe *pipe;

	rpc_lock_take(&rpc->lock);
	stream = rpc->streams[service_class];
	pipe = stream ? stream->pipe : NULL;
	if (pipe)
		rpc_refs_add(&pipe->refs, pipe->stream->rpc->counters->own);
	rpc_lock_drop(&rpc->lock);
	*loan = pipe;
	return pipe ? pipe->channel : NULL;
}

void tn_rpc_channel_return(void *loan)
{
	tn_rpc_pipe_unref(loan);
}
