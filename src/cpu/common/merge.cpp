// onepass::merge: finished partial results (O, LSE) over disjoint key sets become one.
//
// A row's LSE in log2 units is all of its state (from_lse); the joint LSE then says what share of the row each partial
// holds: out = sum_i 2^(lse_i - lse) * O_i. Shares are worked out in double, one per row and partial, so that merging
// hundreds of partials in any order adds no error but the rounding of the sum.
#include <algorithm>
#include <cstdint>

#include "core/guarded_executor.hpp"
#include "core/numerics.hpp"
#include "core/overlap.hpp"
#include "core/scalar.hpp"
#include "core/tensor_checks.hpp"
#include "onepass/attention.hpp"

namespace onepass {
namespace {

constexpr std::int64_t kBlock = 256;             // output elements held at once, on the stack
constexpr std::int64_t kTaskElements = 1 << 15;  // of one partial, per task

void want(bool ok, ErrorCode code, const std::string& sentence) {
  if (!ok) throw Error(code, sentence);
}

// A row of any of the tensors: its offset in elements from the row's index in row-major order.
std::int64_t offset_of_row(const Tensor& t, int row_dims, std::int64_t row) {
  std::int64_t at = 0;
  for (int i = row_dims - 1; i >= 0; --i) {
    at += row % t.shape[i] * t.stride[i];
    row /= t.shape[i];
  }
  return at;
}

void want_cpu_data(const std::string& name, const Tensor& t) {
  check_tensor(name, t);
  want(t.device.kind == DeviceKind::cpu, ErrorCode::bad_device,
       text(name, " is on ", to_string(t.device), "; merge computes on the CPU"));
}

// [.., rows, dim] as `like`
void want_values(const std::string& name, const Tensor& t, const Tensor& like) {
  want_cpu_data(name, t);
  want(t.rank >= 2, ErrorCode::bad_shape, text(name, " has shape ", shape_text(t), "; [.., rows, dim] is expected"));
  want(t.rank == like.rank && t.shape == like.shape, ErrorCode::bad_shape,
       text(name, " has shape ", shape_text(t), "; ", shape_text(like), ", as out, is expected"));
  want(t.dtype == DType::f32 || t.dtype == DType::f16 || t.dtype == DType::bf16, ErrorCode::bad_dtype,
       text(name, " is ", name_of(t.dtype), "; fp32, fp16 and bf16 are accepted"));
  want(t.shape[t.rank - 1] <= 1 || t.stride[t.rank - 1] == 1, ErrorCode::bad_stride,
       text(name, " has stride ", t.stride[t.rank - 1], " in its last dimension; 1 is required"));
}

// [.., rows]: `out` without its last dimension
void want_lse(const std::string& name, const Tensor& t, const Tensor& out) {
  want_cpu_data(name, t);
  want(t.dtype == DType::f32, ErrorCode::bad_dtype, text(name, " is ", name_of(t.dtype), "; fp32 is expected"));
  want(t.rank == out.rank - 1 && std::equal(t.shape.begin(), t.shape.begin() + t.rank, out.shape.begin()),
       ErrorCode::bad_shape,
       text(name, " has shape ", shape_text(t), "; out's, ", shape_text(out),
            ", without its last dimension is expected"));
}

void want_writable(const std::string& name, const Tensor& t, std::span<const Tensor> outs,
                   std::span<const Tensor> lses) {
  check_output(name, t);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    want(!share_memory(t, outs[i]), ErrorCode::bad_value,
         text(name, " shares memory with outs[", i, "]; separate memory is required"));
    want(!share_memory(t, lses[i]), ErrorCode::bad_value,
         text(name, " shares memory with lses[", i, "]; separate memory is required"));
  }
}

void check(std::span<const Tensor> outs, std::span<const Tensor> lses, const Tensor& out, const Tensor& lse) {
  want(!outs.empty(), ErrorCode::bad_value, "outs is empty; at least one partial result is needed");
  want(outs.size() == lses.size(), ErrorCode::bad_shape,
       text("there are ", outs.size(), " outs but ", lses.size(), " lses; one LSE per partial result is needed"));
  want_values("out", out, out);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    want_values(text("outs[", i, "]"), outs[i], out);
    want_lse(text("lses[", i, "]"), lses[i], out);
  }
  want_writable("out", out, outs, lses);
  if (!lse.given()) return;
  want_lse("lse", lse, out);
  want_writable("lse", lse, outs, lses);
  want(!share_memory(lse, out), ErrorCode::bad_value, "lse shares memory with out; separate memory is required");
}

void add_scaled(float* sum, const Tensor& t, std::int64_t at, std::int64_t count, float share) {
  with_float_type(t.dtype, [&](auto zero) {
    const auto* x = static_cast<const decltype(zero)*>(t.data) + at;
    for (std::int64_t d = 0; d < count; ++d) sum[d] += share * to_float(x[d]);
  });
}

struct Merge {
  std::span<const Tensor> outs, lses;
  const Tensor &out, &lse;
  std::int64_t rows, rows_per_task;

  void row(std::int64_t r) const {
    const auto state_of = [&](std::size_t i) {
      return from_lse(double{static_cast<const float*>(lses[i].data)[offset_of_row(lses[i], lses[i].rank, r)]});
    };
    RowState<double> all;
    for (std::size_t i = 0; i < outs.size(); ++i) all = merge(all, state_of(i)).state;
    const double joint = finalize(all).lse;
    if (lse.given()) static_cast<float*>(lse.data)[offset_of_row(lse, lse.rank, r)] = static_cast<float>(joint);

    const int row_dims = out.rank - 1;
    const std::int64_t dim = out.shape[row_dims], out_at = offset_of_row(out, row_dims, r);
    for (std::int64_t from = 0; from < dim; from += kBlock) {
      const std::int64_t count = std::min(kBlock, dim - from);
      float sum[kBlock] = {};
      for (std::size_t i = 0; i < outs.size(); ++i) {
        const RowState<double> one = state_of(i);
        if (one.l == 0) continue;  // the identity: its O is not read
        add_scaled(sum, outs[i], offset_of_row(outs[i], row_dims, r) + from, count,
                   static_cast<float>(probability(one.m, from_lse(joint).m)));
      }
      with_float_type(out.dtype, [&](auto zero) {
        auto* to = static_cast<decltype(zero)*>(out.data) + out_at + from;
        for (std::int64_t d = 0; d < count; ++d) to[d] = from_float<decltype(zero)>(sum[d]);
      });
    }
  }
  static void task(void* self, std::int64_t task, int) {
    const auto& m = *static_cast<const Merge*>(self);
    for (std::int64_t r = task * m.rows_per_task; r < std::min(m.rows, (task + 1) * m.rows_per_task); ++r) m.row(r);
  }
};

}  // namespace

void merge(std::span<const Tensor> outs, std::span<const Tensor> lses, const Tensor& out, const Tensor& lse,
           Executor* executor) {
  check(outs, lses, out, lse);
  Executor& host = executor ? *executor : default_executor();
  GuardedExecutor guarded(host, workers_of(host));
  std::int64_t rows = 1;
  for (int i = 0; i < out.rank - 1; ++i) rows *= out.shape[i];
  const std::int64_t per_task =
      std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, out.shape[out.rank - 1]));
  Merge job{outs, lses, out, lse, rows, per_task};
  guarded.parallel_for((rows + per_task - 1) / per_task, Merge::task, &job);
}

}  // namespace onepass
