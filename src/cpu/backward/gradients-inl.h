// From weights and dP to dX, the gradient of the products, over a tile [key][lane]; on the way the gradients of what
// joins the scores: bias and ALiBi's slopes.
#if defined(ONEPASS_CPU_BACKWARD_GRADIENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_GRADIENTS_INL_H
#undef ONEPASS_CPU_BACKWARD_GRADIENTS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_GRADIENTS_INL_H
#endif

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "cpu/backward/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Keys [lo, hi) of the block that begins at `first`, one vector of rows; the panel's own tiles begin at `tile_lo`.
struct LaneKeys {
  int lane;
  std::int64_t first, lo, hi, tile_lo;
};

// Scores become weights by the LSE that was handed in. If not everything is finite, a hidden one is +0, a visible one
// never.
inline void probabilities(const BackwardPanel& panel, const LaneKeys& at, bool finite, float* scores) {
  const Step<VF> r{splat(1.0f), hn::Load(DF(), panel.before + at.lane), hn::Load(DF(), panel.after + at.lane)};
  const VF factor = splat(panel.scores.unit.to_log2);
  float* s = scores + (at.lo - at.first) * kPanel + at.lane;
  float* const end = scores + (at.hi - at.first) * kPanel + at.lane;
  if (!finite) {
    const auto dead = hn::Eq(r.after, Arith<VF>::neg_inf());
    for (; s < end; s += kPanel) {
      const VF x = hn::Load(DF(), s), w = weight(x, factor, r);
      const VF seen = hn::IfThenElse(hn::Eq(w, hn::Zero(DF())), splat(-0.0f), w);
      hn::Store(hn::IfThenZeroElse(hn::Or(dead, hn::Eq(x, Arith<VF>::neg_inf())), seen), DF(), s);
    }
  } else {
    for (; s < end; s += kPanel) hn::Store(weight(hn::Load(DF(), s), factor, r), DF(), s);
  }
}

// sums[key][column][lane] += weights * dO. A hidden weight, +0, adds nothing, whatever dO holds.
inline void add_lanes(const BackwardPanel& panel, const LaneKeys& at, std::int64_t columns, bool finite,
                      const float* weights, float* sums) {
  const std::int64_t from = (at.lo - at.first) * kPanel + at.lane, to = (at.hi - at.first) * kPanel + at.lane;
  for (std::int64_t c = 0; c < columns; ++c, sums += kLanes) {
    const VF dout = hn::Load(DF(), panel.dout + c * kPanel + at.lane);
    float* sum = sums + at.lo * kPanel;
    if (finite) {
      for (std::int64_t i = from; i < to; i += kPanel, sum += kPanel)
        hn::Store(hn::MulAdd(hn::Load(DF(), weights + i), dout, hn::Load(DF(), sum)), DF(), sum);
      continue;
    }
    for (std::int64_t i = from; i < to; i += kPanel, sum += kPanel) {
      const VF w = hn::Load(DF(), weights + i), s = hn::Load(DF(), sum);
      const auto hidden = hn::RebindMask(DF(), hn::Eq(hn::BitCast(DU(), w), hn::Zero(DU())));
      hn::Store(hn::IfThenElse(hidden, s, hn::MulAdd(w, dout, s)), DF(), sum);
    }
  }
}
// The same of finite numbers, for keys that all vectors of a whole panel take part in.
inline void add_panel_lanes(const BackwardPanel& panel, std::int64_t columns, const float* weights, std::int64_t keys,
                            float* sums) {
  for (std::int64_t k = 0; k < keys; ++k, weights += kPanel, sums += kPanel) {
    VF w[kVecs];
    for (int v = 0; v < kVecs; ++v) w[v] = hn::Load(DF(), weights + v * kLanes);
    for (std::int64_t c = 0; c < columns; ++c) {
      VF sum = hn::Load(DF(), sums + c * kLanes);
      for (int v = 0; v < kVecs; ++v) sum = hn::MulAdd(w[v], hn::Load(DF(), panel.dout + c * kPanel + v * kLanes), sum);
      hn::Store(sum, DF(), sums + c * kLanes);
    }
  }
}
// [key][column][lane] to [key][kPanel], columns first.
inline void fold_lanes(std::int64_t keys, std::int64_t columns, float* sums) {
  for (std::int64_t k = 0; k < keys; ++k, sums += kPanel) {
    for (std::int64_t c = 0; c < columns; ++c)
      sums[c] = hn::GetLane(hn::SumOfLanes(DF(), hn::Load(DF(), sums + c * kLanes)));
  }
}

// dS = P (Z dP - D - dH ln P), where dP was, dH the gradient of the entropy; and weights become Z P, what dV is made
// of.
inline void softmax_gradient(const backward::Call& call, std::int64_t batch, const BackwardPanel& panel,
                             const LaneKeys& at, float* weights, float* ds) {
  const VF delta = hn::Load(DF(), panel.delta + at.lane);
  const std::int64_t from = (at.lo - at.first) * kPanel + at.lane, to = (at.hi - at.first) * kPanel + at.lane;
  const VF dentropy = panel.dentropy ? hn::Load(DF(), panel.dentropy + at.lane) : hn::Zero(DF());
  if (!panel.scores.dropout) {
    for (std::int64_t i = from; panel.dentropy && i < to; i += kPanel)
      hn::Store(hn::NegMulAdd(dentropy, log_weight(hn::Load(DF(), weights + i)), hn::Load(DF(), ds + i)), DF(), ds + i);
    for (std::int64_t i = from; i < to; i += kPanel)
      hn::Store(hn::Load(DF(), weights + i) * (hn::Load(DF(), ds + i) - delta), DF(), ds + i);
    return;
  }
  const Dropout& dropout = call.forward.dropout;
  each_draw(dropout, static_cast<std::uint32_t>(batch), panel.scores, at.lane, at.lo, at.hi,
            [&](std::int64_t k, hn::Mask<DF> kept) HWY_ATTR {
              const std::int64_t i = (k - at.first) * kPanel + at.lane;
              const VF p = hn::Load(DF(), weights + i);
              VF z = hn::IfThenElseZero(kept, splat(dropout.keep_scale)) * hn::Load(DF(), ds + i);
              if (panel.dentropy) z = hn::NegMulAdd(dentropy, log_weight(p), z);
              hn::Store(p * (z - delta), DF(), ds + i);
              hn::Store(dropped_or_kept(dropout, p, kept), DF(), weights + i);
            });
}

// A pair that weighs nothing has no gradient, whatever a derivative or an overflow says. (A dropped weight is -0.)
ONEPASS_HD VF unless_hidden(VF weight, VF ds) {
  return hn::IfThenZeroElse(hn::RebindMask(DF(), hn::Eq(hn::BitCast(DU(), weight), hn::Zero(DU()))), ds);
}

// dS becomes dX through the derivatives of score_mod and softcap. Returns the lanes' sums of dS * -distance, ALiBi's
// part.
inline VF score_gradient(const backward::Scratch& scratch, const BackwardPanel& panel, const LaneKeys& at,
                         const float* weights, float* ds) {
  const VI aligned = hn::Load(DI(), panel.scores.aligned + at.lane);
  const bool modified = panel.scores.modified(), capped = panel.scores.params.softcap > 0;
  VF slope = hn::Zero(DF());
  for (std::int64_t k = at.lo; k < at.hi; ++k) {
    const std::int64_t i = (k - at.first) * kPanel + at.lane, t = (k - at.tile_lo) * kPanel + at.lane;
    const VF w = hn::Load(DF(), weights + i);
    VF x = hn::Load(DF(), ds + i);
    if (modified) x = x * hn::Load(DF(), scratch.mod_slope + t);
    x = unless_hidden(w, x);
    if (scratch.pairs) hn::Store(x, DF(), scratch.pairs + t);
    if (scratch.slopes)
      slope =
          hn::NegMulAdd(x, hn::Abs(hn::ConvertTo(DF(), aligned - hn::Set(DI(), static_cast<std::int32_t>(k)))), slope);
    if (capped) x = unless_hidden(w, x * hn::Load(DF(), scratch.cap_slope + t));
    hn::Store(x, DF(), ds + i);
  }
  return slope;
}

// Adds a tile of `pairs`, keys [lo, hi) of which vector v takes part in [lanes_lo[v], lanes_hi[v]), to dbias. Turns the
// tile over.
inline void add_bias_gradient(const backward::Call& call, const backward::Task& task, const flash::Task& block,
                              const backward::Scratch& scratch, const BackwardPanel& panel, std::int64_t lo,
                              std::int64_t hi) {
  const Problem& p = call.problem();
  float* pairs = scratch.pairs;
  const std::int64_t n = hi - lo;
  if (call.bias == backward::BiasSums::by_key) {
    for (std::int64_t k = 0; k < n; ++k) {
      for (int lane = 0; lane < panel.rows; ++lane) {
        const std::int64_t head = row_name(p, block, panel.row + lane).head;
        call.dbias[((task.row_split * p.batch + task.batch) * p.heads_q + head) * p.seq_k + lo + k] +=
            pairs[k * kPanel + lane];
      }
    }
    return;
  }
  if (call.bias == backward::BiasSums::by_row) {
    for (int v = 0; v < panel.vecs; ++v) {
      VF sum = hn::Zero(DF());
      for (std::int64_t k = 0; k < n; ++k) sum = sum + hn::Load(DF(), pairs + k * kPanel + v * kLanes);
      HWY_ALIGN float sums[kLanes];
      hn::Store(sum, DF(), sums);
      for (int lane = v * kLanes; lane < std::min((v + 1) * kLanes, panel.rows); ++lane) {
        const RowName name = row_name(p, block, panel.row + lane);
        call.dbias[task.key_split * backward::rows_of(p) + partial_row(p, task.seq, name.head, name.token)] +=
            sums[lane - v * kLanes];
      }
    }
    return;
  }
  const Tensor& t = call.forward.arguments.dbias;
  const Dims stride = broadcast_strides(t);
  std::fill_n(pairs + n * kPanel, round_up(n, 4) * kPanel - n * kPanel, 0.0f);
  transpose_blocks(pairs, kPanel, panel.vecs, n);
  const auto row_of = [&](int lane) {
    const RowName name = lane_name(p, block, panel.row, lane);
    return static_cast<float*>(t.data) + task.batch * stride[0] + name.head * stride[1] + name.token * stride[2] +
           lo * stride[3];
  };
  for (int lane = 0; lane < panel.rows; ++lane) {
    float* to = row_of(lane);
    if (stride[3] == 1) prefetch_run(row_of(lane + kRowsAhead), n * static_cast<std::int64_t>(sizeof(float)));
    for (std::int64_t k = 0; k < n; k += 4) {
      const float* from = block_of(pairs, kPanel, lane, k / 4);
      if (stride[3] == 1 && k + 4 <= n) {
        hn::StoreU(hn::LoadU(D4(), to + k) + hn::Load(D4(), from), D4(), to + k);
      } else {
        for (std::int64_t i = 0; i < std::min<std::int64_t>(4, n - k); ++i) to[(k + i) * stride[3]] += from[i];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
