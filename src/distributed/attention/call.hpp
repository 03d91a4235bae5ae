// A part of a context-parallel call: slices of tensors, and a mask that is aligned by the part's offset.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

#include "distributed/attention/rows.hpp"
#include "onepass/context_parallel_attention.hpp"

namespace onepass::inline v0::context_parallel {

// A rank's call, after its checks.
struct Job {
  Transport& transport;
  const ContextParallel& how;
  const AttentionTensors& tensors;
  const Attention& options;
  Launch launch;
  Visibility visibility;
  Needs needs;
  Index first_head = 0;  // of the tensors' heads among all

  Index me() const { return transport.rank(); }
  Index ranks() const { return transport.ranks(); }
  Device device() const { return tensors.q.device; }
  // The same call on some heads, of which the first is number `head`.
  Job on(const AttentionTensors& of_heads, Index head) const {
    return {transport, how, of_heads, options, launch, visibility, needs, head};
  }
};

// Keys that a rank has; fp32 gradients of a part's keys.
struct Keys {
  ConstTensor k, v;
};
using KeyGradients = std::array<Tensor, 2>;  // dk and dv

// Tensors with all rows of this rank, or of the call's heads. lse and row_max may be left out. partial:
// Attention::partial; a merge completes the result.
struct RowResults {
  Tensor out, lse{}, row_max{};
  bool partial = false;
};

// Writes the part's rows.
void attend(const Job& job, const Part& part, const Keys& keys, const RowResults& into);
// Writes dq of the part's rows, and dk and dv of its keys; a tensor that is not given is not computed. Adds the part's
// gradients of bias, sinks and slopes to the job's tensors.
void attend_backward(const Job& job, const Part& part, const Keys& keys, const Tensor& dq, const KeyGradients& into);
// The gradients of bias, sinks and slopes, before parts add to them: 0.
void clear_side_gradients(const Job& job);

// The tensors of some query heads, and of their K/V heads.
AttentionTensors of_heads(const AttentionTensors& tensors, Range heads, Range heads_kv);

// Tensors of rank 1 to 3 as rank 4, with dimensions of size 1 in front.
template <class AnyTensor>
AnyTensor as_rank_4(const AnyTensor& t) {
  AnyTensor view = t;
  for (int i = 0; i < 4; ++i) {
    const int from = i - (4 - t.rank);
    view.shape[static_cast<std::size_t>(i)] = from < 0 ? 1 : t.shape[static_cast<std::size_t>(from)];
    view.stride[static_cast<std::size_t>(i)] = from < 0 ? 0 : t.stride[static_cast<std::size_t>(from)];
  }
  view.rank = 4;
  return view;
}

// How many buffers the parts of a call may add: they say where the rows and keys that expressions count begin, and, if
// calls share the heads, the heads.
std::size_t position_buffers(const Attention& options, bool heads);
bool names_batch(const Attention& options);  // an expression has the word `batch`

}  // namespace onepass::inline v0::context_parallel
