/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC as fast as it goes without changing it: generic calls whose messages are byte buffers. A tensor is sent from where it
 * lies (a slice that refers to it) and copied once, out of the slices that arrive; HTTP/2 frames, windows and reads are as
 * large as gRPC lets them be, and malloc keeps large blocks instead of mapping them anew for each message.
 *
 * A message is 16 bytes (edge, rank, number), the dims of a tensor whose size differs from step to step (else rank is 0),
 * and the tensor.
 *
 * Threads: gRPC's call back. Tests: tests/unit/graph/xfer_link_test.c runs over it.
 */
#include "wire.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

namespace tern_grpc
{
namespace
{

constexpr char PUSH[] = "/tern.bench.Tensors/Push";
constexpr char PULL[] = "/tern.bench.Tensors/Pull";

struct Head {
	uint32_t edge, rank;
	uint64_t number;
};

void raise_limits()
{
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/* For channels and servers alike. */
template <typename Set> void set_sizes(Set set)
{
	set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16777215);
	set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
	set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 64 << 20);
	set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 4 << 20);
	set(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 1 << 20);
	set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
}

struct Sent {
	std::function<void()> fn;
};

grpc::Slice head_of(uint32_t edge, uint64_t number, const Dims &dims)
{
	Head head = {edge, static_cast<uint32_t>(dims.size()), number};
	std::string text(reinterpret_cast<const char *>(&head), sizeof(head));

	if (!dims.empty())
		text.append(reinterpret_cast<const char *>(dims.data()), dims.size() * sizeof(dims[0]));
	return grpc::Slice(text);
}

grpc::ByteBuffer buffer_of(uint32_t edge, uint64_t number, const Dims &dims, const void *data, uint64_t bytes,
			   std::function<void()> sent)
{
	grpc::Slice slices[2] = {head_of(edge, number, dims), grpc::Slice()};

	if (sent)
		slices[1] = grpc::Slice(
			const_cast<void *>(data), bytes,
			[](void *arg) {
				auto *s = static_cast<Sent *>(arg);

				s->fn();
				delete s;
			},
			new Sent{std::move(sent)});
	return grpc::ByteBuffer(slices, data ? 2 : 1);
}

/* Walks the slices; false: shorter than it says. */
class Reader
{
	std::vector<grpc::Slice> slices_;
	size_t slice_ = 0, at_ = 0;

      public:
	explicit Reader(const grpc::ByteBuffer &buffer)
	{
		buffer.Dump(&slices_);
	}

	bool read(void *out, uint64_t bytes)
	{
		char *to = static_cast<char *>(out);

		while (bytes > 0 && slice_ < slices_.size()) {
			uint64_t n = std::min<uint64_t>(bytes, slices_[slice_].size() - at_);

			memcpy(to, slices_[slice_].begin() + at_, n);
			to += n;
			bytes -= n;
			at_ += n;
			if (at_ == slices_[slice_].size()) {
				slices_[slice_] = grpc::Slice(); /* goes back while we copy on */
				slice_++;
				at_ = 0;
			}
		}
		return bytes == 0;
	}
};

bool arrived_from(const grpc::ByteBuffer &buffer, const Place &place, Arrived *arrived)
{
	Reader reader(buffer);
	Head head;

	if (buffer.Length() < sizeof(head) || !reader.read(&head, sizeof(head)))
		return false;
	arrived->edge = head.edge;
	arrived->number = head.number;
	arrived->dims.resize(std::min(head.rank, DIMS_MAX));
	if (head.rank > DIMS_MAX || buffer.Length() < sizeof(head) + head.rank * sizeof(uint64_t) ||
	    !reader.read(arrived->dims.data(), head.rank * sizeof(uint64_t)))
		return false;
	arrived->bytes = buffer.Length() - sizeof(head) - head.rank * sizeof(uint64_t);
	if (!arrived->bytes)
		return true;
	arrived->owner = place(head.edge, head.number, arrived->bytes);
	arrived->data = static_cast<const char *>(arrived->owner.get());
	return arrived->owner && reader.read(arrived->owner.get(), arrived->bytes);
}

/* ---- the side that dialled ---- */

class TunedClient : public Client
{
	struct Call {
		grpc::ClientContext context;
		grpc::ByteBuffer request, response;
	};

	Place place_;
	std::shared_ptr<grpc::Channel> channel_;
	std::unique_ptr<grpc::GenericStub> stub_;
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
		call->request.Clear(); /* outside of the lock: it may say that the source is free */
		std::lock_guard<std::mutex> guard(lock_);

		calls_.erase(call);
		delete call;
		over_.notify_all();
	}

      public:
	TunedClient(const std::string &address, Place place) : place_(std::move(place))
	{
		grpc::ChannelArguments args;

		raise_limits();
		args.SetMaxReceiveMessageSize(-1);
		set_sizes([&args](const char *name, int value) { args.SetInt(name, value); });
		channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
		stub_ = std::make_unique<grpc::GenericStub>(channel_);
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

		call->request = buffer_of(edge, number, dims, data, bytes, std::move(sent));
		stub_->UnaryCall(&call->context, PUSH, grpc::StubOptions(), &call->request, &call->response,
				 [this, call, taken](grpc::Status status) {
					 taken(status.ok(), status.error_message());
					 end(call);
				 });
	}

	void pull(uint32_t edge, Got got) override
	{
		Call *call = begin();

		call->request = buffer_of(edge, 0, Dims(), nullptr, 0, nullptr);
		stub_->UnaryCall(
			&call->context, PULL, grpc::StubOptions(), &call->request, &call->response,
			[this, call, got](grpc::Status status) {
				Arrived arrived;
				bool ok = status.ok() && arrived_from(call->response, place_, &arrived);

				got(ok, status.ok() ? "a message that is none" : status.error_message(),
				    std::move(arrived));
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

class TunedCall : public grpc::ServerGenericBidiReactor, public Request
{
	std::shared_ptr<TunedCall> self_;
	std::atomic<bool> answered_{false};
	const Handlers *handlers_;
	const Place *place_;
	bool push_;
	uint32_t edge_ = 0;
	grpc::ByteBuffer request_, response_;

	void answer()
	{
		StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
	}

	void OnReadDone(bool ok) override
	{
		Arrived arrived;

		if (!ok || !arrived_from(request_, *place_, &arrived)) {
			refuse("a message that is none");
			return;
		}
		request_.Clear();
		edge_ = arrived.edge;
		if (push_)
			handlers_->push(std::move(arrived), self_);
		else
			handlers_->pull(edge_, self_);
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
	TunedCall(const Handlers *handlers, const Place *place, bool push)
	    : handlers_(handlers), place_(place), push_(push)
	{
	}

	static TunedCall *create(const Handlers *handlers, const Place *place, bool push)
	{
		auto call = std::make_shared<TunedCall>(handlers, place, push);

		call->self_ = call;
		call->StartRead(&call->request_);
		return call.get();
	}

	void taken() override
	{
		if (answered_.exchange(true))
			return;
		response_ = buffer_of(edge_, 0, Dims(), nullptr, 0, nullptr);
		answer();
	}

	void refuse(const std::string &text) override
	{
		if (!answered_.exchange(true))
			Finish(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, text));
	}

	void tensor(uint64_t number, const Dims &dims, const void *data, uint64_t bytes,
		    std::function<void()> sent) override
	{
		if (answered_.exchange(true)) {
			sent();
			return;
		}
		response_ = buffer_of(edge_, number, dims, data, bytes, std::move(sent));
		answer();
	}
};

class TunedServer : public Server, public grpc::CallbackGenericService
{
	Handlers handlers_;
	Place place_;
	int port_ = 0;
	std::unique_ptr<grpc::Server> server_;

	grpc::ServerGenericBidiReactor *CreateReactor(grpc::GenericCallbackServerContext *context) override
	{
		return TunedCall::create(&handlers_, &place_, context->method() == PUSH);
	}

      public:
	TunedServer(Handlers handlers, Place place) : handlers_(std::move(handlers)), place_(std::move(place))
	{
		grpc::ServerBuilder builder;

		raise_limits();
		builder.SetMaxReceiveMessageSize(-1);
		set_sizes(
			[&builder](const char *name, int value) { builder.AddChannelArgument(name, value); });
		builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
		builder.RegisterCallbackGenericService(this);
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

std::unique_ptr<Client> tuned_client(const std::string &address, Place place)
{
	return std::make_unique<TunedClient>(address, std::move(place));
}

std::unique_ptr<Server> tuned_server(Handlers handlers, Place place)
{
	return std::make_unique<TunedServer>(std::move(handlers), std::move(place));
}

} // namespace tern_grpc
