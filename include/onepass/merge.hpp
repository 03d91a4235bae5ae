// Partial results over disjoint keys become one.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct MergeTensors {
  std::vector<ConstTensor> outs{}, lses{};  // [.., rows, dim] fp32/fp16/bf16 of out's shape; fp32 [.., rows]
  Tensor out{}, lse{};                      // [.., rows, dim] fp32/fp16/bf16; fp32 [.., rows], or left out
};

// Joins partial results over disjoint key sets. (0, -inf) is the identity; associative and commutative up to rounding.
// A part is not read in a row whose LSE is -inf. out may be one of outs and lse one of lses, with the same strides.
// Else they share no memory with an input or each other. On a CUDA device up to 256 parts. Throws Error, with out and
// lse untouched, if anything does not fit.
ONEPASS_API void merge(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses, const Tensor& out,
                       const Tensor& lse = {}, const Launch& launch = {});

// LSEs of rows from those of their pieces, fp32 [..] of rank 1 to 3: lse = log sum_i e^lses[i], -inf if all are. In any
// order, up to rounding.
ONEPASS_API void merge_lse(std::span<const ConstTensor> lses, const Tensor& lse, const Launch& launch = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const MergeTensors& tensors, std::string_view implementation = {},
                                         const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const MergeTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const MergeTensors& tensors);

}  // namespace onepass::inline v0
