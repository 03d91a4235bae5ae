#include "onepass/unified_max.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "problem/checks/tensor_checks.hpp"

namespace onepass::inline v0 {

void ScoreRange::observe(const ConstTensor& lse) {
  check_tensor("lse", lse);
  want(lse.dtype == DType::f32, ErrorCode::bad_dtype, "lse must be fp32 (got ", name_of(lse.dtype), ")");
  want(lse.device.kind == DeviceKind::cpu, ErrorCode::bad_device, "lse must be on the CPU (got ", to_string(lse.device),
       ")");
  Dims n{1, 1, 1, 1};
  std::copy_n(lse.shape.begin(), lse.rank, n.begin());
  const auto* const x = static_cast<const float*>(lse.data);
  for (std::int64_t i = 0; i < lse.elements(); ++i) {
    std::int64_t at = 0, rest = i;
    for (int d = lse.rank - 1; d >= 0; --d) at += rest % n[d] * lse.stride[d], rest /= n[d];
    if (!std::isfinite(x[at])) continue;
    low = std::min(low, x[at]);
    high = std::max(high, x[at]);
  }
}

float ScoreRange::unified_max() const { return low <= high ? low + (high - low) / 2 : 0.0f; }

}  // namespace onepass::inline v0
