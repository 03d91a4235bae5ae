// Attention of many rows to keys in levels: what rows share (a prompt) is read once, then what is their own.
//
//   onepass::cascade(q, {{{.k = prompt_k, .v = prompt_v}}, {own, {.band = {.causal = true}}}}, out);
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include "onepass/attention.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/options.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// A level is a call of attention whose sequences are groups of rows that share keys. cu_seqlens_q holds the groups, and
// cu_seqlens_k or seqused_k and page_table their keys. Without cu_seqlens_q all rows are one group; k and v may then be
// [keys, heads_kv, dim]. Masks count positions within a level: one whose keys come before all rows needs none.
struct CascadeLevel {
  AttentionTensors tensors{};  // k, v and all that belongs to them; no q, out, lse, row_max, sinks and recomputed
  Attention attention{};
  std::string_view implementation{};
};

// Attention of packed rows q [total, heads_q, dim] to the keys of all levels, which are disjoint. Each level leaves
// fp32 partial results in the workspace, and one merge joins them: out [total, heads_q, dim_v], lse fp32 [heads_q,
// total] or left out. sinks, fp32 [heads_q], join once. row_max, fp32 [heads_q, total] or left out, gets the largest
// score of each row over all levels. Rows of no group have no keys in that level. Without a workspace it takes the
// memory it needs itself. Throws Error, with outputs untouched, if anything does not fit.
ONEPASS_API void cascade(const ConstTensor& q, std::span<const CascadeLevel> levels, const Tensor& out,
                         const Tensor& lse = {}, const ConstTensor& sinks = {}, const Launch& launch = {},
                         const Tensor& row_max = {});

// The workspace of such a call with an executor, in bytes.
[[nodiscard]] ONEPASS_API std::size_t cascade_workspace_bytes(const ConstTensor& q,
                                                              std::span<const CascadeLevel> levels, const Tensor& out,
                                                              const Tensor& lse = {}, const ConstTensor& sinks = {},
                                                              Executor* executor = nullptr, const Tensor& row_max = {});

}  // namespace onepass::inline v0
