// State of the consumers of both kinds: a warp's place, positions in the pipelines, statistics, and dQ on its way out.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward/consumer/nonfinite.cuh"
#include "cuda/sm90/backward/consumer/products.cuh"
#include "cuda/sm90/backward/consumer/weights.cuh"
#include "cuda/sm90/backward/epilogue.cuh"

namespace onepass::sm90 {

struct BackwardWarp {
  const SharedMemory& memory;
  const u32 lane, warp;  // warp: of its warpgroup
  const BackwardParams& p;
  // Blocks and tiles so far: every pipeline's position follows from them. Their parities, uniform.
  u32 block = 0, tiles = 0, odd_block = 0, odd_tile = 0;
  BlockWalk at;
  BlockScores scores{p};

  DEV BackwardWarp(const SharedMemory& shared, const BackwardParams& params)
      : memory(shared), lane(threadIdx.x % 32), warp(warp_uniform(threadIdx.x / 32 % 4)), p(params) {}

  DEV void arrive(u32 bar) const {  // for its warp
    warp_arrive(bar, lane == 0);
  }
  // Statistics lie so that one load serves eight scores; shared memory is slow while products run, so they are read
  // well ahead of their use.
  DEV void load_part(float (&rows)[kBlockM / 4], u32 from, int c) const {
    u32 x[4];
    load_four(from + lane % 4 * 16 + c * 64, x[0], x[1], x[2], x[3]);
#pragma unroll
    for (int e = 0; e < 4; ++e) rows[4 * c + e] = __uint_as_float(x[e]);
  }
  DEV EntropyGradients entropies(u32 delta) const { return {delta + kBlockM * 4}; }
  DEV KeyTile tile() const { return load_key_tile(memory.tile(tiles % kLayout.k.stages)); }
  // The tile that comes next; its first block's head. False: there is none.
  DEV bool open_tile(u32 first_key, i32 part) {
    memory.k().at(tiles).wait();
    const KeyTile x = tile();
    at = BlockWalk::of(p, x, memory.tile(tiles % kLayout.k.stages));
    scores.open(x, static_cast<i32>(warp_uniform(static_cast<u32>(x.key) + first_key)), part);
    if (x.exists()) scores.open_head(at.head);
    odd_tile = warp_any(tiles & 1);
    return warp_any(x.exists());
  }
  DEV void next_block() {
    const bool head_ends = at.head_ends(p);
    if (head_ends) scores.close_head();
    ++block;
    const bool more = at.next(p, memory.tile(tiles % kLayout.k.stages));
    if (head_ends && more) scores.open_head(at.head);
  }
  DEV u32 ds_stage(u32 odd) const { return memory.base + kLayout.ds.data + odd * kLayout.ds.bytes; }
  DEV u32 q_stage() const { return memory.base + kLayout.q.data + odd_block * kLayout.q.bytes; }
  DEV u32 dout_stage() const { return memory.base + kLayout.dout.data + odd_block * kLayout.dout.bytes; }

  // dS as [rows][keys] of the 64 keys in block `keys` of the stage: matrices of eight keys x eight rows, transposed.
  // Where a lane's part of rows 16 e to 16 e + 15 lies:
  DEV u32 ds_place(u32 keys, u32 e) const {
    return swizzled(memory.ds().at(block).stage() + keys * kBlockM * kBlockColumnBytes,
                    e * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
  }
  DEV void store_ds(const u32 (&ds)[kBlockM / 4], u32 keys) const {
#pragma unroll
    for (u32 e = 0; e < kBlockM / 16; ++e)
      stmatrix4_transposed(ds_place(keys, e), ds[4 * e], ds[4 * e + 1], ds[4 * e + 2], ds[4 * e + 3]);
    __syncwarp();
    arrive(memory.ds().at(block).full());
  }
  // False if some are not finite. key: the warp's first.
  template <int N>
  DEV bool store_dv(const float (&dv)[N], const KeyTile& x, i32 key) const {
    if constexpr (!backward_features.dv) return true;
    return store_gradient<features.dim_v>(p.dv, p.dv_stride, x.map_batch, x.head, x.k_begin + key, x.seq_k - key, dv,
                                          features.dropout ? p.dropout.keep_scale : 1.0f);
  }
  template <int N>
  DEV bool store_dk(const float (&dk)[N], const KeyTile& x, i32 key) const {
    if constexpr (!backward_features.dk) return true;
    return store_gradient<features.dim_qk>(p.dk, p.dk_stride, x.map_batch, x.head, x.k_begin + key, x.seq_k - key, dk,
                                           p.scale);
  }
  DEV void mark(const KeyTile& x, i32 key, bool finite) const {
    if (__any_sync(0xffffffffu, !finite) && key < x.seq_k) mark_keys(p, x, key);
  }
  // careful: a tile's dS that fp16 has no place for. dQ has it, too.
  DEV void mark_overflow(const KeyTile& x, i32 key, bool& overflowed) const {
    if constexpr (features.input != ScalarType::f16) return;
    if (overflowed) atomicOr(&p.notes->found, static_cast<u32>(kKeysNotFinite));
    mark(x, key, !overflowed);
    overflowed = false;
  }
};

DEV void pack_fragment(const ScoreFragment& x, ScoreWords& to) {
#pragma unroll
  for (int j = 0; j < kScores; j += 2) to[j / 2] = Element::pack(x[j], x[j + 1]);
}
// Weights as dV's operand: without those that dropout takes.
DEV void pack_kept(const ScoreFragment& w, const DropoutMask<kScores>& dropout_mask, ScoreWords& to) {
#pragma unroll
  for (int j = 0; j < kScores; j += 2)
    to[j / 2] = Element::pack(dropout_mask.has(j) ? w[j] : dropped<config.careful>(w[j]),
                              dropout_mask.has(j + 1) ? w[j + 1] : dropped<config.careful>(w[j + 1]));
}

}  // namespace onepass::sm90
