// FlashDecoding++'s flat matrix product of decoding (M = batch is small), as pure functions. The choice of the kernel
// that computes it is the library's own, problem/gemm/dataflow.hpp.
#pragma once
#include "algebra/ceil_div.hpp"
#include "algebra/mask.hpp"
#include "problem/gemm/dataflow.hpp"

namespace onepass::ladder {

// C [M, N] = A [M, K] B [K, N] with M padded to 8, the least a matrix unit takes (padding to 64 wastes 7/8 at M = 8).
struct FlatGemm {
  Index m = 0, n = 0, k = 0;
  Index tile_n = 64;  // B_N: columns per thread block

  static constexpr Index padded(Index m) { return round_up(m, 8); }
  double useful() const { return m > 0 ? static_cast<double>(m) / static_cast<double>(padded(m)) : 0.0; }
  // Operations per element moved, 2MK / (K + MK / B_N + M): a wide tile reads A less often ...
  double intensity() const {
    const double dm = static_cast<double>(m), dk = static_cast<double>(k), dn = static_cast<double>(tile_n);
    return 2 * dm * dk / (dk + dm * dk / dn + dm);
  }
  // ... but leaves fewer thread blocks, N / B_N.
  Index parallelism() const { return ceil_div(n, tile_n); }
  // The widest tile of {32, 64, 128, 256} that still gives every processor a block; 32 if none does.
  static Index choose_tile_n(Index n, Index processors) {
    for (const Index tile : {Index{256}, Index{128}, Index{64}}) {
      if (n / tile >= processors) return tile;
    }
    return 32;
  }
};

}  // namespace onepass::ladder
