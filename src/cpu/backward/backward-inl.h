// The backward pass of a chunk of keys and a chunk of rows of one K/V head: FlashAttention-2's, with lanes = rows.
//
//   S^T  = K Q^T            scores            [key][lane], as in the forward
//   P^T  = exp(S^T - LSE)   probabilities     by the LSE that was handed in: no maximum, no second pass
//   dP^T = V dO^T           dp
//   dS^T = P^T (dP^T - D)   softmax_gradient  and by score_gradient dX^T, through the scores' derivatives
//   dV  += P^T dO           accumulate        [key][column]; rows of dO in place of columns of Q, weights in place of K
//   dK  += dX^T Q           accumulate
//   dQ^T += K^T dX^T        accumulate        [column][lane]
//
// Sources: Dao 2023 (FlashAttention-2), Algorithm 2; the layout is README.md's.
#if defined(ONEPASS_CPU_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_INL_H
#undef ONEPASS_CPU_BACKWARD_INL_H
#else
#define ONEPASS_CPU_BACKWARD_INL_H
#endif

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "cpu/backward/blocks-inl.h"
#include "cpu/backward/gradients-inl.h"
#include "cpu/backward/nonfinite-inl.h"
#include "cpu/backward/products-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/slopes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// The five products on vectors, piece by piece of what the panel sees of a block.
struct VectorProducts {
  const backward::Call& call;
  const backward::Task& task;
  const backward::Scratch& scratch;
  const Problem& p = call.problem();
  const Tensors& a = call.forward.arguments;
  const std::int64_t stride = call.cut.key_chunk * kPanel;  // of the column panels of dK and dV

  void open_task(bool) const {}
  void open_panel(int, const BackwardPanel&) const {}
  Block open_block(const flash::Task& rows, std::int64_t first, std::int64_t keys, bool finite) const {
    Block b{first, keys, nullptr, nullptr, p.dim_qk, p.dim_v, false};
    const auto open = [&](const ConstTensor& t, flash::Source source, std::int64_t dim, float* to) {
      if (source == flash::Source::in_place)  // compact rows: cut.cpp
        return KeyValueView(t, task.seq).run<float>(task.head_kv, first, keys).row;
      convert_rows({t, task.seq}, dim, rows, first, keys, to);
      return static_cast<const float*>(to);
    };
    b.k = open(a.k, call.forward.k_source, p.dim_qk, scratch.flash.k);
    if (call.wants_ds()) b.v = open(a.v, call.forward.v_source, p.dim_v, scratch.flash.v);
    if (!a.dq.given()) return b;
    convert_tiles({a.k, rows.seq}, p.dim_qk, rows, first, keys, scratch.k_tiles);
    if (!finite) zero_nonfinite(scratch.k_tiles, keys * p.dim_qk);
    return b;
  }

  void scores(int, const BackwardPanel& panel, const Block& block, const Segments& segments) const {
    for (int i = 0; i < segments.count; ++i)
      key_products(segments.piece[i], block, panel.q, block.k, block.k_stride, p.dim_qk, scratch.flash.scores);
  }
  void dp(int, const BackwardPanel& panel, const Block& block, const Segments& segments) const {
    for (int i = 0; i < segments.count; ++i)
      key_products(segments.piece[i], block, panel.dout, block.v, block.v_stride, p.dim_v, scratch.ds);
  }
  void accumulate(int, const BackwardPanel& panel, const Block& block, const Segments& segments) const {
    for (int i = 0; i < segments.count; ++i) {
      const Segment& s = segments.piece[i];
      const auto add_rows = [&](const float* weights, const float* rows, std::int64_t dim, float* sums) {
        add_row_products(panel, s, block, task.key_lo, weights, rows, dim, stride, sums);
      };
      if (a.dv.given()) add_rows(scratch.flash.scores, panel.dout_rows, p.dim_v, scratch.dv);
      if (a.dk.given()) add_rows(scratch.ds, panel.q_rows, p.dim_qk, scratch.dk);
      if (a.dq.given()) add_key_products(s, block, scratch.ds, scratch.k_tiles, p.dim_qk, panel.dq);
    }
  }
  void close_block(int, const Block&) const {}
  void close_task() const {}
};

template <class Products>
struct BackwardTask {
  const backward::Call& call;
  const backward::Task& task;
  const backward::Scratch& scratch;
  const Products& products;
  const Problem& p = call.problem();
  const Tensors& a = call.forward.arguments;
  const MaskedBlocks blocks{call, task, scratch.flash};
  flash::Task block_rows{task.seq, task.batch, task.head_kv, 0, 0, 0, 0};  // of the row block in hand
  bool finite = true;                                                      // all that the row block reads
  const bool lanes = sums_lanes(call);
  bool keys_flagged = false;  // scratch.k_flags, of this block of keys
  const std::int64_t stride = call.cut.key_chunk * kPanel;

  // ---- one block of keys, one panel

  // shown: how a mask_mod shows the block.
  void step(int index, const BackwardPanel& panel, const Block& block, Tile shown) const {
    Segments segments = cut(panel.lo, panel.hi, panel.vecs, block.first, block.first + block.keys);
    if (segments.count == 0 || shown == Tile::skip) return;
    const bool plain = panel.scores.plain(), exact = plain && segments.whole;
    const std::int64_t lo = segments.piece[0].lo, hi = segments.piece[segments.count - 1].hi;
    Fetched fetched;
    if (!plain)
      fetched =
          fetch_tiles(call.forward, block_rows, scratch.flash, panel.scores, panel.row, panel.vecs, lo, hi, shown);
    if (fetched.hidden == Hidden::all) return;
    const bool masked = fetched.hidden == Hidden::some;
    if (masked && finite && !scratch.pairs) segments = cut(panel.lo, panel.hi, panel.vecs, fetched.lo, fetched.hi);
    float *weights = scratch.flash.scores, *ds = scratch.ds;
    const auto each_vector = [&](auto&& f) {
      for (int v = 0; v < panel.vecs; ++v)
        if (segments.lo[v] < segments.hi[v]) f(LaneKeys{v * kLanes, block.first, segments.lo[v], segments.hi[v], lo});
    };

    products.scores(index, panel, block, segments);
    if (!exact) apply_features(panel, block, segments, lo, hi, masked);
    each_vector([&](const LaneKeys& at) HWY_ATTR { probabilities(panel, at, finite, weights); });
    if (call.wants_ds()) {
      products.dp(index, panel, block, segments);
      if (scratch.pairs) clear_pairs(panel, segments, lo, hi);
      each_vector([&](const LaneKeys& at) HWY_ATTR {
        softmax_gradient(call, task.batch, panel, at, weights, ds);
        if (!exact || !finite) add_slopes(panel, at, score_gradient(scratch, panel, at, weights, ds));
      });
      if (scratch.pairs) add_bias_gradient(call, task, block_rows, scratch, panel, lo, hi);
    } else if (panel.scores.dropout) {
      each_vector([&](const LaneKeys& at) HWY_ATTR {
        drop_weights(call.forward.dropout, static_cast<std::uint32_t>(task.batch), panel.scores, at.lane, at.first,
                     at.lo, at.hi, weights);
      });
    }
    if (!finite && panel.has_spoiled)
      each_vector([&](const LaneKeys& at) HWY_ATTR { spoil_weights(panel, at.lane, at.first, at.lo, at.hi, weights); });
    if (lanes) {
      if (finite && segments.whole && panel.vecs == kVecs) {
        const Segment& all = segments.piece[0];
        return add_panel_lanes(panel, p.dim_v, weights + (all.lo - block.first) * kPanel, all.hi - all.lo,
                               scratch.dv + (all.lo - task.key_lo) * kPanel);
      }
      each_vector([&](const LaneKeys& at)
                      HWY_ATTR { add_lanes(panel, at, p.dim_v, finite, weights, scratch.dv - task.key_lo * kPanel); });
      return;
    }
    products.accumulate(index, panel, block, segments);
    if (!finite) add_flagged(panel, block, segments, lo, hi);
  }

  // Products become scores, with hidden ones -inf.
  void apply_features(const BackwardPanel& panel, const Block& block, const Segments& segments, std::int64_t lo,
                      std::int64_t hi, bool masked) const {
    const auto apply = [&]<Part part>() HWY_ATTR {
      for (int v = 0; v < panel.vecs; ++v) {
        const int lane = v * kLanes;
        if (part != Part::before_mod && segments.lo[v] >= segments.hi[v]) continue;
        apply_chain<part>(panel.scores, lane, block.first, segments.lo[v], segments.hi[v], lo, panel.lo + lane,
                          panel.hi + lane, masked, scratch.flash.scores);
      }
    };
    if (!panel.scores.modified()) return apply.template operator()<Part::all>();
    apply.template operator()<Part::before_mod>();
    change_scores_and_slopes(call.forward, block_rows, panel.scores, panel.vecs, lo, hi,
                             {scratch.duals, scratch.dual_numbers, scratch.flash.mods.integers},
                             scratch.flash.scores + (lo - block.first) * kPanel, scratch.mod_slope);
    apply.template operator()<Part::after_mod>();
  }

  // Vectors that skip some keys leave nothing there.
  void clear_pairs(const BackwardPanel& panel, const Segments& segments, std::int64_t lo, std::int64_t hi) const {
    const Segment& s = segments.piece[0];
    if (segments.count > 1 || s.from > 0 || s.to < panel.vecs) std::fill_n(scratch.pairs, (hi - lo) * kPanel, 0.0f);
  }
  void add_slopes(const BackwardPanel& panel, const LaneKeys& at, VF sums) const {
    if (!scratch.slopes) return;
    HWY_ALIGN float x[kLanes];
    hn::Store(sums, DF(), x);
    for (int i = 0; i < kLanes && at.lane + i < panel.rows; ++i)
      scratch.slopes[(panel.row + at.lane + i) % p.group()] += static_cast<double>(x[i]);
  }
  void add_flagged(const BackwardPanel& panel, const Block& block, const Segments& segments, std::int64_t lo,
                   std::int64_t hi) const {
    const bool dv = a.dv.given() && panel.dout_flagged, dk = a.dk.given() && panel.q_flagged,
               dq = a.dq.given() && keys_flagged;
    if (!dv && !dk && !dq) return;
    const std::int64_t sums = (lo - task.key_lo) * kPanel;
    const float* const visible = scratch.visible + (lo - block.first) * kPanel;
    visible_tile(panel, segments, block.first, lo, hi, scratch.flash.scores, scratch.visible);
    if (dv) add_flagged_rows(panel, hi - lo, p.dim_v, visible, panel.dout_flags, scratch.dv + sums, stride);
    if (dk) add_flagged_rows(panel, hi - lo, p.dim_qk, visible, panel.q_flags, scratch.dk + sums, stride);
    if (dq) add_flagged_keys(panel, lo - block.first, hi - lo, block.keys, p.dim_qk, visible, scratch.k_flags);
  }
  bool flag_keys(const Block& block) const {
    if (finite || !scratch.k_flags || !a.dq.given()) return false;
    convert_tiles({a.k, task.seq}, p.dim_qk, block_rows, block.first, block.keys, scratch.k_flags);
    HWY_ALIGN float chunk[kTileDims * kBlock];
    bool any = false;
    for (std::int64_t i = 0, n = block.keys * p.dim_qk; i < n; i += kTileDims * kBlock) {
      const std::int64_t count = std::min<std::int64_t>(kTileDims * kBlock, n - i);
      any = take_flags(scratch.k_flags + i, count, chunk) || any;
      std::copy_n(chunk, count, scratch.k_flags + i);
    }
    return any;
  }

  // ---- the whole task

  void run() {
    constexpr int kMaxPanels = kGeometry.panels;
    const bool left_out = blocks.none_seen();
    if (call.dkv_seen) call.dkv_seen[call.dkv_part(task)] = !left_out;
    if (left_out) {
      if (call.dq) note_dq(call, task, {task.seq, task.batch, task.head_kv, 0, task.row_lo, task.row_hi, 0}, false);
      return;
    }
    if (a.dk.given()) std::fill_n(scratch.dk, column_panels(p.dim_qk) * stride, 0.0f);
    if (a.dv.given()) std::fill_n(scratch.dv, column_panels(p.dim_v) * stride, 0.0f);
    if (scratch.slopes) std::fill_n(scratch.slopes, p.group(), 0.0);
    const bool keys_finite = finite_keys(a.k, task, p.dim_qk) && (!call.wants_ds() || finite_keys(a.v, task, p.dim_v));
    const std::int64_t rows = std::int64_t{call.cut.panels} * kPanel;
    BackwardPanel panels[kMaxPanels];
    products.open_task(keys_finite);
    for (std::int64_t row = task.row_lo; row < task.row_hi; row += rows) {
      block_rows.row_lo = row;
      block_rows.row_hi = std::min(row + rows, task.row_hi);
      const Range seen = band_mask(p, task.seq.seq_q, task.seq.seq_k)
                             .key_range(row / p.group(), (block_rows.row_hi - 1) / p.group() + 1);
      const std::int64_t lo = std::max<std::int64_t>(seen.lo, task.key_lo),
                         hi = std::min<std::int64_t>(seen.hi, task.key_hi);
      if (lo >= hi && (call.dq || !a.dq.given())) continue;  // the sum leaves this part out
      const int count = static_cast<int>(ceil_div(block_rows.row_hi - row, kPanel));
      const std::int64_t first = task.key_lo + (lo - task.key_lo) / kBlock * kBlock;
      const bool sees = blocks.look(block_rows, count, first, hi);
      if (call.dq) note_dq(call, task, block_rows, sees);
      if (!sees && (call.dq || !a.dq.given())) continue;
      finite = keys_finite;
      for (int i = 0; i < count; ++i) {
        panels[i] = open_panel(call, task, block_rows, scratch, i);
        finite = finite && panels[i].finite;
      }
      for (int i = 0; !finite && i < count; ++i) separate_rows(p, panels[i], a.dk.given(), a.dv.given() && !lanes);
      for (int i = 0; i < count; ++i) products.open_panel(i, panels[i]);
      for (std::int64_t k = first; k < hi; k += kBlock) {
        if (!blocks.any_sees(count, (k - first) / kBlock)) continue;
        const Block block = products.open_block(block_rows, k, std::min<std::int64_t>(kBlock, task.key_hi - k), finite);
        keys_flagged = flag_keys(block);
        for (int i = 0; i < count; ++i) step(i, panels[i], block, blocks.shown(i, (k - first) / kBlock));
        if (!lanes) products.close_block(count, block);
      }
      for (int i = 0; a.dq.given() && i < count; ++i) store_dq(call, task, block_rows, panels[i]);
    }
    products.close_task();
    if (lanes) fold_lanes(task.key_hi - task.key_lo, p.dim_v, scratch.dv);
    if (a.dk.given()) store_dkv(call, task, scratch.dk, p.dim_qk, call.scale, call.dk, a.dk);
    if (a.dv.given()) store_dkv(call, task, scratch.dv, p.dim_v, 1.0f, call.dv, a.dv);
    for (std::int64_t i = 0; scratch.slopes && i < p.group(); ++i) {
      const std::int64_t part = task.row_split * call.cut.key_splits + task.key_split;
      call.dslopes[(part * p.batch + task.batch) * p.heads_q + task.head_kv * p.group() + i] = scratch.slopes[i];
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
