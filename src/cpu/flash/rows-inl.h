// Rows in memory <-> panels [column][lane], by 4 x 4 blocks: a row's columns 4c..4c+3 are moved as 128 bits to the
// place where an in-register transpose of 4 x 4 blocks, the same for every vector width, finds them.
#if defined(ONEPASS_CPU_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_ROWS_INL_H
#undef ONEPASS_CPU_ROWS_INL_H
#else
#define ONEPASS_CPU_ROWS_INL_H
#endif

#include "cpu/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

using D4 = hn::FixedTag<float, 4>;

// Where columns 4c..4c+3 of lane r wait for, or stand after, transpose_blocks.
ONEPASS_HD float* block_of(float* panel, int width, int r, std::int64_t c) {
  return panel + (4 * c + r % 4) * width + r / 4 * 4;
}

// panel[4c + i][4b + j] <-> panel[4c + j][4b + i], after multiplying position w of every column by factor[w].
inline void transpose_blocks(float* panel, int width, int vecs, std::int64_t columns, const float* factor = nullptr) {
  const hn::Repartition<std::uint64_t, DF> d64;
  for (std::int64_t c = 0; c < columns; c += 4) {
    for (int v = 0; v < vecs; ++v) {
      float* x = panel + c * width + v * kLanes;
      const VF f = factor ? hn::Load(DF(), factor + v * kLanes) : splat(1.0f);
      const VF x0 = hn::Load(DF(), x) * f, x1 = hn::Load(DF(), x + width) * f, x2 = hn::Load(DF(), x + 2 * width) * f,
               x3 = hn::Load(DF(), x + 3 * width) * f;
      const auto a = hn::BitCast(d64, hn::InterleaveLower(DF(), x0, x1)),
                 b = hn::BitCast(d64, hn::InterleaveLower(DF(), x2, x3));
      const auto e = hn::BitCast(d64, hn::InterleaveUpper(DF(), x0, x1)),
                 g = hn::BitCast(d64, hn::InterleaveUpper(DF(), x2, x3));
      hn::Store(hn::BitCast(DF(), hn::InterleaveLower(d64, a, b)), DF(), x);
      hn::Store(hn::BitCast(DF(), hn::InterleaveUpper(d64, a, b)), DF(), x + width);
      hn::Store(hn::BitCast(DF(), hn::InterleaveLower(d64, e, g)), DF(), x + 2 * width);
      hn::Store(hn::BitCast(DF(), hn::InterleaveUpper(d64, e, g)), DF(), x + 3 * width);
    }
  }
}

// One row of `columns` elements `stride` apart to its places; up to 3 columns of zeros round it up.
template <class T>
inline void place_row(const T* row, std::int64_t stride, std::int64_t columns, float* panel, int width, int lane) {
  for (std::int64_t c = 0; 4 * c < columns; ++c) {
    const std::int64_t left = columns - 4 * c;
    hn::Vec<D4> x;
    if (stride == 1) {
      x = left >= 4 ? load(D4(), row + 4 * c) : load_n(D4(), row + 4 * c, left);
    } else {
      T part[4] = {};
      for (std::int64_t i = 0; i < left && i < 4; ++i) part[i] = row[(4 * c + i) * stride];
      x = load(D4(), part);
    }
    hn::Store(x, D4(), block_of(panel, width, lane, c));
  }
}

// The reverse: a row from its places to memory.
template <class T>
inline void pick_row(const float* panel, int width, int lane, std::int64_t columns, T* row) {
  for (std::int64_t c = 0; 4 * c < columns; ++c) {
    const auto x = hn::Load(D4(), block_of(const_cast<float*>(panel), width, lane, c));
    if (columns - 4 * c >= 4)
      store(x, D4(), row + 4 * c);
    else
      store_n(x, D4(), row + 4 * c, columns - 4 * c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
