// FlashDecoding++'s other two ideas, as pure functions: the flat matrix product of decoding (M = batch is small) and
// the choice of the kernel that computes it.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "core/mask.hpp"

namespace onepass::ladder {

// C [M, N] = A [M, K] B [K, N] with M padded to 8, the least a matrix unit takes (padding to 64 wastes 7/8 at M = 8).
struct FlatGemm {
  Index m = 0, n = 0, k = 0;
  Index tile_n = 64;  // B_N: columns per thread block

  static constexpr Index padded(Index m) { return (m + 7) / 8 * 8; }
  double useful() const { return m > 0 ? static_cast<double>(m) / static_cast<double>(padded(m)) : 0.0; }
  // Operations per element moved, 2MK / (K + MK / B_N + M): a wide tile reads A less often ...
  double intensity() const {
    const double dm = static_cast<double>(m), dk = static_cast<double>(k), dn = static_cast<double>(tile_n);
    return 2 * dm * dk / (dk + dm * dk / dn + dm);
  }
  // ... but leaves fewer thread blocks, N / B_N.
  Index parallelism() const { return (n + tile_n - 1) / tile_n; }
  // The widest tile of {32, 64, 128, 256} that still gives every processor a block; 32 if none does.
  static Index choose_tile_n(Index n, Index processors) {
    for (const Index tile : {Index{256}, Index{128}, Index{64}}) {
      if (n / tile >= processors) return tile;
    }
    return 32;
  }
};

enum class Dataflow { gemv, flat_gemm, gemm };

// For one weight matrix [N, K] on one machine: flat GEMM from m1 rows on, GEMM from m2 on.
struct Crossover {
  Index m1 = std::numeric_limits<Index>::max(), m2 = std::numeric_limits<Index>::max();
};
inline Dataflow choose(Index m, const Crossover& at) {
  if (m >= at.m2) return Dataflow::gemm;
  return m >= at.m1 ? Dataflow::flat_gemm : Dataflow::gemv;
}

// Seconds measured at rising M. m1 is the first M at which flat GEMM beats GEMV, m2 the first from m1 on at which GEMM
// beats flat GEMM.
struct Timing {
  Index m = 0;
  double gemv = 0, flat_gemm = 0, gemm = 0;
};
inline Crossover crossover(const std::vector<Timing>& timings) {
  Crossover at;
  for (const Timing& t : timings) {
    if (t.flat_gemm < t.gemv) at.m1 = std::min(at.m1, t.m);
    if (t.m >= at.m1 && t.gemm < t.flat_gemm) at.m2 = std::min(at.m2, t.m);
  }
  return at;
}

}  // namespace onepass::ladder
