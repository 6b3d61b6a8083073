/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC as one writes it first: a protobuf service with a field of bytes, the synchronous server, the synchronous stub,
 * or the asynchronous one where calls are in flight together; streams by a client-streaming call. Over tcp and unix.
 *
 * Threads: gRPC's on both sides, and one that calls.
 */
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <echo.grpc.pb.h>

#include "harness.h"

namespace
{

using tern::bench::Echo;
using tern::bench::Message;

/* The server's handlers know the work from the page that both sides map, as the others' servers do. */
struct Service final : Echo::Service {
	explicit Service(h_env *env) : e(env)
	{
	}

	grpc::Status Call(grpc::ServerContext *, const Message *request, Message *reply) override
	{
		h_work w = e->shared->work;
		auto bytes = reinterpret_cast<const uint8_t *>(request->data().data());

		reply->set_data(h_two_answer(e, &w, bytes), w.answer);
		return grpc::Status::OK;
	}

	grpc::Status Stream(grpc::ServerContext *, grpc::ServerReader<Message> *reader,
			    Message *reply) override
	{
		Message m;

		while (reader->Read(&m))
			memcpy(e->in, m.data().data(), m.data().size());
		reply->set_data(e->out, H_ACK);
		return grpc::Status::OK;
	}

	h_env *const e;
};

struct State {
	std::unique_ptr<Service> service;
	std::unique_ptr<grpc::Server> server;
	std::unique_ptr<Echo::Stub> stub;
};

State *state_of(h_env *e)
{
	return static_cast<State *>(e->state);
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

	buffers(e);
	state_of(e)->service = std::make_unique<Service>(e);
	builder.AddListeningPort(tcp ? "127.0.0.1:0" : at, grpc::InsecureServerCredentials(), &port);
	builder.SetMaxReceiveMessageSize(-1);
	builder.SetMaxSendMessageSize(-1);
	builder.RegisterService(state_of(e)->service.get());
	state_of(e)->server = builder.BuildAndStart();
	if (!state_of(e)->server)
		h_die(e, "the server did not start");
	if (tcp)
		at = "127.0.0.1:" + std::to_string(port);
	h_give(e, at.c_str(), at.size() + 1);
}

void client(h_env *e)
{
	grpc::ChannelArguments args;
	char at[256];

	buffers(e);
	(void)h_take(e, at, sizeof(at));
	args.SetMaxReceiveMessageSize(-1);
	args.SetMaxSendMessageSize(-1);
	state_of(e)->stub =
		Echo::NewStub(grpc::CreateCustomChannel(at, grpc::InsecureChannelCredentials(), args));
}

void must(h_env *e, const grpc::Status &status)
{
	if (!status.ok())
		h_die(e, "%s", status.error_message().c_str());
}

void fill(h_env *e, const h_work *w, Message *m)
{
	struct iovec iov[3];
	int n = h_two_request(e, w, iov);
	std::string *s = m->mutable_data();

	s->clear();
	for (int i = 0; i < n; i++)
		s->append(static_cast<const char *>(iov[i].iov_base), iov[i].iov_len);
}

void take(h_env *e, const Message &m)
{
	memcpy(e->in, m.data().data(), m.data().size());
}

void one_by_one(h_env *e, const h_work *w)
{
	Message request, reply;

	for (uint64_t i = 0; i < w->count; i++) {
		grpc::ClientContext context;

		fill(e, w, &request);
		must(e, state_of(e)->stub->Call(&context, request, &reply));
		take(e, reply);
		h_tick(e);
	}
}

struct Flight {
	grpc::ClientContext context;
	Message request, reply;
	grpc::Status status;
	std::unique_ptr<grpc::ClientAsyncResponseReader<Message>> reader;
};

void together(h_env *e, const h_work *w)
{
	grpc::CompletionQueue queue;
	uint64_t sent = 0;

	for (uint64_t done = 0; done < w->count; done++) {
		void *tag;
		bool ok;

		for (; sent < w->count && sent - done < w->depth; sent++) {
			auto *f = new Flight;

			fill(e, w, &f->request);
			f->reader = state_of(e)->stub->AsyncCall(&f->context, f->request, &queue);
			f->reader->Finish(&f->reply, &f->status, f);
		}
		if (!queue.Next(&tag, &ok))
			h_die(e, "the queue ended");
		std::unique_ptr<Flight> f(static_cast<Flight *>(tag));
		must(e, f->status);
		take(e, f->reply);
		h_tick(e);
	}
	queue.Shutdown();
}

void stream(h_env *e, const h_work *w)
{
	grpc::ClientContext context;
	Message reply, m;
	auto writer = state_of(e)->stub->Stream(&context, &reply);

	for (uint64_t i = 0; i < w->count; i++) {
		fill(e, w, &m);
		if (!writer->Write(m))
			h_die(e, "the stream broke");
		h_tick(e);
	}
	writer->WritesDone();
	must(e, writer->Finish());
}

void run(h_env *e, const h_work *w)
{
	if (w->answer == 0)
		stream(e, w);
	else if (w->depth == 1)
		one_by_one(e, w);
	else
		together(e, w);
}

void serve(h_env *, const h_work *)
{
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
	h_peer peer = {"grpc-plain", cannot, server, client, serve, run};

	return h_main(&peer, argc, argv);
}
