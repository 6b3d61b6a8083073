/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC tuned: no protobuf, byte buffers over slices that are not copied on the way out, the generic asynchronous
 * service, one stream of messages both ways for all operations, large HTTP/2 frames. Over tcp and unix.
 *
 * Threads: gRPC's on both sides, and one that drives a completion queue.
 */
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "harness.h"

namespace
{

enum Tag : intptr_t { READ = 1, WRITE, OTHER };

struct State {
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::ServerCompletionQueue> server_queue;
	std::unique_ptr<grpc::Server> server;
	grpc::GenericServerContext server_context;
	std::unique_ptr<grpc::GenericServerAsyncReaderWriter> server_stream;

	grpc::CompletionQueue client_queue;
	std::unique_ptr<grpc::GenericStub> stub;
	grpc::ClientContext client_context;
	std::unique_ptr<grpc::GenericClientAsyncReaderWriter> client_stream;

	bool done[OTHER + 1] = {false};
};

State *state_of(h_env *e)
{
	return static_cast<State *>(e->state);
}

void *tag(Tag t)
{
	return reinterpret_cast<void *>(static_cast<intptr_t>(t));
}

/* Completions come in any order. */
void await(h_env *e, Tag t)
{
	State *s = state_of(e);
	grpc::CompletionQueue *queue = e->server ? s->server_queue.get() : &s->client_queue;

	while (!s->done[t]) {
		void *got;
		bool ok;

		if (!queue->Next(&got, &ok) || !ok)
			h_die(e, "the stream ended");
		s->done[reinterpret_cast<intptr_t>(got)] = true;
	}
	s->done[t] = false;
}

void buffers(h_env *e)
{
	e->in = h_alloc(e, e->bytes_max);
	e->out = h_alloc(e, e->bytes_max);
	e->state = new State;
}

void server(h_env *e)
{
	grpc::ServerBuilder builder;
	int port = 0;
	std::string at = "unix-abstract:tern-bench-" + std::to_string(getpid());
	bool tcp = strcmp(e->transport, "tcp") == 0;
	State *s;

	buffers(e);
	s = state_of(e);
	builder.AddListeningPort(tcp ? "127.0.0.1:0" : at, grpc::InsecureServerCredentials(), &port);
	builder.SetMaxReceiveMessageSize(-1);
	builder.SetMaxSendMessageSize(-1);
	builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16777215);
	builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 << 20);
	builder.RegisterAsyncGenericService(&s->service);
	s->server_queue = builder.AddCompletionQueue();
	s->server = builder.BuildAndStart();
	if (!s->server)
		h_die(e, "the server did not start");
	if (tcp)
		at = "127.0.0.1:" + std::to_string(port);
	h_give(e, at.c_str(), at.size() + 1);
	s->server_stream = std::make_unique<grpc::GenericServerAsyncReaderWriter>(&s->server_context);
	s->service.RequestCall(&s->server_context, s->server_stream.get(), s->server_queue.get(),
			       s->server_queue.get(), tag(OTHER));
	await(e, OTHER);
}

void client(h_env *e)
{
	grpc::ChannelArguments args;
	char at[256];
	State *s;

	buffers(e);
	s = state_of(e);
	(void)h_take(e, at, sizeof(at));
	args.SetMaxReceiveMessageSize(-1);
	args.SetMaxSendMessageSize(-1);
	args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16777215);
	args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 << 20);
	s->stub = std::make_unique<grpc::GenericStub>(
		grpc::CreateCustomChannel(at, grpc::InsecureChannelCredentials(), args));
	s->client_stream = s->stub->PrepareCall(&s->client_context, "/tern.bench/echo", &s->client_queue);
	s->client_stream->StartCall(tag(OTHER));
	await(e, OTHER);
}

/* The pieces are not copied where they outlive the write: this waits for it. */
void send_message(h_env *e, const struct iovec *iov, int count)
{
	State *s = state_of(e);
	std::vector<grpc::Slice> slices;

	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > 4096)
			slices.emplace_back(iov[i].iov_base, iov[i].iov_len, grpc::Slice::STATIC_SLICE);
		else
			slices.emplace_back(iov[i].iov_base, iov[i].iov_len);
	}
	grpc::ByteBuffer message(slices.data(), slices.size());
	if (e->server)
		s->server_stream->Write(message, tag(WRITE));
	else
		s->client_stream->Write(message, tag(WRITE));
	await(e, WRITE);
}

void recv_message(h_env *e, uint8_t *buf, uint64_t bytes)
{
	State *s = state_of(e);
	grpc::ByteBuffer message;
	std::vector<grpc::Slice> slices;

	if (e->server)
		s->server_stream->Read(&message, tag(READ));
	else
		s->client_stream->Read(&message, tag(READ));
	await(e, READ);
	if (message.Length() != bytes || !message.Dump(&slices).ok())
		h_die(e, "a message of another size");
	for (const auto &slice : slices) {
		memcpy(buf, slice.begin(), slice.size());
		buf += slice.size();
	}
}

const h_two messages = {send_message, recv_message};

void serve(h_env *e, const h_work *w)
{
	h_two_serve(e, &messages, w);
}

void run(h_env *e, const h_work *w)
{
	h_two_run(e, &messages, w);
}

const char *cannot(const h_env *e, const h_work *w)
{
	if (e->spin)
		return "blocks: without --spin alone";
	if (strcmp(e->transport, "tcp") != 0 && strcmp(e->transport, "unix") != 0)
		return "transports are tcp and unix";
	return w->op >= H_LINE ? "no such work" : nullptr;
}

} // namespace

int main(int argc, char **argv)
{
	h_peer peer = {"grpc-generic", cannot, server, client, serve, run};

	return h_main(&peer, argc, argv);
}
