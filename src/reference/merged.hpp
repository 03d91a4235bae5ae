// The expected result of a merge, out = sum_i w_i O_i / sum_i w_i with w_i = e^(LSE_i - max): the oracle in double, and
// the base of the rule in float.
#pragma once
#include "reference/textbook.hpp"

namespace onepass::reference {

// The merge of tensors [batch, heads, seq, dim] and [batch, heads, seq].
Dense merged_oracle(const Problem& p, const Tensors& a);
Dense merged_base(const Problem& p, const Tensors& a);

}  // namespace onepass::reference
