// The end of a tile on its way out: registers -> shared memory -> TMA.
#pragma once
#include "cuda/jvp/sm90/tile.cuh"
#include "cuda/sm90/store_rows.cuh"

namespace onepass::cuda::jvp::sm90 {

// A warp's sixteen rows, of which it has a part of the columns.
DEV void store_results(const SharedMemory& memory, u32 warp, u32 part, const Maps& maps, const JvpParams& p,
                       const WorkTile& tile, const Scores& scores, float (&o)[kOutN / 2], float (&t)[kOutN / 2],
                       const JvpRows& rows) {
  const JvpFinal end = finalize_both(p, tile, rows);
  const u32 wrong = normalize_both(o, t, end);
  const i32 first = scores.first_row();
  const FragmentRows own = FragmentRows::from(first);
  if (part == 0) write_both_lses(p, tile, own, end);
  // A TMA store writes sixteen rows: packed, they must lie within the sequence.
  const bool by_elements = forward_features.output == ScalarType::f32 || (features.packed && first + 16 > tile.seq_q);
  const auto store = [&](void* to, const long long(&stride)[3], const TensorMap& map, const float(&x)[kOutN / 2]) {
    if (by_elements)
      store_elements(to, stride, tile, own, x, [&](i32 j, u32 quad) {
        return static_cast<i32>(part * kOutBlocks * kBlockColumns) + column_of(j, quad);
      });
    else
      onepass::sm90::store_rows_by_tma<kOutBlocks, (kVGroups > 1)>(memory.staging(warp), map, x, part * kOutBlocks,
                                                                   tile, first);
  };
  store(p.out, p.out_stride, maps.out, o);
  store(p.tout, p.tout_stride, maps.tout, t);
  // Those stores stand before the later ones.
  const bool again = __any_sync(0xffffffffu, wrong != 0);
  if (threadIdx.x % 32 == 0 && (kVGroups > 1 || again)) tma_store_wait();
  if constexpr (kVGroups > 1)
    bar_sync(kStored, kGroups * kGroupThreads);
  else
    __syncwarp();
  if (again) compute_again(p, tile, scores, first, wrong);
}

}  // namespace onepass::cuda::jvp::sm90
