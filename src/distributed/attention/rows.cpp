#include "distributed/attention/rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "algebra/scalar.hpp"
#include "base/parallel.hpp"
#include "cuda/rows/host.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

std::size_t bytes_of(const ConstTensor& t) { return static_cast<std::size_t>(t.elements()) * size_of(t.dtype); }

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

}  // namespace

Owned::Owned(DType dtype, std::initializer_list<Index> shape, Device device, const Launch& launch)
    : tensor_(nullptr, dtype, shape, device), memory_(device, bytes_of(tensor_), launch.stream) {
  tensor_.data = memory_.data();
}

void copy(const ConstTensor& from, const Tensor& to, const Launch& launch) {
  if (to.elements() == 0) return;
  if (to.device.kind == DeviceKind::cuda) return cuda::move_rows(from, to, RowsWork::copy, launch.stream);
  each_row(from, to, launch,
           [&](const std::byte* a, std::byte* b, const Line& line) { copy_line(a, from.dtype, b, to.dtype, line); });
}

void add(const ConstTensor& from, const Tensor& to, const Launch& launch) {
  if (to.elements() == 0) return;
  if (to.device.kind == DeviceKind::cuda) return cuda::move_rows(from, to, RowsWork::add, launch.stream);
  each_row(from, to, launch, [](const std::byte* a, std::byte* b, const Line& line) {
    const auto* const x = reinterpret_cast<const float*>(a);
    auto* const sum = reinterpret_cast<float*>(b);
    for (Index i = 0; i < line.count; ++i) sum[i * line.to] += x[i * line.from];
  });
}

void take_larger(const ConstTensor& from, const Tensor& to, const Launch& launch) {
  if (to.elements() == 0) return;
  if (to.device.kind == DeviceKind::cuda) return cuda::move_rows(from, to, RowsWork::take_larger, launch.stream);
  each_row(from, to, launch, [](const std::byte* a, std::byte* b, const Line& line) {
    const auto* const x = reinterpret_cast<const float*>(a);
    auto* const most = reinterpret_cast<float*>(b);
    for (Index i = 0; i < line.count; ++i) {
      if (x[i * line.from] > most[i * line.to] || std::isnan(x[i * line.from])) most[i * line.to] = x[i * line.from];
    }
  });
}

void fill_empty(const Tensor& lse, const Launch& launch) {
  const float none = Arith<float>::neg_inf();
  const auto count = static_cast<std::size_t>(lse.elements());
  if (count == 0) return;
  if (lse.device.kind == DeviceKind::cpu)
    std::fill_n(static_cast<float*>(lse.data), count, none);
  else
    cuda::fill(cuda::device_facts(lse.device.index), lse.data, none, count, static_cast<cuda::Stream>(launch.stream));
}

Zeros::Zeros(Index dim, Device device, const Launch& launch) : memory_(DType::f32, {dim}, device, launch) {
  const Tensor& t = memory_.tensor();
  const auto bytes = static_cast<std::size_t>(dim) * sizeof(float);
  if (bytes == 0) return;
  if (device.kind == DeviceKind::cpu)
    std::memset(t.data, 0, bytes);
  else
    cuda::fill(cuda::device_facts(device.index), t.data, 0.0f, static_cast<std::size_t>(dim),
               static_cast<cuda::Stream>(launch.stream));
}

ConstTensor Zeros::like(const ConstTensor& t) const {
  ConstTensor zeros = t;
  zeros.data = memory_.tensor().data;
  zeros.stride = {0, 0, 0, 1};
  return zeros;
}

Owned on_device(std::span<const std::int32_t> values, Device device, const Launch& launch) {
  Owned owned(DType::i32, {static_cast<Index>(values.size())}, device, launch);
  if (device.kind == DeviceKind::cpu)
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(owned.tensor().data));
  else
    cuda::upload(values.data(), owned.tensor().data, values.size_bytes(), device.index, launch.stream);
  return owned;
}

}  // namespace onepass::inline v0::context_parallel
