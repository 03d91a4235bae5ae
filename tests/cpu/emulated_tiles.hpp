// The tile registers as plain arrays: the kernels' own source runs on any CPU with AVX-512.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "algebra/numerics.hpp"

namespace onepass::cpu::amx {

// Tiles of 16 rows x 64 bytes. TDPBF16PS adds the two products of a pair one after the other, in fp32.
struct EmulatedTiles {
  struct Tile {
    alignas(64) std::uint8_t row[16][64];
  };
  static inline thread_local Tile file[8];
  static inline thread_local bool configured = false;

  static void begin() {
    configured = true;
    std::memset(file, 0xff, sizeof file);  // NaN: a tile that is not set before use shows
  }
  static void end() { configured = false; }

  template <int T>
  static void load(const void* p, std::ptrdiff_t row_bytes) {
    for (int r = 0; r < 16; ++r) std::memcpy(file[T].row[r], static_cast<const char*>(p) + r * row_bytes, 64);
  }
  template <int T>
  static void load_once(const void* p, std::ptrdiff_t row_bytes) {
    load<T>(p, row_bytes);
  }
  template <int T>
  static void store(void* p, std::ptrdiff_t row_bytes) {
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(p) + r * row_bytes, file[T].row[r], 64);
  }
  template <int T>
  static void zero() {
    std::memset(&file[T], configured ? 0 : 0xff, sizeof(Tile));
  }
  template <int C, int A, int B>
  static void dot() {
    float b[16][2][16];
    for (int k = 0; k < 16; ++k) {
      std::uint16_t pairs[32];
      std::memcpy(pairs, file[B].row[k], 64);
      for (int n = 0; n < 16; ++n) {
        for (int i = 0; i < 2; ++i) b[k][i][n] = to_float(bf16{pairs[2 * n + i]});
      }
    }
    for (int m = 0; m < 16; ++m) {
      float c[16];
      std::uint16_t a[32];
      std::memcpy(c, file[C].row[m], 64);
      std::memcpy(a, file[A].row[m], 64);
      for (int k = 0; k < 32; ++k) {
        const float x = to_float(bf16{a[k]});
        for (int n = 0; n < 16; ++n) c[n] += x * b[k / 2][k % 2][n];
      }
      std::memcpy(file[C].row[m], c, 64);
    }
  }
};

}  // namespace onepass::cpu::amx
