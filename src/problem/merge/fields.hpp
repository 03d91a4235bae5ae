// The parts of a merge in a problem and in a call's tensors.
#pragma once
#include <cstdint>
#include <vector>

#include "onepass/tensor.hpp"

namespace onepass {

struct MergeFields {
  std::int64_t partials = 0;  // how many
  friend bool operator==(const MergeFields&, const MergeFields&) = default;
};
struct MergeTensorFields {  // beside out and lse: partial results of out's shape, and their fp32 LSEs
  std::vector<ConstTensor> outs{}, lses{};
};

}  // namespace onepass
