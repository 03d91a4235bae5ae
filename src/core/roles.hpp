// The tensors of a call, a row each: what validation, the bindings, checks, mirrors, tools and benchmarks walk. A new
// tensor is a row here, a field in Tensors and Layout, and the code that computes with it.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "onepass/attention.hpp"

namespace onepass {

// What a dimension counts.
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
  boundaries  // batch + 1
};
inline constexpr std::size_t kAxes = 11;
using Axes = std::array<Axis, kMaxRank>;

enum class Types : std::uint8_t { data, as_q, as_q_or_f32, f32, boolean, i32 };

// exact: every dimension as its axis says. broadcast: or 1, for repeated. leading_optional: the first may be left out.
enum class Fit : std::uint8_t { exact, broadcast, leading_optional };

struct RoleRow {
  Role role;
  const char* name;
  const char* help;
  bool required;
  Types types;
  Axes axes, packed;  // packed: where cu_seqlens is given
  Fit fit;
  bool unit_last;  // the last dimension has stride 1
  Dims Layout::* layout;
  ConstTensor Tensors::* input;  // one of the two
  Tensor Tensors::* output;
};

namespace roles_detail {
using enum Axis;
inline constexpr Axes kQ{batch, heads_q, seq_q, dim_qk}, kK{batch, heads_kv, seq_k, dim_qk},
    kV{batch, heads_kv, seq_k, dim_v}, kOut{batch, heads_q, seq_q, dim_v}, kScores{batch, heads_q, seq_q, seq_k},
    kRows{batch, heads_q, seq_q}, kSlopes{batch, heads_q}, kHeads{heads_q}, kBoundaries{boundaries};
inline constexpr Axes kPackedQ{total_q, heads_q, dim_qk}, kPackedK{total_k, heads_kv, dim_qk},
    kPackedV{total_k, heads_kv, dim_v}, kPackedOut{total_q, heads_q, dim_v}, kPackedRows{heads_q, total_q};
}  // namespace roles_detail

inline constexpr std::array<RoleRow, kRoles> kRoleTable = [] {
  using namespace roles_detail;
  using T = Tensors;
  using L = Layout;
  return std::array<RoleRow, kRoles>{{
      {Role::q, "q", "queries [batch, heads, seq, dim]", true, Types::data, kQ, kPackedQ, Fit::exact, true, &L::q,
       &T::q, nullptr},
      {Role::k, "k", "keys [batch, heads_kv, seq, dim]", true, Types::as_q, kK, kPackedK, Fit::exact, true, &L::k,
       &T::k, nullptr},
      {Role::v, "v", "values [batch, heads_kv, seq, dim_v]", true, Types::as_q, kV, kPackedV, Fit::exact, true, &L::v,
       &T::v, nullptr},
      {Role::out, "out", "the result [batch, heads, seq, dim_v]", true, Types::as_q_or_f32, kOut, kPackedOut,
       Fit::exact, true, &L::out, nullptr, &T::out},
      {Role::cu_seqlens_q, "cu_seqlens_q", "int32 [batch + 1]: q is packed [total, heads, dim]", false, Types::i32,
       kBoundaries, kBoundaries, Fit::exact, false, &L::cu_seqlens_q, &T::cu_seqlens_q, nullptr},
      {Role::cu_seqlens_k, "cu_seqlens_k", "int32 [batch + 1]: k and v are packed", false, Types::i32, kBoundaries,
       kBoundaries, Fit::exact, false, &L::cu_seqlens_k, &T::cu_seqlens_k, nullptr},
      {Role::bias, "bias", "added to the scores [batch|1, heads|1, seq_q|1, seq_k|1]", false, Types::data, kScores,
       kScores, Fit::broadcast, false, &L::bias, &T::bias, nullptr},
      {Role::bool_mask, "bool_mask", "bool, true = may attend, shaped as bias", false, Types::boolean, kScores, kScores,
       Fit::broadcast, false, &L::bool_mask, &T::bool_mask, nullptr},
      {Role::alibi_slopes, "alibi_slopes", "fp32 [heads] or [batch, heads]", false, Types::f32, kSlopes, kSlopes,
       Fit::leading_optional, false, &L::alibi_slopes, &T::alibi_slopes, nullptr},
      {Role::sinks, "sinks", "fp32 [heads], logits that join the denominator", false, Types::f32, kHeads, kHeads,
       Fit::exact, false, &L::sinks, &T::sinks, nullptr},
      {Role::lse, "lse", "fp32 [batch, heads, seq]: the rows' log-sum-exp", false, Types::f32, kRows, kPackedRows,
       Fit::exact, false, &L::lse, nullptr, &T::lse},
  }};
}();
inline constexpr const RoleRow& row_of(Role role) { return kRoleTable[static_cast<std::size_t>(role)]; }
static_assert([] {
  for (std::size_t i = 0; i < kRoles; ++i)
    if (kRoleTable[i].role != Role{static_cast<std::uint8_t>(i)}) return false;
  return true;
}());

// f(row, tensor), the tensor a Tensor or a ConstTensor as its role is, for every role, given or not.
template <class AnyTensors, class F>
void for_each_role(AnyTensors& tensors, F&& f) {
  for (const RoleRow& row : kRoleTable) {
    if (row.output)
      f(row, tensors.*row.output);
    else
      f(row, tensors.*row.input);
  }
}

inline ConstTensor tensor_of(const Tensors& tensors, const RoleRow& row) {
  return row.output ? ConstTensor(tensors.*row.output) : tensors.*row.input;
}

int rank_of(const Axes& axes);
inline const Axes& axes_of(const RoleRow& row, bool packed) { return packed ? row.packed : row.axes; }
std::string form_of(const RoleRow& row, bool packed);  // "[batch, heads_q, seq_q, dim_qk]"
std::string_view what_of(Axis axis);                   // "number of heads"
std::int64_t size_of(Axis axis, const Problem& problem);
bool uses(const Problem& problem, const RoleRow& row);  // whether its calls have this tensor

// The sizes of a problem's tensor as its role has them; of a bias or mask, 1 in dimensions it does not span. rank 0:
// the problem has none.
struct RoleShape {
  int rank = 0;
  Dims size{1, 1, 1, 1};
  DType dtype = DType::f32;
};
RoleShape shape_of(const Problem& problem, const RoleRow& row);
// The tensor that the problem's layout describes, without memory; rank 0: the problem has none.
ConstTensor described(const Problem& problem, const RoleRow& row);
// Row-major strides, as Layout has them; of what may be left out, without it.
Dims row_major(const Problem& problem, const RoleRow& row);
// From the dimensions of a tensor to those of Layout.
Dims layout_of(const RoleRow& row, bool packed, const ConstTensor& tensor);

}  // namespace onepass
