// A cascade: a call of attention for each level, into partial results in the workspace, and their merge.
#include "onepass/cascade.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "algebra/scalar.hpp"
#include "base/guarded_executor.hpp"
#include "cuda/host/kernels.hpp"
#include "plan/calls/call.hpp"
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

class Cascade {
 public:
  Cascade(const ConstTensor& q, std::span<const CascadeLevel> levels, const Tensor& out, const Tensor& lse,
          const ConstTensor& sinks)
      : q_(q) {
    want(q.rank == 3, ErrorCode::bad_shape, "q must have shape [total, heads_q, dim] (got ", shape_text(q), ")");
    want(!levels.empty(), ErrorCode::bad_value, "levels must hold at least one level (got none)");
    want(!lse.given() || lse.rank == 2, ErrorCode::bad_shape, "lse must have shape [heads_q, total] (got ",
         shape_text(lse), ")");
    for (const CascadeLevel& level : levels) add(level);
    levels_.back().call.tensors.sinks = sinks;
    merge_.tensors.out = out;
    if (lse.given()) merge_.tensors.lse = lse.permuted({1, 0});
    partial_bytes_ = padded(lse_bytes()) * levels_.size();
    for (const Level& level : levels_) partial_bytes_ += padded(out_bytes(level));
  }

  // The bytes of the partial results, and of the call that needs most beside them.
  std::size_t bytes(int workers) {
    place(nowhere());
    std::size_t most = 0;
    for (const Level& level : levels_) most = std::max(most, planned(level.call, workers, level.implementation));
    return partial_bytes_ + std::max(most, planned(merge_, workers, {}));
  }
  void run(const Launch& launch, std::span<std::byte> workspace) {
    place(workspace.data());
    clear(launch.stream);
    const Launch inner{launch.stream, launch.executor, workspace.subspan(partial_bytes_)};
    for (const Level& level : levels_) plan::compute(level.call, inner, level.implementation);
    plan::compute(merge_, inner);
  }

 private:
  struct Level {
    Call call;
    std::string_view implementation;
    std::int64_t dim_v;
  };

  void add(const CascadeLevel& level) {
    const std::size_t i = levels_.size();
    Tensors t(level.tensors);
    for (const auto& [name, given] : {std::pair{"q", t.q.given()},
                                      {"out", t.out.given()},
                                      {"lse", t.lse.given()},
                                      {"sinks", t.sinks.given()},
                                      {"recomputed", t.recomputed.given()}})
      want(!given, ErrorCode::bad_value, "levels[", i, "] must not have ", name, "; the cascade has it");
    for (const auto& [name, given] : {std::pair{"row_max", t.row_max.given()}, {"entropy", t.entropy.given()}})
      want(!given, ErrorCode::unsupported, "cascade does not support ", name);
    for (const auto& [name, given] : {std::pair{"k", t.k.given()}, {"v", t.v.given()}})
      want(given, ErrorCode::bad_shape, "levels[", i, "] must have ", name);
    const bool packed = t.cu_seqlens_q.given();
    want(packed || !t.cu_seqlens_k.given(), ErrorCode::bad_value, "levels[", i,
         "] must have cu_seqlens_q, since it has cu_seqlens_k");
    t.q = packed ? q_ : one_sequence(q_);
    if (!packed) t.k = one_sequence(t.k), t.v = one_sequence(t.v);
    const std::int64_t dim_v = t.v.shape[static_cast<std::size_t>(std::max(t.v.rank - 1, 0))];
    levels_.push_back({{kForward, std::move(t), {level.attention}}, level.implementation, dim_v});
    merge_.tensors.outs.emplace_back(), merge_.tensors.lses.emplace_back();
  }

  std::size_t lse_bytes() const { return sizeof(float) * static_cast<std::size_t>(q_.shape[0] * q_.shape[1]); }
  std::size_t out_bytes(const Level& level) const { return lse_bytes() * static_cast<std::size_t>(level.dim_v); }

  // The LSEs of all levels, then their O.
  void place(std::byte* memory) {
    lses_ = memory;
    std::byte* at = memory + padded(lse_bytes()) * levels_.size();
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      Level& level = levels_[i];
      const Tensor out(at, DType::f32, {q_.shape[0], q_.shape[1], level.dim_v}, q_.device),
          lse(lses_ + i * padded(lse_bytes()), DType::f32, {q_.shape[1], q_.shape[0]}, q_.device);
      at += padded(out_bytes(level));
      Tensors& t = level.call.tensors;
      const bool packed = t.cu_seqlens_q.given();
      t.out = packed ? out : one_sequence(out);
      t.lse = packed ? lse : Tensor(lse.data, DType::f32, {1, q_.shape[1], q_.shape[0]}, q_.device);
      merge_.tensors.outs[i] = out;
      merge_.tensors.lses[i] = ConstTensor(lse).permuted({1, 0});
    }
  }
  // Rows of no group are not written by their level's call.
  void clear(void* stream) const {
    const float none = Arith<float>::neg_inf();
    const std::size_t count = padded(lse_bytes()) * levels_.size() / sizeof(float);
    if (count == 0) return;
    if (q_.device.kind == DeviceKind::cpu)
      std::fill_n(reinterpret_cast<float*>(lses_), count, none);
    else
      cuda::fill(cuda::device_facts(q_.device.index), lses_, none, count, static_cast<cuda::Stream>(stream));
  }
  static std::size_t planned(const Call& c, int workers, std::string_view implementation) {
    return plan::planned(c.op, c.tensors, c.options, workers, implementation).workspace_bytes();
  }

  const ConstTensor q_;
  std::vector<Level> levels_;
  Call merge_{kMerge};
  std::size_t partial_bytes_ = 0;
  std::byte* lses_ = nullptr;
};

int workers_of(Executor* executor) { return onepass::workers_of(executor ? *executor : default_executor()); }

}  // namespace

void cascade(const ConstTensor& q, std::span<const CascadeLevel> levels, const Tensor& out, const Tensor& lse,
             const ConstTensor& sinks, const Launch& launch) {
  Cascade c(q, levels, out, lse, sinks);
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
  c.run(launch, launch.workspace);
}

std::size_t cascade_workspace_bytes(const ConstTensor& q, std::span<const CascadeLevel> levels, const Tensor& out,
                                    const Tensor& lse, const ConstTensor& sinks, Executor* executor) {
  return Cascade(q, levels, out, lse, sinks).bytes(workers_of(executor));
}

}  // namespace onepass::inline v0
