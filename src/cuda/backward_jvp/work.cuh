// The work of a CTA in both passes, whatever multiplies: its tile, and the streamed blocks that it goes through.
#pragma once
#include "cuda/backward_jvp/config.hpp"
#include "cuda/backward_plain/pair.cuh"

namespace onepass::cuda::backward_jvp {

using backward_plain::is_empty, backward_plain::kBlock, backward_plain::numbers_of, backward_plain::RowNumbers;

// kKeys: a CTA holds keys, and the rows of queries that see them stream past; else it is the other way round. Whether
// held and streamed tokens have a tensor of kRightMoved.
template <bool kKeys>
constexpr bool kMovesHeld = kKeys || plain_features.tdout;
template <bool kKeys>
constexpr bool kMovesStreamed = !kKeys || plain_features.tdout;

// The work of CTA number `block`: heads come in groups whose streamed tensors L2 holds, and within a group tile by
// tile, so that the long tiles of all of its heads come first.
struct Work {
  i32 head, tile;
  static DEV Work of(i32 block, i32 heads, i32 tiles, i32 group) {
    const i32 first = block / (group * tiles) * group, own = min(group, heads - first), rest = block - first * tiles;
    return {first + rest % own, rest / own};
  }
};

// The first block of `streamed` tokens from `first` on that the packed mask does not empty for all of `held` tokens.
// x.row is the first query row where these are held; key: the first key where those are.
template <bool kKeys, i32 held, i32 streamed>
DEV i32 next_block(const PlainBackwardParams& p, const WorkTile& x, i32 key, i32 first, i32 hi) {
  constexpr i32 kStates = ceil_div(held, kKeys ? kBlock : 64);
  const auto skipped = [&] {
    bool empty = true;
    for (i32 i = 0; i < kStates; ++i) {
      WorkTile y = x;
      y.row = kKeys ? first : x.row + 64 * i;
      const i32 at = kKeys ? (key / kBlock + i) * kBlock : first / kBlock * kBlock;
      if (y.row < x.seq_q && at < x.seq_k) empty = empty && is_empty(p, y, at);
    }
    return empty;
  };
  if constexpr (features.bool_mask)
    while (first < hi && skipped()) first += streamed;
  return first;
}

// Rows that see one of `count` keys from `own` on, and keys that one of `count` rows from `own` on sees.
DEV Band32::Range seen_by_keys(const Band32& band, i32 own, i32 count) {
  return own < band.seq_k ? rows_that_see(band, own, min(own + count, band.seq_k)) : Band32::Range{0, 0};
}
DEV Band32::Range seen_by_rows(const Band32& band, i32 own, i32 count) {
  return band.key_range(own, min(own + count, band.seq_q));
}

}  // namespace onepass::cuda::backward_jvp
