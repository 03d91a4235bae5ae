// The parts of a quantize in a problem, in a call's tensors and in a layout.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass {

// fp8_e4m3 tensors hold a number divided by a descale: fp32 [batch, heads, blocks of 128 rows], of which a dimension
// not spanned has size 1 and is repeated. Blocks are counted within their sequence.
inline constexpr std::int64_t kDescaleRows = 128;
struct DescaleSpec {
  bool batch = false, heads = false, blocks = false;
  friend bool operator==(const DescaleSpec&, const DescaleSpec&) = default;
};

struct QuantizeFields {
  DescaleSpec descale;    // what a factor is shared by
  bool hadamard = false;  // rows are rotated, with signs by the seed
  bool centered = false;  // the mean of each column is taken out
  friend bool operator==(const QuantizeFields&, const QuantizeFields&) = default;
};
struct QuantizeTensorFields {  // beside x and y
  Tensor descale{}, mean{};
};
struct QuantizeLayout {  // [batch, heads, blocks], [batch, heads, numbers of a row]
  Dims descale{}, mean{};
  friend bool operator==(const QuantizeLayout&, const QuantizeLayout&) = default;
};

}  // namespace onepass
