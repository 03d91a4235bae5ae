// The expected results of a softmax over rows and its backward: the oracle in double, and the base of the rule in
// float, rounded to the result's dtype.
//
//   y_j = e^(s_j - m) / l        s = scale * x where it is visible, m = max s, l = sum_j e^(s_j - m), LSE = m + log l
//   log: y_j = s_j - LSE         of a piece of a row: y_j = e^(s_j - LSE) by the LSE that is given
//   dx_j = scale * y_j * (dy_j - sum_i dy_i y_i)        log: dx_j = scale * (dy_j - e^y_j sum_i dy_i)
//
// An entry of x that is -inf counts as hidden: y is 0 (log: -inf) there, its dx is 0, and its dy is not read.
#pragma once
#include "reference/textbook.hpp"

namespace onepass::reference {

// out: y or dx, row-major. Of tensors of rank 4.
Dense softmax_oracle(const Problem& p, const Tensors& a);
Dense softmax_base(const Problem& p, const Tensors& a);

// x of one row as numbers, -inf where it is hidden.
std::vector<double> visible_row(const Problem& p, const Tensors& a, std::int64_t row);
// Elements from a tensor's first to those of a row of [batch, heads, rows].
std::int64_t row_at(const Problem& p, const Dims& stride, std::int64_t row);

}  // namespace onepass::reference
