// The tiling of the Hopper backward kernel: one definition for the host and the device half.
#pragma once
#include "cuda/device/pipeline.hpp"
#include "cuda/sm90/backward/sums.hpp"

namespace onepass::sm90 {

// joint: two consumer warpgroups of 64 keys each, which compute all five products of their keys. split: 64 keys; one
// warpgroup computes S, P and dV, the other dP, dS and dK, so that wide heads fit the registers.
struct BackwardConfig {
  bool split;
  int block_q;       // query rows of a block: 64, or 128 if joint
  bool bias_tiles;   // joint: a 16-bit bias comes by TMA into the place that its block's dS will take
  bool dbias_tiles;  // joint: dbias leaves by TMA, through dQ's stage
  bool dbias_adds;   // to what other heads or batch entries have added
  bool ahead;        // split: the first product of a block is done a block ahead
  int held;          // split: sixteens of columns of K and V that stay in registers, for the first products
  bool paired;       // split: a cluster of two CTAs, with 64 keys each, adds dQ of both up
  bool zeroes;       // joint: dQ's sums, under the first products (zeros.cuh)
  bool guarded;      // one of two kernels: the pre kernel says which computes the call (attention/backward/careful.cuh)
  bool careful;      // guarded: the one for values that are not finite
  ONEPASS_HD constexpr int block_k() const { return split ? 64 : 128; }         // keys of a CTA
  ONEPASS_HD constexpr int tile_k() const { return paired ? 128 : block_k(); }  // of a tile
  ONEPASS_FIELDS(BackwardConfig, split, block_q, bias_tiles, dbias_tiles, dbias_adds, ahead, held, paired, zeroes,
                 guarded, careful)
};

constexpr int kHelperRegisters = 24, kConsumerRegisters = 240;  // of a thread: 64 K for 128 and 256
constexpr int kGroupKeys = 64;

// Split: words that a lane of the one warpgroup hands to the same lane of the other, for each score half a word: the
// weight, the score's derivatives; and a bit for each weight that dropout leaves.
ONEPASS_HD constexpr int exchanged_words(const AttentionFeatures& f, const BackwardConfig& c) {
  return c.block_q / 4 * (1 + f.softcap + f.score_mod) + (f.dropout ? 4 : 0);
}

// Paired: how many columns of dQ a warpgroup adds up, over the keys of both CTAs, and from which on. K of
// the other one's keys lies behind its own, two blocks of columns from `rank` on.
constexpr int kPairedColumns[2] = {64, 32};
ONEPASS_HD constexpr int paired_column(int group, int rank) { return group == 0 ? 128 * rank : 64 + 32 * rank; }
constexpr int kPartnerBlocks = 2;
constexpr int kPairedDqBytes[2] = {64 * 64 * 4, 64 * 32 * 4};  // of a block, on its way to the sums
ONEPASS_HD constexpr int own_keys_bytes(const AttentionFeatures& f, const BackwardConfig& c) {
  return c.block_k() * column_blocks(f.dim_qk) * kBlockColumnBytes;
}

// Joint: bytes of a warpgroup's part of dQ's stage; the second's is no larger. Where dbias takes turns: a box of 64
// rows and 32 keys, twice.
ONEPASS_HD constexpr int dq_stage_bytes(const AttentionFeatures& f, const BackwardConfig& c) {
  const int dq = 64 * dq_columns(f.dim_qk, c.block_q, 0) * 4, dbias = 2 * c.block_q * kBlockColumnBytes;
  return c.dbias_tiles && dbias > dq ? dbias : dq;
}
// A tile's slot: its coordinates, and where a boolean mask leaves out blocks of rows, a bit for each that it does not.
ONEPASS_HD constexpr int tile_slot_bytes(const AttentionFeatures& f) {
  return kTileSlotBytes + (f.bool_mask ? 4 * kListWords : 0);
}

// RowBits: of each column of dO and, if `marks_dk`, of Q, a bit for each row of a block.
ONEPASS_HD constexpr bool marks_dk(const AttentionFeatures& f) { return f.softcap || f.score_mod; }
ONEPASS_HD constexpr int bits_bytes(int dim, int block_q) { return column_blocks(dim) * kBlockColumns * block_q / 8; }
ONEPASS_HD constexpr int row_bits_bytes(const AttentionFeatures& f, const BackwardConfig& c) {
  return !c.careful ? 0 : bits_bytes(f.dim_v, c.block_q) + (marks_dk(f) ? bits_bytes(f.dim_qk, c.block_q) : 0);
}
// Joint, head dims to 64: there is room for Marks in shared memory.
ONEPASS_HD constexpr bool stores_marks(const AttentionFeatures& f, const BackwardConfig& c) {
  return !c.split && f.dim_qk <= kBlockColumns && f.dim_v <= kBlockColumns;
}
ONEPASS_HD constexpr int marked_bytes(const AttentionFeatures& f, const BackwardConfig& c) {
  return !c.careful ? 0 : stores_marks(f, c) ? 2 * kMarkLanes * 4 : 64;
}

// True if at most a few instructions come between product and weight (weights.cuh).
ONEPASS_HD constexpr bool plain_scores(const BackwardFeatures& b, const BackwardConfig& c) {
  const AttentionFeatures& f = b.forward.attention;
  return !f.softcap && !f.alibi && !f.score_mod && !f.mask_mod && !f.scaled_first && !b.dslopes &&
         !(f.bool_mask && c.split) && (f.bias == ScalarType::none || c.bias_tiles) && (!b.dbias || c.dbias_tiles);
}

// Shared memory of a CTA, in order.
struct BackwardLayout {
  PipelineLayout k, v, q, dout;  // joint: K twice, the next tile's comes early
  PipelineLayout ds;             // dS: [keys / 64][rows][128 bytes]; paired: the other block's, too
  PipelineLayout dq;             // joint: a part for each warpgroup, on its way to the sums
  PipelineLayout order;          // joint, deterministic: barriers of dq's stage, for two reducers that alternate
  PipelineLayout bias;           // in the places of ds
  PipelineLayout exchange;       // split: a part for each pair of warps
  PipelineLayout partner;        // paired: barriers of what the other block writes into ds
  PipelineLayout drawn;          // paired: the number of the next tile, which the first block draws for both
  PipelineLayout schedule;       // KeyTiles; a slot is free when its stage of k is
  int lse, delta;                // of a block's rows, one behind the other for each stage of q, of dout; delta: with dH
  int row_bits;                  // RowBits; split: in the place of exchange, which is empty then
  int marked;                    // two words for each consumer warp; with stores_marks for each of its lanes
  int total;
};
ONEPASS_HD constexpr BackwardLayout layout_of(const BackwardFeatures& features, const BackwardConfig& c) {
  const AttentionFeatures& f = features.forward.attention;
  BackwardLayout l{};
  const int qk = column_blocks(f.dim_qk) * kBlockColumnBytes, v = column_blocks(f.dim_v) * kBlockColumnBytes;
  l.k = {.data = 0,
         .bytes = c.block_k() * (qk + (c.paired ? kPartnerBlocks * kBlockColumnBytes : 0)),
         .stages = c.split ? 1 : 2};
  l.v = {.data = l.k.data_end(), .bytes = c.block_k() * v, .stages = 1};
  const int row_stages = c.ahead ? 3 : 2;
  l.q = {.data = l.v.data_end(), .bytes = c.block_q * qk, .stages = row_stages};
  l.dout = {.data = l.q.data_end(), .bytes = c.block_q * v, .stages = row_stages};
  l.ds = {.data = l.dout.data_end(), .bytes = c.tile_k() / kGroupKeys * c.block_q * kBlockColumnBytes, .stages = 2};
  l.dq = {.data = l.ds.data_end(), .bytes = dq_stage_bytes(f, c), .stages = c.split ? 0 : 1, .parts = 2};
  if (c.paired) l.dq.bytes = kPairedDqBytes[0], l.dq.stages = 1;
  const int dq_end = c.paired ? l.dq.data + kPairedDqBytes[0] + kPairedDqBytes[1] : l.dq.data_end();
  l.exchange = {.data = dq_end, .bytes = exchanged_words(f, c) * 128, .stages = c.split ? 1 : 0, .parts = 4};
  l.lse = l.exchange.data_end();
  l.delta = l.lse + row_stages * c.block_q * 4;
  const int delta_end = l.delta + row_stages * c.block_q * 4 * (features.statistics() - 1);
  l.row_bits = c.split ? l.exchange.data : delta_end;
  l.marked = delta_end + (c.split ? 0 : row_bits_bytes(f, c));
  l.schedule = {.data = l.marked + marked_bytes(f, c), .bytes = tile_slot_bytes(f), .stages = l.k.stages};
  l.schedule = l.schedule.with_barriers(l.schedule.data_end());
  l.k = l.k.with_barriers(l.schedule.barriers_end());
  l.v = l.v.with_barriers(l.k.barriers_end());
  l.q = l.q.with_barriers(l.v.barriers_end());
  l.dout = l.dout.with_barriers(l.q.barriers_end());
  l.ds = l.ds.with_barriers(l.dout.barriers_end());
  l.dq = l.dq.with_barriers(l.ds.barriers_end());
  l.exchange = l.exchange.with_barriers(l.dq.barriers_end());
  l.bias = PipelineLayout{.data = l.ds.data, .bytes = l.ds.bytes, .stages = 2}.with_barriers(l.exchange.barriers_end());
  l.order = PipelineLayout{.data = l.dq.data, .stages = 2}.with_barriers(l.bias.barriers_end());
  l.partner =
      PipelineLayout{.data = l.ds.data, .stages = c.paired ? l.ds.stages : 0}.with_barriers(l.order.barriers_end());
  l.drawn = {.data = l.partner.barriers_end(), .bytes = 16, .stages = c.paired};
  l.drawn = l.drawn.with_barriers(l.drawn.data_end());
  l.total = l.drawn.barriers_end();
  return l;
}

}  // namespace onepass::sm90
