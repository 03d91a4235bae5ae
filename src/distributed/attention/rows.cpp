#include "distributed/attention/rows.hpp"

#include <algorithm>

#include "cuda/rows/host.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

std::size_t bytes_of(const ConstTensor& t) { return static_cast<std::size_t>(t.elements()) * size_of(t.dtype); }

}  // namespace

Owned::Owned(DType dtype, std::initializer_list<Index> shape, Device device, const Launch& launch)
    : tensor_(nullptr, dtype, shape, device), memory_(device, bytes_of(tensor_), launch.stream) {
  tensor_.data = memory_.data();
}

Zeros::Zeros(Index dim, Device device, const Launch& launch) : memory_(DType::f32, {dim}, device, launch) {
  fill(memory_.tensor(), 0.0f, launch);
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
