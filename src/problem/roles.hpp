// The tensors of a call, a row each: what validation, the bindings, checks, mirrors, tools and benchmarks walk. A new
// tensor is a row here, a field in Tensors and Layout, and the code that computes with it.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "onepass/attention.hpp"

namespace onepass {

// The quantity that a dimension counts.
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
  k  // of a flat GEMM
};
inline constexpr std::size_t kAxes = 19;
using Axes = std::array<Axis, kMaxRank>;

// query: data or fp8_e4m3. key_value: as q, or fp8_e4m3 beside it. result: as q or fp32; of an fp8_e4m3 q any data.
// as_out: dout. gradient: all that are asked for of dq, dk and dv are of one, the inputs' or fp32.
enum class Types : std::uint8_t {
  data,
  query,
  key_value,
  result,
  as_q,
  as_q_or_f32,
  as_out,
  gradient,
  f32,
  boolean,
  i32
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

// The use of a tensor by an operator.
enum class Use : std::uint8_t { none, needs, takes, writes, may_write };
// forward, merge, backward, softmax, softmax_backward, quantize, flat_gemm; none where left out
using Uses = std::array<Use, kOps - 1>;

struct RoleRow {
  Role role;
  const char* name;
  const char* help;
  Uses use;
  Types types;
  Axes axes, packed;  // packed: where cu_seqlens is given, or of a flat GEMM
  Fit fit;
  bool unit_last;    // the last dimension has stride 1
  Role gradient_of;  // the tensor whose shape it has; itself if it is not a gradient
  Dims Layout::* layout;
  ConstTensor Tensors::* input;  // one of the two
  Tensor Tensors::* output;      // of some operator; another may read it
};

namespace roles_detail {
using enum Axis;
inline constexpr Axes kQ{batch, heads_q, seq_q, dim_qk}, kK{batch, heads_kv, seq_k, dim_qk},
    kV{batch, heads_kv, seq_k, dim_v}, kOut{batch, heads_q, seq_q, dim_v}, kScores{batch, heads_q, seq_q, seq_k},
    kRows{batch, heads_q, seq_q}, kSlopes{batch, heads_q}, kHeads{heads_q}, kBoundaries{boundaries}, kBatch{batch},
    kPageTable{batch, max_pages}, kDescalesQ{batch, heads_q, blocks_q}, kDescalesK{batch, heads_kv, blocks_k},
    kMeanOfV{batch, heads_kv, dim_v}, kMeans{batch, heads_q, seq_k}, kRowsIn{m, k}, kRowsOut{m, n}, kWeights{n, k},
    kColumns{n};
inline constexpr Axes kPackedQ{total_q, heads_q, dim_qk}, kPackedK{total_k, heads_kv, dim_qk},
    kPackedV{total_k, heads_kv, dim_v}, kPackedOut{total_q, heads_q, dim_v}, kPackedRows{heads_q, total_q};
inline constexpr Uses kOfForward{Use::takes, Use::none, Use::none}, kWrittenForward{Use::may_write};
inline constexpr Uses kNeeded{Use::needs, Use::none, Use::needs}, kTaken{Use::takes, Use::none, Use::takes},
    kMask{Use::takes, Use::none, Use::takes, Use::takes}, kResult{Use::writes, Use::writes, Use::needs},
    kStatistics{Use::may_write, Use::may_write, Use::needs, Use::may_write},
    kUpstream{Use::none, Use::none, Use::needs}, kOptionalUpstream{Use::none, Use::none, Use::takes},
    kGradient{Use::none, Use::none, Use::may_write};
inline constexpr Uses kOfRows{Use::none, Use::none, Use::none, Use::needs, Use::none, Use::needs, Use::needs},
    kTakenBySoftmax{Use::none, Use::none, Use::none, Use::takes},
    kOfAll{Use::none, Use::none, Use::none, Use::may_write, Use::needs, Use::writes, Use::writes},
    kOfQuantize{Use::none, Use::none, Use::none, Use::none, Use::none, Use::writes},
    kMeanOfQuantize{Use::none, Use::none, Use::none, Use::none, Use::none, Use::may_write},
    kOfGemm{Use::none, Use::none, Use::none, Use::none, Use::none, Use::none, Use::needs},
    kTakenByGemm{Use::none, Use::none, Use::none, Use::none, Use::none, Use::none, Use::takes},
    kReadBackwards{Use::none, Use::none, Use::none, Use::none, Use::needs},
    kWrittenBackwards{Use::none, Use::none, Use::none, Use::none, Use::writes};
}  // namespace roles_detail

inline constexpr std::array<RoleRow, kRoles> kRoleTable = [] {
  using namespace roles_detail;
  using T = Tensors;
  using L = Layout;
  using R = Role;
  using enum Fit;
  return std::array<RoleRow, kRoles>{{
      {R::q, "q", "queries [batch, heads, seq, dim]", kNeeded, Types::query, kQ, kPackedQ, exact, true, R::q, &L::q,
       &T::q, nullptr},
      {R::k, "k", "keys [batch, heads_kv, seq, dim]", kNeeded, Types::key_value, kK, kPackedK, exact, true, R::k, &L::k,
       &T::k, nullptr},
      {R::v, "v", "values [batch, heads_kv, seq, dim_v]", kNeeded, Types::key_value, kV, kPackedV, exact, true, R::v,
       &L::v, &T::v, nullptr},
      {R::out, "out", "the result [batch, heads, seq, dim_v]", kResult, Types::result, kOut, kPackedOut, exact, true,
       R::out, &L::out, nullptr, &T::out},
      {R::cu_seqlens_q, "cu_seqlens_q", "int32 [batch + 1]: q is packed [total, heads, dim]", kTaken, Types::i32,
       kBoundaries, kBoundaries, exact, false, R::cu_seqlens_q, &L::cu_seqlens_q, &T::cu_seqlens_q, nullptr},
      {R::cu_seqlens_k, "cu_seqlens_k", "int32 [batch + 1]: k and v are packed", kTaken, Types::i32, kBoundaries,
       kBoundaries, exact, false, R::cu_seqlens_k, &L::cu_seqlens_k, &T::cu_seqlens_k, nullptr},
      {R::seqused_k, "seqused_k", "int32 [batch]: number of valid keys of each sequence", kOfForward, Types::i32,
       kBatch, kBatch, exact, false, R::seqused_k, &L::seqused_k, &T::seqused_k, nullptr},
      {R::page_table, "page_table", "int32 [batch, pages]: k and v are [pages, page_size, heads_kv, dim]", kOfForward,
       Types::i32, kPageTable, kPageTable, exact, false, R::page_table, &L::page_table, &T::page_table, nullptr},
      {R::bias, "bias", "added to the scores [batch|1, heads|1, seq_q|1, seq_k|1]", kTaken, Types::data, kScores,
       kScores, broadcast, false, R::bias, &L::bias, &T::bias, nullptr},
      {R::bool_mask, "bool_mask", "bool, true = may attend, shaped as bias", kMask, Types::boolean, kScores, kScores,
       broadcast, false, R::bool_mask, &L::bool_mask, &T::bool_mask, nullptr},
      {R::alibi_slopes, "alibi_slopes", "fp32 [heads] or [batch, heads]", kTaken, Types::f32, kSlopes, kSlopes,
       leading_optional, false, R::alibi_slopes, &L::alibi_slopes, &T::alibi_slopes, nullptr},
      {R::sinks, "sinks", "fp32 [heads], logits that join the denominator", kTaken, Types::f32, kHeads, kHeads, exact,
       false, R::sinks, &L::sinks, &T::sinks, nullptr},
      {R::q_descale, "q_descale", "fp32 [batch|1, heads|1, blocks of 128 rows|1], scales of an fp8_e4m3 q", kOfForward,
       Types::f32, kDescalesQ, kDescalesQ, trailing_optional, false, R::q_descale, &L::q_descale, &T::q_descale,
       nullptr},
      {R::k_descale, "k_descale", "fp32 [batch|1, heads_kv|1, blocks of 128 keys|1], scales of an fp8_e4m3 k",
       kOfForward, Types::f32, kDescalesK, kDescalesK, trailing_optional, false, R::k_descale, &L::k_descale,
       &T::k_descale, nullptr},
      {R::v_descale, "v_descale", "fp32 [batch|1, heads_kv|1, blocks of 128 keys|1], scales of an fp8_e4m3 v",
       kOfForward, Types::f32, kDescalesK, kDescalesK, trailing_optional, false, R::v_descale, &L::v_descale,
       &T::v_descale, nullptr},
      {R::v_mean, "v_mean", "fp32 [batch|1, heads_kv|1, dim_v|1], column means subtracted from an fp8_e4m3 v",
       kOfForward, Types::f32, kMeanOfV, kMeanOfV, trailing_optional, false, R::v_mean, &L::v_mean, &T::v_mean,
       nullptr},
      {R::lse, "lse", "fp32 [batch, heads, seq]: the rows' log-sum-exp", kStatistics, Types::f32, kRows, kPackedRows,
       exact, false, R::lse, &L::lse, nullptr, &T::lse},
      {R::dout, "dout", "the gradient of out", kUpstream, Types::as_out, kOut, kPackedOut, exact, true, R::out,
       &L::dout, &T::dout, nullptr},
      {R::dlse, "dlse", "the gradient of lse, fp32", kOptionalUpstream, Types::f32, kRows, kPackedRows, exact, false,
       R::lse, &L::dlse, &T::dlse, nullptr},
      {R::dq, "dq", "the gradient of q", kGradient, Types::gradient, kQ, kPackedQ, exact, true, R::q, &L::dq, nullptr,
       &T::dq},
      {R::dk, "dk", "the gradient of k", kGradient, Types::gradient, kK, kPackedK, exact, true, R::k, &L::dk, nullptr,
       &T::dk},
      {R::dv, "dv", "the gradient of v", kGradient, Types::gradient, kV, kPackedV, exact, true, R::v, &L::dv, nullptr,
       &T::dv},
      {R::dbias, "dbias", "the gradient of bias, fp32 of its shape", kGradient, Types::f32, kScores, kScores, broadcast,
       false, R::bias, &L::dbias, nullptr, &T::dbias},
      {R::dsinks, "dsinks", "the gradient of sinks, fp32 [heads]", kGradient, Types::f32, kHeads, kHeads, exact, false,
       R::sinks, &L::dsinks, nullptr, &T::dsinks},
      {R::dalibi_slopes, "dalibi_slopes", "the gradient of alibi_slopes, fp32 of its shape", kGradient, Types::f32,
       kSlopes, kSlopes, leading_optional, false, R::alibi_slopes, &L::dalibi_slopes, nullptr, &T::dalibi_slopes},
      {R::x, "x", "rows [.., n]; of a flat GEMM [m, k]", kOfRows, Types::data, kScores, kRowsIn, exact, false, R::x,
       &L::x, &T::x, nullptr},
      {R::row_lse, "row_lse", "fp32 [..]: LSEs of the whole rows, of which x is a piece", kTakenBySoftmax, Types::f32,
       kRows, kRows, exact, false, R::row_lse, &L::row_lse, &T::row_lse, nullptr},
      {R::y, "y", "the softmax of x, x in fp8_e4m3, or of a flat GEMM [m, n]", kOfAll, Types::as_q_or_f32, kScores,
       kRowsOut, exact, false, R::y, &L::y, nullptr, &T::y},
      {R::dy, "dy", "the gradient of y", kReadBackwards, Types::as_out, kScores, kScores, exact, false, R::dy, &L::dy,
       &T::dy, nullptr},
      {R::dx, "dx", "the gradient of x", kWrittenBackwards, Types::as_q, kScores, kScores, exact, false, R::dx, &L::dx,
       nullptr, &T::dx},
      {R::descale, "descale", "fp32 [batch|1, heads|1, blocks of 128 rows|1]: scales of y", kOfQuantize, Types::f32,
       kDescalesQ, kDescalesQ, trailing_optional, false, R::descale, &L::descale, nullptr, &T::descale},
      {R::mean, "mean", "fp32 [batch, heads, n]: column means, subtracted from x", kMeanOfQuantize, Types::f32, kMeans,
       kMeans, exact, false, R::mean, &L::mean, nullptr, &T::mean},
      {R::w, "w", "weights [n, k]", kOfGemm, Types::as_q, kWeights, kWeights, exact, false, R::w, &L::w, &T::w,
       nullptr},
      {R::column_bias, "column_bias", "[n], added to every row", kTakenByGemm, Types::as_q, kColumns, kColumns, exact,
       false, R::column_bias, &L::column_bias, &T::column_bias, nullptr},
      {R::recomputed, "recomputed", "int32 [batch, heads, seq]: 1 for rows computed again with their own maximum",
       kWrittenForward, Types::i32, kRows, kPackedRows, exact, false, R::lse, &L::recomputed, nullptr, &T::recomputed},
  }};
}();
// Its dimensions may be 1, for repeated.
inline constexpr bool may_be_one(const RoleRow& row) {
  return row.fit == Fit::broadcast || row.fit == Fit::trailing_optional;
}
inline constexpr const RoleRow& row_of(Role role) { return kRoleTable[static_cast<std::size_t>(role)]; }
static_assert([] {
  for (std::size_t i = 0; i < kRoles; ++i)
    if (kRoleTable[i].role != Role{static_cast<std::uint8_t>(i)}) return false;
  return true;
}());

inline constexpr bool is_gemm(Op op) { return op == Op::flat_gemm || op == Op::linear; }  // of one set of tensors
inline constexpr Use use_of(const RoleRow& row, Op op) {
  return row.use[static_cast<std::size_t>(is_gemm(op) ? Op::flat_gemm : op)];
}
inline constexpr bool writes(const RoleRow& row, Op op) {
  return use_of(row, op) == Use::writes || use_of(row, op) == Use::may_write;
}
inline constexpr bool reads(const RoleRow& row, Op op) {
  return use_of(row, op) == Use::needs || use_of(row, op) == Use::takes;
}
inline constexpr bool must_be_given(const RoleRow& row, Op op) {
  return use_of(row, op) == Use::needs || use_of(row, op) == Use::writes;
}
std::string_view word_of(Op op);  // "fwd", as problem lines have it; throws Error if the value is none of these
std::string_view call_of(Op op);  // "attention", as the functions are called

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

// Those of them that an operator has.
inline Tensors tensors_of(Op op, Tensors tensors) {
  for (const RoleRow& row : kRoleTable) {
    if (use_of(row, op) != Use::none) continue;
    row.output ? void(tensors.*row.output = {}) : void(tensors.*row.input = {});
  }
  return tensors;
}

int rank_of(const Axes& axes);
inline Form Forms::of(const RoleRow& row) const { return row.unit_last && row.axes[2] == Axis::seq_k ? keys : queries; }
inline Axes axes_of(const RoleRow& row, Form form) {
  if (form == Form::paged) return {Axis::pages, Axis::page_size, row.axes[1], row.axes[3]};
  return form == Form::packed || form == Form::matrix ? row.packed : row.axes;
}
Forms forms_of(const Problem& problem);
std::string form_text(const RoleRow& row, Form form);  // "[batch, heads_q, seq_q, dim_qk]"
std::string_view what_of(Axis axis);                   // "number of heads"
std::int64_t size_of(Axis axis, const Problem& problem);
bool uses(const Problem& problem, const RoleRow& row);     // whether its calls have this tensor
bool is_asked(const Gradients& gradients, Role gradient);  // false of what is none
// What a problem says of a descale, by its role.
// v_mean too, whose third dimension is columns.
std::optional<DescaleSpec> descale_of(const Problem& problem, Role role);
inline constexpr std::int64_t descale_blocks(std::int64_t rows) { return (rows + kDescaleRows - 1) / kDescaleRows; }

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
Dims layout_of(const RoleRow& row, Form form, const ConstTensor& tensor);

}  // namespace onepass
