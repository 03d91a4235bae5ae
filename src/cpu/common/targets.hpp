// Which instruction sets the CPU kernels are compiled for. Include it before any Highway header, first of all in files
// that use foreach_target.h.
//
// AVX3 (AVX-512 F/VL/DQ/BW), AVX2 and a 128-bit baseline: SSE4 on x86, NEON on Arm. SSSE3 and AVX3_DL add nothing here,
// and Highway's own x86-64 baseline is scalar code.
#pragma once
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_WANT_SSE4 1

#include <cstdint>

#include <hwy/detect_targets.h>
#include <hwy/targets.h>

namespace onepass::cpu {

// Returns true if this CPU has a target. Asked once: CPUID traps in a virtual machine (24 us measured, more than a
// small decode call takes). hwy::SupportedTargets() answers the same, but is all that programs would need Highway's
// library for; the rest of Highway is headers.
bool has_target(std::int64_t target);

}  // namespace onepass::cpu

// ONEPASS_FOR_EACH_ISA(X) expands X(namespace, HWY_TARGET bit, "name") for every compiled target, best first. Valid in
// the HWY_ONCE part of a file, where the kernels of all targets have been seen.
#if HWY_TARGETS & HWY_AVX3
#define ONEPASS_IF_AVX3(X) X(N_AVX3, HWY_AVX3, "avx512")
#else
#define ONEPASS_IF_AVX3(X)
#endif
#if HWY_TARGETS & HWY_AVX2
#define ONEPASS_IF_AVX2(X) X(N_AVX2, HWY_AVX2, "avx2")
#else
#define ONEPASS_IF_AVX2(X)
#endif
#if HWY_STATIC_TARGET == HWY_SSE4
#define ONEPASS_IF_128(X) X(N_SSE4, HWY_SSE4, "baseline")
#elif HWY_STATIC_TARGET == HWY_NEON
#define ONEPASS_IF_128(X) X(N_NEON, HWY_NEON, "baseline")
#else
#define ONEPASS_IF_128(X)
#endif
#define ONEPASS_FOR_EACH_ISA(X) ONEPASS_IF_AVX3(X) ONEPASS_IF_AVX2(X) ONEPASS_IF_128(X)
