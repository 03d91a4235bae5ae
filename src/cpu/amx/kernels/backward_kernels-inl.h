// cpu.amx_backward's kernels for one kind of tiles: ONEPASS_TILES, and ONEPASS_TILE_KERNELS, an amx::Kernels that
// packs. Included by files that foreach_target.h includes again; only AVX-512's has anything.
#if defined(ONEPASS_CPU_AMX_BACKWARD_KERNELS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_AMX_BACKWARD_KERNELS_INL_H
#undef ONEPASS_CPU_AMX_BACKWARD_KERNELS_INL_H
#else
#define ONEPASS_CPU_AMX_BACKWARD_KERNELS_INL_H
#endif

#include "cpu/amx/kernels/backward-inl.h"
#include "cpu/backward/stats-inl.h"
#include "cpu/common/flush_to_zero.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

template <class Tiles, amx::Kernels (*pack)()>
backward::Kernels tile_backward() {
  return {"amx",
          HWY_TARGET,
          kGeometry,
          [](const backward::Call& call, const backward::Task& task, std::int64_t head) {
            const FlushToZero mode;
            row_stats(call, task, head);
          },
          [](const backward::Call& call, const backward::Task& task, const backward::Scratch& scratch) {
            const FlushToZero mode;
            const amx::Kernels kernels = pack();
            const TileProducts<Tiles> products{call, task, scratch, kernels};
            BackwardTask<TileProducts<Tiles>>{call, task, scratch, products}.run();
          },
          sum_rows,
          true};
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // per target
