// The producer warp: it draws tiles and loads Q, K, V and the bias with TMA.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/attention/epilogue.cuh"
#include "cuda/sm90/forward_tile.cuh"

namespace onepass::sm90 {

struct Maps {
  const TensorMap *q, *k, *v, *bias;
};

DEV void produce(u32 sm, const Maps& maps, const ForwardParams& p) {
  const bool issuer = elect_one();
  Ring<kQStages> q;
  Ring<kStages> k, v;
  Ring<kBiasTiles ? config.bias_stages : 1> bias;
  const auto load = [&](u32 to, const TensorMap* m, u32 bar, u32 bytes, u32 rows, u32 blocks, i32 token, i32 head,
                        i32 batch, u64 hint) {
    if (!issuer) return;
    mbar_arrive_expect(bar, bytes);
    for (u32 c = 0; c < blocks; ++c) tma_load(to + c * rows * 128, m, bar, c * 64, token, head, batch, hint);
  };
  const auto load_k = [&](const TileWork& x, i32 n) {
    mbar_wait(sm + kEmptyK + 8 * k.slot, k.parity ^ 1);
    load(sm + kLayout.k + k.slot * kLayout.k_bytes, maps.k, sm + kFullK + 8 * k.slot, kLayout.k_bytes, kBlockN,
         kQkBlocks, x.k_begin + n * kBlockN, x.head / p.heads_per_kv, x.map_batch, kEvictLast);
    k.next();
  };
  const auto load_v = [&](const TileWork& x, i32 n) {
    mbar_wait(sm + kEmptyV + 8 * v.slot, v.parity ^ 1);
    load(sm + kLayout.v + v.slot * kLayout.v_bytes, maps.v, sm + kFullV + 8 * v.slot, kLayout.v_bytes, kBlockN,
         kVBlocks, x.k_begin + n * kBlockN, x.head / p.heads_per_kv, x.map_batch, kEvictLast);
    v.next();
  };
  const auto load_bias = [&](const TileWork& x, i32 n) {
    if constexpr (kBiasTiles) {
      constexpr i32 kColumns = features.bias == Type::f32 ? 32 : 64;
      for (u32 g = 0; g < kGroups; ++g) {  // a slot of its own for each warpgroup: neither waits for the other
        const u32 slot = bias.slot * kGroups + g, bar = sm + kFullB + 8 * slot;
        mbar_wait(sm + kEmptyB + 8 * slot, bias.parity ^ 1);
        if (!issuer) continue;
        mbar_arrive_expect(bar, kLayout.bias_bytes);
        for (i32 c = 0; c < kKeys / kColumns; ++c)
          tma_load(sm + kLayout.bias + slot * kLayout.bias_bytes + static_cast<u32>(c) * 8192, maps.bias, bar,
                   n * kKeys + c * kColumns, x.row + static_cast<i32>(g) * 64, x.head, x.batch, kEvictFirst);
      }
      bias.next();
    }
  };
  // The tile's coordinates travel in shared memory under the Q barrier: consumers need no divisions. row < 0 ends the
  // work.
  const auto load_q = [&](const TileWork& x) {
    mbar_wait(sm + kEmptyQ + 8 * q.slot, q.parity ^ 1);
    if (issuer) store_tile(sm + kLayout.slots + kSlotBytes * q.slot, x);
    if (x.row < 0) {
      if (issuer) mbar_arrive(sm + kFullQ + 8 * q.slot);
    } else {
      load(sm + kLayout.q + q.slot * kLayout.q_bytes, maps.q, sm + kFullQ + 8 * q.slot, kLayout.q_bytes, kBlockM,
           kQkBlocks, x.q_begin + x.row, x.head, x.map_batch, kEvictFirst);
    }
    q.next();
  };
  // Tiles that see no key are settled here; the others go to the consumers.
  Tiles source(p);
  const auto next_tile = [&] {
    TileWork x = source.next();
    while (x.row >= 0 && x.n_lo >= x.n_hi) {
      write_empty(p, x, x.row, kBlockM);
      x = source.next();
    }
    return x;
  };
  TileWork x = next_tile();
  if (x.row >= 0) load_k(x, x.n_hi - 1);
  load_q(x);
  if (x.row >= 0) load_bias(x, x.n_hi - 1);
  while (x.row >= 0) {
    for (i32 n = x.n_hi - 1; n > x.n_lo;) {
      const i32 next = next_block<kKeys>(p, x, n);
      load_k(x, next);
      load_v(x, n);
      load_bias(x, next);
      n = next;
    }
    const TileWork y = next_tile();
    if (!config.flat) load_v(x, x.n_lo);
    if (y.row >= 0) load_k(y, y.n_hi - 1);
    load_q(y);
    if (config.flat) load_v(x, x.n_lo);
    if (y.row >= 0) load_bias(y, y.n_hi - 1);
    x = y;
  }
  source.leave();
}

}  // namespace onepass::sm90
