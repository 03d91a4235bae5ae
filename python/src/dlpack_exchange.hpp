// DLPack 1.3's C exchange table, which a tensor type carries as __dlpack_c_exchange_api__ (PyTorch does from 2.10 on):
// its tensors' memory, its allocator and its current stream without a call of Python's.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once
#include <cstdint>

namespace onepass::python::dlpack {

inline constexpr std::int32_t kCpu = 1, kCuda = 2;  // DLDeviceType
inline constexpr std::uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6,
                              kFloat8E4m3 = 10;  // DLDataTypeCode

struct Device {
  std::int32_t type, index;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
struct Version {
  std::uint32_t major, minor;
};
struct ManagedTensor {
  Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

struct ExchangeTable {
  Version version;
  ExchangeTable* older;
  int (*allocate)(Tensor* like, ManagedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*export_managed)(void* object, ManagedTensor** out);
  int (*import_managed)(ManagedTensor* tensor, void** object);
  int (*export_view)(void* object, Tensor* out);  // may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t index, void** out);
};

}  // namespace onepass::python::dlpack
