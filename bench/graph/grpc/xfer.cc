/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfer module `grpc`: a plan's edges over gRPC. Who dialled the link dials here as well and makes the calls:
 *
 *   push   a tensor it sends; the answer comes when the receiver has room for the next one (2 tensors)
 *   pull   a tensor it receives: up to 2 calls per edge wait at the sender, who answers with the tensor
 *
 * Tensors of an edge are numbered, because calls overtake each other. All state is under one lock; gRPC is called
 * outside of it.
 *
 * Threads: the executor's, gRPC's for callbacks. Tests: tests/unit/graph/xfer_link_test.c, tests/e2e/train_test.py.
 */
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/xfer_module.h"
#include "wire.h"

namespace
{

using namespace tern_grpc;
using Clock = std::chrono::steady_clock;

constexpr unsigned SLOTS = 2;
constexpr uint64_t LOOK_NS = 200000000;

struct Xfer;

struct End {
	tn_xfer_end base; /* first */
	Xfer *xfer;
	uint32_t id, peer;
	std::string name, peer_name;
	uint64_t bytes; /* of a tensor; dynamic: they differ */
	bool dynamic;
	tern_dtype dtype;
	uint32_t rank;
	bool sends, calls;
	/* a sending end */
	uint64_t next_out = 0;
	bool reading = false; /* the source is being read */
	bool pushing = false; /* a call is in flight */
	std::vector<std::shared_ptr<Request>> pulls;
	/* a receiving end */
	uint64_t next_in = 0;
	bool held = false;
	Arrived current;
	std::map<uint64_t, Arrived> arrived;
	std::map<uint64_t, std::shared_ptr<Request>> pushes; /* not answered: there is no room for another */
	unsigned pulling = 0;                                /* calls in flight */
	std::vector<void *> spare; /* memory for tensors that arrive; not of dynamic edges */
	char *whole[SLOTS] = {};   /* or where their places in wholes are */
};

struct Xfer {
	tn_xfer base; /* first */
	tn_xfer_host *host;
	const tn_xfer_host_ops *ops;
	bool tuned;
	uint32_t device;
	std::vector<bool> dialed;
	std::mutex lock;
	std::condition_variable changed;
	uint64_t events = 0, seen = 0;
	bool closing = false;
	std::vector<std::string> lost;          /* per device: why; "" while it is there */
	std::vector<std::unique_ptr<End>> ends; /* by id */
	std::map<uint32_t, std::vector<void *>>
		wholes; /* by number: SLOTS memories of the parts of several edges */
	std::vector<std::unique_ptr<Client>> clients;
	std::unique_ptr<Server> server;
	tn_xfer_counters counters = {};

	void touch()
	{
		events++;
		changed.notify_one();
	}

	/* The peer of an end is gone. One that has all it wants may go while others are served. */
	void lose(const End *end, const std::string &words)
	{
		std::string &text = lost[end->peer];

		if (text.empty() && !closing)
			text = end->peer_name + ", tensor '" + end->name + "': gRPC: " + words;
		touch();
	}

	void copied(unsigned passes, uint64_t bytes)
	{
		counters.copies += passes;
		counters.copy_bytes += passes * bytes;
	}

	/* TERN_AGAIN, or that the peer is gone. */
	tern_status look(const End *end)
	{
		const std::string &text = lost[end->peer];

		return text.empty() ? TERN_AGAIN : ops->fail(TERN_E_PEER_LOST, text.c_str());
	}

	End *find(uint32_t id)
	{
		return id < ends.size() ? ends[id].get() : nullptr;
	}
};

Xfer *of(tn_xfer *xfer)
{
	return reinterpret_cast<Xfer *>(xfer);
}

End *of(tn_xfer_end *end)
{
	return reinterpret_cast<End *>(end);
}

/* ---- memory ---- */

void *new_memory(uint64_t bytes)
{
	void *memory = std::aligned_alloc(64, (std::max<uint64_t>(bytes, 1) + 63) / 64 * 64);

	if (memory)
		memset(memory, 0, bytes);
	return memory;
}

tern_status x_alloc(tn_xfer *xfer, uint64_t bytes, void **ptr)
{
	*ptr = new_memory(bytes);
	return *ptr ? TERN_OK : of(xfer)->ops->fail(TERN_E_NOMEM, "no memory for a tensor");
}

/* A failed step leaves calls that read tensors: they end before the memory goes. */
void x_free(tn_xfer *base, void *ptr)
{
	Xfer *x = of(base);
	bool reading = false;

	{
		std::lock_guard<std::mutex> guard(x->lock);

		for (auto &end : x->ends)
			reading |= end && end->reading;
		x->closing |= reading;
	}
	for (auto &client : x->clients)
		if (reading && client)
			client->close();
	if (reading && x->server)
		x->server->close();
	std::free(ptr);
}

/* libtern, which has a function for it, is not linked here. */
uint64_t element_bytes(tern_dtype dtype)
{
	switch (dtype) {
	case TERN_F64:
	case TERN_I64:
	case TERN_U64:
		return 8;
	case TERN_F32:
	case TERN_I32:
		return 4;
	case TERN_F16:
	case TERN_BF16:
		return 2;
	default:
		return 1;
	}
}

/* Has a tensor the size that its edge says, or that its own dims say? Any thread. */
bool fits(const End *end, const Arrived &tensor)
{
	uint64_t bytes = element_bytes(end->dtype);

	if (!end->dynamic)
		return tensor.bytes == end->bytes && tensor.dims.empty();
	if (tensor.dims.size() != end->rank)
		return false;
	for (uint64_t dim : tensor.dims)
		if (__builtin_mul_overflow(bytes, dim, &bytes))
			return false;
	return bytes == tensor.bytes;
}

/*
 * Memory for an arriving tensor: kept by the end for the next one. Parts of a whole lie where those of the other edges
 * expect them: no more than SLOTS tensors of an edge are on their way or held, so the place is free.
 */
std::shared_ptr<void> place(Xfer *x, uint32_t edge, uint64_t number, uint64_t bytes)
{
	std::lock_guard<std::mutex> guard(x->lock);
	End *end = x->find(edge);
	void *memory = nullptr;

	if (!end || end->sends || (!end->dynamic && bytes != end->bytes))
		return nullptr;
	if (end->dynamic)
		return std::shared_ptr<void>(new_memory(bytes), [](void *p) { std::free(p); });
	if (end->whole[0])
		return std::shared_ptr<void>(end->whole[number % SLOTS], [](void *) {});
	if (!end->spare.empty()) {
		memory = end->spare.back();
		end->spare.pop_back();
	} else {
		memory = new_memory(bytes);
	}
	return std::shared_ptr<void>(memory, [x, end](void *p) {
		std::lock_guard<std::mutex> inner(x->lock);

		end->spare.push_back(p);
	});
}

/* ---- arriving ---- */

void on_pulled(Xfer *x, End *end, bool ok, const std::string &text, Arrived tensor)
{
	std::lock_guard<std::mutex> guard(x->lock);

	end->pulling--;
	if (!ok || !fits(end, tensor))
		x->lose(end, ok ? "a tensor of another size" : text);
	else
		end->arrived[tensor.number] = std::move(tensor);
	x->touch();
}

/* Calls that keep SLOTS tensors coming. Outside of the lock. */
void pull_more(Xfer *x, End *end)
{
	for (;;) {
		{
			std::lock_guard<std::mutex> guard(x->lock);

			if (x->closing || end->pulling + end->arrived.size() + end->held >= SLOTS)
				return;
			end->pulling++;
		}
		x->clients[end->peer]->pull(end->id,
					    [x, end](bool ok, const std::string &text, Arrived tensor) {
						    on_pulled(x, end, ok, text, std::move(tensor));
					    });
	}
}

void on_push(Xfer *x, Arrived tensor, std::shared_ptr<Request> request)
{
	bool known, room = false;

	{
		std::lock_guard<std::mutex> guard(x->lock);
		End *end = x->find(tensor.edge);

		known = end && !end->sends && !end->calls && fits(end, tensor) && !x->closing;
		if (known) {
			room = end->arrived.size() + end->held + 1 < SLOTS;
			if (!room)
				end->pushes[tensor.number] = request;
			end->arrived[tensor.number] = std::move(tensor);
			x->touch();
		}
	}
	if (!known)
		request->refuse("no such edge, or the receiver is closing");
	else if (room)
		request->taken();
}

void on_pull(Xfer *x, uint32_t edge, std::shared_ptr<Request> request)
{
	bool known;

	{
		std::lock_guard<std::mutex> guard(x->lock);
		End *end = x->find(edge);

		known = end && end->sends && !end->calls && !x->closing;
		if (known) {
			end->pulls.push_back(request);
			x->touch();
		}
	}
	if (!known)
		request->refuse("no such edge, or the sender is closing");
}

/* A call that waits here lost its caller: without it no tensor will go there any more. */
void on_gone(Xfer *x, const Request *request)
{
	std::shared_ptr<Request> found;

	{
		std::lock_guard<std::mutex> guard(x->lock);

		for (auto &end : x->ends) {
			if (!end || found)
				continue;
			for (size_t i = 0; i < end->pulls.size() && !found; i++) {
				if (end->pulls[i].get() != request)
					continue;
				found = end->pulls[i];
				end->pulls.erase(end->pulls.begin() + static_cast<long>(i));
				x->lose(end.get(), "the caller is gone");
			}
		}
	}
	if (found)
		found->refuse("gone");
}

/* ---- opening ---- */

tern_status end_open(tn_xfer *base, const tn_edge_desc *desc, bool sends, tn_xfer_end **out)
{
	Xfer *x = of(base);
	auto end = std::make_unique<End>();

	if (desc->peer >= x->dialed.size())
		return x->ops->fail(TERN_E_INVALID, "no such device");
	if (x->find(desc->id))
		return x->ops->fail(TERN_E_EXISTS, "the edge is open already");
	end->base.xfer = base;
	end->xfer = x;
	end->id = desc->id;
	end->peer = desc->peer;
	end->name = desc->name;
	end->peer_name = desc->peer_name;
	end->bytes = desc->bytes;
	end->dynamic = desc->dynamic;
	end->dtype = desc->dtype;
	end->rank = desc->shape.rank;
	end->sends = sends;
	end->calls = x->dialed[desc->peer];
	if (!sends && desc->whole_bytes) {
		std::vector<void *> &whole = x->wholes[desc->whole];

		for (unsigned i = 0; i < SLOTS; i++) {
			if (whole.size() <= i)
				whole.push_back(new_memory(desc->whole_bytes));
			if (!whole[i])
				return x->ops->fail(TERN_E_NOMEM, "no memory for the parts of a tensor");
			end->whole[i] = static_cast<char *>(whole[i]) + desc->whole_offset;
		}
	}
	*out = &end->base;
	if (x->ends.size() <= desc->id)
		x->ends.resize(desc->id + 1);
	x->ends[desc->id] = std::move(end);
	return TERN_OK;
}

tern_status x_send_open(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return end_open(xfer, desc, true, end);
}

tern_status x_recv_open(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return end_open(xfer, desc, false, end);
}

tern_status serve(Xfer *x)
{
	Handlers handlers;

	handlers.push = [x](Arrived tensor, std::shared_ptr<Request> request) {
		on_push(x, std::move(tensor), std::move(request));
	};
	handlers.pull = [x](uint32_t edge, std::shared_ptr<Request> request) {
		on_pull(x, edge, std::move(request));
	};
	handlers.gone = [x](const Request *request) { on_gone(x, request); };
	auto place_in = [x](uint32_t edge, uint64_t number, uint64_t bytes) {
		return place(x, edge, number, bytes);
	};
	x->server = x->tuned ? tuned_server(handlers, place_in) : plain_server(handlers);
	if (x->server->address().empty())
		return x->ops->fail(TERN_E_OS, "gRPC cannot listen on 127.0.0.1");
	return x->ops->publish(x->host, x->server->address().c_str());
}

uint64_t now_ns()
{
	return static_cast<uint64_t>(
		std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
			.count());
}

tern_status dial(Xfer *x, const End *end, uint64_t deadline_ns)
{
	char address[TN_XFER_ADDRESS_MAX];
	tern_status status = x->ops->look_up(x->host, end->peer, deadline_ns, address);

	if (status != TERN_OK)
		return status;
	auto place_in = [x](uint32_t edge, uint64_t number, uint64_t bytes) {
		return place(x, edge, number, bytes);
	};
	x->clients[end->peer] = x->tuned ? tuned_client(address, place_in) : plain_client(address);
	while (!x->clients[end->peer]->connected(LOOK_NS)) {
		if (x->ops->canceled(x->host))
			return x->ops->fail(TERN_E_CANCELED, "cancelled while gRPC connects");
		if (now_ns() >= deadline_ns)
			return x->ops->fail(TERN_E_DEADLINE, (end->peer_name + " at " + address +
							      ": gRPC did not connect in time")
								     .c_str());
	}
	return TERN_OK;
}

tern_status x_start(tn_xfer *base, uint64_t deadline_ns)
{
	Xfer *x = of(base);
	tern_status status = TERN_OK;

	for (auto &end : x->ends)
		if (end && !end->calls && !x->server && status == TERN_OK)
			status = serve(x);
	for (auto &end : x->ends) {
		if (!end || !end->calls || status != TERN_OK)
			continue;
		if (!x->clients[end->peer])
			status = dial(x, end.get(), deadline_ns);
		if (status == TERN_OK && !end->sends)
			pull_more(x, end.get());
	}
	return status;
}

/* ---- tensors ---- */

void push(Xfer *x, End *end, uint64_t number, const Dims &dims, const void *data, uint64_t bytes)
{
	x->clients[end->peer]->push(
		end->id, number, dims, data, bytes,
		[x, end] {
			std::lock_guard<std::mutex> guard(x->lock);

			end->reading = false;
			x->touch();
		},
		[x, end](bool ok, const std::string &text) {
			std::lock_guard<std::mutex> guard(x->lock);

			end->pushing = false;
			if (!ok)
				x->lose(end, text);
			x->touch();
		});
}

tern_status send(End *end, const Dims &dims, const void *data, uint64_t bytes)
{
	Xfer *x = end->xfer;
	std::shared_ptr<Request> request;
	uint64_t number;

	{
		std::lock_guard<std::mutex> guard(x->lock);

		if (end->reading || (end->calls ? end->pushing : end->pulls.empty()))
			return x->look(end);
		if (!end->calls) {
			request = end->pulls.front();
			end->pulls.erase(end->pulls.begin());
		}
		number = end->next_out++;
		end->reading = true;
		end->pushing = end->calls;
		x->counters.sends++;
		x->counters.bytes_sent += bytes;
		x->copied(x->tuned ? 0 : 2, bytes); /* into the message, and serialised */
	}
	if (!request) {
		push(x, end, number, dims, data, bytes);
	} else {
		request->tensor(number, dims, data, bytes, [x, end] {
			std::lock_guard<std::mutex> guard(x->lock);

			end->reading = false;
			x->touch();
		});
	}
	return TERN_OK;
}

tern_status x_send_post(tn_xfer_end *end, const void *data, uint64_t bytes, uint64_t)
{
	return send(of(end), Dims(), data, bytes);
}

tern_status x_send_shaped(tn_xfer_end *end, const void *data, uint64_t bytes, const tern_shape *shape,
			  uint64_t)
{
	return send(of(end), Dims(shape->dims, shape->dims + shape->rank), data, bytes);
}

tern_status x_send_test(tn_xfer_end *base)
{
	End *end = of(base);
	std::lock_guard<std::mutex> guard(end->xfer->lock);

	/* A push is over when it was answered: whoever closes before would lose it. */
	return end->reading || end->pushing ? end->xfer->look(end) : TERN_OK;
}

tern_status x_recv_poll(tn_xfer_end *base, const void **data)
{
	static const char nothing[64] = {0};
	End *end = of(base);
	Xfer *x = end->xfer;
	std::lock_guard<std::mutex> guard(x->lock);
	auto it = end->arrived.find(end->next_in);

	if (it == end->arrived.end())
		return x->look(end);
	end->current = std::move(it->second);
	end->arrived.erase(it);
	if (end->whole[0] && !x->tuned && end->bytes) { /* out of the message, to the other parts */
		char *at = end->whole[end->next_in % SLOTS];

		memcpy(at, end->current.data, end->bytes);
		x->copied(1, end->bytes);
		end->current.data = at;
	}
	end->next_in++;
	end->held = true;
	x->counters.recvs++;
	x->counters.bytes_received += end->current.bytes;
	x->copied(1, end->current.bytes); /* out of what arrived */
	*data = end->current.bytes ? end->current.data : nothing;
	return TERN_OK;
}

/* The tensor that is held is the executor's, its dims too. */
tern_status x_poll_shaped(tn_xfer_end *base, const void **data, tern_shape *shape)
{
	tern_status status = x_recv_poll(base, data);
	const Dims &dims = of(base)->current.dims;

	if (status != TERN_OK)
		return status;
	*shape = {};
	shape->rank = static_cast<uint32_t>(dims.size());
	std::copy(dims.begin(), dims.end(), shape->dims);
	return TERN_OK;
}

tern_status x_recv_release(tn_xfer_end *base)
{
	End *end = of(base);
	Xfer *x = end->xfer;
	std::shared_ptr<Request> late;
	Arrived gone; /* freed outside of the lock, which its owner takes */

	{
		std::lock_guard<std::mutex> guard(x->lock);

		end->held = false;
		std::swap(gone, end->current);
		if (!end->pushes.empty()) {
			late = end->pushes.begin()->second;
			end->pushes.erase(end->pushes.begin());
		}
	}
	gone = Arrived();
	if (late)
		late->taken();
	if (end->calls)
		pull_more(x, end);
	return TERN_OK;
}

/* ---- waiting ---- */

tern_status x_wait(tn_xfer *base, uint64_t deadline_ns)
{
	Xfer *x = of(base);
	std::unique_lock<std::mutex> guard(x->lock);
	auto news = [x] { return x->events != x->seen; };

	if (deadline_ns == UINT64_MAX)
		x->changed.wait(guard, news);
	else if (deadline_ns > 0)
		x->changed.wait_until(guard, Clock::time_point(std::chrono::nanoseconds(deadline_ns)), news);
	x->seen = x->events;
	return TERN_OK;
}

void x_wake(tn_xfer *base)
{
	Xfer *x = of(base);

	/* From signal handlers too: a lock could be held by the thread that was interrupted. */
	if (x->lock.try_lock()) {
		x->events++;
		x->lock.unlock();
	}
	x->changed.notify_one();
}

void x_counters(const tn_xfer *base, tn_xfer_counters *counters)
{
	Xfer *x = of(const_cast<tn_xfer *>(base));
	std::lock_guard<std::mutex> guard(x->lock);

	*counters = x->counters;
}

/* ---- the end ---- */

void x_close(tn_xfer *base)
{
	Xfer *x = of(base);
	std::vector<std::shared_ptr<Request>> waiting;

	if (!base)
		return;
	{
		std::lock_guard<std::mutex> guard(x->lock);

		x->closing = true;
		for (auto &end : x->ends) {
			if (!end)
				continue;
			for (auto &request : end->pulls)
				waiting.push_back(request);
			for (auto &late : end->pushes)
				waiting.push_back(late.second);
			end->pulls.clear();
			end->pushes.clear();
		}
	}
	for (auto &request : waiting)
		request->refuse("the peer is closing");
	waiting.clear();
	for (auto &client : x->clients)
		if (client)
			client->close();
	if (x->server)
		x->server->close();
	x->clients.clear();
	x->server.reset();
	for (auto &end : x->ends) {
		if (!end)
			continue;
		end->current = Arrived();
		end->arrived.clear();
		for (void *memory : end->spare)
			std::free(memory);
	}
	for (auto &whole : x->wholes)
		for (void *memory : whole.second)
			std::free(memory);
	x->ops->done(x->host);
	delete x;
}

const tn_xfer_ops xfer_ops = {
	"grpc",      x_send_open,   x_recv_open,   x_alloc,        x_free, x_start,
	x_send_post, x_send_test,   x_recv_poll,   x_recv_release, x_wait, x_wake,
	x_counters,  x_send_shaped, x_poll_shaped, x_close,
};

tern_status open_module(const tn_xfer_module_params *params, tn_xfer **xfer)
{
	std::string way = params->way;

	if (way != "" && way != "plain" && way != "tuned")
		return params->ops->fail(TERN_E_INVALID, "ways of grpc: plain, tuned");
	Xfer *x = new Xfer;

	x->base.ops = &xfer_ops;
	x->host = params->host;
	x->ops = params->ops;
	x->tuned = way == "tuned";
	x->device = params->device;
	x->dialed.assign(params->dialed, params->dialed + params->devices);
	x->clients.resize(params->devices);
	x->lost.resize(params->devices);
	*xfer = &x->base;
	return TERN_OK;
}

const tn_xfer_module module = {TN_XFER_MODULE_VERSION, "grpc", open_module};

} // namespace

extern "C" __attribute__((visibility("default"))) const tn_xfer_module *tn_xfer_module_get(void)
{
	return &module;
}
