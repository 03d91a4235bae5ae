// The tensors of a flat GEMM beside x and y.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kGemmRoles = [] {
  using namespace axes;
  return std::to_array<RoleRow>({
      {ONEPASS_INPUT(w), .help = "weights [n, k]", .types = Types::as_q, .axes = kWeights},
      {ONEPASS_INPUT(column_bias), .help = "[n], added to every row", .types = Types::as_q, .axes = kColumns,
       .word = "column_bias", .flag = &Problem::column_bias},
  });
}();

}  // namespace onepass
