// Which matrices a kernel reads by 16 bytes.
#pragma once
#include <cstdint>

#include "algebra/numerics.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {

// Rows begin at multiples of 16 bytes, and have a multiple of them.
inline bool in_sixteens(const Problem& p, Role role) {
  const Dims& stride = p.layout.*row_of(role).layout;
  const auto each = static_cast<std::int64_t>(16 / size_of(p.dtype));
  return p.alignment[static_cast<std::size_t>(role)] == 16 && p.k % each == 0 && (p.k <= 1 || stride[1] == 1) &&
         stride[0] % each == 0;
}

}  // namespace onepass::cuda
