// From scores, dP and their tangents to the weights, dX and theirs, over tiles [key][lane]; and sums pair by pair where
// something is not finite.
#if defined(ONEPASS_CPU_BACKWARD_JVP_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_JVP_PAIRS_INL_H
#undef ONEPASS_CPU_BACKWARD_JVP_PAIRS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_JVP_PAIRS_INL_H
#endif

#include "cpu/backward/gradients-inl.h"
#include "cpu/backward/products-inl.h"
#include "cpu/backward_jvp/backward_jvp.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// A panel's part of the scratch. tangent: rows of tQ and tdO, and their derivative of D.
struct SecondPanel {
  BackwardPanel primal, tangent;
  float* tlse;
};

// The tiles of a block: where scores were, Z P; where tS was, Z tP; where dP was, dX; where tdP was, tdX.
struct PairTiles {
  float *weights, *moves, *ds, *tds;
};

// Keys and rows of `at`. scale: of the products in `moves`. Scores of hidden keys are -inf; they become +0 in all
// tiles. A visible weight is never +0: -0 stands for it. Returns the lanes' sums of tdS * -distance, ALiBi's part.
struct PairMath {
  const backward_jvp::Call& call;
  const backward::Task& task;
  const backward_jvp::Scratch& scratch;
  const SecondPanel& panel;
  const PairTiles& tiles;
  const float softcap = panel.primal.scores.params.softcap;

  VF run(const LaneKeys& at) const {
    const Dropout& dropout = call.primal.forward.dropout;
    VF slope = hn::Zero(DF());
    if (!panel.primal.scores.dropout) {
      for (std::int64_t k = at.lo; k < at.hi; ++k) pair<false>(at, k, hn::FirstN(DF(), kLanes), slope);
      return slope;
    }
    each_draw(dropout, static_cast<std::uint32_t>(task.batch), panel.primal.scores, at.lane, at.lo, at.hi,
              [&](std::int64_t k, hn::Mask<DF> kept) HWY_ATTR { pair<true>(at, k, kept, slope); });
    return slope;
  }

 private:
  template <bool drops>
  HWY_INLINE void pair(const LaneKeys& at, std::int64_t k, hn::Mask<DF> kept, VF& slope) const {
    const std::int64_t i = (k - at.first) * kPanel + at.lane, side = (k - at.tile_lo) * kPanel + at.lane;
    const PanelScores& scores = panel.primal.scores;
    const Step<VF> r{splat(1.0f), hn::Load(DF(), panel.primal.before + at.lane),
                     hn::Load(DF(), panel.primal.after + at.lane)};
    const VF s = hn::Load(DF(), tiles.weights + i);
    const auto hidden = hn::Or(hn::Eq(s, Arith<VF>::neg_inf()), hn::Eq(r.after, Arith<VF>::neg_inf()));
    const auto shown = [&](VF x) HWY_ATTR { return hn::IfThenZeroElse(hidden, x); };
    VF w = weight(s, splat(scores.unit.to_log2), r);
    w = shown(hn::IfThenElse(hn::Eq(w, hn::Zero(DF())), splat(-0.0f), w));

    const VF tx = hn::Load(DF(), tiles.moves + i) * splat(static_cast<float>(std::abs(scores.params.scale)));
    VF tt = tx, first = tx, second = tx;  // of the softcap
    if (softcap > 0) {
      const VF t = hn::Load(DF(), scratch.capped + side) * splat(1.0f / softcap);
      first = hn::NegMulAdd(t, t, splat(1.0f));
      second = splat(-2.0f / softcap) * t * first;
      tt = tt * first;
    }
    if (scratch.tbias) tt = tt + hn::Load(DF(), scratch.tbias + side);
    const VF ts = scratch.mod_slope ? tt * hn::Load(DF(), scratch.mod_slope + side) : tt;
    const VF tw = w * (ts - hn::Load(DF(), panel.tlse + at.lane));
    if (call.primal.wants_ds()) {
      VF dp = hn::Load(DF(), tiles.ds + i), tdp = hn::Load(DF(), tiles.tds + i);
      if constexpr (drops) {
        const VF z = hn::IfThenElseZero(kept, splat(call.primal.forward.dropout.keep_scale));
        dp = dp * z, tdp = tdp * z;
      }
      const VF off = dp - hn::Load(DF(), panel.primal.delta + at.lane),
               toff = tdp - hn::Load(DF(), panel.tangent.delta + at.lane);
      VF ds = w * off, tds = hn::MulAdd(tw, off, w * toff);
      if (scratch.mod_slope) {
        const VF slope_of_mod = hn::Load(DF(), scratch.mod_slope + side);
        tds = hn::MulAdd(tds, slope_of_mod, ds * hn::Load(DF(), scratch.mod_curve + side) * tt);
        ds = ds * slope_of_mod;
      }
      if (scratch.primal.pairs) hn::Store(shown(tds), DF(), scratch.primal.pairs + side);
      if (scratch.primal.slopes) {
        const VI from = hn::Load(DI(), scores.aligned + at.lane) - hn::Set(DI(), static_cast<std::int32_t>(k));
        slope = hn::NegMulAdd(shown(tds), hn::Abs(hn::ConvertTo(DF(), from)), slope);
      }
      if (softcap > 0) {
        tds = hn::MulAdd(tds, first, ds * second * tx);
        ds = ds * first;
      }
      hn::Store(shown(ds), DF(), tiles.ds + i);
      hn::Store(shown(tds), DF(), tiles.tds + i);
    }
    if constexpr (drops) {
      const VF z = hn::IfThenElseZero(kept, splat(call.primal.forward.dropout.keep_scale));
      w = dropped_or_kept(call.primal.forward.dropout, w, kept);
      hn::Store(shown(tw * z), DF(), tiles.moves + i);
    } else {
      hn::Store(shown(tw), DF(), tiles.moves + i);
    }
    hn::Store(w, DF(), tiles.weights + i);
  }
};

// to[0, dim) += x from[0, dim)
inline void add_scaled(float x, const float* from, std::int64_t dim, float* to) {
  for (std::int64_t d = 0; d < dim; ++d) to[d] += x * from[d];
}

// The sums of visible pairs alone, number by number: where a row or a key is not finite, a hidden one adds nothing.
struct PairSums {
  const backward_jvp::Call& call;
  const backward::Task& task;
  const backward_jvp::Scratch& scratch;
  const PairTiles& tiles;
  const Problem& p = call.primal.problem();
  const std::int64_t stride = call.primal.cut.key_chunk * kPanel;

  void add(const SecondPanel& panel, const Block& block, const Block& moved, const Segments& segments) const {
    for (int v = 0; v < panel.primal.vecs; ++v)
      for (std::int64_t k = segments.lo[v]; k < segments.hi[v]; ++k)
        for (int lane = v * kLanes; lane < std::min((v + 1) * kLanes, panel.primal.rows); ++lane)
          if (std::bit_cast<std::uint32_t>(tiles.weights[(k - block.first) * kPanel + lane]) != 0)
            add(panel, block, moved, k - block.first, lane);
  }

 private:
  // Columns of a lane's row of Q or dO by column panels.
  void add_row(float x, const float* rows, int lane, std::int64_t key, std::int64_t dim, float* sums) const {
    for (std::int64_t c = 0; c < dim; c += kPanel, rows += kPanel * kPanel, sums += stride)
      add_scaled(x, rows + lane * kPanel, std::min<std::int64_t>(kPanel, dim - c), sums + key * kPanel);
  }
  void add(const SecondPanel& panel, const Block& block, const Block& moved, std::int64_t k, int lane) const {
    const Tensors& a = call.primal.forward.arguments;
    const std::int64_t i = k * kPanel + lane, key = block.first + k - task.key_lo;
    if (a.dv.given()) {
      add_row(tiles.moves[i], panel.primal.dout_rows, lane, key, p.dim_v, scratch.primal.dv);
      if (call.has_tdout()) add_row(tiles.weights[i], panel.tangent.dout_rows, lane, key, p.dim_v, scratch.primal.dv);
    }
    if (a.dk.given()) {
      add_row(tiles.tds[i], panel.primal.q_rows, lane, key, p.dim_qk, scratch.primal.dk);
      add_row(tiles.ds[i], panel.tangent.q_rows, lane, key, p.dim_qk, scratch.primal.dk);
    }
    if (!a.dq.given()) return;
    const float *keys = block.k + k * block.k_stride, *tkeys = moved.k + k * moved.k_stride;
    for (std::int64_t d = 0; d < p.dim_qk; ++d)
      panel.primal.dq[d * kPanel + lane] += tiles.tds[i] * keys[d] + tiles.ds[i] * tkeys[d];
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
