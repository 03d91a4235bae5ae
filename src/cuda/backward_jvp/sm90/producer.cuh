// The producer warp: it loads the held tiles, and streams blocks past them, with TMA.
#pragma once
#include "cuda/backward_jvp/sm90/tile.cuh"

namespace onepass::cuda::backward_jvp::sm90 {

// By the issuer: a tile of `tokens` tokens from `token` on, `blocks` blocks of columns wide, and its tangent behind it.
template <u32 blocks, i32 tokens, bool kMoves>
DEV void load_both(u32 to, u32 full, const TensorMap& map, const TensorMap& tangent, i32 token, i32 head, i32 batch,
                   u64 hint) {
#pragma unroll
  for (u32 c = 0; c < (kMoves ? 2 : 1) * blocks; ++c)
    tma_load(to + c * tokens * kBlockColumnBytes, c < blocks ? &map : &tangent, full, c % blocks * kBlockColumns, token,
             head, batch, hint);
}

template <bool kKeys>
struct Producer {
  using P = Pass<kKeys>;
  const typename P::Memory& memory;
  const Maps& maps;
  const PlainBackwardParams& p;
  const bool issuer = elect_one();
  Pipeline<P::kLayout.left> left = memory.left();
  Pipeline<P::kLayout.right> right = memory.right();

  // token: the first held one, within the tensor.
  DEV void load_held(i32 token, i32 head, i32 batch) const {
    const Pipeline<P::kLayout.held> held = memory.held();
    if (!issuer) return;
    mbar_arrive_expect(held.full(), P::kLayout.held.bytes);
    load_both<kQkBlocks, kHeld, true>(held.stage(), held.full(), kKeys ? maps.k : maps.q, kKeys ? maps.tk : maps.tq,
                                      token, head, batch, kEvictFirst);
    load_both<kVBlocks, kHeld, kMovesHeld<kKeys>>(held.stage() + P::kLayout.held_right, held.full(),
                                                  kKeys ? maps.v : maps.dout, kKeys ? maps.tv : maps.tdout, token, head,
                                                  batch, kEvictFirst);
  }
  // The block of streamed tokens from `first` on; head: of their tensors.
  DEV void load_block(const WorkTile& x, i32 head, i32 first) {
    const i32 token = (kKeys ? x.q_begin : x.k_begin) + first;
    left.acquire();
    if (issuer) {
      mbar_arrive_expect(left.full(), P::kLayout.left.bytes);
      load_both<kQkBlocks, P::kStreamed, true>(left.stage(), left.full(), kKeys ? maps.q : maps.k,
                                               kKeys ? maps.tq : maps.tk, token, head, x.map_batch, kEvictLast);
    }
    left.advance();
    right.acquire();
    if (issuer) {
      mbar_arrive_expect(right.full(), P::kLayout.right.bytes + P::kLayout.numbers_bytes);
      load_both<kVBlocks, P::kStreamed, kMovesStreamed<kKeys>>(right.stage(), right.full(), kKeys ? maps.dout : maps.v,
                                                               kKeys ? maps.tdout : maps.tv, token, head, x.map_batch,
                                                               kEvictLast);
      if constexpr (kKeys) load_numbers(x, first);
    }
    right.advance();
  }
  // The rows' numbers. The workspace holds them for whole blocks, garbage behind the last row.
  DEV void load_numbers(const WorkTile& x, i32 first) const {
    static_assert(kBlock % P::kStreamed == 0);
    constexpr u32 kBytes = 4 * P::kStreamed;
    const i64 at = backward_plain::row_place(p, x, first);
#pragma unroll
    for (u32 kind = 0; kind < 4; ++kind)
      bulk_load(memory.numbers(right.state.slot) + kind * kBytes,
                (kind < 2 ? p.statistics : p.moved) + at + kind % 2 * kBlock, kBytes, right.full());
  }
};

}  // namespace onepass::cuda::backward_jvp::sm90
