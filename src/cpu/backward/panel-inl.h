// Rows of Q and dO as the products read them, and gradients on their way out.
#if defined(ONEPASS_CPU_BACKWARD_PANEL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_PANEL_INL_H
#undef ONEPASS_CPU_BACKWARD_PANEL_INL_H
#else
#define ONEPASS_CPU_BACKWARD_PANEL_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "algebra/ceil_div.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/flash/rows-inl.h"
#include "cpu/flash/scores-inl.h"
#include "cpu/flash/segments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

constexpr std::int64_t column_panels(std::int64_t dim) { return ceil_div(dim, kPanel); }
// Vectors of the column panel that begins at `column`.
constexpr int column_vecs(std::int64_t dim, std::int64_t column) {
  return static_cast<int>(ceil_div(std::min<std::int64_t>(kPanel, dim - column), kLanes));
}

// A panel's part of the scratch.
struct BackwardPanel {
  std::int64_t row;  // its first
  int rows, vecs;
  float *q, *dout, *dq, *q_rows, *dout_rows, *after, *before, *delta, *dentropy;
  float *q_flags, *dout_flags, *spoiled;  // nonfinite-inl.h; q_flags may be null
  std::int32_t *lo, *hi;
  PanelScores scores;
  bool finite = true;  // everything that was read
  bool q_flagged = false, dout_flagged = false, has_spoiled = false;
};

// dV of few columns, where nothing else is wanted, needs no product: scratch.dv holds [key][column][lane], which
// fold_lanes sums up at the end.
inline constexpr std::int64_t kLaneColumns = std::min(4, kPanel / kLanes);
inline bool sums_lanes(const backward::Call& call) {
  return call.forward.arguments.dv.given() && !call.wants_ds() && call.problem().dim_v <= kLaneColumns;
}

// A row to [column panel][kPanel]; column panels lie `stride` apart, and the last is filled up with zeros to whole
// vectors.
template <class T>
inline void place_columns(const T* row, std::int64_t dim, float* to, std::int64_t stride) {
  for (std::int64_t c = 0; c < dim; c += kPanel, to += stride) {
    for (std::int64_t d = 0; d < column_vecs(dim, c) * kLanes; d += kLanes) {
      const std::int64_t left = dim - c - d;
      hn::Store(left >= kLanes ? load(DF(), row + c + d) : load_n(DF(), row + c + d, left), DF(), to + d);
    }
  }
}
// The reverse, times `scale`.
template <class T>
inline void pick_columns(const float* from, std::int64_t stride, std::int64_t dim, float scale, T* row) {
  for (std::int64_t c = 0; c < dim; c += kPanel, from += stride) {
    for (std::int64_t d = 0; d < std::min<std::int64_t>(kPanel, dim - c); d += kLanes) {
      const VF x = hn::Load(DF(), from + d) * splat(scale);
      const std::int64_t left = dim - c - d;
      left >= kLanes ? store(x, DF(), row + c + d) : store_n(x, DF(), row + c + d, left);
    }
  }
}

// A panel's rows of q or dout in the forms that are wanted; 0 of rows that see nothing. Whether all is finite.
inline bool place_panel(const ConstTensor& t, const Problem& p, const flash::Task& task, const BackwardPanel& panel,
                        std::int64_t dim, const float* factor, float* columns, float* rows, bool wants_columns,
                        bool wants_rows) {
  constexpr std::int64_t kStride = kPanel * kPanel;
  flash::with_storage(t.dtype, [&](auto zero) {
    for (int lane = 0; lane < panel.vecs * kLanes; ++lane) {
      const RowName name = lane_name(p, task, panel.row, lane);
      const auto* row = static_cast<const decltype(zero)*>(t.data) +
                        row_offset(t, task.seq.batch, name.head, task.seq.q_begin + name.token);
      if (!saw_nothing(panel.after[lane])) {
        if (wants_columns) place_row(row, 1, dim, columns, kPanel, lane);
        if (wants_rows) place_columns(row, dim, rows + lane * kPanel, kStride);
        continue;
      }
      for (std::int64_t c = 0; wants_columns && 4 * c < dim; ++c)
        hn::Store(hn::Zero(D4()), D4(), block_of(columns, kPanel, lane, c));
      for (std::int64_t c = 0; wants_rows && c < column_panels(dim); ++c)
        std::fill_n(rows + c * kStride + lane * kPanel, kPanel, 0.f);
    }
  });
  VF probe = hn::Zero(DF());
  if (wants_columns) transpose_blocks(columns, kPanel, panel.vecs, dim, factor);
  if (!wants_rows) {
    for (std::int64_t d = 0; d < dim; ++d)
      for (int v = 0; v < panel.vecs; ++v)
        probe = probe_finite(probe, hn::Load(DF(), columns + d * kPanel + v * kLanes));
    return all_zero(probe);
  }
  for (std::int64_t c = 0; c < dim; c += kPanel, rows += kStride) {
    for (int lane = 0; lane < panel.vecs * kLanes; ++lane)
      for (int v = 0; v < column_vecs(dim, c); ++v)
        probe = probe_finite(probe, hn::Load(DF(), rows + lane * kPanel + v * kLanes));
  }
  return all_zero(probe);
}

// LSE and D of a panel's lanes. Whether they are finite.
inline bool place_stats(const backward::Call& call, const flash::Task& task, const BackwardPanel& panel) {
  const Problem& p = call.problem();
  const Tensor& lse = call.forward.arguments.lse;
  const double unit = panel.scores.unit.products ? std::abs(p.effective_scale()) : 1.0;
  bool finite = true;
  for (int lane = 0; lane < kPanel; ++lane) {
    const RowName name = lane_name(p, task, panel.row, lane);
    const float x =
        static_cast<const float*>(lse.data)[lse_offset(lse, task.seq.batch, name.head, task.seq.q_begin + name.token)];
    const auto refer = onepass::refer_to_lse(x, unit);
    panel.before[lane] = refer.before;
    panel.after[lane] = refer.after;
    panel.delta[lane] = call.delta[partial_row(p, task.seq, name.head, name.token)];
    finite = finite && (saw_nothing(x) || is_finite(x)) && is_finite(panel.delta[lane]);
    if (!panel.dentropy) continue;
    const ConstTensor& t = call.forward.arguments.dentropy;
    const std::int64_t at = lse_offset(t, task.seq.batch, name.head, task.seq.q_begin + name.token);
    panel.dentropy[lane] = saw_nothing(x) ? 0.0f : static_cast<const float*>(t.data)[at];
    finite = finite && is_finite(panel.dentropy[lane]);
  }
  return finite;
}

inline BackwardPanel open_panel(const backward::Call& call, const backward::Task& task, const flash::Task& block,
                                const backward::Scratch& s, int index) {
  const Problem& p = call.problem();
  const std::int64_t row = block.row_lo + index * kPanel, at = index * kPanel;
  const int rows = static_cast<int>(std::min<std::int64_t>(kPanel, block.row_hi - row));
  BackwardPanel panel{row,
                      rows,
                      ceil_div(rows, kLanes),
                      s.q + at * backward::columns_of(p.dim_qk),
                      s.dout + at * backward::columns_of(p.dim_v),
                      s.dq + at * backward::columns_of(p.dim_qk),
                      s.q_rows + at * kPanel * column_panels(p.dim_qk),
                      s.dout_rows + at * kPanel * column_panels(p.dim_v),
                      s.after + at,
                      s.before + at,
                      s.delta + at,
                      s.dentropy ? s.dentropy + at : nullptr,
                      s.q_flags ? s.q_flags + at * kPanel * column_panels(p.dim_qk) : nullptr,
                      s.dout_flags + at * kPanel * column_panels(p.dim_v),
                      s.spoiled + at,
                      s.flash.lo + at,
                      s.flash.hi + at,
                      panel_scores(call.forward, block, s.flash, row)};
  panel.scores.cap_slope = s.cap_slope;
  lane_ranges(p, block, row, task.key_lo, task.key_hi, panel.lo, panel.hi);
  const double scale = p.effective_scale();
  HWY_ALIGN float sign[kPanel];  // the rest of the scale: apply_chain, or the weights
  std::fill_n(sign, kPanel, scale > 0 ? 1.0f : scale < 0 ? -1.0f : 0.0f);
  const bool stats = place_stats(call, block, panel);
  const Tensors& a = call.forward.arguments;
  const bool q = place_panel(a.q, p, block, panel, p.dim_qk, sign, panel.q, panel.q_rows, true, a.dk.given());
  const bool dout_rows = a.dv.given() && !sums_lanes(call), dout_columns = call.wants_ds() || !dout_rows;
  const bool dout =
      place_panel(a.dout, p, block, panel, p.dim_v, nullptr, panel.dout, panel.dout_rows, dout_columns, dout_rows);
  panel.finite = stats && q && dout;
  for (std::int64_t c = 0; sums_lanes(call) && c < p.dim_v; ++c)  // lanes behind the rows repeat the last one
    std::fill(panel.dout + c * kPanel + rows, panel.dout + (c + 1) * kPanel, 0.0f);
  if (a.dq.given()) std::fill_n(panel.dq, kPanel * backward::columns_of(p.dim_qk), 0.0f);
  return panel;
}

// dQ of a panel: final, or this key split's part.
inline void store_dq(const backward::Call& call, const backward::Task& task, const flash::Task& block,
                     const BackwardPanel& panel) {
  const Problem& p = call.problem();
  const Tensor& dq = call.forward.arguments.dq;
  HWY_ALIGN float scale[kPanel];
  std::fill_n(scale, kPanel, call.scale);
  transpose_blocks(panel.dq, kPanel, panel.vecs, p.dim_qk, scale);
  for (int lane = 0; lane < panel.rows; ++lane) {
    const RowName name = row_name(p, block, panel.row + lane);
    if (call.dq) {
      const std::int64_t row = partial_row(p, task.seq, name.head, name.token);
      pick_row(panel.dq, kPanel, lane, p.dim_qk, call.dq + (task.key_split * backward::rows_of(p) + row) * p.dim_qk);
      continue;
    }
    const std::int64_t at = row_offset(dq, task.seq.batch, name.head, task.seq.q_begin + name.token);
    flash::with_storage(dq.dtype, [&](auto zero) {
      pick_row(panel.dq, kPanel, lane, p.dim_qk, static_cast<decltype(zero)*>(dq.data) + at);
    });
  }
}

// Notes if this split of the keys leaves a part of dQ for the rows.
inline void note_dq(const backward::Call& call, const backward::Task& task, const flash::Task& block, bool sees) {
  const Problem& p = call.problem();
  for (std::int64_t row = block.row_lo; call.dq_seen && row < block.row_hi; ++row) {
    const RowName name = row_name(p, block, row);
    call.dq_seen[task.key_split * backward::rows_of(p) + partial_row(p, task.seq, name.head, name.token)] = sees;
  }
}

// dK or dV of a task's keys, from [column panel][key][kPanel]: final, or this row split's part.
inline void store_dkv(const backward::Call& call, const backward::Task& task, const float* sums, std::int64_t dim,
                      float scale, float* part, const Tensor& to) {
  const Problem& p = call.problem();
  const std::int64_t stride = call.cut.key_chunk * kPanel;
  for (std::int64_t key = task.key_lo; key < task.key_hi; ++key, sums += kPanel) {
    if (part) {
      const std::int64_t row =
          task.row_split * backward::key_rows_of(p) + backward::key_row(p, task.seq, task.head_kv, key);
      pick_columns(sums, stride, dim, scale, part + row * dim);
      continue;
    }
    const std::int64_t at = row_offset(to, task.seq.batch, task.head_kv, task.seq.k_begin + key);
    flash::with_storage(to.dtype, [&](auto zero) {
      pick_columns(sums, stride, dim, scale, static_cast<decltype(zero)*>(to.data) + at);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
