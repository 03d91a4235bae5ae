// Forward mode of the backward pass of a chunk of keys and a chunk of rows of one K/V head, with lanes = rows.
//
//   S^T   = K Q^T                scores        tS^T  = K tQ^T + tK Q^T    moves    [key][lane]
//   dP^T  = V dO^T               ds            tdP^T = tV dO^T + V tdO^T  tds
//   P     = exp(S - LSE)                       tP    = P (tS - tLSE)               PairMath
//   dS    = P (dP - D)                         tdS   = tP (dP - D) + P (tdP - tD)
//   tdV  += tP^T dO + P^T tdO                  sums  [key][column]
//   tdK  += tdX^T Q + dX^T tQ                  sums
//   tdQ^T += K^T tdX^T + tK^T dX^T             sums  [column][lane]
//
// X are the products before the score features. docs/derivation.md derives it.
#if defined(ONEPASS_CPU_BACKWARD_JVP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_JVP_INL_H
#undef ONEPASS_CPU_BACKWARD_JVP_INL_H
#else
#define ONEPASS_CPU_BACKWARD_JVP_INL_H
#endif

#include <algorithm>
#include <bit>

#include "cpu/backward/blocks-inl.h"
#include "cpu/backward/nonfinite-inl.h"
#include "cpu/backward_jvp/pairs-inl.h"
#include "cpu/flash/slopes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

struct BackwardJvpTask {
  const backward_jvp::Call& call;
  const backward::Task& task;
  const backward_jvp::Scratch& scratch;
  const Problem& p = call.primal.problem();
  const Tensors& a = call.primal.forward.arguments;  // its gradients are derivatives of gradients
  const Tensors& t = call.arguments;
  const PairTiles tiles{scratch.primal.flash.scores, scratch.moves, scratch.primal.ds, scratch.tds};
  const MaskedBlocks blocks{call.primal, task, scratch.primal.flash};
  flash::Task block_rows{task.seq, task.batch, task.head_kv, 0, 0, 0, 0};  // of the row block in hand
  const bool wants_ds = call.primal.wants_ds();
  const std::int64_t stride = call.primal.cut.key_chunk * kPanel;
  bool keys_finite = true;  // all keys and values of the task, and their tangents

  // ---- rows and keys as the products read them

  SecondPanel open(int index) const {
    const backward::Scratch& s = scratch.primal;
    const std::int64_t row = block_rows.row_lo + index * kPanel, at = index * kPanel;
    const int rows = static_cast<int>(std::min<std::int64_t>(kPanel, block_rows.row_hi - row)),
              vecs = ceil_div(rows, kLanes);
    const std::int64_t qk = at * backward::columns_of(p.dim_qk), v = at * backward::columns_of(p.dim_v),
                       qk_rows = at * kPanel * column_panels(p.dim_qk), v_rows = at * kPanel * column_panels(p.dim_v);
    SecondPanel panel{};
    panel.tlse = scratch.tlse + at;
    panel.primal.row = row, panel.primal.rows = rows, panel.primal.vecs = vecs;
    panel.primal.after = s.after + at, panel.primal.before = s.before + at;
    panel.primal.lo = s.flash.lo + at, panel.primal.hi = s.flash.hi + at;
    panel.primal.scores = panel_scores(call.primal.forward, block_rows, s.flash, row);
    panel.primal.scores.capped = scratch.capped;
    panel.tangent = panel.primal;
    panel.primal.q = s.q + qk, panel.tangent.q = scratch.tq + qk;
    panel.primal.q_rows = s.q_rows + qk_rows, panel.tangent.q_rows = scratch.tq_rows + qk_rows;
    panel.primal.dout = s.dout + v, panel.primal.dout_rows = s.dout_rows + v_rows;
    if (call.has_tdout()) panel.tangent.dout = scratch.tdout + v, panel.tangent.dout_rows = scratch.tdout_rows + v_rows;
    panel.primal.delta = s.delta + at, panel.tangent.delta = scratch.tdelta + at;
    panel.primal.dq = s.dq + qk;
    lane_ranges(p, block_rows, row, task.key_lo, task.key_hi, panel.primal.lo, panel.primal.hi);
    if (a.dq.given()) std::fill_n(panel.primal.dq, kPanel * backward::columns_of(p.dim_qk), 0.0f);

    const double scale = p.effective_scale();
    HWY_ALIGN float sign[kPanel];  // the rest of the scale: PairMath and the results
    std::fill_n(sign, kPanel, scale > 0 ? 1.0f : scale < 0 ? -1.0f : 0.0f);
    bool finite = place_stats(call.primal, block_rows, panel.primal);
    for (int lane = 0; lane < kPanel; ++lane) {
      const RowName name = lane_name(p, block_rows, row, lane);
      panel.tangent.delta[lane] = call.tdelta[partial_row(p, task.seq, name.head, name.token)];
      panel.tlse[lane] = static_cast<const float*>(
          t.tlse.data)[lse_offset(t.tlse, task.seq.batch, name.head, task.seq.q_begin + name.token)];
      finite = finite && is_finite(panel.tangent.delta[lane]) && is_finite(panel.tlse[lane]);
    }
    const auto place = [&](const ConstTensor& of, std::int64_t dim, const float* factor, float* columns, float* by_row,
                           bool wants_rows) {
      return place_panel(of, p, block_rows, panel.primal, dim, factor, columns, by_row, true, wants_rows);
    };
    finite &= place(a.q, p.dim_qk, sign, panel.primal.q, panel.primal.q_rows, a.dk.given());
    finite &= place(t.tq, p.dim_qk, sign, panel.tangent.q, panel.tangent.q_rows, a.dk.given());
    finite &= place(a.dout, p.dim_v, nullptr, panel.primal.dout, panel.primal.dout_rows, a.dv.given());
    if (call.has_tdout())
      finite &= place(t.tdout, p.dim_v, nullptr, panel.tangent.dout, panel.tangent.dout_rows, a.dv.given());
    panel.primal.finite = finite;
    return panel;
  }

  const float* rows_of(const ConstTensor& of, std::int64_t dim, std::int64_t first, std::int64_t keys,
                       float* to) const {
    if (of.dtype == DType::f32 && row_stride(of) == dim)  // compact rows
      return KeyValueView(of, task.seq).run<float>(task.head_kv, first, keys).row;
    convert_rows({of, task.seq}, dim, block_rows, first, keys, to);
    return to;
  }
  // K and V of a block, or their tangents.
  Block open_block(const ConstTensor& k, const ConstTensor& v, std::int64_t first, float* to_k, float* to_v,
                   float* to_tiles) const {
    const std::int64_t keys = std::min<std::int64_t>(kBlock, task.key_hi - first);
    Block b{first, keys, rows_of(k, p.dim_qk, first, keys, to_k), nullptr, p.dim_qk, p.dim_v, false};
    b.v_finite = keys_finite || all_finite(b.k, keys * p.dim_qk);
    if (wants_ds) {
      b.v = rows_of(v, p.dim_v, first, keys, to_v);
      b.v_finite = keys_finite || (b.v_finite && all_finite(b.v, keys * p.dim_v));
    }
    if (a.dq.given()) convert_tiles({k, task.seq}, p.dim_qk, block_rows, first, keys, to_tiles);
    return b;
  }

  // ---- one block of keys, one panel

  void products(const SecondPanel& panel, const Block& block, const Block& moved, const Segment& s) const {
    key_products(s, block, panel.primal.q, block.k, block.k_stride, p.dim_qk, tiles.weights);
    key_products(s, block, panel.tangent.q, block.k, block.k_stride, p.dim_qk, tiles.moves);
    key_products<End::add>(s, block, panel.primal.q, moved.k, moved.k_stride, p.dim_qk, tiles.moves);
    if (!wants_ds) return;
    key_products(s, block, panel.primal.dout, block.v, block.v_stride, p.dim_v, tiles.ds);
    key_products(s, block, panel.primal.dout, moved.v, moved.v_stride, p.dim_v, tiles.tds);
    if (call.has_tdout())
      key_products<End::add>(s, block, panel.tangent.dout, block.v, block.v_stride, p.dim_v, tiles.tds);
  }
  void sums(const SecondPanel& panel, const Block& block, const Segment& s) const {
    const auto add_rows = [&](const float* weights, const float* rows, std::int64_t dim, float* to) {
      add_row_products(panel.primal, s, block, task.key_lo, weights, rows, dim, stride, to);
    };
    if (a.dv.given()) {
      add_rows(tiles.moves, panel.primal.dout_rows, p.dim_v, scratch.primal.dv);
      if (call.has_tdout()) add_rows(tiles.weights, panel.tangent.dout_rows, p.dim_v, scratch.primal.dv);
    }
    if (a.dk.given()) {
      add_rows(tiles.tds, panel.primal.q_rows, p.dim_qk, scratch.primal.dk);
      add_rows(tiles.ds, panel.tangent.q_rows, p.dim_qk, scratch.primal.dk);
    }
    if (!a.dq.given()) return;
    add_key_products(s, block, tiles.tds, scratch.primal.k_tiles, p.dim_qk, panel.primal.dq);
    add_key_products(s, block, tiles.ds, scratch.tk_tiles, p.dim_qk, panel.primal.dq);
  }

  // moved: the block's tangents. shown: how a mask_mod shows the block.
  void step(const SecondPanel& both, const Block& block, const Block& moved, Tile shown) const {
    const BackwardPanel& panel = both.primal;
    Segments segments = cut(panel.lo, panel.hi, panel.vecs, block.first, block.first + block.keys);
    if (segments.count == 0 || shown == Tile::skip) return;
    const bool plain = panel.scores.plain();
    const std::int64_t lo = segments.piece[0].lo, hi = segments.piece[segments.count - 1].hi;
    Fetched fetched;
    if (!plain)
      fetched = fetch_tiles(call.primal.forward, block_rows, scratch.primal.flash, panel.scores, panel.row, panel.vecs,
                            lo, hi, shown);
    if (fetched.hidden == Hidden::all) return;
    if (scratch.tbias)
      flash::with_storage(t.tbias.dtype, [&](auto zero) {
        fetch_tile<decltype(zero)>({t.tbias.data, t.tbias.dtype, broadcast_strides(t.tbias)}, p, block_rows, panel.row,
                                   panel.vecs, lo, hi, scratch.tbias);
      });
    const bool masked = fetched.hidden == Hidden::some;
    float* const pairs = scratch.primal.pairs;
    if (masked && !pairs) segments = cut(panel.lo, panel.hi, panel.vecs, fetched.lo, fetched.hi);
    const Segment& first = segments.piece[0];
    if (pairs && (segments.count > 1 || first.from > 0 || first.to < panel.vecs))
      std::fill_n(pairs, (hi - lo) * kPanel, 0.0f);  // vectors that skip some keys leave nothing there

    for (int i = 0; i < segments.count; ++i) products(both, block, moved, segments.piece[i]);
    const auto apply = [&]<Part part>(int v) HWY_ATTR {
      apply_chain<part>(panel.scores, v * kLanes, block.first, segments.lo[v], segments.hi[v], lo,
                        panel.lo + v * kLanes, panel.hi + v * kLanes, masked, tiles.weights);
    };
    const bool modified = panel.scores.modified();
    if (modified) {  // scores visible to no lane of a vector are changed too: they are never read
      for (int v = 0; v < panel.vecs; ++v) apply.template operator()<Part::before_mod>(v);
      change_scores_and_curves(call.primal.forward, block_rows, panel.scores, panel.vecs, lo, hi,
                               {scratch.primal.duals, scratch.primal.dual_numbers, scratch.primal.flash.mods.integers},
                               tiles.weights + (lo - block.first) * kPanel, scratch.mod_slope, scratch.mod_curve);
    }
    const PairMath math{call, task, scratch, both, tiles};
    for (int v = 0; v < panel.vecs; ++v) {
      const LaneKeys at{v * kLanes, block.first, segments.lo[v], segments.hi[v], lo};
      if (at.lo >= at.hi) continue;
      if (modified)
        apply.template operator()<Part::after_mod>(v);
      else if (!plain || !segments.whole)
        apply.template operator()<Part::all>(v);
      add_slopes(panel, at, math.run(at));
    }
    if (pairs) add_bias_gradient(call.primal, task, block_rows, scratch.primal, panel, lo, hi);
    if (panel.finite && block.v_finite && moved.v_finite)
      for (int i = 0; i < segments.count; ++i) sums(both, block, segments.piece[i]);
    else
      PairSums{call, task, scratch, tiles}.add(both, block, moved, segments);
  }
  void add_slopes(const BackwardPanel& panel, const LaneKeys& at, VF of_lanes) const {
    if (!scratch.primal.slopes) return;
    HWY_ALIGN float x[kLanes];
    hn::Store(of_lanes, DF(), x);
    for (int i = 0; i < kLanes && at.lane + i < panel.rows; ++i)
      scratch.primal.slopes[(panel.row + at.lane + i) % p.group()] += static_cast<double>(x[i]);
  }

  // ---- the whole task, as that of a backward

  void run() {
    const backward::Call& c = call.primal;
    const bool left_out = blocks.none_seen();
    if (c.dkv_seen) c.dkv_seen[c.dkv_part(task)] = !left_out;
    if (left_out) {
      if (c.dq) note_dq(c, task, {task.seq, task.batch, task.head_kv, 0, task.row_lo, task.row_hi, 0}, false);
      return;
    }
    if (a.dk.given()) std::fill_n(scratch.primal.dk, column_panels(p.dim_qk) * stride, 0.0f);
    if (a.dv.given()) std::fill_n(scratch.primal.dv, column_panels(p.dim_v) * stride, 0.0f);
    if (scratch.primal.slopes) std::fill_n(scratch.primal.slopes, p.group(), 0.0);
    for (const ConstTensor* of : {&a.k, &t.tk}) keys_finite = keys_finite && finite_keys(*of, task, p.dim_qk);
    for (const ConstTensor* of : {&a.v, &t.tv})
      keys_finite = keys_finite && (!wants_ds || finite_keys(*of, task, p.dim_v));
    const std::int64_t rows = std::int64_t{c.cut.panels} * kPanel;
    for (std::int64_t row = task.row_lo; row < task.row_hi; row += rows) {
      block_rows.row_lo = row;
      block_rows.row_hi = std::min(row + rows, task.row_hi);
      run_rows();
    }
    if (a.dk.given()) store_dkv(c, task, scratch.primal.dk, p.dim_qk, c.scale, c.dk, a.dk);
    if (a.dv.given()) store_dkv(c, task, scratch.primal.dv, p.dim_v, 1.0f, c.dv, a.dv);
    for (std::int64_t i = 0; scratch.primal.slopes && i < p.group(); ++i) {
      const std::int64_t part = task.row_split * c.cut.key_splits + task.key_split;
      c.dslopes[(part * p.batch + task.batch) * p.heads_q + task.head_kv * p.group() + i] = scratch.primal.slopes[i];
    }
  }

  void run_rows() const {
    const backward::Call& c = call.primal;
    const Range seen = band_mask(p, task.seq.seq_q, task.seq.seq_k)
                           .key_range(block_rows.row_lo / p.group(), (block_rows.row_hi - 1) / p.group() + 1);
    const std::int64_t lo = std::max<std::int64_t>(seen.lo, task.key_lo),
                       hi = std::min<std::int64_t>(seen.hi, task.key_hi);
    if (lo >= hi && (c.dq || !a.dq.given())) return;  // the sum leaves this part out
    const int count = static_cast<int>(ceil_div(block_rows.row_hi - block_rows.row_lo, kPanel));
    const std::int64_t first = task.key_lo + (lo - task.key_lo) / kBlock * kBlock;
    const bool sees = blocks.look(block_rows, count, first, hi);
    if (c.dq) note_dq(c, task, block_rows, sees);
    if (!sees && (c.dq || !a.dq.given())) return;
    SecondPanel panels[kGeometry.panels];
    for (int i = 0; i < count; ++i) panels[i] = open(i);
    for (std::int64_t k = first; k < hi; k += kBlock) {
      if (!blocks.any_sees(count, (k - first) / kBlock)) continue;
      const flash::Scratch& own = scratch.primal.flash;
      const Block block = open_block(a.k, a.v, k, own.k, own.v, scratch.primal.k_tiles),
                  moved = open_block(t.tk, t.tv, k, scratch.tk, scratch.tv, scratch.tk_tiles);
      for (int i = 0; i < count; ++i) step(panels[i], block, moved, blocks.shown(i, (k - first) / kBlock));
    }
    for (int i = 0; a.dq.given() && i < count; ++i) store_dq(c, task, block_rows, panels[i].primal);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
