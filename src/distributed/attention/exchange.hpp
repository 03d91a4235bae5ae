// Tensors that go to ranks and come from them.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "distributed/attention/rows.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0::context_parallel {

// The shape and the dtype of a tensor that comes.
struct Coming {
  DType dtype;
  std::array<Index, 4> shape;
};

// Tensors that have come: by rank, in the order in which the rank sent it.
class Arrived {
 public:
  const std::vector<ConstTensor>& from(int rank) const { return tensors_[static_cast<std::size_t>(rank)]; }

 private:
  friend Arrived exchange(Transport&, const std::vector<std::vector<ConstTensor>>&,
                          const std::vector<std::vector<Coming>>&, Device, const Launch&);
  std::unique_ptr<Owned> memory_;
  std::vector<std::vector<ConstTensor>> tensors_;
};

// out[r] goes to rank r, and in[r] comes from it; a rank's own lists are not looked at.
Arrived exchange(Transport& transport, const std::vector<std::vector<ConstTensor>>& out,
                 const std::vector<std::vector<Coming>>& in, Device device, const Launch& launch);

}  // namespace onepass::inline v0::context_parallel
