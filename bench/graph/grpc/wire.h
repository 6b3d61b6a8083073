/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the transfer (xfer.cc) needs from a way of speaking gRPC.
 *
 *   plain   a protobuf service with gRPC's and malloc's default settings, but for the limit on messages   (plain.cc)
 *   tuned   generic byte buffers: no message is serialised, the source is sent from where it lies, one copy into
 *           the receiver's memory; large frames and reads, malloc keeps large blocks                      (tuned.cc)
 *
 * A server is on the side that was dialled, clients on the other. Callbacks come from gRPC's threads.
 */
#ifndef BENCH_GRAPH_GRPC_WIRE_H
#define BENCH_GRAPH_GRPC_WIRE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tern_grpc
{

/* Of an edge whose tensors have sizes of their own; else empty. */
using Dims = std::vector<uint64_t>;
constexpr unsigned DIMS_MAX = 8;

/* A tensor that came: its bytes lie in one piece, in memory of its own. */
struct Arrived {
	uint32_t edge = 0;
	uint64_t number = 0;
	const char *data = nullptr;
	uint64_t bytes = 0;
	std::shared_ptr<void> owner;
	Dims dims;
};

/* ok false: text says why. */
using Finished = std::function<void(bool ok, const std::string &text)>;
using Got = std::function<void(bool ok, const std::string &text, Arrived tensor)>;

/* Where an arriving tensor of an edge goes, if the receiver has memory for it: else nullptr. */
using Place = std::function<std::shared_ptr<void>(uint32_t edge, uint64_t number, uint64_t bytes)>;

struct Client {
	virtual ~Client() = default;
	/* False: not before deadline_ns (monotonic) of this slice. */
	virtual bool connected(uint64_t slice_ns) = 0;
	/* sent: the source is free. taken: the receiver has it. */
	virtual void push(uint32_t edge, uint64_t number, const Dims &dims, const void *data, uint64_t bytes,
			  std::function<void()> sent, Finished taken) = 0;
	virtual void pull(uint32_t edge, Got got) = 0;
	/* Cancels what is in flight and waits for its callbacks. */
	virtual void close() = 0;
};

/* A call that waits at the server; answer exactly once. */
struct Request {
	virtual ~Request() = default;
	virtual void taken() = 0;
	virtual void tensor(uint64_t number, const Dims &dims, const void *data, uint64_t bytes,
			    std::function<void()> sent) = 0;
	virtual void refuse(const std::string &text) = 0;
};

/* What a server calls. */
struct Handlers {
	std::function<void(Arrived tensor, std::shared_ptr<Request> request)> push;
	std::function<void(uint32_t edge, std::shared_ptr<Request> request)> pull;
	/* A waiting request's caller is gone. */
	std::function<void(const Request *request)> gone;
};

struct Server {
	virtual ~Server() = default;
	/* "127.0.0.1:port" */
	virtual std::string address() const = 0;
	virtual void close() = 0;
};

std::unique_ptr<Client> plain_client(const std::string &address);
std::unique_ptr<Server> plain_server(Handlers handlers);
std::unique_ptr<Client> tuned_client(const std::string &address, Place place);
std::unique_ptr<Server> tuned_server(Handlers handlers, Place place);

} // namespace tern_grpc

#endif
