// The backward of a forward problem, for tests that have a list of forward ones.
#pragma once
#include "onepass/error.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/problem.hpp"

namespace onepass::test {

// Asks for every gradient that the problem has. New tensors have the strides of the tensors that they belong to.
inline Problem backward_of(const Problem& forward, bool f32_gradients = false, bool dlse = false) {
  Problem p = forward;
  p.op = kBackward;
  p.want_lse = p.want_row_max = false;
  p.dentropy = p.entropy;
  p.gradients = {true, true, true, p.bias.has_value(), p.sinks, p.alibi};
  p.grad_dtype = f32_gradients ? DType::f32 : p.dtype;
  p.dlse = dlse;
  const Layout given = p.layout;
  set_contiguous(p);
  p.layout.q = given.q;
  p.layout.k = given.k;
  p.layout.v = given.v;
  const auto lie = [&](Dims& gradient, const Dims& as, std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
    Tensor t(nullptr, p.dtype, {p.varlen ? 1 : p.batch, heads, tokens, dim});
    t.stride = as;
    try {
      check_output("", t);
      gradient = as;
    } catch (const Error&) {  // an input may overlap itself, an output may not
    }
  };
  const std::int64_t tokens_q = p.varlen ? p.total_q : p.seq_q, tokens_k = p.varlen ? p.total_k : p.seq_k;
  lie(p.layout.dq, given.q, p.heads_q, tokens_q, p.dim_qk);
  lie(p.layout.dk, given.k, p.heads_kv, tokens_k, p.dim_qk);
  lie(p.layout.dv, given.v, p.heads_kv, tokens_k, p.dim_v);
  p.layout.out = p.layout.dout = given.out;
  return p;
}

}  // namespace onepass::test
