/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC as its tutorials write it: a service from a .proto file, tensors as `bytes`, default settings. Only the limit
 * on the length of a message is lifted, without which no tensor above 4 MiB would go.
 *
 * Threads: gRPC's call back. Tests: tests/unit/graph/xfer_link_test.c runs over it.
 */
#include "wire.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>

#include <grpcpp/grpcpp.h>

#include "tensors.grpc.pb.h"

namespace tern_grpc
{
namespace
{

using tern::bench::Ask;
using tern::bench::Taken;
using tern::bench::Tensor;
using tern::bench::Tensors;

Arrived arrived_from(Tensor *message)
{
	auto text = std::make_shared<std::string>(std::move(*message->mutable_data()));

	return {message->edge(),
		message->number(),
		text->data(),
		text->size(),
		text,
		Dims(message->dims().begin(), message->dims().end())};
}

/* ---- the side that dialled ---- */

class PlainClient : public Client
{
	struct Call {
		grpc::ClientContext context;
		Tensor tensor;
		Taken taken;
		Ask ask;
	};

	std::shared_ptr<grpc::Channel> channel_;
	std::unique_ptr<Tensors::Stub> stub_;
	std::mutex lock_;
	std::condition_variable over_;
	std::set<Call *> calls_;
	bool closing_ = false;

	Call *begin()
	{
		std::lock_guard<std::mutex> guard(lock_);
		Call *call = new Call;

		if (closing_)
			call->context.TryCancel();
		calls_.insert(call);
		return call;
	}

	void end(Call *call)
	{
		std::lock_guard<std::mutex> guard(lock_);

		calls_.erase(call);
		delete call;
		over_.notify_all();
	}

      public:
	explicit PlainClient(const std::string &address)
	{
		grpc::ChannelArguments args;

		args.SetMaxReceiveMessageSize(-1);
		channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
		stub_ = Tensors::NewStub(channel_);
	}

	bool connected(uint64_t slice_ns) override
	{
		return channel_->WaitForConnected(
			gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
				     gpr_time_from_nanos(static_cast<int64_t>(slice_ns), GPR_TIMESPAN)));
	}

	void push(uint32_t edge, uint64_t number, const Dims &dims, const void *data, uint64_t bytes,
		  std::function<void()> sent, Finished taken) override
	{
		Call *call = begin();

		call->tensor.set_edge(edge);
		call->tensor.set_number(number);
		call->tensor.mutable_dims()->Add(dims.begin(), dims.end());
		call->tensor.set_data(data, bytes);
		sent();
		stub_->async()->Push(&call->context, &call->tensor, &call->taken,
				     [this, call, taken](grpc::Status status) {
					     taken(status.ok(), status.error_message());
					     end(call);
				     });
	}

	void pull(uint32_t edge, Got got) override
	{
		Call *call = begin();

		call->ask.set_edge(edge);
		stub_->async()->Pull(&call->context, &call->ask, &call->tensor,
				     [this, call, got](grpc::Status status) {
					     got(status.ok(), status.error_message(),
						 status.ok() ? arrived_from(&call->tensor) : Arrived());
					     end(call);
				     });
	}

	void close() override
	{
		std::unique_lock<std::mutex> guard(lock_);

		closing_ = true;
		for (Call *call : calls_)
			call->context.TryCancel();
		over_.wait(guard, [this] { return calls_.empty(); });
	}
};

/* ---- the side that was dialled ---- */

/* One call; alive until gRPC is done with it and nobody holds it. */
class PlainCall : public grpc::ServerUnaryReactor, public Request
{
	std::shared_ptr<PlainCall> self_;
	std::atomic<bool> answered_{false};
	const Handlers *handlers_;
	Tensor *response_;

	void finish(const grpc::Status &status)
	{
		if (!answered_.exchange(true))
			Finish(status);
	}

	void OnDone() override
	{
		self_.reset();
	}
	void OnCancel() override
	{
		handlers_->gone(this);
	}

      public:
	PlainCall(const Handlers *handlers, Tensor *response) : handlers_(handlers), response_(response)
	{
	}

	static std::shared_ptr<PlainCall> create(const Handlers *handlers, Tensor *response)
	{
		auto call = std::make_shared<PlainCall>(handlers, response);

		call->self_ = call;
		return call;
	}

	void taken() override
	{
		finish(grpc::Status::OK);
	}

	void refuse(const std::string &text) override
	{
		finish(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, text));
	}

	void tensor(uint64_t number, const Dims &dims, const void *data, uint64_t bytes,
		    std::function<void()> sent) override
	{
		if (!answered_.exchange(true)) {
			response_->set_number(number);
			response_->mutable_dims()->Add(dims.begin(), dims.end());
			response_->set_data(data, bytes);
			Finish(grpc::Status::OK);
		}
		sent();
	}
};

class PlainServer : public Server, public Tensors::CallbackService
{
	Handlers handlers_;
	int port_ = 0;
	std::unique_ptr<grpc::Server> server_;

	grpc::ServerUnaryReactor *Push(grpc::CallbackServerContext *, const Tensor *tensor, Taken *) override
	{
		auto call = PlainCall::create(&handlers_, nullptr);

		/* The request is ours until the call is over: its bytes may move out. */
		handlers_.push(arrived_from(const_cast<Tensor *>(tensor)), call);
		return call.get();
	}

	grpc::ServerUnaryReactor *Pull(grpc::CallbackServerContext *, const Ask *ask, Tensor *answer) override
	{
		auto call = PlainCall::create(&handlers_, answer);

		answer->set_edge(ask->edge());
		handlers_.pull(ask->edge(), call);
		return call.get();
	}

      public:
	explicit PlainServer(Handlers handlers) : handlers_(std::move(handlers))
	{
		grpc::ServerBuilder builder;

		builder.SetMaxReceiveMessageSize(-1);
		builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
		builder.RegisterService(this);
		server_ = builder.BuildAndStart();
	}

	std::string address() const override
	{
		return server_ && port_ ? "127.0.0.1:" + std::to_string(port_) : "";
	}

	void close() override
	{
		if (server_)
			server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
		server_.reset();
	}
};

} // namespace

std::unique_ptr<Client> plain_client(const std::string &address)
{
	return std::make_unique<PlainClient>(address);
}

std::unique_ptr<Server> plain_server(Handlers handlers)
{
	return std::make_unique<PlainServer>(std::move(handlers));
}

} // namespace tern_grpc
