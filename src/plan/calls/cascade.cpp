// A cascade: a call of attention for each level, into partial results in the workspace, and their merge.
#include "onepass/cascade.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "base/overlap.hpp"
#include "plan/calls/call.hpp"
#include "plan/guarded_executor.hpp"
#include "plan/rows/rows.hpp"
#include "plan/scratch.hpp"
#include "problem/checks/tensor_checks.hpp"

namespace onepass::inline v0 {
namespace {

using plan::Call;

constexpr std::size_t kAlign = 64;
// Where partial results are planned before there is memory: aligned, and no caller's.
std::byte* nowhere() { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 62); }

std::size_t padded(std::size_t bytes) { return round_up(bytes, kAlign); }

// Packed tokens as a batch of one sequence.
template <class AnyTensor>
AnyTensor one_sequence(const AnyTensor& t) {
  if (t.rank != 3) return t;
  AnyTensor view = t;
  view.rank = 4;
  view.shape = {1, t.shape[1], t.shape[0], t.shape[2]};
  view.stride = {0, t.stride[1], t.stride[0], t.stride[2]};
  return view;
}

// The outputs of a cascade.
struct Results {
  const Tensor &out, &lse, &row_max;
};

class Cascade {
 public:
  Cascade(const ConstTensor& q, std::span<const CascadeLevel> levels, const Results& into, const ConstTensor& sinks)
      : q_(q), row_max_(into.row_max) {
    want(q.rank == 3, ErrorCode::bad_shape, "q must have shape [total, heads_q, dim] (got ", shape_text(q), ")");
    want(!levels.empty(), ErrorCode::bad_value, "levels must hold at least one level (got none)");
    want(!into.lse.given() || into.lse.rank == 2, ErrorCode::bad_shape, "lse must have shape [heads_q, total] (got ",
         shape_text(into.lse), ")");
    check_row_max();
    for (const CascadeLevel& level : levels) add(level);
    levels_.back().call.tensors.sinks = sinks;
    merge_.tensors.out = into.out;
    if (into.lse.given()) merge_.tensors.lse = into.lse.permuted({1, 0});
    partial_bytes_ = padded(row_bytes()) * columns();
    for (const Level& level : levels_) partial_bytes_ += padded(out_bytes(level));
  }

  // The bytes of the partial results, and of the call that needs most beside them.
  std::size_t bytes(int workers) {
    place(nowhere());
    std::size_t most = 0;
    for (const Level& level : levels_) most = std::max(most, planned(level.call, workers, level.implementation));
    most = std::max(most, planned(merge_, workers, {}));
    plan::check_maxima_apart(row_max_, merge_.tensors.out, merge_.tensors.lse);
    return partial_bytes_ + most;
  }
  void run(const Launch& launch, std::span<std::byte> workspace) {
    place(workspace.data());
    const Launch inner{launch.stream, launch.executor, workspace.subspan(partial_bytes_)};
    clear(workspace.data(), inner);
    for (const Level& level : levels_) plan::compute(level.call, inner, level.implementation);
    plan::compute(merge_, inner);
    if (!row_max_.given()) return;
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const Tensor of_level = as_rows(column(workspace.data(), levels_.size() + i));
      i == 0 ? plan::copy(of_level, as_rows(row_max_), inner) : plan::take_larger(of_level, as_rows(row_max_), inner);
    }
  }

 private:
  struct Level {
    Call call;
    std::string_view implementation;
    std::int64_t dim_v;
  };

  // The calls of the levels and the merge check everything else.
  void check_row_max() const {
    const Tensor& t = row_max_;
    if (!t.given()) return;
    check_tensor("row_max", t);
    want(t.rank == 2 && t.shape[0] == q_.shape[1] && t.shape[1] == q_.shape[0], ErrorCode::bad_shape,
         "row_max must have shape [", q_.shape[1], ", ", q_.shape[0], "] (got ", shape_text(t), ")");
    want(t.dtype == DType::f32, ErrorCode::bad_dtype, "row_max must be fp32 (got ", name_of(t.dtype), ")");
    want(t.device == q_.device, ErrorCode::bad_device, "row_max must be on ", to_string(q_.device), ", as q (got ",
         to_string(t.device), ")");
    check_output("row_max", t);
  }

  void add(const CascadeLevel& level) {
    const std::size_t i = levels_.size();
    Tensors t(level.tensors);
    for (const auto& [name, given] : {std::pair{"q", t.q.given()},
                                      {"out", t.out.given()},
                                      {"lse", t.lse.given()},
                                      {"row_max", t.row_max.given()},
                                      {"sinks", t.sinks.given()},
                                      {"recomputed", t.recomputed.given()}})
      want(!given, ErrorCode::bad_value, "levels[", i, "] must not have ", name, "; the cascade has it");
    want(!t.entropy.given(), ErrorCode::unsupported, "cascade does not support entropy");
    for (const auto& [name, given] : {std::pair{"k", t.k.given()}, {"v", t.v.given()}})
      want(given, ErrorCode::bad_shape, "levels[", i, "] must have ", name);
    const bool packed = t.cu_seqlens_q.given();
    want(packed || !t.cu_seqlens_k.given(), ErrorCode::bad_value, "levels[", i,
         "] must have cu_seqlens_q, since it has cu_seqlens_k");
    t.q = packed ? q_ : one_sequence(q_);
    if (!packed) t.k = one_sequence(t.k), t.v = one_sequence(t.v);
    const std::int64_t dim_v = t.v.shape[static_cast<std::size_t>(std::max(t.v.rank - 1, 0))];
    Attention options = level.attention;
    options.partial = true;
    levels_.push_back({{kForward, std::move(t), {options}}, level.implementation, dim_v});
    merge_.tensors.outs.emplace_back(), merge_.tensors.lses.emplace_back();
  }

  std::size_t row_bytes() const { return sizeof(float) * static_cast<std::size_t>(q_.shape[0] * q_.shape[1]); }
  std::size_t out_bytes(const Level& level) const { return row_bytes() * static_cast<std::size_t>(level.dim_v); }
  // The columns of the workspace, a number for each row and head: the LSEs of all levels, then the maxima if asked for.
  std::size_t columns() const { return levels_.size() * (row_max_.given() ? 2 : 1); }
  Tensor column(std::byte* memory, std::size_t number) const {
    return {memory + number * padded(row_bytes()), DType::f32, {q_.shape[1], q_.shape[0]}, q_.device};
  }

  // The columns, then the O of all levels.
  void place(std::byte* memory) {
    std::byte* at = memory + padded(row_bytes()) * columns();
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      Level& level = levels_[i];
      const Tensor out(at, DType::f32, {q_.shape[0], q_.shape[1], level.dim_v}, q_.device), lse = column(memory, i);
      at += padded(out_bytes(level));
      Tensors& t = level.call.tensors;
      const bool packed = t.cu_seqlens_q.given();
      const auto of_call = [&](const Tensor& x) { return packed ? x : plan::without_column(as_rows(x)); };
      t.out = packed ? out : one_sequence(out);
      t.lse = of_call(lse);
      if (row_max_.given()) t.row_max = of_call(column(memory, levels_.size() + i));
      merge_.tensors.outs[i] = out;
      merge_.tensors.lses[i] = ConstTensor(lse).permuted({1, 0});
    }
  }
  // Rows of no group are not written by their level's call.
  void clear(std::byte* memory, const Launch& launch) const {
    const auto count = static_cast<std::int64_t>(padded(row_bytes()) * columns() / sizeof(float));
    plan::fill_empty(Tensor(memory, DType::f32, {count}, q_.device), launch);
  }
  // A tensor [heads, total] as [1, heads, total, 1].
  static Tensor as_rows(const Tensor& t) {
    Tensor rows = t;
    rows.rank = 4;
    rows.shape = {1, t.shape[0], t.shape[1], 1}, rows.stride = {0, t.stride[0], t.stride[1], 1};
    return rows;
  }
  static std::size_t planned(const Call& c, int workers, std::string_view implementation) {
    return plan::planned(c.op, c.tensors, c.options, workers, implementation).workspace_bytes();
  }

  const ConstTensor q_;
  const Tensor row_max_;
  std::vector<Level> levels_;
  Call merge_{kMerge};
  std::size_t partial_bytes_ = 0;
};

int workers_of(Executor* executor) { return onepass::workers_of(executor ? *executor : default_executor()); }

}  // namespace

void cascade(const ConstTensor& q, std::span<const CascadeLevel> levels, const Tensor& out, const Tensor& lse,
             const ConstTensor& sinks, const Launch& launch, const Tensor& row_max) {
  Cascade c(q, levels, {out, lse, row_max}, sinks);
  const std::size_t bytes = c.bytes(workers_of(launch.executor));
  if (launch.workspace.empty()) {
    const Scratch memory(q.device, bytes, launch.stream);
    return c.run(launch, {static_cast<std::byte*>(memory.data()), bytes});
  }
  want(launch.workspace.size() >= bytes, ErrorCode::bad_value, "the workspace must have at least ", bytes,
       " bytes (got ", launch.workspace.size(), ")");
  want(reinterpret_cast<std::uintptr_t>(launch.workspace.data()) % kAlign == 0, ErrorCode::bad_value,
       "the workspace must be aligned to 64 bytes (got address ", static_cast<const void*>(launch.workspace.data()),
       ")");
  const auto size = static_cast<std::int64_t>(launch.workspace.size());
  want(!row_max.given() ||
           !share_memory(row_max, ConstTensor(launch.workspace.data(), DType::boolean, {size}, q.device)),
       ErrorCode::bad_value, "row_max must not share memory with the workspace");
  c.run(launch, launch.workspace);
}

std::size_t cascade_workspace_bytes(const ConstTensor& q, std::span<const CascadeLevel> levels, const Tensor& out,
                                    const Tensor& lse, const ConstTensor& sinks, Executor* executor,
                                    const Tensor& row_max) {
  return Cascade(q, levels, {out, lse, row_max}, sinks).bytes(workers_of(executor));
}

}  // namespace onepass::inline v0
