// The tensors of a softmax and of its backward; x and y are a quantize's and a flat GEMM's too.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kSoftmaxRoles = [] {
  using namespace axes;
  return std::to_array<RoleRow>({
      {ONEPASS_INPUT(x), .help = "rows [.., n]; of a flat GEMM [m, k]", .types = Types::data, .axes = kScores,
       .packed = kRowsIn},
      {ONEPASS_INPUT(row_lse), .help = "fp32 [..]: LSEs of the whole rows, of which x is a piece", .types = Types::f32,
       .axes = kRows, .word = "row_lse", .flag = &Problem::row_lse},
      {ONEPASS_OUTPUT(y), .help = "the softmax of x, x in fp8_e4m3, or of a flat GEMM [m, n]",
       .types = Types::as_q_or_f32, .axes = kScores, .packed = kRowsOut,
       .given = [](const Problem& p) { return !p.lse_only; }},
      {ONEPASS_INPUT(dy), .help = "the gradient of y", .types = Types::as_out, .axes = kScores},
      {ONEPASS_OUTPUT(dx), .help = "the gradient of x", .types = Types::as_q, .axes = kScores},
  });
}();

}  // namespace onepass
