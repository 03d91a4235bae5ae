#include "cpu/common/targets.hpp"

#include "base/text.hpp"
#include "cpu/common/place.hpp"

namespace onepass::cpu {

std::string why_elsewhere(const Problem& problem, std::int64_t target) {
  if (problem.device.kind != DeviceKind::cpu) return "it computes on the CPU only";
  if (target != 0 && !has_target(target)) return text("this CPU has no ", hwy::TargetName(target));
  return {};
}

}  // namespace onepass::cpu
