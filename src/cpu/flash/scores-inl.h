// The steps of a tile of scores [key][lane] between Q K^T and the softmax, in the order of
// docs/reference/conventions.md: softcap, bias, ALiBi, score_mod, masks; and of its weights after it: dropout. Scores
// are natural here. Blocks without any of this never come.
#if defined(ONEPASS_CPU_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SCORES_INL_H
#undef ONEPASS_CPU_SCORES_INL_H
#else
#define ONEPASS_CPU_SCORES_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "cpu/common/mods-inl.h"
#include "cpu/common/score_unit.hpp"
#include "cpu/common/simd-inl.h"
#include "cpu/flash/flash.hpp"
#include "cpu/flash/rows-inl.h"
#include "cpu/flash/tile-inl.h"
#include "problem/attention/score.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Row r of a K/V head.
struct RowName {
  std::int64_t token, head;
};
ONEPASS_HD RowName row_name(const Problem& p, const flash::Task& task, std::int64_t row) {
  return {row / p.group(), task.head_kv * p.group() + row % p.group()};
}
// Lanes beyond the last row repeat it: they compute what is never stored, and need no mask.
ONEPASS_HD RowName lane_name(const Problem& p, const flash::Task& task, std::int64_t panel_row, int lane) {
  return row_name(p, task, std::min(panel_row + lane, task.row_hi - 1));
}

// The score features of one panel's lanes.
struct PanelScores {
  ScoreUnit unit;  // of the scores as the softmax finds them
  ScoreParams params;
  const float *bias = nullptr, *mask = nullptr;  // tiles [key][kPanel], from the panel's first key of the block on
  float* cap_slope = nullptr;                    // a tile too: gets softcap's derivative, which backward passes want
  float* capped = nullptr;                       // a tile too: gets the capped scores, for the second derivative
  bool dropout = false;
  HWY_ALIGN float slope[kPanel] = {};
  HWY_ALIGN std::int32_t aligned[kPanel] = {};  // the key position a lane's token is aligned with
  HWY_ALIGN std::uint32_t token[kPanel] = {}, head[kPanel] = {};
  bool plain() const { return unit.products; }
  bool modified() const { return params.mods && params.mods->score.given(); }
};

inline PanelScores panel_scores(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                                std::int64_t panel_row) {
  const Problem& p = call.problem;
  PanelScores panel;
  panel.unit = score_unit_of(p);
  panel.params = score_params(p, call.arguments, &call.mods);
  panel.bias = panel.params.bias.given() ? scratch.bias : nullptr;
  panel.mask = panel.params.hides() || panel.params.tree.given() ? scratch.mask : nullptr;
  panel.dropout = call.dropout.active();
  if (!panel.params.slopes && !panel.dropout && !panel.params.mods) return panel;
  const BandMask band = band_mask(p, task.seq.seq_q, task.seq.seq_k);
  for (int lane = 0; lane < kPanel; ++lane) {
    const RowName row = lane_name(p, task, panel_row, lane);
    panel.token[lane] = static_cast<std::uint32_t>(row.token);
    panel.head[lane] = static_cast<std::uint32_t>(row.head);
    if (!panel.params.slopes) continue;
    panel.slope[lane] = panel.params.slope(task.batch, row.head);
    panel.aligned[lane] = static_cast<std::int32_t>(row.token + band.shift);
  }
  return panel;
}

// Rows of a bias lie pages apart, and a block of keys is too short a run for the CPU's own prefetching.
inline constexpr int kRowsAhead = 8;
ONEPASS_HD void prefetch_run(const void* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
}

// tile[key - key_lo][lane] = t[batch, head, token, key], keys [key_lo, key_hi), of a bias or mask.
template <class T>
HWY_NOINLINE void fetch_tile(const SideTensor& t, const Problem& p, const flash::Task& task, std::int64_t panel_row,
                             int vecs, std::int64_t key_lo, std::int64_t key_hi, float* tile) {
  const std::int64_t n = key_hi - key_lo;
  const bool same_rows = t.stride[2] == 0 && (t.stride[1] == 0 || p.group() == 1);
  for (int lane = 0; lane < (same_rows ? 1 : vecs * kLanes); ++lane) {
    const RowName row = lane_name(p, task, panel_row, lane);
    const std::int64_t at = t.row(task.batch, row.head, row.token) + key_lo * t.key_stride();
    if (t.key_stride() == 1) {
      const RowName next = lane_name(p, task, panel_row, lane + kRowsAhead);
      prefetch_run(static_cast<const T*>(t.data) + t.row(task.batch, next.head, next.token) + key_lo,
                   n * static_cast<std::int64_t>(sizeof(T)));
    }
    place_row(static_cast<const T*>(t.data) + at, t.key_stride(), n, tile, kPanel, lane);
  }
  if (!same_rows) return transpose_blocks(tile, kPanel, vecs, n);
  for (std::int64_t c = 0; c < n; c += 4) {  // four keys wait side by side: spread each over its lanes
    HWY_ALIGN float x[4];
    hn::Store(hn::Load(D4(), block_of(tile, kPanel, 0, c / 4)), D4(), x);
    for (int i = 0; i < 4; ++i)
      for (int v = 0; v < vecs; ++v) hn::Store(splat(x[i]), DF(), tile + (c + i) * kPanel + v * kLanes);
  }
}

// A tile [key][kPanel] from key_lo on, as score_mod and mask_mod see it.
inline ExprTile<float> mod_tile(const flash::Task& task, const PanelScores& panel, int vecs, std::int64_t key_lo,
                                std::int64_t key_hi, float* tile) {
  return {tile,
          kPanel,
          vecs * kLanes,
          key_hi - key_lo,
          static_cast<std::int32_t>(task.batch),
          key_lo,
          reinterpret_cast<const std::int32_t*>(panel.head),
          reinterpret_cast<const std::int32_t*>(panel.token)};
}

// The mask's tile loses what the mask_mod hides of keys [key_lo, key_hi). It is evaluated for those keys alone for
// which bounds do not decide (docs/notes/score-mod.md).
inline void hide_by_mod(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                        const PanelScores& panel, std::int64_t panel_row, int vecs, std::int64_t key_lo,
                        std::int64_t key_hi) {
  constexpr std::int64_t kKeys = 32;
  const auto at = [&](std::int64_t key) { return scratch.mask + (key - key_lo) * kPanel; };
  std::int64_t open = key_lo;  // what comes before it is decided
  const auto evaluate_to = [&](std::int64_t key) {
    if (open < key)
      hide(call.mods.mask, call.arguments, scratch.mods, mod_tile(task, panel, vecs, open, key, at(open)), 0.0f);
  };
  for (std::int64_t key = key_lo, next = key_lo; key < key_hi; key = next) {
    next = std::min(key / kKeys * kKeys + kKeys, key_hi);
    const Tile shown = flash::shown_of(call, task, panel_row, vecs * kLanes, key, next);
    if (shown == Tile::partial) continue;
    evaluate_to(key);
    if (shown == Tile::skip) std::fill(at(key), at(next), 0.0f);
    open = next;
  }
  evaluate_to(key_hi);
}

// The mask's tile loses what the draft tree hides of keys [key_lo, key_hi).
inline void hide_by_tree(const Problem& p, const flash::Task& task, const ScoreParams& params, std::int64_t panel_row,
                         int vecs, std::int64_t key_lo, std::int64_t key_hi, float* tile) {
  const DraftTree tree = params.tree_of(task.batch);
  for (int lane = 0; lane < vecs * kLanes; ++lane) {
    const auto row =
        TreeRow<std::int64_t>::of(tree, task.seq.seq_q, task.seq.seq_k, lane_name(p, task, panel_row, lane).token);
    for (std::int64_t k = std::max(key_lo, row.first); k < key_hi; ++k)
      if (!row.sees(k)) tile[(k - key_lo) * kPanel + lane] = 0.0f;
  }
}

// The elements that a boolean mask, a mask_mod and a tree hide, and the keys [lo, hi) that have others.
enum class Hidden { none, some, all };
struct Fetched {
  Hidden hidden = Hidden::none;
  std::int64_t lo = 0, hi = 0;
};

// Fills the tiles a panel needs for keys [key_lo, key_hi). shown: how the mask_mod shows them.
inline Fetched fetch_tiles(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                           const PanelScores& panel, std::int64_t panel_row, int vecs, std::int64_t key_lo,
                           std::int64_t key_hi, Tile shown) {
  const Problem& p = call.problem;
  const SideTensor &bias = panel.params.bias, &mask = panel.params.mask;
  const bool by_mod = call.mods.mask.given() && shown != Tile::full;
  const bool by_tree = panel.params.tree.given() && key_hi > task.seq.seq_k - panel.params.tree.drafts;
  Fetched fetched{Hidden::none, key_lo, key_hi};
  if (by_mod || mask.given() || by_tree) {
    if (mask.given())
      fetch_tile<bool>(mask, p, task, panel_row, vecs, key_lo, key_hi, scratch.mask);
    else
      std::fill_n(scratch.mask, (key_hi - key_lo) * kPanel, 1.0f);
    if (by_mod) hide_by_mod(call, task, scratch, panel, panel_row, vecs, key_lo, key_hi);
    if (by_tree) hide_by_tree(p, task, panel.params, panel_row, vecs, key_lo, key_hi, scratch.mask);
    VF hides = hn::Zero(DF());
    fetched.lo = fetched.hi = key_hi;
    for (std::int64_t k = 0; k < key_hi - key_lo; ++k) {
      VF any = hn::Zero(DF());
      for (int v = 0; v < vecs; ++v) {
        const VF seen = hn::Load(DF(), scratch.mask + k * kPanel + v * kLanes);
        any = hn::Max(any, seen), hides = hn::Max(hides, splat(1.0f) - seen);
      }
      if (all_zero(any)) continue;
      fetched.lo = std::min(fetched.lo, key_lo + k), fetched.hi = key_lo + k + 1;
    }
    fetched.hidden = fetched.lo == key_hi ? Hidden::all : all_zero(hides) ? Hidden::none : Hidden::some;
    if (fetched.hidden == Hidden::all) return fetched;
  }
  if (panel.bias) {
    flash::with_storage(bias.dtype, [&](auto zero) {
      fetch_tile<decltype(zero)>(bias, p, task, panel_row, vecs, key_lo, key_hi, scratch.bias);
    });
  }
  return fetched;
}

// A score_mod stands between what changes scores and what hides them; with one, features are applied in two passes.
enum class Part { all, before_mod, after_mod };

// Applies the score features to the vector of rows at `lane` for keys [lo, hi) of the block that begins at `first`; the
// tiles begin at `tile_lo`. visible_lo, visible_hi: the keys of each lane; masked: a mask's tile hides some of them.
// Returns the maximum.
template <Part part>
inline VF apply_chain(const PanelScores& panel, int lane, std::int64_t first, std::int64_t lo, std::int64_t hi,
                      std::int64_t tile_lo, const std::int32_t* visible_lo, const std::int32_t* visible_hi, bool masked,
                      float* scores) {
  const bool biased = panel.bias != nullptr, alibi = panel.params.slopes != nullptr;
  // The magnitude alone: a negative scale has turned the sign of Q.
  const float scale = panel.plain() ? 1.0f : static_cast<float>(std::abs(panel.params.scale));
  const auto chain = ScoreChain<VF>::of(scale, panel.params.softcap, biased, alibi);
  const VF slope = hn::Load(DF(), panel.slope + lane);
  const VI aligned = hn::Load(DI(), panel.aligned + lane);
  const VI from = hn::Load(DI(), visible_lo), to = hn::Load(DI(), visible_hi);
  const std::int64_t all_lo = visible_lo[kLanes - 1],
                     all_hi = visible_hi[0];  // [all_lo, all_hi): visible to every lane
  VF tile_max = Arith<VF>::neg_inf();
  for (std::int64_t k = lo; k < hi; ++k) {
    float* at = scores + (k - first) * kPanel + lane;
    const std::int64_t tile_at = (k - tile_lo) * kPanel + lane;
    VF s = hn::Load(DF(), at);
    const VI key = hn::Set(DI(), static_cast<std::int32_t>(k));
    if constexpr (part != Part::after_mod) {
      s = chain.capped(s);
      if (panel.cap_slope) hn::Store(chain.derivative(s), DF(), panel.cap_slope + tile_at);
      if (panel.capped) hn::Store(s, DF(), panel.capped + tile_at);
      s = chain.moved(s, biased ? hn::Load(DF(), panel.bias + tile_at) : s, slope,
                      alibi ? hn::ConvertTo(DF(), aligned - key) : s);
    }
    if constexpr (part == Part::before_mod) {
      hn::Store(s, DF(), at);
      continue;
    }
    if (masked) s = hide_by_mask(s, hn::Load(DF(), panel.mask + tile_at));
    if (k < all_lo || k >= all_hi) s = hide_by_band(s, key, from, to);
    hn::Store(s, DF(), at);
    tile_max = hn::Max(tile_max, s);
  }
  return tile_max;
}

// ---- dropout

using VU = hn::Vec<DU>;
template <>
struct PhiloxWord<VU> {  // a counter in each lane
  struct Wide {
    VU high, low;
  };
  ONEPASS_HD static Wide product(VU a, std::uint32_t factor) {
    const hn::Repartition<std::uint64_t, DU> d64;
    const VU b = hn::Set(DU(), factor);
    const auto even = hn::MulEven(a, b);
    const auto odd = hn::MulEven(hn::BitCast(DU(), hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
    return {hn::OddEven(hn::BitCast(DU(), odd), hn::BitCast(DU(), hn::ShiftRight<32>(even))),
            hn::OddEven(hn::BitCast(DU(), hn::ShiftLeft<32>(odd)), hn::BitCast(DU(), even))};
  }
  ONEPASS_HD static VU keyed(VU a, VU b, std::uint32_t key) { return a ^ b ^ hn::Set(DU(), key); }
};

// f(key, whether each lane of the vector of rows at `lane` keeps it) for keys [lo, hi).
template <class F>
inline void each_draw(const Dropout& dropout, std::uint32_t batch, const PanelScores& panel, int lane, std::int64_t lo,
                      std::int64_t hi, F&& f) {
  const VU threshold = hn::Set(DU(), static_cast<std::uint32_t>(std::min(dropout.threshold, 0xffffffffull)));
  const VU token = hn::Add(hn::Load(DU(), panel.token + lane), hn::Set(DU(), dropout.first_row));
  const VU head = hn::Add(hn::Load(DU(), panel.head + lane), hn::Set(DU(), dropout.first_head));
  const VU entry = hn::Set(DU(), dropout.first_batch + batch);
  const auto some = hn::FirstN(DF(), dropout.threshold > 0xffffffffu ? 0 : kLanes);
  for (std::int64_t block = lo / 4; 4 * block < hi; ++block) {
    VU draws[4] = {hn::Set(DU(), dropout.first_block + static_cast<std::uint32_t>(block)), token, head, entry};
    philox_rounds(dropout.keys.word, draws);
    for (std::int64_t k = std::max(lo, 4 * block); k < std::min(hi, 4 * block + 4); ++k)
      f(k, hn::And(some, hn::RebindMask(DF(), hn::Eq(hn::Min(draws[k % 4], threshold), threshold))));
  }
}

// Weights of the vector of rows at `lane`, keys [lo, hi): the kept ones scaled, the dropped ones -0, which differs
// from the +0 of a masked key (src/cpu/backward/nonfinite-inl.h). A NaN stays.
ONEPASS_HD VF dropped_or_kept(const Dropout& dropout, VF p, hn::Mask<DF> kept) {
  const VF w = p * hn::IfThenElse(kept, splat(dropout.keep_scale), splat(-0.0f));
  return hn::IfThenElse(hn::Eq(p, hn::Zero(DF())), p, w);
}
inline void drop_weights(const Dropout& dropout, std::uint32_t batch, const PanelScores& panel, int lane,
                         std::int64_t first, std::int64_t lo, std::int64_t hi, float* weights) {
  each_draw(dropout, batch, panel, lane, lo, hi, [&](std::int64_t k, hn::Mask<DF> kept) HWY_ATTR {
    float* at = weights + (k - first) * kPanel + lane;
    hn::Store(dropped_or_kept(dropout, hn::Load(DF(), at), kept), DF(), at);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
