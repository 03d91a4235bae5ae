// From the tensors of a softmax, or of its backward, to its checked Problem.
#pragma once
#include "onepass/attention.hpp"

namespace onepass {

inline bool is_softmax(Op op) { return op == Op::softmax || op == Op::softmax_backward; }
inline bool is_softmax(const Tensors& t) {
  return t.x.given() || t.row_lse.given() || t.y.given() || t.dy.given() || t.dx.given();
}

// Its problem is rows of numbers.
inline bool of_rows(Op op) { return is_softmax(op) || op == Op::quantize; }

// Tensors of one shape [.., n], of rank 1 to 4, and LSEs [..], [1] of a single row; what is missing in front has size
// 1. Throws Error with one sentence.
Problem softmax_problem_of(const Tensors& tensors, const Attention& attention);

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
