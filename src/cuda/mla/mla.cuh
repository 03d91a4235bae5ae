// Decoding with absorbed multi-head latent attention for Hopper: q and k of 576 columns, v the first 512 of k's, which
// are read once for both products.
//
// A CTA has 64 rows (query heads x queries of one K/V head) and takes its part of the line of all work
// (work_partition.cuh). A producer warp keeps two tiles of 64 keys on their way; two warpgroups take the tiles in turn:
//
//   S = Q K^T          wgmma, 64 x 64, of the own tile
//   P = 2^(S - m)      lazy online softmax; P stays in registers and goes to the other warpgroup through shared memory
//   O += P V           both tiles' P on 256 of O's 512 columns, V being the tile's first columns read transposed
//
// The two refer to the same maxima, so that a row is one state: the warpgroup that updates the maximum publishes it
// with its P tile. Partial results of segments are merged by a kernel behind this one (merge.cuh). README.md has the
// schedule and the budgets.
#pragma once
#include "cuda/mla/tile.cuh"

#include "cuda/device/order.cuh"
#include "cuda/mla/consumer.cuh"
#include "cuda/mla/epilogue.cuh"
#include "cuda/mla/producer.cuh"

namespace onepass::decode {

// Beyond what the block begins with, setmaxnreg waits for ever.
static_assert(config.producer_registers * 128 + config.consumer_registers * kMlaConsumers <=
              65536 / kMlaThreads / 8 * 8 * kMlaThreads);

// All rows by all consumers; rows past the last one are zeros.
DEV void copy_query(u32 sm, const DecodeParams& p, const Group& g) {
  constexpr i32 kChunks = kMlaQk / 8;
#pragma unroll 2
  for (i32 at = static_cast<i32>(opaque_thread()); at < kRows * kChunks; at += kThreads) {
    const i32 row = at / kChunks, chunk = at - row * kChunks;
    const PackedRow x = PackedRow::of(p, g, row);
    const i64 offset = g.batch * p.q_stride[0] + x.head * p.q_stride[1] + x.token * p.q_stride[2];
    copy_async<16>(swizzled(sm + kLayout.q + static_cast<u32>(chunk / 8) * kBlockBytes, row, chunk % 8),
                   static_cast<const char*>(p.q) + offset * 2 + chunk * 16, row < g.rows(p));
  }
  copies_commit();
  copies_wait<0>();
  async_proxy_fence();
}

template <u32 side>
DEV void consume(u32 sm, const DecodeParams& p) {
  MlaConsumer<side> c(sm, p);
  const Line::Stored stored{sm + kLayout.line};
  const i32 block = line_block(p);
  i32 first, last;
  {
    const Line line(p);
    const Segment segment = line.first(line.begin_of(block), line.begin_of(block + 1));
    line.store(stored);
    segment.store(sm + kLayout.segment);
  }
#pragma unroll 1
  for (;;) {
    {
      const Segment segment = Segment::load(sm + kLayout.segment);
      if (segment.steps == 0) return;
      copy_query(sm, p, segment.group);
      if constexpr (features.tree) {
        if (const i32 row = static_cast<i32>(opaque_thread()); row < kRows)
          store_drafts(sm + kLayout.trees + 8 * static_cast<u32>(row), p, segment.group, row);
      }
      c.open(segment.group);
      first = segment.tile(), last = segment.end_tile();
    }
    all_sync();
#pragma unroll 1
    for (i32 tile = first; tile < last; tile += 2) c.turn(tile, tile == first, tile + 1 < last);
    const Line line(p, stored);
    const Segment segment = Segment::load(sm + kLayout.segment);
    const i32 end = line.begin_of(block + 1);
    end_segment(c, segment);
    line.next(segment, end).store(sm + kLayout.segment);
  }
}

}  // namespace onepass::decode

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::decode::kMlaThreads, 1)
    attention_mla(const __grid_constant__ onepass::TensorMap k,
                  const __grid_constant__ onepass::decode::DecodeParams p) {
  using namespace onepass;
  using namespace onepass::decode;
  extern __shared__ __align__(1024) unsigned char smem[];
  let_next_kernel_start();
  const u32 sm = shared_address(smem), group = warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    if (sm & 1023) __trap();  // the swizzle pattern is a function of the address
    KeyTiles{sm}.init();
    mbar_init_fence();
    tma_prefetch(&k);
  }
  __syncthreads();
  if (group == 2) {  // each role in one branch of one if/else, or setmaxnreg is ignored
    registers_down<config.producer_registers>();
    if constexpr (config.gathers())
      produce(MlaGather{p, {sm}}, p);
    else if (warp_uniform(threadIdx.x / 32) == kWarps)
      produce(MlaBoxes{p, &k, {sm}}, p);
  } else if (group == 0) {
    registers_up<config.consumer_registers>();
    consume<0>(sm, p);
  } else {
    registers_up<config.consumer_registers>();
    consume<1>(sm, p);
  }
}
