// The expected results of a flat GEMM, y = x w^T + column_bias: the oracle in double, and the base of the rule in
// float, rounded to y's dtype.
#pragma once
#include "reference/textbook.hpp"

namespace onepass::reference {

// out: y; top: the sizes of each number's terms, sum |x| |w|, finite ones.
Dense flat_gemm_oracle(const Problem& p, const Tensors& a);
Dense flat_gemm_base(const Problem& p, const Tensors& a);

}  // namespace onepass::reference
