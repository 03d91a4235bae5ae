// Attention in one call, or as problem -> plan -> run.
//
//   out[b,h,i,:] = sum_j softmax_j( scale * q[b,h,i,:] . k[b,h/group,j,:] + ... ) * v[b,h/group,j,:]
//
// The order in which softcap, bias, masks, sinks and dropout apply, and what a row without a visible key gives (0, and
// an LSE of -inf), stand in docs/conventions.md.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/error.hpp"
#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/problem.hpp"
#include "onepass/tensor.hpp"

namespace onepass {

// A tensor by the name that score_mod and mask_mod use for it; rank 1 to 4, any strides.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Everything about a call but q, k, v and out. Tensors that are not given stay absent.
struct Options {
  Band band;                    // causal alignment and window
  std::optional<double> scale;  // default 1/sqrt(dim_qk)
  float softcap = 0.0f;         // > 0: s = softcap * tanh(s / softcap)
  float dropout_p = 0.0f;       // in [0, 1]
  std::uint64_t seed = 0;       // Philox key: the same seed drops the same weights on every backend

  Tensor lse;                         // out: fp32 [batch, heads_q, seq_q]; packed: [heads_q, total_q]
  Tensor bias;                        // fp32/fp16/bf16 [batch|1, heads_q|1, seq_q|1, seq_k|1], any strides
  Tensor bool_mask;                   // bool, same shapes; true = may attend
  Tensor alibi_slopes;                // fp32 [heads_q] or [batch, heads_q]: s -= slope * |a(i) - j|
  Tensor sinks;                       // fp32 [heads_q]: logits that join the denominator only
  Tensor cu_seqlens_q, cu_seqlens_k;  // int32 [batch + 1] prefix sums; q, k, v and out are then [total, heads, dim]

  // C++ expressions over batch, head, q_index, k_index (within their sequence) and the mod_buffers; docs/score_mod.md.
  std::string score_mod;  // the new score, from `score`: scaled, capped and biased, in natural units
  std::string mask_mod;   // true where a query may attend to a key; joins the other masks
  std::vector<NamedTensor> mod_buffers;

  std::string implementation;    // by name, e.g. "cpu.flash.avx2"; empty: the first that accepts
  Executor* executor = nullptr;  // CPU threads; nullptr: default_executor()
  void* stream = nullptr;        // CUDA stream
};

// Computes attention. Tensors are [batch, heads, seq, dim] with any strides but 1 in the last dimension.
// out and lse share no memory with an input or each other; views that interleave, such as slices of one packed tensor,
// do not. Throws Error, with out and lse untouched, if anything does not fit.
ONEPASS_API void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                           const Options& options = {});

// The same in three steps. A plan holds no pointers to data and may be used from several threads at once. make_problem
// looks at shapes, strides, dtypes and cu_seqlens; what memory the tensors share is run's to check.
ONEPASS_API Problem make_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                 const Options& options = {});

struct Implementation;
struct ONEPASS_API Plan {
  Problem problem;
  const Implementation* implementation = nullptr;
  int workers = 1;  // of the executor it was made for
  std::size_t workspace_bytes = 0;
  std::string_view name() const;  // of the implementation
  std::string describe() const;   // its config in a line
};
// The first implementation of the ordered list that accepts the problem (or the named one); throws `unsupported` with
// every refusal if there is none.
ONEPASS_API Plan make_plan(const Problem& problem, std::string_view implementation = {},
                           const Executor* executor = nullptr);
// Allocates nothing: workspace points to plan.workspace_bytes bytes aligned to 64 (nullptr if 0).
ONEPASS_API void run(const Plan& plan, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                     const Options& options, void* workspace);

// The ordered list with each one's decision, a line each.
ONEPASS_API std::string explain(const Problem& problem);

// Joins partial results over disjoint key sets: outs [.., rows, dim] fp32/fp16/bf16 with fp32 LSEs [.., rows] of the
// same shape without dim. (0, -inf) is the identity; associative and commutative up to rounding. out and lse share no
// memory with an input or each other.
ONEPASS_API void merge(std::span<const Tensor> outs, std::span<const Tensor> lses, const Tensor& out,
                       const Tensor& lse = {}, Executor* executor = nullptr);

}  // namespace onepass
