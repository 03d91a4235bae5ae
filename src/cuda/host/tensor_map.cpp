#include "cuda/host/tensor_map.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace onepass::cuda {

namespace {

int map_type_of(DType dtype) {  // cuda.h's CUtensorMapDataType
  switch (dtype) {
    case DType::f8e4m3: return 0;  // bytes
    case DType::f16: return 6;
    case DType::f32: return 7;
    case DType::bf16: return 9;
    case DType::boolean:
    case DType::i32:
    case DType::i64: break;
  }
  throw Error(ErrorCode::bad_dtype,
              text("tensor maps support fp32, fp16, bf16 and fp8_e4m3 (got ", name_of(dtype), ")"));
}

}  // namespace

TensorMapShape::TensorMapShape(DType of, const std::array<std::int64_t, 4>& extents,
                               const std::array<std::int64_t, 3>& strides, int box_rows)
    : dtype(of), rows(static_cast<std::uint32_t>(box_rows)) {
  for (std::size_t i = 0; i < 4; ++i) sizes[i] = static_cast<std::uint64_t>(std::max<std::int64_t>(1, extents[i]));
  // A dimension of one element is never stepped along; TMA still wants a plausible stride.
  for (std::size_t i = 0; i < 3; ++i)
    byte_strides[i] = sizes[i + 1] > 1 ? size_of(of) * static_cast<std::uint64_t>(strides[i]) : 16;
}

TensorMap tensor_map(const void* data, const TensorMapShape& shape) {
  // Values of cuda.h's CUtensorMapInterleave, -Swizzle, -L2promotion and -FloatOOBfill.
  constexpr int kNoInterleave = 0, kSwizzle128 = 3, kPromote256 = 3, kZeros = 0;
  const std::uint32_t box[4] = {static_cast<std::uint32_t>(128 / size_of(shape.dtype)), shape.rows, 1, 1},
                      steps[4] = {1, 1, 1, 1};
  TensorMap map{};
  check_cuda(
      driver()->encode_tiled(&map, map_type_of(shape.dtype), 4, const_cast<void*>(data), shape.sizes.data(),
                             shape.byte_strides.data(), box, steps, kNoInterleave, kSwizzle128, kPromote256, kZeros),
      "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace onepass::cuda
