#include "cpu/common/targets.hpp"

#include "base/make_once.hpp"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace onepass::cpu {
namespace {

// The instructions that Highway's code for a target may use.
std::int64_t present_targets() {
#if HWY_ARCH_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
  const bool lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c >> 5 & 1) != 0;
  __builtin_cpu_init();
  const auto all = [](auto... has) { return (... && (has != 0)); };
  const bool sse4 =
      all(__builtin_cpu_supports("sse4.2"), __builtin_cpu_supports("aes"), __builtin_cpu_supports("pclmul"));
  const bool avx2 = sse4 && f16c && lzcnt &&
                    all(__builtin_cpu_supports("avx2"), __builtin_cpu_supports("fma"), __builtin_cpu_supports("bmi"),
                        __builtin_cpu_supports("bmi2"));
  const bool avx3 = avx2 && all(__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512vl"),
                                __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512bw"),
                                __builtin_cpu_supports("avx512cd"));
  return (sse4 ? HWY_SSE4 : 0) | (avx2 ? HWY_AVX2 : 0) | (avx3 ? HWY_AVX3 : 0);
#else
  return HWY_STATIC_TARGET;
#endif
}

}  // namespace

bool has_target(std::int64_t target) {
  static constinit MakeOnce<const std::int64_t> present;
  return (present.get(present_targets) & target) != 0;
}

}  // namespace onepass::cpu
