// One result per row (common/one_result.hpp): a task goes through the splits of cpu.decode, and joins their states as
// combine() joins them.
#if defined(ONEPASS_CPU_FLASH_JOINED_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_FLASH_JOINED_INL_H
#undef ONEPASS_CPU_FLASH_JOINED_INL_H
#else
#define ONEPASS_CPU_FLASH_JOINED_INL_H
#endif

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "cpu/flash/flash-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

class JoinedTask : FlashTask {
 public:
  JoinedTask(const flash::Call& of, const flash::Task& rows, const flash::Scratch& memory)
      : FlashTask{of, rows, memory} {}

  void run() const {
    with_panels([&](const Panel* panels, int count) { splits(panels, count); });
  }

 private:
  void splits(const Panel* panels, int count) const {
    const std::int64_t lo = panels[0].lo[0], hi = panels[count - 1].hi[kPanel - 1];
    const std::int64_t first = lo / call.join_every, end = ceil_div(hi, call.join_every);
    for (std::int64_t split = first; split < end; ++split) {
      for (int i = 0; i < count; ++i) {
        look_at(panels[i], split * call.join_every, (split + 1) * call.join_every);
        if (split > first) clear(panels[i]);
      }
      pass(panels, count);
      for (int i = 0; first + 1 < end && i < count; ++i) join(panels[i], split == first);
    }
    for (int i = 0; i < count; ++i) {
      Panel panel = panels[i];
      if (first + 1 < end) panel.out = joined_out(panel), panel.m = joined_m(panel), panel.l = joined_l(panel);
      finish(panel, first + 1 < end);
    }
  }
  float* joined_out(const Panel& panel) const { return scratch.joined_out + (panel.out - scratch.out); }
  float* joined_m(const Panel& panel) const { return scratch.joined_m + (panel.m - scratch.m); }
  float* joined_l(const Panel& panel) const { return scratch.joined_l + (panel.l - scratch.l); }
  float* joined_entropies(const Panel& panel) const { return scratch.joined_entropy + (panel.t - scratch.t); }

  void join(const Panel& panel, bool first) const {
    float *const m = joined_m(panel), *const l = joined_l(panel), *const out = joined_out(panel);
    if (first) {
      std::copy_n(panel.m, kPanel, m);
      std::copy_n(panel.l, kPanel, l);
      std::copy_n(panel.out, kPanel * p.dim_v, out);
      for (int lane = 0; panel.t && lane < panel.rows; ++lane) joined_entropies(panel)[lane] = entropy_of(panel, lane);
      return;
    }
    HWY_ALIGN float earlier[kPanel] = {}, next[kPanel] = {};
    for (int lane = 0; lane < panel.rows; ++lane) {
      if (panel.l[lane] == 0) continue;
      const auto joined = join_split({m[lane], l[lane]}, {panel.m[lane], panel.l[lane]}, panel.scores.unit.to_log2);
      if (panel.t) {
        float& all = joined_entropies(panel)[lane];
        all = joined_entropy(all, l[lane], entropy_of(panel, lane), panel.l[lane], joined);
      }
      m[lane] = joined.state.m, l[lane] = joined.state.l;
      earlier[lane] = joined.alpha_a, next[lane] = joined.alpha_b;
    }
    for (std::int64_t i = 0; i < kPanel * p.dim_v; i += kLanes) {
      const int lane = static_cast<int>(i % kPanel);
      const VF old = hn::Load(DF(), out + i),
               sum = old * hn::Load(DF(), earlier + lane) + hn::Load(DF(), panel.out + i) * hn::Load(DF(), next + lane);
      const auto empty = hn::Eq(hn::Load(DF(), panel.l + lane), hn::Zero(DF()));
      hn::Store(hn::IfThenElse(empty, old, sum), DF(), out + i);
    }
  }

  // joined: from the states of several splits.
  void finish(const Panel& panel, bool joined) const {
    if (*panel.has_lost) {
      HWY_ALIGN float one[kPanel];
      std::fill_n(one, kPanel, 1.0f);
      join_lost(panel.lost, one, p.dim_v, panel.vecs, panel.out);
    }
    transpose_blocks(panel.out, kPanel, panel.vecs, p.dim_v);
    float row[kMostValueDims];
    for (int lane = 0; lane < panel.rows; ++lane) {
      const RowName name = row_name(p, task, panel.row + lane);
      pick_row(panel.out, kPanel, lane, p.dim_v, row);
      const onepass::RowState<float> state{panel.m[lane], panel.l[lane]};
      const float entropy = !panel.t ? 0 : joined ? joined_entropies(panel)[lane] : entropy_of(panel, lane);
      finalize_row(p, call.arguments, task.seq, name.head, name.token, &state, row, 1, panel.scores.unit, nullptr,
                   &entropy);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
