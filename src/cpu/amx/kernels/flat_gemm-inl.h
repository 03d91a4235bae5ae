// The products of a flat GEMM on tiles: y^T = w x^T. Rows of w are the A operand where they lie, 32 of them by 32 of k;
// rows of x, packed to pairs once, are B. Include the tile file first.
#include "cpu/amx/flat_gemm.hpp"
#include "cpu/amx/kernels/square.hpp"

#include "cpu/amx/kernels/target-inl.h"

#include "cpu/amx/kernels/vector-inl.h"

namespace onepass::cpu::amx {
namespace {

void pack_x(const GemmPackTask& t) {
  const __mmask32 there = first_bits(t.numbers);
  for (int half = 0; half < 2; ++half) {
    __m512i pairs[16];
    for (int i = 0; i < 16; ++i) {
      const std::uint16_t* const row = t.row[half * 16 + i];
      pairs[i] = row ? _mm512_maskz_loadu_epi16(there, row) : _mm512_setzero_si512();
    }
    transpose(pairs);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(t.to + (half * 16 + i) * 16, pairs[i]);
  }
}

// The edge of w goes through scratch, with zeros around it: memory behind a row is not read, and would
// not vanish beside the zeros of x if it were a NaN.
AMX_INLINE void copy_edge(const GemmTask& t, std::int64_t k) {
  const __mmask32 there = first_bits(t.k - k);
  for (int row = 0; row < kGemmRows; ++row) {
    const __m512i numbers =
        row < t.rows ? _mm512_maskz_loadu_epi16(there, t.w + row * t.stride + k) : _mm512_setzero_si512();
    _mm512_storeu_si512(t.edge + row * kGemmDepth, numbers);
  }
}

template <class Tiles>
void multiply_by_tiles(const GemmTask& t) {
  constexpr std::int64_t kAhead = 256;  // numbers of each row: 8 cache lines of 32 rows are on their way
  const SquareLayout there{0, 16 * t.stride, 2 * t.stride}, copied{0, 16 * kGemmDepth, 2 * kGemmDepth};
  Tiles::begin();
  Square<Tiles>::zero();
  for (std::int64_t k = 0; k < t.k; k += kGemmDepth) {
    const std::uint32_t* const x = t.x + k / kGemmDepth * kGemmChunk;
    if (t.rows == kGemmRows && k + kGemmDepth <= t.k) {
      for (int row = 0; row < kGemmRows; ++row)
        _mm_prefetch(reinterpret_cast<const char*>(t.w + row * t.stride + k + kAhead), _MM_HINT_T0);
      Square<Tiles>::add(t.w + k, there, x, kGemmChunk / 2);
    } else {
      copy_edge(t, k);
      Square<Tiles>::add(t.edge, copied, x, kGemmChunk / 2);
    }
  }
  Square<Tiles>::store(t.sums, {16, 16 * kGemmRows, 4 * kGemmRows});
  Tiles::end();
}

template <class Tiles>
GemmKernels gemm_kernels() {
  return {pack_x, multiply_by_tiles<Tiles>};
}

}  // namespace
}  // namespace onepass::cpu::amx

#include "cpu/amx/kernels/target_end-inl.h"
