// Values that are not finite (algebra/nonfinite.hpp), in the three sums of a backward pass. Scores and dP are sums of
// their own for each pair, so a NaN stays in the pairs that see it. dQ, dK and dV sum over pairs, where 0 * NaN would
// spoil elements that do not see it. A row block that reads something that is not finite therefore takes these sums
// over finite values, with zeros for the others, and adds second products, of visibility with flags, to them. A visible
// pair counts 2 and a hidden one 0. A flag is 3e38, so it makes an infinity of every sum whose pair is visible. dV
// needs it for dO. dK and dQ need it for Q and K only if a softcap or a score_mod may turn a score that is not finite
// into a finite one; otherwise dX is NaN there, and is enough.
#if defined(ONEPASS_CPU_BACKWARD_NONFINITE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_NONFINITE_INL_H
#undef ONEPASS_CPU_BACKWARD_NONFINITE_INL_H
#else
#define ONEPASS_CPU_BACKWARD_NONFINITE_INL_H
#endif

#include <limits>

#include "cpu/backward/panel-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/tile-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

inline constexpr float kVisible = 2.0f, kFlag = 3e38f;

// Returns true if the keys [lo, hi) of K or V are finite.
inline bool finite_keys(const ConstTensor& t, const backward::Task& task, std::int64_t dim) {
  const KeyValueView view(t, task.seq);
  VF probe = hn::Zero(DF());
  flash::with_storage(view.dtype(), [&](auto zero) {
    view.each_run<decltype(zero)>(task.head_kv, task.key_lo, task.key_hi - task.key_lo,
                                  [&](const auto& run, std::int64_t) HWY_ATTR {
                                    const auto* row = run.row;
                                    for (std::int64_t k = 0; k < run.tokens; ++k, row += run.stride) {
                                      std::int64_t d = 0;
                                      for (; d + kLanes <= dim; d += kLanes)
                                        probe = probe_finite(probe, load(DF(), row + d));
                                      if (d < dim) probe = probe_finite(probe, load_n(DF(), row + d, dim - d));
                                    }
                                  });
  });
  return all_zero(probe);
}

// Elements that are not finite become 0. flags: 3e38 in their places, and 0 elsewhere. Returns true if there were any.
inline bool take_flags(float* x, std::int64_t count, float* flags) {
  VF probe = hn::Zero(DF());
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t n = std::min<std::int64_t>(kLanes, count - i);
    const VF v = n == kLanes ? hn::LoadU(DF(), x + i) : load_n(DF(), x + i, n);
    const auto finite = hn::IsFinite(v);
    const VF rest = hn::IfThenElseZero(finite, v), flag = hn::IfThenZeroElse(finite, splat(kFlag));
    probe = hn::Max(probe, flag);
    n == kLanes ? hn::StoreU(rest, DF(), x + i) : store_n(rest, DF(), x + i, n);
    if (flags) n == kLanes ? hn::StoreU(flag, DF(), flags + i) : store_n(flag, DF(), flags + i, n);
  }
  return !all_zero(probe);
}
inline void zero_nonfinite(float* x, std::int64_t count) { take_flags(x, count, nullptr); }

// Rows of dO that are not finite in any column need no flags: their visible weights become NaN.
inline void take_whole_rows(BackwardPanel& panel, std::int64_t dim) {
  constexpr std::int64_t kStride = kPanel * kPanel;
  for (int lane = 0; lane < panel.rows; ++lane) {
    bool whole = true;
    for (std::int64_t d = 0; whole && d < dim; ++d)
      whole = panel.dout_flags[d / kPanel * kStride + lane * kPanel + d % kPanel] != 0.0f;
    panel.spoiled[lane] = whole ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    panel.has_spoiled = panel.has_spoiled || whole;
    for (std::int64_t c = 0; whole && c < column_panels(dim); ++c)
      std::fill_n(panel.dout_flags + c * kStride + lane * kPanel, kPanel, 0.0f);
  }
  panel.dout_flagged = false;
  for (std::int64_t i = 0; i < column_panels(dim) * kStride && !panel.dout_flagged; ++i)
    panel.dout_flagged = panel.dout_flags[i] != 0.0f;
}

// Rows of Q (for dK) and of dO (for dV) as the products add them up: finite.
inline void separate_rows(const Problem& p, BackwardPanel& panel, bool dk, bool dv) {
  const std::int64_t row = kPanel * kPanel;
  panel.q_flagged = dk && take_flags(panel.q_rows, row * column_panels(p.dim_qk), panel.q_flags) && panel.q_flags;
  panel.has_spoiled = false;
  panel.dout_flagged = false;
  std::fill_n(panel.spoiled, kPanel, 0.0f);
  if (!dv) return;
  panel.dout_flagged = take_flags(panel.dout_rows, row * column_panels(p.dim_v), panel.dout_flags);
  if (panel.dout_flagged) take_whole_rows(panel, p.dim_v);
}

// Weights of keys [lo, hi) tell by their bits whether a pair is visible: +0 is a hidden one's.
inline void spoil_weights(const BackwardPanel& panel, int lane, std::int64_t first, std::int64_t lo, std::int64_t hi,
                          float* weights) {
  const VF spoiled = hn::Load(DF(), panel.spoiled + lane);
  for (std::int64_t k = lo; k < hi; ++k) {
    float* const at = weights + (k - first) * kPanel + lane;
    const VF w = hn::Load(DF(), at);
    const auto hidden = hn::RebindMask(DF(), hn::Eq(hn::BitCast(DU(), w), hn::Zero(DU())));
    hn::Store(hn::IfThenElse(hidden, w, w + spoiled), DF(), at);
  }
}
inline void visible_tile(const BackwardPanel& panel, const Segments& segments, std::int64_t first, std::int64_t lo,
                         std::int64_t hi, const float* weights, float* visible) {
  for (std::int64_t k = lo; k < hi; ++k) {
    for (int v = 0; v < panel.vecs; ++v) {
      const std::int64_t at = (k - first) * kPanel + v * kLanes;
      const auto hidden = hn::Eq(hn::BitCast(DU(), hn::Load(DF(), weights + at)), hn::Zero(DU()));
      const bool seen = k >= segments.lo[v] && k < segments.hi[v];
      hn::Store(seen ? hn::IfThenZeroElse(hn::RebindMask(DF(), hidden), splat(kVisible)) : hn::Zero(DF()), DF(),
                visible + at);
    }
  }
}

// sums[key][column] += visible[key][row] * flags[row][column]: infinite where a visible pair has a flag, else as they
// were. sums begin at key `lo`; their column panels lie `stride` apart.
inline void add_flagged_rows(const BackwardPanel& panel, std::int64_t keys, std::int64_t dim, const float* visible,
                             const float* flags, float* sums, std::int64_t stride) {
  for (std::int64_t c = 0; c < dim; c += kPanel, flags += kPanel * kPanel, sums += stride) {
    for (std::int64_t k = 0; k < keys; k += kTileKeys) {
      const std::int64_t n = std::min<std::int64_t>(kTileKeys, keys - k);
      kAddTiles[column_vecs(dim, c) - 1][n - 1](flags, visible + k * kPanel, kPanel, panel.rows, sums + k * kPanel,
                                                nullptr);
    }
  }
}
// dq[column][lane] += visible[key][lane] * flags[key][column]; the flags are column tiles of `block_keys` keys.
inline void add_flagged_keys(const BackwardPanel& panel, std::int64_t at, std::int64_t keys, std::int64_t block_keys,
                             std::int64_t dim, const float* visible, const float* flags) {
  HWY_ALIGN float one[kPanel];
  std::fill_n(one, kPanel, 1.0f);
  for (std::int64_t column = 0; column < dim; column += kTileDims) {
    const int width = static_cast<int>(std::min<std::int64_t>(kTileDims, dim - column));
    kAccumulateTiles[panel.vecs - 1][width - 1](visible, flags + column * block_keys + at * width, width, keys,
                                                panel.dq + column * kPanel, one);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
