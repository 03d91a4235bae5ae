// The tensors of a softmax and of its backward; x and y are a quantize's and a flat GEMM's too.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kSoftmaxRoles = [] {
  using namespace axes;
  using T = Tensors;
  using L = Layout;
  using R = Role;
  return std::to_array<RoleRow>({
      {.role = R::x,
       .name = "x",
       .help = "rows [.., n]; of a flat GEMM [m, k]",
       .types = Types::data,
       .axes = kScores,
       .packed = kRowsIn,
       .layout = &L::x,
       .input = &T::x},
      {.role = R::row_lse,
       .name = "row_lse",
       .help = "fp32 [..]: LSEs of the whole rows, of which x is a piece",
       .types = Types::f32,
       .axes = kRows,
       .layout = &L::row_lse,
       .input = &T::row_lse,
       .word = "row_lse",
       .flag = &Problem::row_lse},
      {.role = R::y,
       .name = "y",
       .help = "the softmax of x, x in fp8_e4m3, or of a flat GEMM [m, n]",
       .types = Types::as_q_or_f32,
       .axes = kScores,
       .packed = kRowsOut,
       .layout = &L::y,
       .output = &T::y,
       .given = [](const Problem& p) { return !p.lse_only; }},
      {.role = R::dy,
       .name = "dy",
       .help = "the gradient of y",
       .types = Types::as_out,
       .axes = kScores,
       .layout = &L::dy,
       .input = &T::dy},
      {.role = R::dx,
       .name = "dx",
       .help = "the gradient of x",
       .types = Types::as_q,
       .axes = kScores,
       .layout = &L::dx,
       .output = &T::dx},
  });
}();

}  // namespace onepass
