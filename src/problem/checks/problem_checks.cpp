#include "problem/checks/problem_checks.hpp"

#include <bit>
#include <cmath>
#include <cstdlib>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/roles.hpp"

namespace onepass {

void validate_device(const Problem& p) {
  want(p.device.kind <= DeviceKind::cuda && p.device.index >= 0, ErrorCode::bad_device,
       "the device must have a kind of DeviceKind and a number of 0 or more (got ", static_cast<int>(p.device.kind),
       " and ", p.device.index, ")");
}
void complete_rows(Problem& p) {
  want(p.heads_kv == p.heads_q, ErrorCode::bad_text, p.op->word,
       " does not support two numbers of heads (docs/reference/problem.md)");
  p.heads_kv = 1;
}

void validate_data(const char* name, DType t) {
  want(is_data(t), ErrorCode::bad_dtype, name, " must be fp32, fp16 or bf16 (got ", name_of(t), ")");
}

void validate_key_dtype(const Problem& p, const char* name) {
  const DType t = p.key_dtype();
  if (!is_key_dtype(t, p.dtype))
    throw Error(ErrorCode::bad_dtype,
                text("k and v must be ", accepted_keys(p.dtype, name), " (got ", name_of(t), ")"));
}

// In fp32, times log2(e), it must be finite.
void validate_scale(const Problem& p) {
  constexpr double kMaxScale = 2.3e38;
  want(!p.scale || std::abs(*p.scale) <= kMaxScale, ErrorCode::bad_value, "scale must be -2.3e38 to 2.3e38 (got ",
       p.scale.value_or(0), ")");
}

void validate_alignments(const Problem& p) {
  for (const RoleRow& row : kRoleTable) {
    const int alignment = p.alignment[static_cast<std::size_t>(row.role)];
    want(alignment >= 1 && alignment <= 16 && std::has_single_bit(static_cast<unsigned>(alignment)),
         ErrorCode::bad_value, "the alignment of ", row.name, " must be 1, 2, 4, 8 or 16 bytes (got ", alignment, ")");
  }
}

// Offsets are 64-bit: a tensor of more than 2^62 elements cannot be addressed.
void validate_size(const char* name, std::initializer_list<std::int64_t> sizes) {
  std::int64_t n = 1;
  bool fits = true;
  for (std::int64_t size : sizes)
    fits = fits && !__builtin_mul_overflow(n, size > 0 ? size : 1, &n) && n <= (std::int64_t{1} << 62);
  want(fits, ErrorCode::bad_shape, name, " must have at most 2^62 elements");
}

// So that any offset, in bytes too, fits 64 bits.
void validate_strides(const Problem& p) {
  constexpr std::int64_t kMax = std::int64_t{1} << 58;
  for (const RoleRow& row : kRoleTable) {
    const RoleShape shape = shape_of(p, row);
    if (shape.rank == 0) continue;
    // Its sizes in the order of its strides in Layout.
    ConstTensor sizes;
    sizes.rank = shape.rank;
    sizes.shape = sizes.stride = shape.size;
    const Dims size = layout_of(row, forms_of(p).of(row), sizes), &stride = p.layout.*row.layout;
    for (int i = 0; i < kMaxRank - (row.unit_last ? 1 : 0); ++i) {
      if (size[i] <= 1) continue;
      want(stride[i] > -kMax && stride[i] < kMax && std::abs(stride[i]) <= kMax / (size[i] - 1), ErrorCode::bad_stride,
           "a dimension of ", row.name, " must span at most 2^58 elements (got size ", size[i], " and stride ",
           stride[i], ")");
    }
  }
}

}  // namespace onepass
