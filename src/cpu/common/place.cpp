#include "cpu/common/targets.hpp"

#include <algorithm>
#include <limits>

#include "base/text.hpp"
#include "cpu/common/place.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu {
namespace {

// AVX3 is a word of Highway's alone.
const char* name_of(std::int64_t target) { return target == HWY_AVX3 ? "AVX-512" : hwy::TargetName(target); }

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_NEON})
    if (has_target(target)) names.emplace_back(name_of(target));
  return names;
}

std::string why_elsewhere(const Problem& problem, std::int64_t target) {
  if (problem.device.kind != DeviceKind::cpu) return "it computes on the CPU only";
  if (target != 0 && !has_target(target)) return text("this CPU has no ", name_of(target));
  return {};
}

std::string why_no_positions(const Problem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const std::int64_t longest = std::max(p.seq_q, p.seq_k);
  if (longest > kMax) return text("a sequence must have at most ", kMax, " tokens (got ", longest, ")");
  return why_no_alibi(p, kMax - longest);
}

}  // namespace onepass::cpu
