#include "cuda/sm90/host.hpp"

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "onepass/error.hpp"

namespace onepass::sm90 {
namespace {

std::int64_t element_bytes(const Problem& p, Role role) {
  return static_cast<std::int64_t>(size_of(shape_of(p, row_of(role)).dtype));
}
const Dims& stride_of(const Problem& p, Role role) { return p.layout.*row_of(role).layout; }
int alignment_of(const Problem& p, Role role) { return p.alignment[static_cast<std::size_t>(role)]; }

}  // namespace

std::string why_no_tma(const Problem& p, Role role) {
  const char* const name = row_of(role).name;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t bytes = stride_of(p, role)[i] * element_bytes(p, role);
    if (bytes < 0 || bytes % 16 != 0)
      return text("TMA needs strides of ", name, " that are non-negative multiples of 16 bytes (got ", bytes, ")");
  }
  if (alignment_of(p, role) < 16)
    return text("TMA needs ", name, " to start at a multiple of 16 bytes (alignment is ", alignment_of(p, role), ")");
  return {};
}

MapRows rows_of_keys(const Problem& p) {
  if (p.paged()) return {p.pages, p.page_size};
  return p.packed_k() ? MapRows{1, p.total_k} : MapRows{p.batch, p.seq_k};
}

bool stages_bias(const Problem& p) {
  if (!p.bias) return false;
  const Dims& s = p.layout.bias;
  return s[3] == 1 && why_no_tma(p, Role::bias).empty();
}

std::string why_no_vectors(const Problem& p, Role role, int bytes) {
  const int there = cuda::row_alignment(p, role);
  if (there >= bytes) return {};
  return text("rows of ", row_of(role).name, " must be ", bytes, "-byte aligned (alignment is ", there, ")");
}

std::size_t dense_bytes(const Problem& p, Role role) {
  const RoleShape shape = shape_of(p, row_of(role));
  std::int64_t count = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape.size[i] > 1 && stride_of(p, role)[i] != count) return 0;
    count *= shape.size[i];
  }
  return static_cast<std::size_t>(count * element_bytes(p, role));
}

std::string why_no_hopper(const cuda::DeviceFacts& device) {
  return text("requires compute capability 9.0 (", device.name, " has ", device.major, ".", device.minor, ")");
}

const char* operand_of(ScalarType t) {
  switch (t) {
    case ScalarType::f16: return "f16";
    case ScalarType::bf16: return "bf16";
    case ScalarType::e4m3: return "e4m3";
    case ScalarType::none:
    case ScalarType::f32: break;
  }
  throw Error(ErrorCode::bad_dtype, "wgmma supports fp16, bf16 and e4m3");
}

}  // namespace onepass::sm90
