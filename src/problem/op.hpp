// An operator, by reference to its row: p.op == kMerge, p.op->word.
#pragma once

namespace onepass {

struct Operator;  // problem/operator.hpp

struct Op {
  constexpr Op(const Operator& of) : row(&of) {}
  constexpr const Operator* operator->() const { return row; }
  friend constexpr bool operator==(Op a, Op b) { return a.row == b.row; }

  const Operator* row;
};

// forward: attention. merge: partial results over disjoint keys become one; of the sizes only batch, heads_q, seq_q and
// dim_v, those of out, count. backward: the gradients of a forward, from its O and LSE and the gradient of O. jvp: a
// forward and its derivative along tangents of its inputs. backward_jvp: the same derivative of a backward.
// softmax and softmax_backward: of rows [batch, heads_q, seq_q] of seq_k numbers each, which are what counts of the
// sizes.
// quantize: of such rows, to fp8_e4m3.
// flat_gemm: y [m, n] = x [m, k] w [n, k]^T (+ column_bias [n]) of few rows x; of the sizes only these count.
// linear: the same of any number of rows, by the kernel that is fastest for it (onepass/linear.hpp).
// append: seq_q new keys and values of each sequence into a cache of seq_k (onepass/append.hpp).
// Each is defined in its folder.
extern const Operator kForward, kBackward, kJvp, kBackwardJvp, kMerge, kSoftmax, kSoftmaxBackward, kQuantize, kFlatGemm,
    kLinear, kAppend;

}  // namespace onepass
