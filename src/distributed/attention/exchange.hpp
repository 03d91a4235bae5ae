// Tensors that go to ranks and come from them.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "distributed/attention/rows.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0::context_parallel {

// The shape and the dtype of a tensor that comes.
struct Coming {
  DType dtype;
  std::array<Index, 4> shape;
};

using Lists = std::vector<std::vector<ConstTensor>>;  // by rank
using ComingLists = std::vector<std::vector<Coming>>;

// Tensors that have come: by rank, in the order in which the rank sent it.
class Arrived {
 public:
  const std::vector<ConstTensor>& from(Index rank) const { return tensors_[static_cast<std::size_t>(rank)]; }

 private:
  friend class UnderWay;
  std::unique_ptr<Owned> memory_{};
  Lists tensors_{};
};

// Tensors on their way. wait() is called once, if at all, and gives those that have come.
class UnderWay {
 public:
  // out[r] goes to rank r, and in[r] comes from it; a rank's own lists are not looked at. out is copied at once.
  UnderWay(Transport& transport, const Lists& out, const ComingLists& in, Device device, const Launch& launch);
  Arrived wait();

 private:
  Arrived arrived_;
  std::unique_ptr<Owned> message_;
  std::unique_ptr<Transport::Exchange> exchange_{};  // it ends before its memory
};

inline Arrived exchange(Transport& transport, const Lists& out, const ComingLists& in, Device device,
                        const Launch& launch) {
  return UnderWay(transport, out, in, device, launch).wait();
}

}  // namespace onepass::inline v0::context_parallel
