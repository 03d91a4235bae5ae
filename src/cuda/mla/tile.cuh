// Constants of the MLA kernel, and its memory of keys.
#pragma once
#include "cuda/device/pipeline.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/mla/config.hpp"

namespace onepass::decode {

constexpr MlaLayout kLayout = mla_layout(features.tree);
constexpr i32 kRows = kMlaRows, kBlockN = kMlaKeys;
constexpr bool kRowBlocks = true;
constexpr i32 kThreads = kMlaConsumers, kWarps = kThreads / 32;  // that hold rows; the producer's stand behind them
constexpr i32 kRepairWarps = kWarps;
constexpr i32 kPieceTiles = config.piece != 0 ? config.piece : 1, kStepTiles = kPieceTiles;
constexpr i32 kGroupLead = 0;  // DecodeParams::lead is, which even parts do without
constexpr bool kLengthsVary = features.own_lengths(), kOneSegment = false, kFp8Keys = false, kUnified = false,
               kAlignedRows = true, kStoredTrees = true, kOwnBlocks = false, kWholeRows = false;
DEV bool cut_evenly(const DecodeParams& p) { return p.splits != 0; }
constexpr u32 kBlockBytes = kMlaBlockBytes, kQkBlocks = kMlaQk / 64, kHalfBlocks = kMlaV / 128;

// Barriers of the consumers by number; 0 is __syncthreads.
enum NamedBarrier : u32 { kLeftWeights = 1, kRightWeights, kConsumers, kWarpgroup };  // kWarpgroup + g: of one
DEV void all_sync() { bar_sync(kConsumers, kThreads); }
DEV i32 own_warp() { return static_cast<i32>(opaque_thread() / 32); }

// Two tiles of keys. Each is filled and given back in halves: half h is the 256 columns that warpgroup h multiplies its
// weights with, 4 blocks of 64 columns. The rotary columns, the ninth block, serve S alone; then that block holds the
// tile's weights for the warpgroup that has not made them, and so it goes with that one's half.
struct KeyTiles {
  u32 sm;
  u32 uses[2] = {};  // of each tile, as far as this thread has come

  DEV u32 tile(u32 t) const { return sm + kLayout.keys + t * kMlaTileBytes; }
  DEV u32 half(u32 t, u32 h) const { return tile(t) + h * (kHalfBlocks * kBlockBytes); }
  DEV u32 rotary(u32 t) const { return tile(t) + (kQkBlocks - 1) * kBlockBytes; }
  static DEV constexpr bool has_rotary(u32 t, u32 h) { return t != h; }
  static DEV constexpr u32 bytes(u32 t, u32 h) { return (kHalfBlocks + (has_rotary(t, h) ? 1 : 0)) * kBlockBytes; }
  DEV u32 full(u32 t, u32 h) const { return sm + kLayout.full + (2 * t + h) * kBarrierBytes; }
  DEV u32 empty(u32 t, u32 h) const { return sm + kLayout.empty + (2 * t + h) * kBarrierBytes; }

  DEV void init() const {
    for (u32 t = 0; t < 2; ++t) {
      for (u32 h = 0; h < 2; ++h)
        mbar_init(full(t, h), config.gathers() ? 128 : 1), mbar_init(empty(t, h), 4 * kWarpArrivals);
    }
  }
  DEV void acquire(u32 t, u32 h) const { mbar_wait(empty(t, h), uses[t] % 2 ^ 1); }
  DEV void wait(u32 t, u32 h) const {
    mbar_wait(full(t, h), uses[t] % 2);
    if constexpr (config.gathers()) async_proxy_fence();
  }
  DEV void release(u32 t, u32 h) const { warp_arrive(empty(t, h), opaque_thread() % 32 == 0); }
};

}  // namespace onepass::decode
