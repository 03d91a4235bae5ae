#include "cuda/sm80/host.hpp"

#include "core/arguments.hpp"
#include "core/roles.hpp"
#include "core/text.hpp"
#include "cuda/attention/host.hpp"

namespace onepass::sm80 {

Extras extras_of(const AttentionFeatures& f, int copy_bytes) {
  AttentionFeatures dense = f;
  dense.packed = dense.seqused = false;
  if (!dense.plain() || copy_bytes < 16) return kAll;
  return f.own_lengths() || (f.bounded_left && f.bounded_right) ? kBands : kPlain;
}

int alignment_of(const Problem& p, Role role) {
  const RoleRow& row = row_of(role);
  const Dims& stride = p.layout.*row.layout;
  const auto size = static_cast<std::int64_t>(size_of(shape_of(p, row).dtype));
  std::int64_t bits = 16 | p.alignment[static_cast<std::size_t>(role)];
  for (int i = 0; i < 3; ++i) bits |= stride[i] * size;
  return static_cast<int>(bits & -bits);
}

std::string why_too_old(const cuda::DeviceFacts& device) {
  return text("it is written for compute capability 8.0 and later; ", device.name, " has ", device.major, ".",
              device.minor);
}

std::string products_of(ScalarType input) {
  return text("#include \"cuda/sm80/products_", input == ScalarType::f32 ? "f32" : "16", ".cuh\"\n");
}

std::string why_too_many(const Problem& p) {
  constexpr std::int64_t kMax = cuda::kMaxPosition;
  for (const auto& [name, count] :
       {std::pair{"seq_q", p.seq_q}, std::pair{"seq_k", p.seq_k}, std::pair{"the tokens of q", p.total_q},
        std::pair{"the tokens of k", p.total_k}, std::pair{"the batch", p.batch}, std::pair{"pages", p.pages},
        std::pair{"the heads of q", p.heads_q}}) {
    if (count > kMax) return text("it counts in 32 bits, up to ", kMax, "; ", name, " are ", count);
  }
  return why_no_alibi(p, kMax);
}

}  // namespace onepass::sm80
