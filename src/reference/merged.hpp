// What a merge of finished partial results must give: out = sum_i w_i O_i / sum_i w_i with w_i = e^(LSE_i - max), in
// double the oracle, in float the base of the rule.
#pragma once
#include "reference/textbook.hpp"

namespace onepass::reference {

// Of tensors [batch, heads, seq, dim] and [batch, heads, seq].
Dense merged_oracle(const Problem& p, const Tensors& a);
Dense merged_base(const Problem& p, const Tensors& a);

}  // namespace onepass::reference
