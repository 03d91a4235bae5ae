// The matrices of a product, for every kernel: strides, addresses, and which ones are read by 16 bytes.
#pragma once
#include <algorithm>
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

template <class Params>
void set_strides(Params& to, const Problem& p) {
  const Layout& l = p.layout;
  std::copy_n(l.x.begin(), 2, to.x_stride);
  std::copy_n(l.w.begin(), 2, to.w_stride);
  std::copy_n(l.y.begin(), 2, to.y_stride);
  to.bias_stride = l.column_bias[0];
}

// The addresses of a call's matrices.
template <class Params>
void bind(Params& to, const Tensors& t) {
  to.x = t.x.data, to.w = t.w.data, to.bias = t.column_bias.data, to.y = t.y.data;
}

}  // namespace onepass::cuda
