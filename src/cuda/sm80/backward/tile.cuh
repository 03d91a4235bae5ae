// A tile of keys, the steps over the rows that see it, and the distribution of its keys over warps.
#pragma once
#include "cuda/attention/backward/fragment.cuh"
#include "cuda/mma/copy.cuh"
#include "cuda/sm80/backward/config.hpp"
#include "cuda/sm80/backward/sums.cuh"
#include "cuda/sm80/share.cuh"

namespace onepass::sm80 {

constexpr BackwardLayout kLayout = layout_of(backward_features, config);
constexpr i32 kBlockM = config.block_m, kBlockN = config.block_n(), kStages = config.stages;
using KeyTiles = TileScheduler<KeysOuter<kBlockM, kBlockN>>;
static_assert(kBlockM == kBlockQ && kBlockN == kBlockK);

DEV u32 own_keys() { return own_rows(); }  // this warp's first key within the tile
constexpr bool kWide = features.dim_qk > 256 || features.dim_v > 256;
// Parts of the keys and rows that a warp has S and dS of, and a piece of its rows.
constexpr i32 kKeyParts = config.key_parts(), kScoreTiles = kRowTiles / kKeyParts;
constexpr i32 kRowParts = config.row_parts(), kPartM = kBlockM / kRowParts, kPieceM = kPartM / config.pieces;
DEV u32 own_row_part() {
  if constexpr (kKeyParts > 1) return own_part() % kRowParts;
  return kRowParts == 1 ? 0 : own_part();
}
DEV u32 own_score_keys() {
  if constexpr (kKeyParts == 1) return own_keys();
  return own_keys() + 16 * (own_part() / kRowParts);
}
// The rows of a warp's part in front of a piece of it.
DEV u32 rows_before(u32 piece) {
  if constexpr (config.pieces == 1) return 0;
  return piece * kPieceM;
}
static_assert(kPieceM % 16 == 0 && (kKeyParts == 1 || (kScoreTiles == 1 && kKeyParts * kRowParts == kShare)));
constexpr i32 kKSums = own_sums(kQkDepth), kVSums = own_sums(kOutN);
constexpr i32 kHeldWords = config.held ? kOutN / 4 * kScoreTiles : 0;  // of V, a lane

DEV void store_tile(u32 to, const KeyTile& x) {
  store_four(to, x.key, x.number, x.head, x.batch);
  store_four(to + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  store_four(to + 32, x.m_lo, x.m_hi, x.map_batch, 0);
}
DEV KeyTile load_key_tile(u32 from) {
  KeyTile x;
  i32 unused;
  load_four(from, x.key, x.number, x.head, x.batch);
  load_four(from + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  load_four(from + 32, x.m_lo, x.m_hi, x.map_batch, unused);
  return x;
}
// The tile of work at `work`, read again, so that it does not occupy registers between two uses.
DEV KeyTile tile_in_hand(u32 work, const BackwardParams& p) {
  KeyTile x;
  i32 unused;
  load_four(work, x.key, x.number, x.head, x.batch);
  load_four(work + 32, x.m_lo, x.m_hi, x.map_batch, unused);
  if constexpr (features.packed) {
    load_four(work + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  } else {  // what the parameters know
    x.seq_q = p.seq_q, x.seq_k = p.seq_k;
    x.map_batch = x.batch;
  }
  return x;
}

// Rows of this warp in a tile, as multiply_rows asks for them.
template <i32 pitch>
struct RowsOf {
  u32 tile;
  DEV u32 address() const { return LeftFragments<kScoreTiles, pitch>::address(tile); }
  DEV LeftFragments<kScoreTiles, pitch> operator()(u32 address, i32 k) const {
    LeftFragments<kScoreTiles, pitch> a;
    a.load(address, k);
    return a;
  }
};

// A block of query rows of one of the heads that read the tile's keys.
struct RowStep {
  i32 head, m;
  u32 slot;  // of the ring of blocks

  DEV bool exists(const BackwardParams& p, const KeyTile& x) const { return head < (x.head + 1) * p.heads_per_kv; }
  DEV u32 q(u32 sm) const { return sm + kLayout.q + slot * kLayout.q_bytes; }
  DEV u32 dout(u32 sm) const {
    return sm + kLayout.dout + (config.dout_stages() == 1 ? 0 : slot) * (kLayout.dout_parts * kLayout.dout_bytes);
  }
  DEV u32 statistics(u32 sm) const {
    return sm + kLayout.statistics + (kLayout.late_statistics ? 0 : slot * kLayout.statistics_bytes);
  }
  DEV i32 row() const { return m * kBlockM + static_cast<i32>(own_row_part()) * kPartM; }  // of this warp's part
  // The next one, or the next from here on, that the mask leaves some of.
  DEV RowStep next(const BackwardParams& p, const KeyTile& x) const {
    return RowStep{head, m + 1, kStages == 1 ? 0 : slot ^ 1}.or_later(p, x);
  }
  DEV RowStep or_later(const BackwardParams& p, const KeyTile& x) const {
    RowStep s = *this;
    for (;;) {
      if (s.m >= x.m_hi) s.m = x.m_lo, ++s.head;
      if (!features.bool_mask || !s.exists(p, x) || !s.masked(p, x)) return s;
      ++s.m;
    }
  }
  DEV bool masked(const BackwardParams& p, const KeyTile& x) const {
    const unsigned char* const tiles = p.mask.tiles + x.batch * p.mask.tile_stride[0] + head * p.mask.tile_stride[1] +
                                       m * kBlockM / 64 * p.mask.tile_stride[2] + x.key / 32;
    bool all = true;
    for (i32 n = 0; n < ceil_div(kBlockN, 32) && x.key + 32 * n < x.seq_k; ++n) all = all && tiles[n] == kAllMasked;
    return all;
  }
};
static_assert(kBlockM <= 64 && (kBlockN % 32 == 0 || kBlockN == 16), "a tile of the mask is 64 rows and 32 keys");
DEV RowStep first_step(const BackwardParams& p, const KeyTile& x) {
  const i32 first = x.head * p.heads_per_kv;
  if (x.m_lo >= x.m_hi) return {first + p.heads_per_kv, 0, 0};
  return RowStep{first, x.m_lo, 0}.or_later(p, x);
}

DEV KeyScores scores_of(const BackwardParams& p, const KeyTile& x, const RowStep& step, i32 r) {
  KeyScores scores{{p}};
  scores.open(rows_of(x, step.head, step.row()), x.key + static_cast<i32>(own_score_keys()) + 16 * r);
  return scores;
}
// True if a row of the step sees a key of this warp. The CTA loads everything that one of its warps sees.
DEV bool sees(const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  const i32 row = step.m * kBlockM, key = x.key + static_cast<i32>(own_keys());
  const Band32::Range keys = band_of(p, x.seq_q, x.seq_k).key_range(row, min(row + kBlockM, x.seq_q));
  return key < keys.hi && key + kWarpRows > keys.lo;
}

}  // namespace onepass::sm80
