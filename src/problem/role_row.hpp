// A row of the table of tensors (roles.hpp). The rows themselves are in the operators' folders.
#pragma once
#include <array>
#include <cstdint>

#include "onepass/onepass.h"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace onepass {

// The things that a dimension counts.
enum class Axis : std::uint8_t {
  none,
  batch,
  heads_q,
  heads_kv,
  seq_q,
  seq_k,
  dim_qk,
  dim_v,
  total_q,
  total_k,
  boundaries,  // batch + 1
  pages,
  page_size,
  max_pages,  // of a sequence
  blocks_q,   // of kDescaleRows rows
  blocks_k,
  m,
  n,
  k,  // of a flat GEMM
  positions,
  pairs,  // of columns that are rotated
  drafts,
  mask_rows,  // tiles of a block mask
  mask_keys,
  one
};
inline constexpr std::size_t kAxes = 25;
using Axes = std::array<Axis, kMaxRank>;

// q is the operator's base. query: of the base itself, data or fp8_e4m3. key_value: as q or fp8_e4m3,
// beside fp32 also fp16 and bf16. result: as q or fp32; of an fp8_e4m3 q any data. as_out: dout. gradient: all that are
// asked for of dq, dk and dv are of one, the inputs' or fp32. table: as q or fp32. index: int32 or int64.
enum class Types : std::uint8_t {
  data,
  query,
  key_value,
  result,
  as_q,
  as_q_or_f32,
  as_out,
  gradient,
  table,
  f32,
  boolean,
  i32,
  i64,
  index
};

// exact: every dimension as its axis says. broadcast: or 1, for repeated. leading_optional: the first may be left out.
// trailing_optional: broadcast, and those at the end may be left out.
enum class Fit : std::uint8_t { exact, broadcast, leading_optional, trailing_optional };

// How a tensor's tokens lie: [batch, heads, tokens, dim], [all tokens, heads, dim] or [pages, tokens, heads, dim].
// matrix: what a flat GEMM has of a tensor.
enum class Form : std::uint8_t { batched, packed, paged, matrix };
// Those of the queries' tensors and of k and v.
struct Forms {
  Form queries = Form::batched, keys = Form::batched;
  Form of(const struct RoleRow& row) const;
};

// The use that an operator has for a tensor.
enum class Use : std::uint8_t { none, needs, takes, writes, may_write };

struct RoleRow {
  Role role;
  const char* name;
  Dims Layout::* layout;
  ConstTensor Tensors::* input = nullptr;  // one of the two
  Tensor Tensors::* output = nullptr;      // of some operator; another may read it
  const char* help;
  Types types;
  Axes axes, packed{};  // packed: where cu_seqlens is given, or of a flat GEMM; left out: as axes
  Fit fit = Fit::exact;
  bool unit_last = false;           // the last dimension has stride 1
  Role gradient_of = Role{kRoles};  // the tensor whose shape it has; left out: itself
  Role dtype_of = Role{kRoles};     // a tensor before it whose dtype it has; left out: itself
  Role in_place_of = Role{kRoles};  // an input that this output may be; left out: none
  // The use by attention, its backward, its forward mode and that of the backward. Other operators list their tensors
  // in their folder.
  Use forward = Use::none, backward = Use::none, jvp = Use::none, backward_jvp = Use::none;
  const onepass_tensor* onepass_options::* c = nullptr;  // where a C call of attention has it, but for q, k, v and out
  // Of a tensor that a call may leave out: whether it is given, and the word of problem lines that says so.
  bool (*given)(const Problem&) = nullptr;
  const char* word = nullptr;
  bool Problem::* flag = nullptr;  // in place of `given`: the word alone sets it
};

// The first fields of a tensor that has one name everywhere.
#define ONEPASS_INPUT(of) .role = Role::of, .name = #of, .layout = &Layout::of, .input = &Tensors::of
#define ONEPASS_OUTPUT(of) .role = Role::of, .name = #of, .layout = &Layout::of, .output = &Tensors::of

namespace axes {
using enum Axis;
inline constexpr Axes kQ{batch, heads_q, seq_q, dim_qk}, kK{batch, heads_kv, seq_k, dim_qk},
    kV{batch, heads_kv, seq_k, dim_v}, kOut{batch, heads_q, seq_q, dim_v}, kScores{batch, heads_q, seq_q, seq_k},
    kRows{batch, heads_q, seq_q}, kSlopes{batch, heads_q}, kHeads{heads_q}, kBoundaries{boundaries}, kBatch{batch},
    kPageTable{batch, max_pages}, kTree{batch, drafts}, kTiles{batch, heads_q, mask_rows, mask_keys},
    kDescalesQ{batch, heads_q, blocks_q}, kDescalesK{batch, heads_kv, blocks_k}, kMeanOfV{batch, heads_kv, dim_v},
    kMeans{batch, heads_q, seq_k}, kRowsIn{m, k}, kRowsOut{m, n}, kWeights{n, k}, kColumns{n},
    kNewK{batch, heads_kv, seq_q, dim_qk}, kNewV{batch, heads_kv, seq_q, dim_v}, kRotation{positions, pairs},
    kTokens{total_q}, kOne{one};
inline constexpr Axes kPackedQ{total_q, heads_q, dim_qk}, kPackedK{total_k, heads_kv, dim_qk},
    kPackedV{total_k, heads_kv, dim_v}, kPackedNewK{total_q, heads_kv, dim_qk}, kPackedNewV{total_q, heads_kv, dim_v},
    kPackedOut{total_q, heads_q, dim_v}, kPackedRows{heads_q, total_q};
}  // namespace axes

}  // namespace onepass
