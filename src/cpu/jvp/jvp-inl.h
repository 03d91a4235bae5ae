// Attention and its derivative along tangents in one pass over the keys: FlashAttention-2 with lanes = rows.
//
//   S  = K Q^T                   scores          as in the forward, with its features and its running maximum
//   dS = K tQ^T + tK Q^T         score_tangents  [key][lane]; scaled, and by the scores' derivatives
//   P  = 2^(S - m), X = P dS     softmax         l = sum P, mu = sum X
//   O  = alpha O + P V           accumulate      [column][lane]
//   tO = alpha tO + X V + P tV   accumulate
//   tO / l - (mu / l) O / l      epilogue        and mu / l, the derivative of the LSE
//
// Sums and mu refer to the maximum as O and l do, so that alpha moves all of them. docs/derivation.md derives it.
#if defined(ONEPASS_CPU_JVP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_JVP_INL_H
#undef ONEPASS_CPU_JVP_INL_H
#else
#define ONEPASS_CPU_JVP_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "cpu/flash/flash-inl.h"
#include "cpu/flash/slopes-inl.h"
#include "cpu/jvp/jvp.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

struct JvpPanel {
  Panel primal, tangent;
  float* mu;
};

// Values of a block of V, and of its tangent, that are not finite; null if all are.
struct JvpNonfinite {
  const Nonfinite *primal = nullptr, *tangent = nullptr;
};

struct JvpTask {
  const jvp::Call& call;
  const flash::Task& task;
  const jvp::Scratch& scratch;
  const Problem& p = call.primal.problem;
  const FlashTask primal{call.primal, task, scratch.primal}, tangent{call.tangent, task, scratch.tangent};

  // ---- one block of keys, one panel

  void score_tangents(const JvpPanel& panel, const Block& block, const Block& moved, const Segment& s) const {
    HWY_ALIGN float unused[kPanel] = {};
    const int from = s.from * kLanes;
    for (std::int64_t k = s.lo; k < s.hi; k += kTileKeys) {
      const std::int64_t n = std::min<std::int64_t>(kTileKeys, s.hi - k), at = k - block.first;
      float* const to = scratch.tangent.scores + at * kPanel + from;
      kScoresTiles[s.to - s.from - 1][n - 1](panel.tangent.q + from, block.k + at * block.k_stride, block.k_stride,
                                             p.dim_qk, to, unused);
      kAddTiles[s.to - s.from - 1][n - 1](panel.primal.q + from, moved.k + at * moved.k_stride, moved.k_stride,
                                          p.dim_qk, to, unused);
    }
  }

  // Products for keys [lo, hi) become dS, where scores are natural. Side tiles begin at tile_lo.
  void finish_tangents(int lane, std::int64_t first, std::int64_t lo, std::int64_t hi, std::int64_t tile_lo) const {
    const VF scale = splat(static_cast<float>(std::abs(p.effective_scale())));
    for (std::int64_t k = lo; k < hi; ++k) {
      float* const at = scratch.tangent.scores + (k - first) * kPanel + lane;
      const std::int64_t side = (k - tile_lo) * kPanel + lane;
      VF d = hn::Load(DF(), at) * scale;
      if (scratch.cap_slope) d = d * hn::Load(DF(), scratch.cap_slope + side);
      if (scratch.tbias) d = d + hn::Load(DF(), scratch.tbias + side);
      if (scratch.mod_slope) d = d * hn::Load(DF(), scratch.mod_slope + side);
      hn::Store(d, DF(), at);
    }
  }

  // Scores of keys [lo, hi) for one vector of rows become P, their tangents times `scale` become P dS; the state moves
  // on. Returns what to do to old sums. A hidden key's tangent counts for nothing, be it NaN.
  VF softmax(const JvpPanel& panel, const Block& block, int lane, std::int64_t lo, std::int64_t hi, VF tile_max,
             VF scale) const {
    RowState<VF> state{hn::Load(DF(), panel.primal.m + lane), hn::Load(DF(), panel.primal.l + lane)};
    const VF factor = splat(panel.primal.scores.unit.to_log2);
    const Step<VF> r = advance(state, tile_max, factor);
    const std::int64_t from = (lo - block.first) * kPanel + lane;
    float *weights = scratch.primal.scores + from, *moves = scratch.tangent.scores + from;
    VF sum[2] = {hn::Zero(DF()), hn::Zero(DF())}, mu[2] = {hn::Zero(DF()), hn::Zero(DF())};
    for (std::int64_t k = lo; k < hi; ++k, weights += kPanel, moves += kPanel) {
      const VF s = hn::Load(DF(), weights), w = weight(s, factor, r);
      const VF d = hn::IfThenZeroElse(hn::Eq(s, Arith<VF>::neg_inf()), hn::Load(DF(), moves) * scale), x = w * d;
      hn::Store(w, DF(), weights);
      hn::Store(x, DF(), moves);
      sum[k % 2] = sum[k % 2] + w;
      mu[k % 2] = mu[k % 2] + x;
    }
    absorb(state, sum[0] + sum[1]);
    hn::Store(state.m, DF(), panel.primal.m + lane);
    hn::Store(state.l, DF(), panel.primal.l + lane);
    hn::Store(hn::MulAdd(hn::Load(DF(), panel.mu + lane), r.alpha, mu[0] + mu[1]), DF(), panel.mu + lane);
    return r.alpha;
  }

  void drop(const PanelScores& scores, int lane, std::int64_t first, std::int64_t lo, std::int64_t hi) const {
    const Dropout& dropout = call.primal.dropout;
    each_draw(dropout, static_cast<std::uint32_t>(task.batch), scores, lane, lo, hi,
              [&](std::int64_t k, hn::Mask<DF> kept) HWY_ATTR {
                for (float* tile : {scratch.primal.scores, scratch.tangent.scores}) {
                  float* at = tile + (k - first) * kPanel + lane;
                  hn::Store(dropped_or_kept(dropout, hn::Load(DF(), at), kept), DF(), at);
                }
              });
  }

  void accumulate(const JvpPanel& panel, const Block& block, const Block& moved, const Segment& s, float* alpha) const {
    primal.accumulate(panel.primal, block, s, alpha);
    tangent.accumulate(panel.tangent, block, s, alpha);
    for (int v = s.from; v < s.to; ++v) hn::Store(splat(1.0f), DF(), alpha + v * kLanes);  // rescaled once
    primal.accumulate(panel.tangent, moved, s, alpha);
  }

  void note(const JvpNonfinite& nonfinite, int lane, std::int64_t lo, std::int64_t hi) const {
    if (nonfinite.primal) note_visible(*nonfinite.primal, lane, lo, hi, scratch.primal.scores, scratch.primal.visible);
    if (nonfinite.tangent)
      note_visible(*nonfinite.tangent, lane, lo, hi, scratch.primal.scores, scratch.tangent.visible);
  }
  // tO loses what O loses, too.
  void lose(const JvpPanel& panel, const JvpNonfinite& nonfinite) const {
    const auto add = [&](const Nonfinite& n, const flash::Scratch& of, const Panel& to) {
      add_lost(n, of.visible, p.dim_v, panel.primal.vecs, *to.has_lost, to.lost);
    };
    if (nonfinite.primal) add(*nonfinite.primal, scratch.primal, panel.primal);
    if (nonfinite.primal) add(*nonfinite.primal, scratch.primal, panel.tangent);
    if (nonfinite.tangent) add(*nonfinite.tangent, scratch.tangent, panel.tangent);
  }

  // moved: the block's tangents.
  void step(const JvpPanel& both, const Block& block, const Block& moved, Tile shown,
            const JvpNonfinite& nonfinite) const {
    const Panel& panel = both.primal;
    Segments segments = cut(panel.lo, panel.hi, panel.vecs, block.first, block.first + block.keys);
    if (segments.count == 0 || shown == Tile::skip) return;
    const bool plain = panel.scores.plain();
    const std::int64_t lo = segments.piece[0].lo, hi = segments.piece[segments.count - 1].hi;
    Fetched fetched;
    if (!plain)
      fetched = fetch_tiles(call.primal, task, scratch.primal, panel.scores, panel.row, panel.vecs, lo, hi, shown);
    if (fetched.hidden == Hidden::all) return;
    if (scratch.tbias) {
      const ConstTensor& t = call.primal.arguments.tbias;
      flash::with_storage(t.dtype, [&](auto zero) {
        fetch_tile<decltype(zero)>({t.data, t.dtype, broadcast_strides(t)}, p, task, panel.row, panel.vecs, lo, hi,
                                   scratch.tbias);
      });
    }
    const bool masked = fetched.hidden == Hidden::some;
    if (masked) segments = cut(panel.lo, panel.hi, panel.vecs, fetched.lo, fetched.hi);

    HWY_ALIGN float tile_max[kPanel], alpha[kPanel];
    for (int lane = 0; lane < kPanel; lane += kLanes) hn::Store(Arith<VF>::neg_inf(), DF(), tile_max + lane);
    for (int i = 0; i < segments.count; ++i) {
      primal.scores(panel, block, segments.piece[i], tile_max);
      score_tangents(both, block, moved, segments.piece[i]);
    }

    const auto apply = [&]<Part part>(int v) HWY_ATTR {
      const int lane = v * kLanes;
      return apply_chain<part>(panel.scores, lane, block.first, segments.lo[v], segments.hi[v], lo, panel.lo + lane,
                               panel.hi + lane, masked, scratch.primal.scores);
    };
    if (panel.scores.modified()) {  // scores visible to no lane of a vector are changed too: they are never read
      for (int v = 0; v < panel.vecs; ++v) apply.template operator()<Part::before_mod>(v);
      change_scores_and_slopes(call.primal, task, panel.scores, panel.vecs, lo, hi,
                               {scratch.duals, scratch.dual_numbers, scratch.primal.mods.integers},
                               scratch.primal.scores + (lo - block.first) * kPanel, scratch.mod_slope);
    }
    const VF scale = splat(plain ? panel.scores.unit.to_natural : 1.0f);
    for (int v = 0; v < panel.vecs; ++v) {
      const std::int64_t v_lo = segments.lo[v], v_hi = segments.hi[v];
      const int lane = v * kLanes;
      if (v_lo >= v_hi) {
        note(nonfinite, lane, 0, 0);
        continue;
      }
      const VF most = plain && segments.whole   ? hn::Load(DF(), tile_max + lane)
                      : panel.scores.modified() ? apply.template operator()<Part::after_mod>(v)
                                                : apply.template operator()<Part::all>(v);
      note(nonfinite, lane, v_lo - block.first, v_hi - block.first);
      if (!plain) finish_tangents(lane, block.first, v_lo, v_hi, lo);
      hn::Store(softmax(both, block, lane, v_lo, v_hi, most, scale), DF(), alpha + lane);
      if (panel.scores.dropout) drop(panel.scores, lane, block.first, v_lo, v_hi);
    }
    for (int i = 0; i < segments.count; ++i) accumulate(both, block, moved, segments.piece[i], alpha);
    lose(both, nonfinite);
  }

  // ---- the whole task

  void pass(const JvpPanel* panels, int count) const {
    const std::int64_t lo = panels[0].primal.lo[0], hi = panels[count - 1].primal.hi[kPanel - 1],
                       first = lo / kBlock * kBlock;
    const bool bounded = call.primal.mask_bounds != nullptr;
    for (int i = 0; bounded && first < hi && i < count; ++i)
      flash::look_at_mask(call.primal, task, panels[i].primal.row, panels[i].primal.rows, first, hi,
                          panels[i].primal.tiles);
    const auto shown = [&](const JvpPanel& panel, std::int64_t k) {
      return bounded ? panel.primal.tiles[(k - first) / kBlock] : Tile::partial;
    };
    for (std::int64_t k = first; k < hi; k += kBlock) {
      if (std::all_of(panels, panels + count, [&](const JvpPanel& x) { return shown(x, k) == Tile::skip; })) continue;
      Block block = open_block(call.primal, task, scratch.primal, k),
            moved = open_block(call.tangent, task, scratch.tangent, k);
      const bool finite = block.v_finite, moved_finite = moved.v_finite;
      const Nonfinite of_v = finite ? Nonfinite{} : separate(call.primal, task, scratch.primal, block),
                      of_tv = moved_finite ? Nonfinite{} : separate(call.tangent, task, scratch.tangent, moved);
      const JvpNonfinite nonfinite{finite ? nullptr : &of_v, moved_finite ? nullptr : &of_tv};
      for (int i = 0; i < count; ++i) step(panels[i], block, moved, shown(panels[i], k), nonfinite);
    }
  }

  void run() const {
    constexpr int kMaxPanels = kGeometry.panels;
    const int count = static_cast<int>(ceil_div(task.row_hi - task.row_lo, kPanel));
    JvpPanel panels[kMaxPanels];
    bool has_lost[2 * kMaxPanels] = {};
    for (int i = 0; i < count; ++i) {
      panels[i] = {primal.open(i, has_lost + i), tangent.open(i, has_lost + kMaxPanels + i), scratch.mu + i * kPanel};
      panels[i].primal.scores.cap_slope = scratch.cap_slope;
      std::fill_n(panels[i].mu, kPanel, 0.0f);
    }
    pass(panels, count);
    for (int i = 0; i < count; ++i) epilogue(panels[i]);
  }

  // A number of each lane's head; 0 where the tensor is not given.
  void of_heads(const Panel& panel, const ConstTensor& t, float* lanes) const {
    std::fill_n(lanes, kPanel, 0.0f);
    for (int lane = 0; t.given() && lane < panel.vecs * kLanes; ++lane)
      lanes[lane] = static_cast<const float*>(t.data)[lane_name(p, task, panel.row, lane).head * t.stride[0]];
  }

  // O / l, tO / l - mu O and the LSE and mu, with the sink in the denominator.
  void epilogue(const JvpPanel& both) const {
    const Panel& panel = both.primal;
    const Tensors& a = call.primal.arguments;
    HWY_ALIGN float factor[kPanel], lse[kPanel], sink[kPanel], tsink[kPanel];
    of_heads(panel, a.sinks, sink);
    of_heads(panel, a.tsinks, tsink);
    for (int lane = 0; lane < panel.vecs * kLanes; lane += kLanes) {
      const ScoreUnit& unit = panel.scores.unit;
      RowState<VF> state = to_natural(RowState<VF>{hn::Load(DF(), panel.m + lane), hn::Load(DF(), panel.l + lane)},
                                      splat(unit.to_log2), splat(unit.to_natural));
      VF alpha = splat(1.0f), mu = hn::Load(DF(), both.mu + lane);
      if (p.sinks) {
        const Merged<VF> joined = join_natural_sink(state, hn::Load(DF(), sink + lane));
        state = joined.state;
        alpha = joined.alpha_a;
        mu = hn::MulAdd(mu, alpha, joined.alpha_b * hn::Load(DF(), tsink + lane));
      }
      const Final<VF> end = finalize_natural(state);
      hn::Store(end.inv_l * alpha, DF(), factor + lane);
      hn::Store(end.lse, DF(), lse + lane);
      hn::Store(mu * end.inv_l, DF(), both.mu + lane);
    }
    finish(both, factor);
    store(panel.out, panel, a.out);
    store(both.tangent.out, panel, a.tout);
    if (p.want_lse) primal.write_numbers(panel, lse, a.lse);
    if (p.want_tlse) primal.write_numbers(panel, both.mu, a.tlse);
  }

  // A mu that is not finite makes its row of tO NaN, which may stand for an infinity.
  void finish(const JvpPanel& both, const float* factor) const {
    const Panel &panel = both.primal, &moved = both.tangent;
    for (std::int64_t d = 0; d < p.dim_v; ++d) {
      for (int lane = 0; lane < panel.vecs * kLanes; lane += kLanes) {
        float *out = panel.out + d * kPanel + lane, *tout = moved.out + d * kPanel + lane;
        const VF f = hn::Load(DF(), factor + lane), mu = hn::Load(DF(), both.mu + lane), o = hn::Load(DF(), out) * f;
        hn::Store(o, DF(), out);
        hn::Store(hn::NegMulAdd(mu + (mu - mu), o, hn::Load(DF(), tout) * f), DF(), tout);
      }
    }
    HWY_ALIGN float one[kPanel];
    std::fill_n(one, kPanel, 1.0f);
    for (const Panel* x : {&panel, &moved}) {
      if (*x->has_lost) join_lost(x->lost, one, p.dim_v, panel.vecs, x->out);
      transpose_blocks(x->out, kPanel, panel.vecs, p.dim_v);
    }
  }

  void store(const float* rows, const Panel& panel, const Tensor& to) const {
    flash::with_storage(to.dtype, [&](auto zero) {
      for (int lane = 0; lane < panel.rows; ++lane) {
        const RowName name = row_name(p, task, panel.row + lane);
        const std::int64_t at = row_offset(to, task.seq.batch, name.head, task.seq.q_begin + name.token);
        pick_row(rows, kPanel, lane, p.dim_v, static_cast<decltype(zero)*>(to.data) + at);
      }
    });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
