// One pass over the keys for up to `panels` panels of rows: FlashAttention-2 with lanes = rows.
//
//   S = K Q^T          scores          the panel's scores [key][lane]; the tile's maximum stays in registers
//   softcap .. masks   apply_chain     only where there are any
//   P = 2^(S - m)      softmax         m: the running maximum; l, alpha
//   O = alpha O + P V  accumulate      [column][lane]
//   O / l, LSE         epilogue
//
// Sources: Dao 2023 (FlashAttention-2), Algorithm 1; the layout is src/cpu/README.md's.
#if defined(ONEPASS_CPU_FLASH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_FLASH_INL_H
#undef ONEPASS_CPU_FLASH_INL_H
#else
#define ONEPASS_CPU_FLASH_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "algebra/ceil_div.hpp"
#include "cpu/flash/nonfinite-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/rows-inl.h"
#include "cpu/flash/scores-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// A panel's part of the scratch.
struct Panel {
  std::int64_t row;  // its first
  int rows, vecs;
  float *q, *out, *m, *l, *t;  // t: the entropies' sums (algebra/entropy.hpp), or null
  std::uint32_t* lost;
  std::int32_t *lo, *hi;
  bool* has_lost;  // `lost` holds something
  PanelScores scores;
  Tile* tiles;  // flash::Scratch
};

struct FlashTask {
  const flash::Call& call;
  const flash::Task& task;
  const flash::Scratch& scratch;
  const Problem& p = call.problem;

  // ---- one block of keys, one panel

  void scores(const Panel& panel, const Block& block, const Segment& s, float* tile_max) const {
    for (std::int64_t k = s.lo; k < s.hi; k += kTileKeys) {
      const std::int64_t n = std::min<std::int64_t>(kTileKeys, s.hi - k), at = k - block.first;
      kScoresTiles[s.to - s.from - 1][n - 1](panel.q + s.from * kLanes, block.k + at * block.k_stride, block.k_stride,
                                             p.dim_qk, scratch.scores + at * kPanel + s.from * kLanes,
                                             tile_max + s.from * kLanes);
    }
  }

  void accumulate(const Panel& panel, const Block& block, const Segment& s, const float* alpha) const {
    const std::int64_t at = s.lo - block.first;
    for (std::int64_t column = 0; column < p.dim_v; column += kTileDims) {
      const int width = static_cast<int>(std::min<std::int64_t>(kTileDims, p.dim_v - column));
      const std::ptrdiff_t step = block.v_step(width);
      kAccumulateTiles[s.to - s.from - 1][width - 1](
          scratch.scores + at * kPanel + s.from * kLanes, block.v_tile(column) + at * step, step, s.hi - s.lo,
          panel.out + column * kPanel + s.from * kLanes, alpha + s.from * kLanes);
    }
  }

  // Scores of keys [lo, hi) become weights. Returns their sum: four sums, of every fourth key (common/one_result.hpp).
  // weight_of(score, the sum's number).
  template <class Weight>
  static HWY_INLINE VF weigh(float* at, std::int64_t lo, std::int64_t hi, Weight weight_of) {
    VF sum[kSumsOfKeys] = {hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF())};
    const auto add = [&](std::int64_t i) HWY_ATTR {
      const VF w = weight_of(hn::Load(DF(), at), i);
      hn::Store(w, DF(), at);
      sum[i] = sum[i] + w;
      at += kPanel;
    };
    std::int64_t k = lo;
    for (; k < hi && k % kSumsOfKeys != 0; ++k) add(k % kSumsOfKeys);
    for (; k + kSumsOfKeys <= hi; k += kSumsOfKeys) add(0), add(1), add(2), add(3);
    for (; k < hi; ++k) add(k % kSumsOfKeys);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }

  // Scores of keys [lo, hi) for one vector of rows become weights; its state moves on. Returns what to do to old
  // output.
  VF softmax(const Panel& panel, const Block& block, int lane, std::int64_t lo, std::int64_t hi, VF tile_max) const {
    RowState<VF> state{hn::Load(DF(), panel.m + lane), hn::Load(DF(), panel.l + lane)};
    const VF factor = splat(panel.scores.unit.to_log2);
    const Step<VF> r = advance(state, tile_max, factor);
    float* at = scratch.scores + (lo - block.first) * kPanel + lane;
    if (panel.t) return softmax_and_terms(panel, at, lane, lo, hi, state, r);
    if (hn::AllTrue(DF(), hn::Eq(r.before, hn::Zero(DF()))))
      absorb(state, weigh(at, lo, hi, [&](VF s, std::int64_t) HWY_ATTR { return fused_weight(s, factor, r); }));
    else
      absorb(state, weigh(at, lo, hi, [&](VF s, std::int64_t) HWY_ATTR { return weight(s, factor, r); }));
    hn::Store(state.m, DF(), panel.m + lane);
    hn::Store(state.l, DF(), panel.l + lane);
    return r.alpha;
  }
  // The same weights, from where the state has moved on already, and their sum t.
  VF softmax_and_terms(const Panel& panel, float* at, int lane, std::int64_t lo, std::int64_t hi, RowState<VF> state,
                       const Step<VF>& r) const {
    const VF factor = splat(panel.scores.unit.to_log2);
    const VF before = moved_terms(hn::Load(DF(), panel.t + lane), state.l, hn::Load(DF(), panel.m + lane), factor, r);
    VF t[kSumsOfKeys] = {hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF())};
    absorb(state, weigh(at, lo, hi, [&](VF s, std::int64_t i) HWY_ATTR {
             const VF w = weight(s, factor, r);
             t[i] = hn::MulAdd(w, exponent(s, factor, r), t[i]);
             return w;
           }));
    hn::Store(state.m, DF(), panel.m + lane);
    hn::Store(state.l, DF(), panel.l + lane);
    hn::Store(before + ((t[0] + t[2]) + (t[1] + t[3])), DF(), panel.t + lane);
    return r.alpha;
  }

  // nonfinite: of the block's values; null if they are finite.
  // shown: how a mask_mod shows the block.
  void step(const Panel& panel, const Block& block, Tile shown, const Nonfinite* nonfinite) const {
    Segments segments = cut(panel.lo, panel.hi, panel.vecs, block.first, block.first + block.keys);
    if (segments.count == 0 || shown == Tile::skip) return;
    const bool plain = panel.scores.plain();
    const std::int64_t lo = segments.piece[0].lo, hi = segments.piece[segments.count - 1].hi;
    Fetched fetched;
    if (!plain || panel.scores.params.tree.given())
      fetched = fetch_tiles(call, task, scratch, panel.scores, panel.row, panel.vecs, lo, hi, shown);
    if (fetched.hidden == Hidden::all) return;
    const bool masked = fetched.hidden == Hidden::some;
    if (masked) segments = cut(panel.lo, panel.hi, panel.vecs, fetched.lo, fetched.hi);

    HWY_ALIGN float tile_max[kPanel], alpha[kPanel];
    for (int lane = 0; lane < kPanel; lane += kLanes) hn::Store(Arith<VF>::neg_inf(), DF(), tile_max + lane);
    for (int i = 0; i < segments.count; ++i) scores(panel, block, segments.piece[i], tile_max);

    const auto apply = [&]<Part part>(int v) HWY_ATTR {
      const int lane = v * kLanes;
      return apply_chain<part>(panel.scores, lane, block.first, segments.lo[v], segments.hi[v], lo, panel.lo + lane,
                               panel.hi + lane, masked, scratch.scores);
    };
    if (panel.scores.modified()) {  // scores visible to no lane of a vector are changed too: they are never read
      for (int v = 0; v < panel.vecs; ++v) apply.template operator()<Part::before_mod>(v);
      change_scores(call.mods.score, call.arguments, scratch.mods,
                    mod_tile(task, panel.scores, panel.vecs, lo, hi, scratch.scores + (lo - block.first) * kPanel));
    }
    for (int v = 0; v < panel.vecs; ++v) {
      const std::int64_t v_lo = segments.lo[v], v_hi = segments.hi[v];
      const int lane = v * kLanes;
      if (v_lo >= v_hi) {
        if (nonfinite) note_visible(*nonfinite, lane, 0, 0, scratch.scores, scratch.visible);
        continue;
      }
      const VF most = plain && segments.whole && !masked ? hn::Load(DF(), tile_max + lane)
                      : panel.scores.modified()          ? apply.template operator()<Part::after_mod>(v)
                                                         : apply.template operator()<Part::all>(v);
      if (nonfinite)
        note_visible(*nonfinite, lane, v_lo - block.first, v_hi - block.first, scratch.scores, scratch.visible);
      hn::Store(softmax(panel, block, lane, v_lo, v_hi, most), DF(), alpha + lane);
      if (panel.scores.dropout)
        drop_weights(call.dropout, static_cast<std::uint32_t>(task.batch), panel.scores, lane, block.first, v_lo, v_hi,
                     scratch.scores);
    }
    // A row's sum over a block is one sum, however the rows beside it cut the block.
    for (int v = 0; p.batch_invariant && segments.count > 1 && v < panel.vecs; ++v)
      if (segments.lo[v] < segments.hi[v]) accumulate(panel, block, {segments.lo[v], segments.hi[v], v, v + 1}, alpha);
    for (int i = 0; (!p.batch_invariant || segments.count == 1) && i < segments.count; ++i) {
      const Segment& s = segments.piece[i];
      accumulate(panel, block, s, alpha);
      for (int v = s.from; v < s.to; ++v) hn::Store(splat(1.0f), DF(), alpha + v * kLanes);  // rescaled once
    }
    if (nonfinite) add_lost(*nonfinite, scratch.visible, p.dim_v, panel.vecs, *panel.has_lost, panel.lost);
  }

  // ---- the whole task

  Panel open(int index, bool* has_lost) const {
    const std::int64_t row = task.row_lo + index * kPanel;
    const int rows = static_cast<int>(std::min<std::int64_t>(kPanel, task.row_hi - row));
    Panel panel{row,
                rows,
                ceil_div(rows, kLanes),
                scratch.q + index * kPanel * (p.dim_qk + 3),
                scratch.out + index * kPanel * (p.dim_v + 3),
                scratch.m + index * kPanel,
                scratch.l + index * kPanel,
                scratch.t ? scratch.t + index * kPanel : nullptr,
                scratch.lost + index * kPanel * p.dim_v,
                scratch.lo + index * kPanel,
                scratch.hi + index * kPanel,
                has_lost,
                panel_scores(call, task, scratch, row),
                scratch.tiles ? scratch.tiles + index * flash::tiles_of(p, kGeometry) : nullptr};
    const std::int64_t chunk = call.splits.chunk_of(task.seq.seq_k);
    look_at(panel, task.split * chunk, (task.split + 1) * chunk);
    const ConstTensor& q = call.arguments.q;
    flash::with_input(q.dtype, [&](auto zero) {
      for (int lane = 0; lane < panel.vecs * kLanes; ++lane) {
        const RowName name = lane_name(p, task, row, lane);
        const std::int64_t at = row_offset(q, task.seq.batch, name.head, task.seq.q_begin + name.token);
        place_row(static_cast<const decltype(zero)*>(q.data) + at, 1, p.dim_qk, panel.q, kPanel, lane);
      }
    });
    HWY_ALIGN float scale[kPanel];  // the rest of it: apply_chain
    std::fill_n(scale, kPanel, p.effective_scale() > 0 ? 1.0f : p.effective_scale() < 0 ? -1.0f : 0.0f);
    transpose_blocks(panel.q, kPanel, panel.vecs, p.dim_qk, scale);
    if (const Descale factors(call.arguments.q_descale, task.batch); factors.given()) scale_lanes(panel, factors);
    clear(panel);
    return panel;
  }

  void look_at(const Panel& panel, std::int64_t lo, std::int64_t hi) const {
    const std::int64_t end = task.seq.seq_k;
    lane_ranges(p, task, panel.row, std::min(lo, end), std::min(hi, end), panel.lo, panel.hi);
  }

  void scale_lanes(const Panel& panel, const Descale& factors) const {
    HWY_ALIGN float factor[kPanel];
    for (int lane = 0; lane < panel.vecs * kLanes; ++lane) {
      const RowName name = lane_name(p, task, panel.row, lane);
      factor[lane] = factors.at(name.head, name.token);
    }
    for (std::int64_t d = 0; d < p.dim_qk; ++d) {
      for (int lane = 0; lane < panel.vecs * kLanes; lane += kLanes) {
        float* const at = panel.q + d * kPanel + lane;
        hn::Store(hn::Load(DF(), at) * hn::Load(DF(), factor + lane), DF(), at);
      }
    }
  }

  void clear(const Panel& panel) const {
    const RowState<VF> empty{Arith<VF>::neg_inf(), hn::Zero(DF())};
    for (int lane = 0; lane < kPanel; lane += kLanes) {
      hn::Store(empty.m, DF(), panel.m + lane);
      hn::Store(empty.l, DF(), panel.l + lane);
    }
    std::fill_n(panel.out, kPanel * p.dim_v, 0.0f);
    if (panel.t) std::fill_n(panel.t, kPanel, 0.0f);
  }

  void pass(const Panel* panels, int count) const {
    const std::int64_t lo = panels[0].lo[0], hi = panels[count - 1].hi[kPanel - 1], first = lo / kBlock * kBlock;
    for (int i = 0; call.mask_bounds && first < hi && i < count; ++i)
      flash::look_at_mask(call, task, panels[i].row, panels[i].rows, first, hi, panels[i].tiles);
    const auto shown = [&](const Panel& panel, std::int64_t k) {
      return call.mask_bounds ? panel.tiles[(k - first) / kBlock] : Tile::partial;
    };
    for (std::int64_t k = first; k < hi; k += kBlock) {
      if (std::all_of(panels, panels + count, [&](const Panel& x) { return shown(x, k) == Tile::skip; })) continue;
      Block block = open_block(call, task, scratch, k);
      const Nonfinite nonfinite = block.v_finite ? Nonfinite{} : separate(call, task, scratch, block);
      for (int i = 0; i < count; ++i)
        step(panels[i], block, shown(panels[i], k), block.v_finite ? nullptr : &nonfinite);
    }
  }

  // f(panels, their number)
  template <class F>
  void with_panels(F f) const {
    constexpr int kMaxPanels = kGeometry.panels;
    const int count = static_cast<int>(ceil_div(task.row_hi - task.row_lo, kPanel));
    Panel panels[kMaxPanels];
    bool has_lost[kMaxPanels] = {};
    for (int i = 0; i < count; ++i) panels[i] = open(i, has_lost + i);
    f(panels, count);
  }

  void run() const {
    with_panels([&](const Panel* panels, int count) {
      pass(panels, count);
      for (int i = 0; i < count; ++i) call.splits.count > 1 ? save(panels[i]) : epilogue(panels[i]);
    });
  }

  // O / l and the LSE, with the sink in the denominator, and the largest score, without it.
  void epilogue(const Panel& panel) const {
    HWY_ALIGN float factor[kPanel], lse[kPanel], row_max[kPanel], sink[kPanel] = {};
    if (p.sinks) {
      const ConstTensor& t = call.arguments.sinks;
      for (int lane = 0; lane < panel.vecs * kLanes; ++lane) {
        const std::int64_t head = lane_name(p, task, panel.row, lane).head;
        sink[lane] = static_cast<const float*>(t.data)[head * t.stride[0]];
      }
    }
    for (int lane = 0; lane < panel.vecs * kLanes; lane += kLanes) {
      const ScoreUnit& unit = panel.scores.unit;
      RowState<VF> state = to_natural(RowState<VF>{hn::Load(DF(), panel.m + lane), hn::Load(DF(), panel.l + lane)},
                                      splat(unit.to_log2), splat(unit.to_natural));
      hn::Store(largest_score(state), DF(), row_max + lane);
      VF alpha = splat(1.0f);
      if (p.sinks) {
        const Merged<VF> joined = join_natural_sink(state, hn::Load(DF(), sink + lane));
        state = joined.state;
        alpha = joined.alpha_a;
      }
      const Final<VF> end = finalize_natural(state);
      hn::Store(end.inv_l * alpha, DF(), factor + lane);
      hn::Store(end.lse, DF(), lse + lane);
    }
    if (*panel.has_lost) join_lost(panel.lost, factor, p.dim_v, panel.vecs, panel.out);
    transpose_blocks(panel.out, kPanel, panel.vecs, p.dim_v, *panel.has_lost ? nullptr : factor);
    const Tensor& out = call.arguments.out;
    flash::with_storage(out.dtype, [&](auto zero) {
      for (int lane = 0; lane < panel.rows; ++lane) {
        const RowName name = row_name(p, task, panel.row + lane);
        const std::int64_t at = row_offset(out, task.seq.batch, name.head, task.seq.q_begin + name.token);
        pick_row(panel.out, kPanel, lane, p.dim_v, static_cast<decltype(zero)*>(out.data) + at);
      }
    });
    if (p.want_lse) write_numbers(panel, lse, call.arguments.lse);
    if (p.want_row_max) write_numbers(panel, row_max, call.arguments.row_max);
    if (p.entropy) write_entropies(panel, sink);
  }
  float entropy_of(const Panel& panel, int lane) const { return onepass::entropy(panel.l[lane], panel.t[lane]); }
  void write_entropies(const Panel& panel, const float* sink) const {
    const ScoreUnit& unit = panel.scores.unit;
    HWY_ALIGN float entropies[kPanel];
    for (int lane = 0; lane < panel.rows; ++lane) {
      const onepass::RowState<float> state{panel.m[lane], panel.l[lane]};
      entropies[lane] = finished_entropy(p, onepass::to_natural(state, unit.to_log2, unit.to_natural),
                                         entropy_of(panel, lane), sink[lane]);
    }
    write_numbers(panel, entropies, call.arguments.entropy);
  }
  void write_numbers(const Panel& panel, const float* of_lanes, const Tensor& to) const {
    for (int lane = 0; lane < panel.rows; ++lane) {
      const RowName name = row_name(p, task, panel.row + lane);
      static_cast<float*>(to.data)[lse_offset(to, task.seq.batch, name.head, task.seq.q_begin + name.token)] =
          of_lanes[lane];
    }
  }

  // A split leaves its state for combine().
  void save(const Panel& panel) const {
    if (*panel.has_lost) {
      HWY_ALIGN float one[kPanel];
      std::fill_n(one, kPanel, 1.0f);
      join_lost(panel.lost, one, p.dim_v, panel.vecs, panel.out);
    }
    transpose_blocks(panel.out, kPanel, panel.vecs, p.dim_v);
    for (int lane = 0; lane < panel.rows; ++lane) {
      const RowName name = row_name(p, task, panel.row + lane);
      const std::int64_t row = partial_row(p, task.seq, name.head, name.token);
      call.partials.state_of(row, task.split) = {panel.m[lane], panel.l[lane]};
      if (panel.t) call.partials.entropy[row * call.partials.splits + task.split] = entropy_of(panel, lane);
      pick_row(panel.out, kPanel, lane, p.dim_v, call.partials.out_of(row, task.split));
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
