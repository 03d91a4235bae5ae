#include "plan/rows/rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "algebra/scalar.hpp"
#include "base/overlap.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cuda/rows/host.hpp"

namespace onepass::plan {
namespace {

using Index = std::int64_t;

// Elements that lie side by side, or some way apart.
struct Line {
  Index count, from, to;  // their number, and strides
  bool dense() const { return count == 1 || (from == 1 && to == 1); }
};

template <class Element>
void round_line(const float* from, Element* to, const Line& line) {
  for (Index i = 0; i < line.count; ++i) to[i * line.to] = from_float<Element>(from[i * line.from]);
}
void copy_line(const std::byte* from, DType dtype, std::byte* to, DType to_dtype, const Line& line) {
  const auto bytes = static_cast<Index>(size_of(dtype));
  if (dtype != to_dtype) {
    with_float_type(to_dtype, [&](auto zero) {
      round_line(reinterpret_cast<const float*>(from), reinterpret_cast<decltype(zero)*>(to), line);
    });
  } else if (line.dense()) {
    std::memcpy(to, from, static_cast<std::size_t>(line.count * bytes));
  } else {
    for (Index i = 0; i < line.count; ++i)
      std::memcpy(to + i * line.to * bytes, from + i * line.from * bytes, static_cast<std::size_t>(bytes));
  }
}

// f(from, to, line) of each row.
template <class F>
void each_row(const ConstTensor& from, const Tensor& to, const Launch& launch, const F& f) {
  Executor& executor = launch.executor ? *launch.executor : default_executor();
  const auto at = [](const auto& t, Index b, Index h, Index r) {
    return (b * t.stride[0] + h * t.stride[1] + r * t.stride[2]) * static_cast<Index>(size_of(t.dtype));
  };
  constexpr Index kRows = 64;  // of a task
  const Index blocks = ceil_div(to.shape[2], kRows);
  const Line line{to.shape[3], from.stride[3], to.stride[3]};
  parallel(executor, to.shape[0] * to.shape[1] * blocks, [&](Index task, int) {
    const Index pair = task / blocks, b = pair / to.shape[1], h = pair % to.shape[1], first = task % blocks * kRows;
    for (Index r = first; r < std::min(first + kRows, to.shape[2]); ++r) {
      f(static_cast<const std::byte*>(from.data) + at(from, b, h, r),
        static_cast<std::byte*>(to.data) + at(to, b, h, r), line);
    }
  });
}

// to = join(to, from), in fp32; on a device by the kernel's `work`.
template <class Join>
void each_element(const ConstTensor& from, const Tensor& to, RowsWork work, const Launch& launch, const Join& join) {
  if (to.elements() == 0) return;
  if (to.device.kind == DeviceKind::cuda) return cuda::move_rows(from, to, work, launch.stream);
  each_row(from, to, launch, [&](const std::byte* a, std::byte* b, const Line& line) {
    const auto* const x = reinterpret_cast<const float*>(a);
    auto* const y = reinterpret_cast<float*>(b);
    for (Index i = 0; i < line.count; ++i) y[i * line.to] = join(y[i * line.to], x[i * line.from]);
  });
}

}  // namespace

void copy(const ConstTensor& from, const Tensor& to, const Launch& launch) {
  if (to.elements() == 0) return;
  if (to.device.kind == DeviceKind::cuda) return cuda::move_rows(from, to, RowsWork::copy, launch.stream);
  each_row(from, to, launch,
           [&](const std::byte* a, std::byte* b, const Line& line) { copy_line(a, from.dtype, b, to.dtype, line); });
}

void add(const ConstTensor& from, const Tensor& to, const Launch& launch) {
  each_element(from, to, RowsWork::add, launch, [](float sum, float x) { return sum + x; });
}

void take_larger(const ConstTensor& from, const Tensor& to, const Launch& launch) {
  each_element(from, to, RowsWork::take_larger, launch,
               [](float most, float x) { return x > most || std::isnan(x) ? x : most; });
}

void fill(const Tensor& t, float value, const Launch& launch) {
  const auto count = static_cast<std::size_t>(t.elements());
  if (count == 0) return;
  if (t.device.kind == DeviceKind::cpu)
    std::fill_n(static_cast<float*>(t.data), count, value);
  else
    cuda::fill(cuda::device_facts(t.device.index), t.data, value, count, static_cast<cuda::Stream>(launch.stream));
}
void fill_empty(const Tensor& t, const Launch& launch) { fill(t, Arith<float>::neg_inf(), launch); }

void check_maxima_apart(const ConstTensor& row_max, const ConstTensor& out, const ConstTensor& lse) {
  for (const auto& [name, x] : {std::pair{"out", &out}, {"lse", &lse}})
    want(!row_max.given() || !x->given() || !share_memory(row_max, *x), ErrorCode::bad_value,
         "row_max must not share memory with ", name);
}

}  // namespace onepass::plan
