// Constants of the config.
#pragma once
#define ONEPASS_ENTROPY_PARAMS decode::DecodeParams
#include "cuda/decode/decode_config.hpp"
#include "cuda/device/barrier.cuh"
#include "cuda/mma/tile.cuh"

namespace onepass::decode {

using namespace mma;  // tiles in shared memory, copies into them and products of them

constexpr DecodeLayout kLayout = layout_of(forward_features, config);
constexpr i32 kRows = config.rows, kBlockM = config.block_m(), kBlockN = config.block_n, kSlots = config.slots;
constexpr bool kFp8Keys = features.keys == ScalarType::e4m3, kFp8Query = features.input == ScalarType::e4m3;
constexpr i32 kKeyBytes = bytes_of(features.keys);
using Product = ElementOf<kFp8Keys ? ScalarType::f16 : features.input>::Format;  // of what products are made
constexpr bool kRowBlocks = false;                                               // a CTA has all rows of a K/V head
constexpr i32 kWarps = config.warps;
constexpr i32 kTeamThreads = 32 * config.team();
constexpr bool kWgmma = config.wgmma(), kCopyWarps = config.copy_warps != 0;
constexpr i32 kCopiers = config.copiers();              // threads that copy a tile
constexpr bool kOneResult = config.piece != 0;          // a row has the same bits in every call
constexpr bool kOwnBlocks = config.row_blocks;          // of rows, each with the keys that it sees
constexpr bool kWholeRows = kOwnBlocks && !kOneResult;  // a segment has all keys of its block
constexpr i32 kPieceTiles = config.piece != 0 ? config.piece : 1;
constexpr i32 kStepTiles = kOwnBlocks ? kPieceTiles : 1;
// With one result, a team's keys are runs of 64, and it takes every fourth run (every kShare-th) of a piece. Or a tile
// has kKeyParts parts: one for each warp with kSharesTiles, all of them with kPrompts.
constexpr i32 kRun = kOneResult && kBlockN < 64 ? 64 / kBlockN : 1;  // tiles
constexpr i32 kKeyParts = config.parts, kPartN = kBlockN / kKeyParts;
constexpr bool kPrompts = config.prompts, kSharesTiles = config.shares_tiles();
static_assert(kKeyParts == 1 || (kShare == 1 && kRun == 1 && kPartN % 16 == 0 && !forward_features.entropy));
// Warps that share the keys of a row that is computed again, 32 at a time. With one result their number is the teams'
// or the parts'.
constexpr i32 kRepairWarps = kOneResult ? kShare * kKeyParts : kWarps;
static_assert(kRepairWarps <= kWarps);
// From sequence to sequence, and only the device knows them; or from block to block.
constexpr bool kLengthsVary = features.own_lengths() || kOwnBlocks;
// Lengths of their own: beginning with a group and ending it take as long as reading 256 KB, or a block of many short
// groups would be the last.
constexpr i32 kGroupLead =
    kLengthsVary && !kWholeRows && config.piece == 0 ? (256 << 10) / (2 * kLayout.slot_bytes) : 0;
constexpr bool kUnified = config.unified;
constexpr bool kStoredTrees = false;  // each tile of drafts walks along the ancestors
constexpr bool kAlignedRows = config.copy_bytes == 16;
constexpr bool kOneSegment = config.even;  // of a CTA
DEV constexpr bool cut_evenly(const DecodeParams&) { return config.even; }

// Barriers by number; 0 is __syncthreads. Teams have theirs from 1 on. kSameRowsBarrier + g: of warps of the same rows.
enum NamedBarrier : u32 { kConsumers = 1, kSameRowsBarrier };
DEV void all_sync() {  // of those that hold rows
  if constexpr (kCopyWarps)
    bar_sync(kConsumers, kThreads);
  else
    __syncthreads();
}
DEV i32 own_warp() { return static_cast<i32>(opaque_thread() / 32); }
DEV i32 own_team() { return own_warp() % kShare; }
// This thread's number among the copiers.
DEV i32 own_copier() {
  const i32 lane = static_cast<i32>(opaque_thread() % 32);
  return (kCopyWarps ? own_warp() % (kCopiers / 32) : own_warp() / kShare) * 32 + lane;
}
// The place of a 16-byte chunk in a tile of K or V. TMA writes, and wgmma reads, blocks of 64 columns behind each
// other.
constexpr i32 kBlockBytes = 128, kColumnBlock = kCopyWarps ? kBlockN * kBlockBytes : kBlockBytes;
constexpr i32 kKeyPitch = kCopyWarps ? kBlockBytes : kLayout.k_pitch,
              kValuePitch = kCopyWarps ? kBlockBytes : kLayout.v_pitch;  // from row to row
DEV u32 chunk_at(u32 row, u32 chunk, u32 pitch) {
  if constexpr (kCopyWarps)
    return chunk / 8 * kColumnBlock + swizzled(row, chunk % 8, kBlockBytes);
  else
    return swizzled(row, chunk, pitch);
}
// The place of a chunk of Q, likewise. Sixteen columns of e4m3 are one, which becomes two (sort_query).
DEV u32 query_chunk(u32 row, u32 chunk) {
  if constexpr (kFp8Query) return swizzled(row, 2 * chunk, kLayout.q_pitch);
  if constexpr (kWgmma)
    return chunk / 8 * (kBlockM * kBlockBytes) + swizzled(row, chunk % 8, kBlockBytes);
  else
    return swizzled(row, chunk, kLayout.q_pitch);
}
// The first tile of a team in a segment from tile `first` on, and the next one of its turn.
DEV i32 first_own_tile(i32 first) { return first + own_team() * kRun; }
DEV i32 next_own_tile(i32 tile) {
  if constexpr (kRun == 1) return tile + kShare;
  return (tile + 1) % kRun != 0 ? tile + 1 : tile + 1 + (kShare - 1) * kRun;
}
DEV i32 first_own_row() { return own_warp() / kSameRows * kWarpRows; }
// A warp has every kHalves-th group of columns of O, from this one on.
constexpr i32 kHalves = config.halves, kOfGroup = kGroupColumns / 2;
constexpr i32 kOutSums = round_up(kOutN / kGroupColumns, kHalves) / kHalves * kOfGroup;
DEV u32 own_half() { return kHalves == 1 ? 0 : static_cast<u32>(own_warp()) / kShare % kHalves; }
// The first column of accumulators j .. j + 3, j a multiple of four.
DEV i32 own_columns(i32 j) {
  if constexpr (kHalves == 1) return j / 4 * 8;
  return (j / kOfGroup * kHalves + static_cast<i32>(own_half())) * kGroupColumns + j % kOfGroup * 2;
}

}  // namespace onepass::decode
