// How a mask_mod shows the blocks of keys of a task to its panels.
#if defined(ONEPASS_CPU_BACKWARD_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_BLOCKS_INL_H
#undef ONEPASS_CPU_BACKWARD_BLOCKS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_BLOCKS_INL_H
#endif

#include <algorithm>

#include "cpu/backward/backward.hpp"
#include "cpu/flash/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

struct MaskedBlocks {
  const backward::Call& call;
  const backward::Task& task;
  const flash::Scratch& scratch;
  const Problem& p = call.problem();

  // A panel of the row block, and a block of keys counted from the first that look() was given.
  Tile shown(int panel, std::int64_t block) const {
    return call.forward.mask_bounds ? scratch.tiles[panel * flash::tiles_of(p, kGeometry) + block] : Tile::partial;
  }
  bool any_sees(int count, std::int64_t block) const {
    for (int i = 0; i < count; ++i)
      if (shown(i, block) != Tile::skip) return true;
    return false;
  }
  // False if the panels of the row block see none of the blocks of keys from `first` to `end`.
  bool look(const flash::Task& rows, int count, std::int64_t first, std::int64_t end) const {
    bool any = !call.forward.mask_bounds;
    for (int i = 0; call.forward.mask_bounds && first < end && i < count; ++i) {
      const std::int64_t row = rows.row_lo + i * kPanel;
      flash::look_at_mask(call.forward, rows, row, std::min<std::int64_t>(kPanel, rows.row_hi - row), first, end,
                          scratch.tiles + i * flash::tiles_of(p, kGeometry));
      for (std::int64_t block = 0; block < ceil_div(end - first, kBlock); ++block)
        any = any || shown(i, block) != Tile::skip;
    }
    return any;
  }
  // True if the mask_mod hides all of the task, and nothing that it would write is final.
  bool none_seen() const {
    const Tensors& a = call.forward.arguments;
    const bool final = (a.dq.given() && !call.dq) || (a.dk.given() && !call.dk) || (a.dv.given() && !call.dv);
    if (!call.forward.mask_bounds || final || task.row_lo >= task.row_hi || task.key_lo >= task.key_hi) return false;
    const std::int64_t group = p.group(), head = task.head_kv * group;
    return call.forward.mask_bounds->classify({task.batch, task.batch, head, head + group - 1, task.row_lo / group,
                                               (task.row_hi - 1) / group, task.key_lo, task.key_hi - 1}) == Tile::skip;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
