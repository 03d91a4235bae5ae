#include "cpu/common/targets.hpp"

#include "base/make_once.hpp"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace onepass::cpu {
namespace {

#if HWY_ARCH_X86
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

// Zeros if this CPU does not have the leaf.
Registers cpuid(unsigned leaf) {
  Registers got;
  __get_cpuid_count(leaf, 0, &got.a, &got.b, &got.c, &got.d);
  return got;
}
#endif

// The instructions that Highway's code for a target may use. __builtin_cpu_supports is a stub in zig's runtime.
std::int64_t present_targets() {
#if HWY_ARCH_X86
  constexpr unsigned kAvx = 0x6, kAvx512 = 0xe6;
  const Registers basic = cpuid(1), later = cpuid(7), extended = cpuid(0x80000001);
  unsigned saved = 0, high = 0;  // the registers that the system saves
  if ((basic.c & bit_OSXSAVE) != 0) asm("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  const auto all = [](unsigned has, unsigned wanted) { return (has & wanted) == wanted; };
  const bool sse4 = all(basic.c, bit_SSE4_2 | bit_AES | bit_PCLMUL);
  const bool avx2 = sse4 && all(saved, kAvx) && all(basic.c, bit_FMA | bit_F16C) && all(extended.c, bit_LZCNT) &&
                    all(later.b, bit_AVX2 | bit_BMI | bit_BMI2);
  const bool avx3 = avx2 && all(saved, kAvx512) &&
                    all(later.b, bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW | bit_AVX512CD);
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
