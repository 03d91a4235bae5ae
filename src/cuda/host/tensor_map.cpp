#include "cuda/host/tensor_map.hpp"

#include <algorithm>

namespace onepass::cuda {

TensorMap tensor_map(const void* data, DType dtype, const std::array<std::int64_t, 4>& sizes,
                     const std::array<std::int64_t, 3>& strides, int rows) {
  // Values of cuda.h's CUtensorMapDataType, -Interleave, -Swizzle, -L2promotion and -FloatOOBfill.
  constexpr int kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9, kNoInterleave = 0, kSwizzle128 = 3, kPromote256 = 3,
                kZeros = 0;
  std::uint64_t n[4], bytes[3];
  for (int i = 0; i < 4; ++i) n[i] = static_cast<std::uint64_t>(std::max<std::int64_t>(1, sizes[i]));
  // A dimension of one element is never stepped along; TMA still wants a plausible stride.
  for (int i = 0; i < 3; ++i)
    bytes[i] = sizes[i + 1] > 1 ? size_of(dtype) * static_cast<std::uint64_t>(strides[i]) : 16;
  const std::uint32_t box[4] = {static_cast<std::uint32_t>(128 / size_of(dtype)), static_cast<std::uint32_t>(rows), 1,
                                1},
                      steps[4] = {1, 1, 1, 1};
  TensorMap map{};
  must(driver()->encode_tiled(&map,
                              dtype == DType::bf16  ? kBfloat16
                              : dtype == DType::f16 ? kFloat16
                                                    : kFloat32,
                              4, const_cast<void*>(data), n, bytes, box, steps, kNoInterleave, kSwizzle128, kPromote256,
                              kZeros),
       "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace onepass::cuda
