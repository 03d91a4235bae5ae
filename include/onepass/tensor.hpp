// Tensors are views: a pointer, a shape, a stride per dimension, a dtype, a device. The library owns none.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "onepass/export.h"

namespace onepass {

enum class DType : std::uint8_t { f32, f16, bf16, f8e4m3, boolean, i32 };

ONEPASS_API std::size_t size_of(DType dtype);  // bytes of one element; throws bad_dtype if the value is none of these
ONEPASS_API std::string_view name_of(
    DType dtype);  // "fp32", "fp16", "bf16", "fp8_e4m3", "bool", "int32"; throws as size_of
ONEPASS_API DType dtype_from_name(std::string_view);  // throws bad_dtype

enum class DeviceKind : std::uint8_t { cpu, cuda };
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};
ONEPASS_API std::string to_string(Device device);  // "cpu", "cuda:0"; throws bad_device if the kind is neither

inline constexpr int kMaxRank = 4;
using Dims = std::array<std::int64_t, kMaxRank>;

// Shape and strides in elements; entries from `rank` on are unused (size 1, stride 0). rank = 0 means "not given". What
// takes a tensor throws Error (bad_shape) if its rank is not within 0 to 4.
struct ONEPASS_API Tensor {
  void* data = nullptr;
  int rank = 0;
  Dims shape{1, 1, 1, 1};
  Dims stride{0, 0, 0, 0};
  DType dtype = DType::f32;
  Device device{};

  Tensor() = default;
  // Row-major over `shape`. The pointer may be const: the library writes only to outputs.
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {});
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> stride, Device device = {});

  bool given() const { return rank != 0; }
  std::int64_t elements() const;
  // Dimension i of the result is dimension order[i] of this view; {0, 2, 1, 3} turns [b, s, h, d] into [b, h, s, d].
  Tensor permuted(std::initializer_list<int> order) const;
};

ONEPASS_API std::string shape_text(const Tensor& tensor);  // "[2, 16, 1024, 128]"

}  // namespace onepass
