// The products of a panel and a block of keys on vectors, for a piece of what the panel sees.
#if defined(ONEPASS_CPU_BACKWARD_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_PRODUCTS_INL_H
#undef ONEPASS_CPU_BACKWARD_PRODUCTS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_PRODUCTS_INL_H
#endif

#include <algorithm>

#include "cpu/backward/panel-inl.h"
#include "cpu/flash/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// to[key][lane] = sum_d keys[key][d] rows[d][lane], or that is added.
template <End end = End::store>
inline void key_products(const Segment& s, const Block& block, const float* rows, const float* keys,
                         std::ptrdiff_t key_stride, std::int64_t dim, float* to) {
  HWY_ALIGN float tile_max[kPanel] = {};
  constexpr const auto& kTiles = end == End::store ? kScoresTiles : kAddTiles;
  for (std::int64_t k = s.lo; k < s.hi; k += kTileKeys) {
    const std::int64_t n = std::min<std::int64_t>(kTileKeys, s.hi - k), at = k - block.first;
    kTiles[s.to - s.from - 1][n - 1](rows + s.from * kLanes, keys + at * key_stride, key_stride, dim,
                                     to + at * kPanel + s.from * kLanes, tile_max);
  }
}
// sums[key - key_lo][column] += sum over the piece's rows of weights[key][row] * rows[row][column]; column panels of
// the sums lie `stride` apart.
inline void add_row_products(const BackwardPanel& panel, const Segment& s, const Block& block, std::int64_t key_lo,
                             const float* weights, const float* rows, std::int64_t dim, std::int64_t stride,
                             float* sums) {
  const std::int64_t row = s.from * kLanes, depth = std::min<std::int64_t>(s.to * kLanes, panel.rows) - row;
  for (std::int64_t c = 0; c < dim; c += kPanel, rows += kPanel * kPanel, sums += stride) {
    const int vecs = column_vecs(dim, c);
    for (std::int64_t k = s.lo; k < s.hi; k += kTileKeys) {
      const std::int64_t n = std::min<std::int64_t>(kTileKeys, s.hi - k);
      kAddTiles[vecs - 1][n - 1](rows + row * kPanel, weights + (k - block.first) * kPanel + row, kPanel, depth,
                                 sums + (k - key_lo) * kPanel, nullptr);
    }
  }
}
// dq[column][lane] += sum over the piece's keys of keys[key][column] ds[key][lane]; keys in column tiles.
inline void add_key_products(const Segment& s, const Block& block, const float* ds, const float* key_tiles,
                             std::int64_t dim, float* dq) {
  HWY_ALIGN float one[kPanel];
  std::fill_n(one, kPanel, 1.0f);
  const std::int64_t at = s.lo - block.first;
  for (std::int64_t column = 0; column < dim; column += kTileDims) {
    const int width = static_cast<int>(std::min<std::int64_t>(kTileDims, dim - column));
    kAccumulateTiles[s.to - s.from - 1][width - 1](ds + at * kPanel + s.from * kLanes,
                                                   key_tiles + column * block.keys + at * width, width, s.hi - s.lo,
                                                   dq + column * kPanel + s.from * kLanes, one);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
