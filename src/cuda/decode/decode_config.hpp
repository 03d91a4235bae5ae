// The tiling of the kernel and what it is launched with: one definition for the host and the device half.
#pragma once
#include "cuda/attention/forward.hpp"
#include "cuda/attention/unified_max.hpp"

namespace onepass::decode {

struct DecodeConfig {
  static constexpr int blocks = 1;  // that share a multiprocessor
  int kSums;                        // 2 where O leaves a warp so few registers as two sums would
  int rows;                         // of a K/V head, or with row_blocks of a block, at most
  int warps, row_tiles;             // a warp holds row_tiles times sixteen rows
  int share;        // teams: a team's warps hold the rows between them, and each team has keys of its own
  int halves;       // warps of a team that hold the same rows: each computes S or a part of it, and some columns of O
  int block_n;      // keys of a tile
  int slots;        // tiles of K or V of a team in shared memory
  int piece;        // tiles of a chunk of keys, the same in every batch, which one CTA has; 0: keys are cut anywhere
  int copy_bytes;   // bytes of K, V and Q copied at once: what strides and pointers are multiples of
  bool even;        // DecodeParams::splits is not 0: a block has one segment, which leaves out a third of the code
  bool unified;     // weights refer to DecodeParams::phi in place of the rows' maxima
  bool row_blocks;  // a K/V head may have more rows than `rows`: a CTA has all keys of a block of them
  int parts;  // of a tile's keys, with sums of their own (one_result/parted_rows.cuh); 1: a tile has one sum for each
              // lane
  bool prompts;    // a warp has sixteen rows and all parts of their tiles, in place of a warp for each part
  int copy_warps;  // more warps, which copy for the others (one_result/copiers.cuh); with prompts these multiply by
                   // wgmma then
  int box_rows;    // of K and V that these warps load at once by TMA; 0: they copy by cp.async

  ONEPASS_FIELDS(DecodeConfig, kSums, rows, warps, row_tiles, share, halves, block_n, slots, piece, copy_bytes, even,
                 unified, row_blocks, parts, prompts, copy_warps, box_rows)
  ONEPASS_HD constexpr int threads() const { return 32 * warps; }  // that hold rows
  ONEPASS_HD constexpr int copiers() const { return copy_warps ? 32 * copy_warps : threads() / share; }  // of a tile
  ONEPASS_HD constexpr int all_threads() const { return threads() + 32 * copy_warps; }
  ONEPASS_HD constexpr bool wgmma() const { return prompts && copy_warps != 0; }
  // CTAs of a multiprocessor that ptxas leaves registers for.
  ONEPASS_HD constexpr int at_once() const { return copy_warps && warps == 4 ? 2 : 1; }
  ONEPASS_HD constexpr int team() const { return warps / share; }
  ONEPASS_HD constexpr int same_rows() const { return share * halves; }
  ONEPASS_HD constexpr int block_m() const { return 16 * row_tiles * team() / halves; }
  ONEPASS_HD constexpr bool shares_tiles() const { return parts > 1 && !prompts; }  // a warp has a part
  // The least tiles of a CTA: fewer are not worth a merge.
  ONEPASS_HD constexpr int min_tiles() const { return parts > 1 ? 2 : block_n > 32 ? share : 2 * share; }
};

// Messages between warps that compute rows again (fallback/repair.cuh): a word and half a row's state for each lane of
// a warp, and 4 KB of O.
ONEPASS_HD constexpr int repair_bytes(int warps) { return warps * 384 + (4 << 10); }

// Bytes of shared memory for each warp with prompts: a segment, and with warpgroups two words.
inline constexpr int kStoredBytes = 80;

// Bytes of a warp's vote on the step of its rows (one_result/shared_tiles.cuh).
inline constexpr int kVoteBytes = 16;

// Shared memory of a CTA, in order: Q, the rings of the teams, the weights that warps share, the columns of O that its
// teams add up at a time (with prompts: O of the pieces so far), row states of the teams or of the parts of tiles, the
// states of their union, what has happened to a row, the units of Q's rows beside an FP8 cache, barriers of copies,
// votes of warps that share tiles, the states' sums for entropies. Rows of tiles are padded to a multiple of 128 bytes,
// the swizzle's width.
struct DecodeLayout {
  int q_pitch, k_pitch, v_pitch;  // bytes of a row
  int slot_bytes, team_bytes;     // of a tile of K or V, of a ring
  int columns, sum_pitch;         // of O at a time; bytes of a row of them, with a shift against bank conflicts
  int q, rings, weights, sums, states, united, flags, segments, units, barriers, votes, terms, total;
};
// Bytes of an element of Q there: e4m3 becomes fp16.
ONEPASS_HD constexpr int query_bytes(ScalarType input) { return input == ScalarType::e4m3 ? 2 : bytes_of(input); }
ONEPASS_HD constexpr DecodeLayout layout_of(const ForwardFeatures& features, const DecodeConfig& c) {
  constexpr int kSumBytes = 16 << 10;
  const AttentionFeatures& f = features.attention;
  DecodeLayout l{};
  l.q_pitch = round_up(f.dim_qk * query_bytes(f.input), 128);
  l.k_pitch = round_up(f.dim_qk * bytes_of(f.keys), 128);
  l.v_pitch = round_up(f.dim_v * bytes_of(f.keys), 128);
  l.slot_bytes = c.block_n * (l.k_pitch > l.v_pitch ? l.k_pitch : l.v_pitch);
  l.team_bytes = c.slots * l.slot_bytes;
  const int fit = kSumBytes / (c.share * c.rows * 4) / 8 * 8, whole = round_up(f.dim_v, 16);
  l.columns = fit < 8 ? 8 : fit < whole ? fit : whole;
  l.sum_pitch = 4 * (l.columns + 8);
  l.q = 0;
  l.rings = l.q + c.block_m() * l.q_pitch;
  l.weights = l.rings + c.share * l.team_bytes;
  l.sums = l.weights + (c.shares_tiles() ? 2 * c.block_m() * round_up(2 * c.block_n, 128) : 0);  // of two tiles
  const int sum_bytes = c.prompts ? c.rows * whole * 4 : c.share * c.rows * l.sum_pitch,
            repair = f.keys == ScalarType::e4m3 ? 0 : repair_bytes(c.warps);
  l.states = l.sums + (sum_bytes < repair ? repair : sum_bytes);
  l.united = l.states + c.share * (c.shares_tiles() ? c.parts : 1) * c.block_m() * 16;
  l.flags = l.united + c.block_m() * 16;
  l.segments = l.flags + 4 * (c.rows + 4);  // with prompts, of each warp
  l.units = l.segments + (c.prompts ? kStoredBytes * c.warps : 0);
  l.barriers = round_up(l.units + (f.keys == ScalarType::e4m3 ? 4 * c.block_m() : 0), 8);
  l.votes = round_up(l.barriers + (c.copy_warps ? 16 * (c.slots + 1) : 0), 16);  // two of each slot, and of Q
  l.terms = l.votes + (c.shares_tiles() ? 2 * kVoteBytes * c.warps : 0);
  l.total = l.terms + (features.entropy ? (c.share + 1) * c.block_m() * 4 : 0);
  return l;
}

// A partial result in the workspace: a state of four floats for each of a block's rows, then their O, then their sums
// for entropies.
ONEPASS_HD constexpr int partial_pitch(int dim_v) { return round_up(dim_v, 4); }
ONEPASS_HD constexpr int partial_floats(int rows, int dim_v, bool entropy) {
  return rows * (4 + partial_pitch(dim_v)) + (entropy ? round_up(rows, 4) : 0);
}

// CTAs at most: the counters of a workspace, one for each.
inline constexpr int kMaxBlocks = 256;

// n / d for 0 <= n < 2^31 by a product: a division is 20 instructions, and those in front of the first copies are time
// in which no memory is read. 2^(31 + shift) / d, rounded up, is too large by less than 2^-31 of n.
struct Divisor {
  unsigned multiplier;
  int shift;
  static Divisor of(int d) {
    int log = 0;
    while ((1ull << log) < static_cast<unsigned long long>(d)) ++log;
    return {static_cast<unsigned>(ceil_div(1ull << (31 + log), static_cast<unsigned>(d))), 31 + log};
  }
  ONEPASS_HD int operator()(int n) const {
    return static_cast<int>(static_cast<unsigned long long>(static_cast<unsigned>(n)) * multiplier >> shift);
  }
};

// As far from phi, in natural units, fp16 has room for a row's largest score; kUnifiedReach with other dtypes.
inline constexpr float kUnifiedReach16 = 5.0f;

struct DecodeParams : ForwardParams {
  float* partials;
  const unsigned char* mask_bytes;  // boolean mask as the caller has it, strides in bytes
  long long mask_stride[4];
  int heads_kv;
  Divisor by_rows_of_head, by_heads;  // heads_per_kv; groups of a sequence
  int blocks;                         // CTAs, or with row blocks: sets of `co_scheduled` CTAs
  int splits;      // parts that every group's keys are cut into, a block each; 0: all work is cut into equal parts
  int min_tiles;   // of such a part; fewer are not worth a merge
  int steps;       // of a group, if all groups have the same number; at most, with row_blocks
  int each, rest;  // steps of a part, and how many parts have one more, if splits is not 0
  Divisor by_steps, by_splits;
  float phi;  // unified_max, or what lies below it by fp16's reach; natural units
  RecomputedRows recomputed;
  // Where a kernel has blocks of rows: groups of blocks of a K/V head, of `co_scheduled` blocks each. Their CTAs walk
  // along the same keys at the same time.
  int row_groups, co_scheduled;
  Divisor by_row_groups, by_co_scheduled;
  int groups;  // of a sequence
  int lead;    // steps that beginning with a group counts as, where all work is cut into equal parts
  int pieces;  // of a group, at most
  float* entropy;
  long long entropy_stride[3];
};

}  // namespace onepass::decode
