// The tensors of a quantize beside x and y.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kQuantizeRoles = [] {
  using namespace axes;
  return std::to_array<RoleRow>({
      {ONEPASS_OUTPUT(descale), .help = "fp32 [batch|1, heads|1, blocks of 128 rows|1]: scales of y",
       .types = Types::f32, .axes = kDescalesQ, .fit = Fit::trailing_optional},
      {ONEPASS_OUTPUT(mean), .help = "fp32 [batch, heads, n]: column means, subtracted from x", .types = Types::f32,
       .axes = kMeans, .word = "mean", .flag = &Problem::centered},
  });
}();

}  // namespace onepass
