// Heads are dealt out: each rank gives its rows of all heads for all rows of some heads, computes these, and gives the
// results back for those of its rows (DeepSpeed-Ulysses, arXiv:2309.14509).
#pragma once
#include <functional>

#include "distributed/attention/call.hpp"

namespace onepass::inline v0::context_parallel {

// How the rows of some heads are computed. The job's tensors are theirs, but for k and v.
struct OfHeads {
  std::function<void(const Job& job, const Keys& keys, const RowResults& into)> forward;
  // Writes dq, and adds to dk and dv, which are 0 before. All are fp32, and may not be given.
  std::function<void(const Job& job, const Keys& keys, const Tensor& dq, const KeyGradients& into)> backward;
};

void dealt_forward(const Job& job, const OfHeads& compute);
void dealt_backward(const Job& job, const OfHeads& compute);

}  // namespace onepass::inline v0::context_parallel
