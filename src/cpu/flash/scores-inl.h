// What happens to a tile of scores [key][lane] between Q K^T and the softmax, in the order of docs/conventions.md:
// softcap, bias, ALiBi, score_mod, masks; and to its weights after it: dropout. Scores are natural here. Blocks without
// any of this never come.
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

// One panel's lanes.
struct Rules {
  ScoreUnit unit;                                // of the scores as the softmax finds them
  float scale = 1.0f;                            // positive; a negative scale has turned the sign of Q
  float softcap = 0.0f;                          // 0: none
  const float *bias = nullptr, *mask = nullptr;  // tiles [key][kPanel], from the panel's first key of the block on
  bool alibi = false, dropout = false;
  const Mods* mods = nullptr;
  HWY_ALIGN float slope[kPanel] = {};
  HWY_ALIGN std::int32_t aligned[kPanel] = {};  // the key position a lane's token is aligned with
  HWY_ALIGN std::uint32_t token[kPanel] = {}, head[kPanel] = {};
  bool plain() const { return unit.products; }
  bool rescored() const { return mods && mods->score.given(); }
};

inline Rules rules_of(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                      std::int64_t panel_row) {
  const Problem& p = call.problem;
  Rules rules;
  rules.unit = score_unit_of(p);
  rules.scale = static_cast<float>(std::abs(p.effective_scale()));
  rules.softcap = p.softcap;
  rules.bias = p.bias ? scratch.bias : nullptr;
  rules.mask = p.bool_mask || call.mods.mask.given() ? scratch.mask : nullptr;
  rules.alibi = p.alibi;
  rules.dropout = call.dropout.active();
  rules.mods = call.mods.given() ? &call.mods : nullptr;
  if (!p.alibi && !rules.dropout && !rules.mods) return rules;
  const BandMask band = band_mask(p, task.seq.seq_q, task.seq.seq_k);
  const ConstTensor& t = call.arguments.alibi_slopes;
  for (int lane = 0; lane < kPanel; ++lane) {
    const RowName row = lane_name(p, task, panel_row, lane);
    rules.token[lane] = static_cast<std::uint32_t>(row.token);
    rules.head[lane] = static_cast<std::uint32_t>(row.head);
    if (!p.alibi) continue;
    const std::int64_t at = t.rank == 2 ? task.batch * t.stride[0] + row.head * t.stride[1] : row.head * t.stride[0];
    rules.slope[lane] = static_cast<const float*>(t.data)[at];
    rules.aligned[lane] = static_cast<std::int32_t>(row.token + band.shift);
  }
  return rules;
}

// tile[key - key_lo][lane] = t[batch, head, token, key], keys [key_lo, key_hi), of a bias or mask.
template <class T>
HWY_NOINLINE void fetch_spread(const ConstTensor& t, const Problem& p, const flash::Task& task, std::int64_t panel_row,
                               int vecs, std::int64_t key_lo, std::int64_t key_hi, float* tile) {
  const Dims s = broadcast_strides(t);
  const std::int64_t n = key_hi - key_lo;
  const bool same_rows = s[2] == 0 && (s[1] == 0 || p.group() == 1);
  const T* base = static_cast<const T*>(t.data) + task.batch * s[0] + key_lo * s[3];
  for (int lane = 0; lane < (same_rows ? 1 : vecs * kLanes); ++lane) {
    const RowName row = lane_name(p, task, panel_row, lane);
    place_row(base + row.head * s[1] + row.token * s[2], s[3], n, tile, kPanel, lane);
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
inline ExprTile<float> mod_tile(const flash::Task& task, const Rules& rules, int vecs, std::int64_t key_lo,
                                std::int64_t key_hi, float* tile) {
  return {tile,
          kPanel,
          vecs * kLanes,
          key_hi - key_lo,
          static_cast<std::int32_t>(task.batch),
          key_lo,
          reinterpret_cast<const std::int32_t*>(rules.head),
          reinterpret_cast<const std::int32_t*>(rules.token)};
}

// Fills the tiles a panel needs for keys [key_lo, key_hi). False if its boolean mask and mask_mod hide them all.
inline bool fetch_tiles(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                        const Rules& rules, std::int64_t panel_row, int vecs, std::int64_t key_lo,
                        std::int64_t key_hi) {
  const Problem& p = call.problem;
  if (rules.mask) {
    if (p.bool_mask)
      fetch_spread<bool>(call.arguments.bool_mask, p, task, panel_row, vecs, key_lo, key_hi, scratch.mask);
    else
      std::fill_n(scratch.mask, (key_hi - key_lo) * kPanel, 1.0f);
    if (call.mods.mask.given())
      hide(call.mods.mask, call.arguments, scratch.mods, mod_tile(task, rules, vecs, key_lo, key_hi, scratch.mask),
           0.0f);
    VF any = hn::Zero(DF());
    for (std::int64_t k = 0; k < key_hi - key_lo; ++k)
      for (int v = 0; v < vecs; ++v) any = hn::Max(any, hn::Load(DF(), scratch.mask + k * kPanel + v * kLanes));
    if (hn::AllTrue(DF(), hn::Eq(any, hn::Zero(DF())))) return false;
  }
  if (p.bias) {
    const ConstTensor& t = call.arguments.bias;
    flash::with_storage(t.dtype, [&](auto zero) {
      fetch_spread<decltype(zero)>(t, p, task, panel_row, vecs, key_lo, key_hi, scratch.bias);
    });
  }
  return true;
}

// A score_mod stands between what changes scores and what hides them; with one, scores are finished in two passes.
enum class Part { all, before_mod, after_mod };

// Finishes the scores of the vector of rows at `lane` for keys [lo, hi) of the block that begins at `first`; the tiles
// begin at `tile_lo`. seen_lo, seen_hi: the keys each lane sees. Returns the maximum.
template <Part part>
inline VF finish_scores(const Rules& rules, int lane, std::int64_t first, std::int64_t lo, std::int64_t hi,
                        std::int64_t tile_lo, const std::int32_t* seen_lo, const std::int32_t* seen_hi, float* scores) {
  const VF neg_inf = Arith<VF>::neg_inf(), scale = splat(rules.plain() ? 1.0f : rules.scale);
  const VF cap = splat(rules.softcap), per_cap = splat(rules.softcap > 0 ? 1.0f / rules.softcap : 0.0f);
  const VF slope = hn::Load(DF(), rules.slope + lane);
  const VI aligned = hn::Load(DI(), rules.aligned + lane), from = hn::Load(DI(), seen_lo), to = hn::Load(DI(), seen_hi);
  const std::int64_t all_lo = seen_lo[kLanes - 1], all_hi = seen_hi[0];  // every lane sees [all_lo, all_hi)
  VF top = neg_inf;
  for (std::int64_t k = lo; k < hi; ++k) {
    float* at = scores + (k - first) * kPanel + lane;
    const std::int64_t tile_at = (k - tile_lo) * kPanel + lane;
    VF s = hn::Load(DF(), at);
    const VI key = hn::Set(DI(), static_cast<std::int32_t>(k));
    if constexpr (part != Part::after_mod) {
      s = s * scale;
      if (rules.softcap > 0) s = cap * tanh_of(s * per_cap);
      if (rules.bias) s = s + hn::Load(DF(), rules.bias + tile_at);
      if (rules.alibi) s = hn::NegMulAdd(slope, hn::ConvertTo(DF(), hn::Abs(aligned - key)), s);
    }
    if constexpr (part == Part::before_mod) {
      hn::Store(s, DF(), at);
      continue;
    }
    if (rules.mask) s = hn::IfThenElse(hn::Eq(hn::Load(DF(), rules.mask + tile_at), hn::Zero(DF())), neg_inf, s);
    if (k < all_lo || k >= all_hi) {
      const auto seen = hn::AndNot(hn::Lt(key, from), hn::Lt(key, to));
      s = hn::IfThenElse(hn::RebindMask(DF(), seen), s, neg_inf);
    }
    hn::Store(s, DF(), at);
    top = hn::Max(top, s);
  }
  return top;
}

// ---- dropout

using VU = hn::Vec<DU>;
struct Wide {
  VU hi, lo;
};
ONEPASS_HD Wide multiply(VU a, std::uint32_t b) {
  const hn::Repartition<std::uint64_t, DU> d64;
  const VU factor = hn::Set(DU(), b);
  const auto even = hn::MulEven(a, factor);
  const auto odd = hn::MulEven(hn::BitCast(DU(), hn::ShiftRight<32>(hn::BitCast(d64, a))), factor);
  return {hn::OddEven(hn::BitCast(DU(), odd), hn::BitCast(DU(), hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(DU(), hn::ShiftLeft<32>(odd)), hn::BitCast(DU(), even))};
}

// core/philox.hpp over lanes: one block of four draws for each.
ONEPASS_HD void philox_lanes(std::uint64_t seed, VU c0, VU c1, VU c2, VU c3, VU (&draws)[4]) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Wide a = multiply(c0, 0xD2511F53u), b = multiply(c2, 0xCD9E8D57u);
    c0 = b.hi ^ c1 ^ hn::Set(DU(), k0);
    c2 = a.hi ^ c3 ^ hn::Set(DU(), k1);
    c1 = b.lo;
    c3 = a.lo;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  draws[0] = c0, draws[1] = c1, draws[2] = c2, draws[3] = c3;
}

// Weights of the vector of rows at `lane`, keys [lo, hi): the kept ones scaled, the dropped ones -0, which the careful
// path tells from the +0 of a masked key.
inline void drop_weights(const Dropout& dropout, std::uint32_t batch, const Rules& rules, int lane, std::int64_t first,
                         std::int64_t lo, std::int64_t hi, float* weights) {
  const VF keep = splat(dropout.keep_scale), dropped = splat(-0.0f);
  const bool none = dropout.threshold > 0xffffffffu;
  const VU threshold = hn::Set(DU(), none ? 0xffffffffu : static_cast<std::uint32_t>(dropout.threshold));
  const VU token = hn::Load(DU(), rules.token + lane), head = hn::Load(DU(), rules.head + lane);
  for (std::int64_t block = lo / 4; 4 * block < hi; ++block) {
    VU draws[4];
    philox_lanes(dropout.seed, hn::Set(DU(), static_cast<std::uint32_t>(block)), token, head, hn::Set(DU(), batch),
                 draws);
    for (std::int64_t k = std::max(lo, 4 * block); k < std::min(hi, 4 * block + 4); ++k) {
      float* at = weights + (k - first) * kPanel + lane;
      const VF p = hn::Load(DF(), at);
      const auto kept = hn::RebindMask(DF(), hn::Eq(hn::Min(draws[k % 4], threshold), threshold));
      const VF w = none ? dropped : hn::IfThenElse(kept, p * keep, dropped);
      hn::Store(hn::IfThenElse(hn::Eq(p, hn::Zero(DF())), p, w), DF(), at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
