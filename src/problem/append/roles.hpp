// The tensors of an append beside those that attention reads. The cache is k and v to the caller.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kAppendRoles = [] {
  using namespace axes;
  using T = Tensors;
  using L = Layout;
  using R = Role;
  return std::to_array<RoleRow>({
      {.role = R::k_new,
       .name = "k_new",
       .help = "new keys [batch, heads_kv, seq, dim]",
       .types = Types::data,
       .axes = kNewK,
       .packed = kPackedNewK,
       .unit_last = true,
       .layout = &L::k_new,
       .input = &T::k_new},
      {.role = R::v_new,
       .name = "v_new",
       .help = "new values [batch, heads_kv, seq, dim_v]",
       .types = Types::as_q,
       .axes = kNewV,
       .packed = kPackedNewV,
       .unit_last = true,
       .layout = &L::v_new,
       .input = &T::v_new},
      {.role = R::k_cache,
       .name = "k",
       .help = "the cache [batch, heads_kv, capacity, dim], or pages [pages, page_size, heads_kv, dim]",
       .types = Types::key_value,
       .axes = kK,
       .packed = kPackedK,
       .unit_last = true,
       .layout = &L::k_cache,
       .output = &T::k_cache},
      {.role = R::v_cache,
       .name = "v",
       .help = "the cache of values, shaped as k",
       .types = Types::key_value,
       .axes = kV,
       .packed = kPackedV,
       .unit_last = true,
       .dtype_of = R::k_cache,
       .layout = &L::v_cache,
       .output = &T::v_cache},
      {.role = R::cos,
       .name = "cos",
       .help = "[positions, rotary_dim / 2]: k_new and q are rotated",
       .types = Types::table,
       .axes = kRotation,
       .layout = &L::cos,
       .input = &T::cos,
       .given = [](const Problem& p) { return p.rotary; },
       .word = "rotary"},
      {.role = R::sin,
       .name = "sin",
       .help = "shaped as cos",
       .types = Types::table,
       .axes = kRotation,
       .dtype_of = R::cos,
       .layout = &L::sin,
       .input = &T::sin,
       .given = [](const Problem& p) { return p.rotary; }},
      {.role = R::q_out,
       .name = "q_out",
       .help = "rotated queries [batch, heads, seq, dim]; may be q",
       .types = Types::as_q,
       .axes = kQ,
       .packed = kPackedQ,
       .unit_last = true,
       .in_place_of = R::q,
       .layout = &L::q_out,
       .output = &T::q_out,
       .word = "q",
       .flag = &Problem::with_q},
  });
}();

}  // namespace onepass
