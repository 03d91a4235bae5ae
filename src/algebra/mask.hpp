// Which keys a query sees, and what that means for tiles. Header-free: CPU, CUDA and ladder code read the same text.
#if !defined(ONEPASS_CORE_MASK_HPP)
#define ONEPASS_CORE_MASK_HPP
#include "algebra/portable.hpp"

namespace onepass {

// I: 64 bits on the host; int inside kernels, where registers are dear and the host has checked the sizes.
template <class I>
struct BasicRange {
  I lo = 0, hi = 0;  // [lo, hi); empty if lo >= hi
};

enum class Tile { skip, partial, full };

// One sequence pair's band: query i, aligned at i + shift, sees keys [i + shift - left, i + shift + right] within
// [0, seq_k). left or right < 0 is unbounded. (Band in problem.hpp says where the numbers come from.)
template <class I>
struct BasicBandMask {
  using Range = BasicRange<I>;
  I seq_q = 0, seq_k = 0;
  I shift = 0;  // seq_k - seq_q for bottom_right, 0 for top_left, or the band's offset
  I left = -1, right = -1;

  ONEPASS_HD Range keys_of(I row) const {
    const I at = row + shift;
    const I lo = left < 0 ? 0 : at - left, hi = right < 0 ? seq_k : at + right + 1;
    return {lo < 0 ? 0 : lo, hi > seq_k ? seq_k : hi};
  }
  // The same keys for the same rows, in numbers of at most 2 * most, which 32 bits can add up; most >= seq_q, seq_k.
  // Beyond the sequences it does not matter by how far an end of the band misses them.
  BasicBandMask within(I most) const {
    const auto cut = [&](I x) { return x < -most ? -most : x > most ? most : x; };
    const I at = cut(shift);
    return {seq_q, seq_k, at, left < 0 ? -1 : at - cut(shift - left), right < 0 ? -1 : cut(shift + right) - at};
  }
  ONEPASS_HD bool visible(I row, I key) const {
    const Range r = keys_of(row);
    return key >= r.lo && key < r.hi;
  }
  // Keys that at least one of the rows [row_lo, row_hi) sees lie in this range: the tiles worth loading.
  ONEPASS_HD Range key_range(I row_lo, I row_hi) const {
    if (row_lo >= row_hi) return {0, 0};
    const Range first = keys_of(row_lo), last = keys_of(row_hi - 1);
    const Range all = {first.lo, last.hi};
    return all.lo < all.hi ? all : Range{0, 0};
  }
  // full: every row sees every key of the tile, so nothing is to be masked. skip: no row sees any.
  ONEPASS_HD Tile classify(I row_lo, I row_hi, I key_lo, I key_hi) const {
    if (row_lo >= row_hi || key_lo >= key_hi) return Tile::skip;
    const Range first = keys_of(row_lo), last = keys_of(row_hi - 1);
    if (key_hi <= first.lo || key_lo >= last.hi || first.lo >= last.hi) return Tile::skip;
    return key_lo >= last.lo && key_hi <= first.hi ? Tile::full : skip_in_between(row_lo, row_hi, key_lo, key_hi);
  }

 private:
  // Both ends overlap the tile's surroundings, yet with seq bounds no row in between may see it (all ranges empty).
  ONEPASS_HD Tile skip_in_between(I row_lo, I row_hi, I key_lo, I key_hi) const {
    // Rows whose range meets [key_lo, key_hi): lo(row) < key_hi and hi(row) > key_lo and lo(row) < hi(row).
    I from = row_lo, to = row_hi;
    if (right >= 0 && key_lo - right - shift > from) from = key_lo - right - shift;
    if (left >= 0 && key_hi + left - shift < to) to = key_hi + left - shift;
    return from < to && key_lo < seq_k && key_hi > 0 ? Tile::partial : Tile::skip;
  }
};

using Index = long long;
using Range = BasicRange<Index>;
using BandMask = BasicBandMask<Index>;

}  // namespace onepass
#endif
