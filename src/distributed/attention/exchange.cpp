#include "distributed/attention/exchange.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "algebra/ceil_div.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

constexpr std::size_t kAlign = 16;  // of a tensor in a message

Tensor tensor_of(const Coming& c, std::byte* data, Device device) {
  return {data, c.dtype, {c.shape[0], c.shape[1], c.shape[2], c.shape[3]}, device};
}
Coming coming(const ConstTensor& t) { return {t.dtype, t.shape}; }
std::size_t bytes_of(const Coming& c) {
  const auto bytes = static_cast<std::size_t>(c.shape[0] * c.shape[1] * c.shape[2] * c.shape[3]) * size_of(c.dtype);
  return round_up(bytes, kAlign);
}

// Where the message of each rank lies in one piece of memory: begins, and the end.
std::vector<std::size_t> places(const ComingLists& messages, int me) {
  std::vector<std::size_t> at{0};
  for (std::size_t r = 0; r < messages.size(); ++r) {
    std::size_t bytes = 0;
    if (static_cast<int>(r) != me) {
      for (const Coming& c : messages[r]) bytes += bytes_of(c);
    }
    at.push_back(at.back() + bytes);
  }
  return at;
}

// f(rank, number, tensor): the tensors of all messages in their memory.
template <class F>
void each_tensor(const ComingLists& messages, int me, std::byte* data, Device device, const F& f) {
  for (std::size_t r = 0; r < messages.size(); ++r) {
    for (std::size_t i = 0; static_cast<int>(r) != me && i < messages[r].size(); ++i) {
      f(r, i, tensor_of(messages[r][i], data, device));
      data += bytes_of(messages[r][i]);
    }
  }
}

}  // namespace

UnderWay::UnderWay(Transport& transport, const Lists& out, const ComingLists& in, Device device, const Launch& launch) {
  const int me = transport.rank();
  ComingLists sent(out.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    for (const ConstTensor& t : out[r]) sent[r].push_back(coming(t));
  }
  const std::vector<std::size_t> from = places(sent, me), to = places(in, me);
  const auto memory = [&](std::size_t bytes) {
    return std::make_unique<Owned>(DType::boolean, std::initializer_list<Index>{static_cast<Index>(bytes)}, device,
                                   launch);
  };
  arrived_.memory_ = memory(to.back());
  arrived_.tensors_.resize(in.size());
  message_ = memory(from.back());
  auto* const going = static_cast<std::byte*>(message_->tensor().data);
  auto* const coming = static_cast<std::byte*>(arrived_.memory_->tensor().data);
  each_tensor(sent, me, going, device,
              [&](std::size_t r, std::size_t i, const Tensor& t) { copy(out[r][i], t, launch); });
  each_tensor(in, me, coming, device,
              [&](std::size_t r, std::size_t, const Tensor& t) { arrived_.tensors_[r].emplace_back(t); });

  std::vector<Transport::ConstBlock> send;
  std::vector<Transport::Block> receive;
  for (std::size_t r = 0; r < out.size(); ++r) {
    send.emplace_back(going + from[r], from[r + 1] - from[r]);
    receive.emplace_back(coming + to[r], to[r + 1] - to[r]);
  }
  exchange_ = transport.begin_all_to_all(send, receive, launch.stream);
}

Arrived UnderWay::wait() {
  exchange_->wait();
  exchange_.reset();
  message_.reset();
  return std::move(arrived_);
}

}  // namespace onepass::inline v0::context_parallel
