// The tile file: eight tiles of 16 rows of 64 bytes. The kernels are templated on this small interface, so that tests
// can run them on a tile file made of plain arrays where the CPU has none (tests/cpu/amx_emulated.hpp).
//
//   C, accumulators, fp32 16 x 16      0 1
//                                      2 3
//   A, bf16, 16 rows x 32 deep         4
//                                      5
//   B, bf16 pairs, 32 deep x 16 cols   6 7
#pragma once
#include <cstddef>
#include <cstdint>

namespace onepass::cpu::amx {

// Inline assembly, since the compilers' intrinsics want literal tile numbers. Each names the memory it touches only as
// "memory": the compiler may not move loads and stores of data across, which keeps tiles and vectors in step.
struct HardwareTiles {
  static void begin() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  static void end() { asm volatile("tilerelease"); }  // else the kernel saves 8 KB at every context switch

  template <int T>
  static inline __attribute__((always_inline)) void load(const void* p, std::ptrdiff_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(row_bytes), "i"(T) : "memory");
  }
  // Keys and values are read once per unit: the hint keeps them from pushing scores and output out of L1.
  template <int T>
  static inline __attribute__((always_inline)) void load_once(const void* p, std::ptrdiff_t row_bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  static inline __attribute__((always_inline)) void store(void* p, std::ptrdiff_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  static inline __attribute__((always_inline)) void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  // C += A . B
  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace onepass::cpu::amx
