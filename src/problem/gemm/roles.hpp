// The tensors of a flat GEMM beside x and y.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kGemmRoles = [] {
  using namespace axes;
  using T = Tensors;
  using L = Layout;
  using R = Role;
  return std::to_array<RoleRow>({
      {.role = R::w,
       .name = "w",
       .help = "weights [n, k]",
       .types = Types::as_q,
       .axes = kWeights,
       .layout = &L::w,
       .input = &T::w},
      {.role = R::column_bias,
       .name = "column_bias",
       .help = "[n], added to every row",
       .types = Types::as_q,
       .axes = kColumns,
       .layout = &L::column_bias,
       .input = &T::column_bias,
       .word = "column_bias",
       .flag = &Problem::column_bias},
  });
}();

}  // namespace onepass
