// Tensors are views: a pointer, a shape, a stride per dimension, a dtype, a device. The library owns none.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "onepass/export.h"

namespace onepass::inline v0 {

enum class DType : std::uint8_t { f32, f16, bf16, f8e4m3, boolean, i32, i64 };

ONEPASS_API std::size_t size_of(DType dtype);  // bytes of one element; throws bad_dtype if the value is none of these
ONEPASS_API std::string_view name_of(
    DType dtype);  // "fp32", "fp16", "bf16", "fp8_e4m3", "bool", "int32", "int64"; throws as size_of
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

// A view: shape and strides in elements; entries from `rank` on are unused (size 1, stride 0). rank = 0 means "not
// given". What takes a tensor throws Error (bad_shape) if its rank is not within 0 to 4. ConstTensor is an input,
// Tensor an output; a Tensor converts to a ConstTensor.
template <class Data>
struct ONEPASS_API BasicTensor {
  static_assert(std::is_void_v<Data>);

  Data* data = nullptr;
  int rank = 0;
  Dims shape{1, 1, 1, 1};
  Dims stride{0, 0, 0, 0};
  DType dtype = DType::f32;
  Device device{};

  BasicTensor() = default;
  // Row-major over `shape`.
  BasicTensor(Data* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {});
  BasicTensor(Data* data, DType dtype, std::initializer_list<std::int64_t> shape,
              std::initializer_list<std::int64_t> stride, Device device = {});
  template <class Other>
    requires(std::is_const_v<Data> && std::is_same_v<const Other, Data>)
  BasicTensor(const BasicTensor<Other>& t)
      : data(t.data), rank(t.rank), shape(t.shape), stride(t.stride), dtype(t.dtype), device(t.device) {}

  bool given() const { return rank != 0; }
  std::int64_t elements() const;
  // Dimension i of the result is dimension order[i] of this view; {0, 2, 1, 3} turns [b, s, h, d] into [b, h, s, d].
  BasicTensor permuted(std::initializer_list<int> order) const;
};
using Tensor = BasicTensor<void>;
using ConstTensor = BasicTensor<const void>;

// An input by the name that score_mod and mask_mod use for it; rank 1 to 4, any strides.
struct NamedTensor {
  std::string name{};
  ConstTensor tensor{};
};
inline constexpr std::size_t kMaxModBuffers = 8;  // of a call

ONEPASS_API std::string shape_text(const ConstTensor& tensor);  // "[2, 16, 1024, 128]"

}  // namespace onepass::inline v0
