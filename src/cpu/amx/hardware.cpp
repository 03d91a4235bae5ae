// The kernels on the CPU's own tiles, and whether it has them.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/make_once.hpp"
#include "cpu/amx/amx.hpp"

#include "cpu/amx/kernels/tiles.hpp"

#include "cpu/amx/kernels/kernels-inl.h"

namespace onepass::cpu::amx {
namespace {

std::uint64_t enabled_state() {  // XCR0: which registers the kernel saves
  std::uint32_t lo, hi;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return std::uint64_t{hi} << 32 | lo;
}

std::string look_for_hardware() {
  std::uint32_t a, b, c, d;
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c >> 27 & 1)) return "this CPU has no AMX";
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return "this CPU has no AMX";
  const bool avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
  const bool amx = (d >> 24 & 1) && (d >> 22 & 1);                                       // tile, bf16
  if (!avx512 || !amx) return "this CPU has no AMX";
  constexpr std::uint64_t kVectors = 0xe6, kTiles = 3ull << 17;
  if ((enabled_state() & (kVectors | kTiles)) != (kVectors | kTiles))
    return "the operating system does not save AMX tiles";
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return "the operating system refused AMX tiles to this process";
  return {};
}

}  // namespace

std::string missing_hardware() {
  static constinit MakeOnce<const std::string> sentence;
  return sentence.get(look_for_hardware);
}

Kernels hardware_kernels() { return kernels<HardwareTiles>(); }

}  // namespace onepass::cpu::amx
