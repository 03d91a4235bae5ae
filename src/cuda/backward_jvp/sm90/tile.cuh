// Constants of a pass, the map of shared memory, and the walk through a tile's blocks.
#pragma once
#include "cuda/device/pipeline.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"

#include "cuda/backward_jvp/pairs.cuh"
#include "cuda/backward_jvp/results.cuh"
#include "cuda/backward_jvp/sm90/config.hpp"

namespace onepass::cuda::backward_jvp::sm90 {

constexpr i32 kHeld = Config::held();
constexpr u32 kGroups = Config::kGroups, kGroupThreads = 128, kGroupWarps = 4, kGroupRows = 64;
constexpr u32 kQkBlocks = column_blocks(features.dim_qk), kVBlocks = column_blocks(features.dim_v);
constexpr i32 kQkN = round_up(features.dim_qk, 16), kVN = round_up(features.dim_v, 16);  // as they are multiplied
constexpr u32 kHeldBlockBytes = kHeld * kBlockColumnBytes;  // a block of columns of the held tokens

// The tensors that a kernel reads, in boxes of its pass. Where there is no tdO its map is a copy of Q's.
struct Maps {
  TensorMap q, tq, k, tk, v, tv, dout, tdout;
};

template <bool kKeys>
struct Pass {
  static constexpr Layout kLayout = layout_of(plain_features, config, kKeys);
  static constexpr i32 kStreamed = config.streamed(kKeys), kScores = kStreamed / 2;  // kScores: of a lane
  static constexpr u32 kBlockBytes = kStreamed * kBlockColumnBytes;  // a block of columns of the streamed tokens

  struct Memory {
    u32 base;
    DEV Pipeline<kLayout.held> held() const { return {base}; }
    DEV Pipeline<kLayout.left> left() const { return {base}; }
    DEV Pipeline<kLayout.right> right() const { return {base}; }
    DEV u32 numbers(u32 slot) const { return base + kLayout.numbers + slot * kLayout.numbers_bytes; }
  };
};

// f(first) for every block of the streamed tokens that a tile sees. x.row and key: as in next_block.
template <bool kKeys, class F>
DEV void each_block(const PlainBackwardParams& p, const WorkTile& x, i32 key, const Band32& band, const F& f) {
  constexpr i32 kStreamed = Pass<kKeys>::kStreamed;
  const Band32::Range seen = kKeys ? seen_by_keys(band, key, kHeld) : seen_by_rows(band, x.row, kHeld);
  const auto next = [&](i32 from) { return next_block<kKeys, kHeld, kStreamed>(p, x, key, from, seen.hi); };
#pragma unroll 1
  for (i32 first = next(seen.lo / kStreamed * kStreamed); first < seen.hi; first = next(first + kStreamed)) f(first);
}

// Named barriers; 0 is __syncthreads. kTurn + g: warpgroup g may issue products of scores.
enum NamedBarrier : u32 { kTurn = 1 };

}  // namespace onepass::cuda::backward_jvp::sm90
