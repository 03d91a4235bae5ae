// The tensors of attention; gradient_roles.hpp has those of its derivatives alone.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kAttentionRoles = [] {
  using namespace axes;
  using R = Role;
  using C = onepass_options;
  return std::to_array<RoleRow>({
      {ONEPASS_INPUT(q), .help = "queries [batch, heads, seq, dim]", .types = Types::query, .axes = kQ,
       .packed = kPackedQ, .unit_last = true, .forward = Use::needs, .backward = Use::needs, .jvp = Use::needs,
       .given = [](const Problem& p) { return p.with_q; }},
      {ONEPASS_INPUT(k), .help = "keys [batch, heads_kv, seq, dim]", .types = Types::key_value, .axes = kK,
       .packed = kPackedK, .unit_last = true, .forward = Use::needs, .backward = Use::needs, .jvp = Use::needs},
      {ONEPASS_INPUT(v), .help = "values [batch, heads_kv, seq, dim_v]", .types = Types::key_value, .axes = kV,
       .packed = kPackedV, .unit_last = true, .dtype_of = R::k, .forward = Use::needs, .backward = Use::needs,
       .jvp = Use::needs},
      {ONEPASS_OUTPUT(out), .help = "the result [batch, heads, seq, dim_v]", .types = Types::result, .axes = kOut,
       .packed = kPackedOut, .unit_last = true, .forward = Use::writes, .backward = Use::needs, .jvp = Use::writes},
      {ONEPASS_INPUT(cu_seqlens_q), .help = "int32 [batch + 1]: q is packed [total, heads, dim]", .types = Types::i32,
       .axes = kBoundaries, .forward = Use::takes, .backward = Use::takes, .jvp = Use::takes, .c = &C::cu_seqlens_q,
       .given = [](const Problem& p) { return p.varlen; }},
      {ONEPASS_INPUT(cu_seqlens_k), .help = "int32 [batch + 1]: k and v are packed", .types = Types::i32,
       .axes = kBoundaries, .forward = Use::takes, .backward = Use::takes, .jvp = Use::takes, .c = &C::cu_seqlens_k,
       .given = [](const Problem& p) { return p.packed_k(); }},
      {ONEPASS_INPUT(seqused_k), .help = "int32 [batch]: number of valid keys of each sequence", .types = Types::i32,
       .axes = kBatch, .forward = Use::takes, .c = &C::seqused_k, .word = "seqused", .flag = &Problem::seqused},
      {ONEPASS_INPUT(page_table), .help = "int32 [batch, pages]: k and v are [pages, page_size, heads_kv, dim]",
       .types = Types::i32, .axes = kPageTable, .forward = Use::takes, .c = &C::page_table,
       .given = [](const Problem& p) { return p.paged() && !p.slots; }, .word = "kv"},
      {ONEPASS_INPUT(tree),
       .help = "int32 [batch, drafts]: the parent of each of a sequence's last tokens among them, -1: none",
       .types = Types::i32, .axes = kTree, .forward = Use::takes, .c = &C::tree,
       .given = [](const Problem& p) { return p.drafts > 0; }, .word = "tree"},
      {ONEPASS_INPUT(bias), .help = "added to the scores [batch|1, heads|1, seq_q|1, seq_k|1]", .types = Types::data,
       .axes = kScores, .fit = Fit::broadcast, .forward = Use::takes, .backward = Use::takes, .jvp = Use::takes,
       .c = &C::bias, .given = [](const Problem& p) { return p.bias.has_value(); }, .word = "bias"},
      {ONEPASS_INPUT(bool_mask), .help = "bool, true = may attend, shaped as bias", .types = Types::boolean,
       .axes = kScores, .fit = Fit::broadcast, .forward = Use::takes, .backward = Use::takes, .jvp = Use::takes,
       .c = &C::bool_mask, .given = [](const Problem& p) { return p.bool_mask.has_value(); }, .word = "mask"},
      {ONEPASS_INPUT(block_mask),
       .help = "int32 tiles, 0 empty, 1 mixed, 2 full [batch|1, heads|1, tiles of rows|1, tiles of keys|1]",
       .types = Types::i32, .axes = kTiles, .fit = Fit::broadcast, .forward = Use::takes, .backward = Use::takes,
       .jvp = Use::takes, .c = &C::block_mask, .given = [](const Problem& p) { return p.block_mask.has_value(); },
       .word = "block_mask"},
      {ONEPASS_INPUT(alibi_slopes), .help = "fp32 [heads] or [batch, heads]", .types = Types::f32, .axes = kSlopes,
       .fit = Fit::leading_optional, .forward = Use::takes, .backward = Use::takes, .jvp = Use::takes,
       .c = &C::alibi_slopes, .word = "alibi", .flag = &Problem::alibi},
      {ONEPASS_INPUT(sinks), .help = "fp32 [heads], logits that join the denominator", .types = Types::f32,
       .axes = kHeads, .forward = Use::takes, .backward = Use::takes, .jvp = Use::takes, .c = &C::sinks,
       .word = "sinks", .flag = &Problem::sinks},
      {ONEPASS_INPUT(q_descale), .help = "fp32 [batch|1, heads|1, blocks of 128 rows|1], scales of an fp8_e4m3 q",
       .types = Types::f32, .axes = kDescalesQ, .fit = Fit::trailing_optional, .forward = Use::takes,
       .c = &C::q_descale, .given = [](const Problem& p) { return p.q_descale.has_value(); }, .word = "q_descale"},
      {ONEPASS_INPUT(k_descale), .help = "fp32 [batch|1, heads_kv|1, blocks of 128 keys|1], scales of an fp8_e4m3 k",
       .types = Types::f32, .axes = kDescalesK, .fit = Fit::trailing_optional, .forward = Use::takes,
       .c = &C::k_descale, .given = [](const Problem& p) { return p.k_descale.has_value(); }, .word = "k_descale"},
      {ONEPASS_INPUT(v_descale), .help = "fp32 [batch|1, heads_kv|1, blocks of 128 keys|1], scales of an fp8_e4m3 v",
       .types = Types::f32, .axes = kDescalesK, .fit = Fit::trailing_optional, .forward = Use::takes,
       .c = &C::v_descale, .given = [](const Problem& p) { return p.v_descale.has_value(); }, .word = "v_descale"},
      {ONEPASS_INPUT(v_mean), .help = "fp32 [batch|1, heads_kv|1, dim_v|1], column means subtracted from an fp8_e4m3 v",
       .types = Types::f32, .axes = kMeanOfV, .fit = Fit::trailing_optional, .forward = Use::takes, .c = &C::v_mean,
       .given = [](const Problem& p) { return p.v_mean.has_value(); }, .word = "v_mean"},
      {ONEPASS_OUTPUT(lse), .help = "fp32 [batch, heads, seq]: the rows' log-sum-exp", .types = Types::f32,
       .axes = kRows, .packed = kPackedRows, .forward = Use::may_write, .backward = Use::needs, .jvp = Use::may_write,
       .c = &C::lse, .word = "lse", .flag = &Problem::want_lse},
      {ONEPASS_OUTPUT(recomputed),
       .help = "int32 [batch, heads, seq]: 1 for rows computed again with their own maximum", .types = Types::i32,
       .axes = kRows, .packed = kPackedRows, .gradient_of = R::lse, .forward = Use::may_write, .c = &C::recomputed,
       .word = "recomputed", .flag = &Problem::want_recomputed},
      {ONEPASS_OUTPUT(row_max), .help = "fp32 [batch, heads, seq]: the rows' largest scores", .types = Types::f32,
       .axes = kRows, .packed = kPackedRows, .gradient_of = R::lse, .forward = Use::may_write, .c = &C::row_max,
       .word = "row_max", .flag = &Problem::want_row_max},
  });
}();

}  // namespace onepass
