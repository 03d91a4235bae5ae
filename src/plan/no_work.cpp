#include "plan/no_work.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "problem/attention/zero_gradients.hpp"
#include "problem/roles.hpp"

namespace onepass::plan {
namespace {

// All bits of a zero are 0 in every dtype.
void set_to_zero(const Tensor& t) {
  const std::int64_t elements = t.elements();
  for (std::int64_t e = 0; e < elements; ++e) {
    std::int64_t at = 0, rest = e;
    for (int d = t.rank - 1; d >= 0; rest /= t.shape[d--]) at += rest % t.shape[d] * t.stride[d];
    std::memset(static_cast<std::byte*>(t.data) + at * static_cast<std::int64_t>(size_of(t.dtype)), 0,
                size_of(t.dtype));
  }
}

}  // namespace

bool ran_without_kernel(const Problem& p, const Tensors& t) {
  if (p.device.kind != DeviceKind::cpu) return false;
  const bool zeros = has_zero_gradients(p);
  for (const Role role : p.op->uses.roles()) {
    const RoleRow& row = row_of(role);
    if (!writes(row, p.op) || !(t.*row.output).given()) continue;
    const Tensor& out = t.*row.output;
    const bool empty = std::find(out.shape.begin(), out.shape.begin() + out.rank, 0) != out.shape.begin() + out.rank;
    if (!empty && !zeros) return false;
    if (!empty) set_to_zero(out);
  }
  return true;
}

}  // namespace onepass::plan
