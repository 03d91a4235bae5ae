// The tensors of a quantize beside x and y.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kQuantizeRoles = [] {
  using namespace axes;
  using T = Tensors;
  using L = Layout;
  using R = Role;
  return std::to_array<RoleRow>({
      {.role = R::descale,
       .name = "descale",
       .help = "fp32 [batch|1, heads|1, blocks of 128 rows|1]: scales of y",
       .types = Types::f32,
       .axes = kDescalesQ,
       .fit = Fit::trailing_optional,
       .layout = &L::descale,
       .output = &T::descale},
      {.role = R::mean,
       .name = "mean",
       .help = "fp32 [batch, heads, n]: column means, subtracted from x",
       .types = Types::f32,
       .axes = kMeans,
       .layout = &L::mean,
       .output = &T::mean,
       .word = "mean",
       .flag = &Problem::centered},
  });
}();

}  // namespace onepass
