// Where the rows of a softmax, of its backward and of a quantize lie.
#pragma once
#include "problem/problem.hpp"

namespace onepass {

// Rows lie so far apart; of [batch, heads, rows].
struct RowPlace {
  Dims stride;
  std::int64_t heads, rows;
  RowPlace(const Dims& s, const Problem& p) : stride(s), heads(p.heads_q), rows(p.seq_q) {}
  std::int64_t operator()(std::int64_t row) const {
    return row / rows / heads * stride[0] + row / rows % heads * stride[1] + row % rows * stride[2];
  }
};

}  // namespace onepass
