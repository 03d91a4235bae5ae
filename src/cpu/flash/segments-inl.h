// Which keys which lanes of a panel see. Lanes are in token order and a band moves with the token, so both ends of
// their ranges never fall from lane to lane: the vectors that see a key are neighbours.
#if defined(ONEPASS_CPU_SEGMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SEGMENTS_INL_H
#undef ONEPASS_CPU_SEGMENTS_INL_H
#else
#define ONEPASS_CPU_SEGMENTS_INL_H
#endif

#include <algorithm>

#include "cpu/flash/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Keys [lo, hi) of a block, worked on by vectors [from, to) of a panel: each is visible to at least one lane of each.
struct Segment {
  std::int64_t lo, hi;
  int from, to;
};
struct Segments {
  Segment piece[2 * kVecs];
  int count = 0;
  std::int64_t lo[kVecs], hi[kVecs];  // per vector: all its pieces together; empty if lo >= hi
  bool whole = false;                 // one piece, and every key is visible to every lane
};

// The lanes' ranges within [key_lo, key_hi).
inline void lane_ranges(const Problem& p, const flash::Task& task, std::int64_t panel_row, std::int64_t key_lo,
                        std::int64_t key_hi, std::int32_t* lo, std::int32_t* hi) {
  const BandMask band = band_mask(p, task.seq.seq_q, task.seq.seq_k);
  for (int lane = 0; lane < kPanel; ++lane) {
    const Range visible = band.keys_of(lane_name(p, task, panel_row, lane).token);
    lo[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.lo, key_lo, key_hi));
    hi[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.hi, key_lo, key_hi));
  }
}

// Cuts keys [first, last) for a panel of `vecs` vectors. Causal: the last vectors see the most; window: the first fall
// out.
inline Segments cut(const std::int32_t* lo, const std::int32_t* hi, int vecs, std::int64_t first, std::int64_t last) {
  Segments s;
  for (int v = 0; v < vecs; ++v) {
    s.lo[v] = std::max<std::int64_t>(first, lo[v * kLanes]);
    s.hi[v] = std::min<std::int64_t>(last, hi[v * kLanes + kLanes - 1]);
  }
  for (std::int64_t k = first; k < last;) {
    int from = 0;
    while (from < vecs && s.hi[from] <= k) ++from;
    int to = from;
    while (to < vecs && s.lo[to] <= k) ++to;
    std::int64_t next = from < vecs ? last : k;
    if (from < to) next = std::min(next, s.hi[from]);
    if (to < vecs) next = std::min(next, s.lo[to]);
    if (next <= k) break;  // what is left is visible to no vector
    if (from < to) s.piece[s.count++] = {k, next, from, to};
    k = next;
  }
  const int lanes = vecs * kLanes;
  s.whole = lo[lanes - 1] <= first && hi[0] >= last;
  return s;
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
