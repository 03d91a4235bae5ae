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
      {ONEPASS_INPUT(k_new), .help = "new keys [batch, heads_kv, seq, dim]", .types = Types::data, .axes = kNewK,
       .packed = kPackedNewK, .unit_last = true},
      {ONEPASS_INPUT(v_new), .help = "new values [batch, heads_kv, seq, dim_v]", .types = Types::as_q, .axes = kNewV,
       .packed = kPackedNewV, .unit_last = true},
      {.role = R::k_cache,
       .name = "k",
       .layout = &L::k_cache,
       .output = &T::k_cache,
       .help = "the cache [batch, heads_kv, capacity, dim], or pages [pages, page_size, heads_kv, dim]",
       .types = Types::key_value,
       .axes = kK,
       .packed = kPackedK,
       .unit_last = true},
      {.role = R::v_cache,
       .name = "v",
       .layout = &L::v_cache,
       .output = &T::v_cache,
       .help = "the cache of values, shaped as k",
       .types = Types::key_value,
       .axes = kV,
       .packed = kPackedV,
       .unit_last = true,
       .dtype_of = R::k_cache},
      {ONEPASS_INPUT(cache_seqlens), .help = "int32 [batch]: the lengths before the new tokens", .types = Types::i32,
       .axes = kBatch, .given = [](const Problem& p) { return p.seqused; }},
      {ONEPASS_INPUT(slot_mapping),
       .help = "int64 or int32 [tokens]: the slot page_size * page + offset of each token; below 0: none",
       .types = Types::index, .axes = kTokens, .given = [](const Problem& p) { return p.slots; }, .word = "slots"},
      {ONEPASS_INPUT(positions), .help = "int32 or int64 [tokens], with slot_mapping: each token's row of cos and sin",
       .types = Types::index, .axes = kTokens, .given = [](const Problem& p) { return p.slots && p.rotary; }},
      {ONEPASS_INPUT(cos), .help = "[positions, rotary_dim / 2]: k_new and q are rotated", .types = Types::table,
       .axes = kRotation, .given = [](const Problem& p) { return p.rotary; }, .word = "rotary"},
      {ONEPASS_INPUT(sin), .help = "shaped as cos", .types = Types::table, .axes = kRotation, .dtype_of = R::cos,
       .given = [](const Problem& p) { return p.rotary; }},
      {ONEPASS_OUTPUT(q_out), .help = "rotated queries [batch, heads, seq, dim]; may be q", .types = Types::as_q,
       .axes = kQ, .packed = kPackedQ, .unit_last = true, .in_place_of = R::q, .word = "q", .flag = &Problem::with_q},
  });
}();

}  // namespace onepass
