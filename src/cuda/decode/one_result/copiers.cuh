// Warps that only copy, on Hopper: where a page lies is found beside the products in place of between them. Each slot
// of the ring, a tile of K or V, has two barriers: it is full, it is empty.
#pragma once
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/operands.cuh"
#include "cuda/device/pipeline.cuh"
#include "cuda/device/tma.cuh"

namespace onepass::decode {

struct KeyMaps {
  TensorMap k_map, v_map;
};
struct CopiedParams : KeyMaps, DecodeParams {};

// Registers of a thread that copies, and of one that holds rows: together those that ptxas gives all threads. Packed
// sequences take a copier 16 more; four warps of rows have none to give.
constexpr u32 kMore = features.packed ? 16 : 0;
constexpr u32 kCopierRegisters = kWgmma        ? 56
                                 : kWarps == 4 ? 72
                                               : 88 + kMore,
              kConsumerRegisters = kWgmma        ? (kWarps == 12 ? 152 : 224)
                                   : kWarps == 4 ? 184
                                                 : 208 - kMore / 2;
constexpr u32 kAllotted = 65536 / static_cast<u32>(config.at_once() * config.all_threads()) / 8 * 8;  // by ptxas
static_assert(!kCopyWarps || kConsumerRegisters * kWarps + kCopierRegisters * 4 == kAllotted * (kWarps + 4));

// The two barriers of a slot; that of `kSlots` is Q's.
struct SlotBarriers {
  u32 sm, slot;
  DEV u32 full() const { return sm + kLayout.barriers + 16 * slot; }
  DEV u32 empty() const { return full() + kBarrierBytes; }
  DEV void init() const {
    const bool by_warps = config.box_rows != 0 && slot < kSlots;
    mbar_init(full(), by_warps ? config.copy_warps * kWarpArrivals : kCopiers);
    mbar_init(empty(), kWarps * kWarpArrivals);
  }
};
DEV void init_barriers(u32 sm) {
  if (threadIdx.x == 0) {
    if (sm & 1023) __trap();  // the swizzle pattern is a function of the address
    for (u32 slot = 0; slot <= kSlots; ++slot) SlotBarriers{sm, slot}.init();
    mbar_init_fence();
  }
  __syncthreads();
}

// Q's barriers with prompts: their rows come by the copiers, too.
struct QueryBarriers : SlotBarriers {
  u32 parity = 0;
  DEV QueryBarriers(u32 shared, u32 from = 0) : SlotBarriers{shared, kSlots}, parity(from) {}
  DEV void wait() const { mbar_wait(full(), parity); }
  DEV void release() {
    __syncwarp();
    warp_arrive(empty(), opaque_thread() % 32 == 0);
    parity ^= 1;
  }
};

// The ring for those that hold rows.
struct SlotsInTurn {
  u32 sm;
  PipelineState<kSlots> state{};
  DEV SlotBarriers barriers() const { return {sm, state.slot}; }
  DEV u32 take() const {
    mbar_wait(barriers().full(), state.parity);
    return sm + kLayout.rings + state.slot * kLayout.slot_bytes;
  }
  template <bool values>
  DEV void give() {
    __syncwarp();
    warp_arrive(barriers().empty(), opaque_thread() % 32 == 0);
    state.advance();
  }
};

// Tiles by TMA: a warp loads its boxes, and arrives once. A tile that the sequence ends in comes by cp.async, because
// rows behind its end must be zeros, whatever the memory holds.
template <bool values>
DEV void load_tile(u32 sm, const CopiedParams& p, const Ring& ring, u32 to, i32 tokens) {
  constexpr i32 kRowsOfBox = config.box_rows, kBlocks = ceil_div(values ? features.dim_v : features.dim_qk, 64);
  const i32 warp = own_copier() / 32;
  const SlotBarriers barriers{sm, static_cast<u32>(ring.slot)};
  if (tokens < kBlockN) {
    ring.copy<values>(to, tokens);
    copies_commit();
    copies_wait<0>();
    async_proxy_fence();
    __syncwarp();
    return warp_arrive(barriers.full(), opaque_thread() % 32 == 0);
  }
  const bool issuer = elect_one();
  const i32 boxes = (kBlockN / kRowsOfBox - warp + config.copy_warps - 1) / config.copy_warps;
  if (issuer) mbar_arrive_expect(barriers.full(), boxes * (kBlocks * kRowsOfBox * kBlockBytes));
  if (!issuer && kWarpArrivals == 32) mbar_arrive(barriers.full());
#pragma unroll 1
  for (i32 row = warp * kRowsOfBox; row < kBlockN; row += config.copy_warps * kRowsOfBox) {
    const Place at =
        features.paged ? ring.places.row(row) : Place{ring.places.of[0].batch, ring.places.of[0].token + row};
    if (!issuer) continue;
#pragma unroll
    for (i32 block = 0; block < kBlocks; ++block)
      tma_load(to + block * kColumnBlock + row * kBlockBytes, values ? &p.v_map : &p.k_map, barriers.full(), block * 64,
               at.token, ring.view.head, at.batch, kPrompts ? kEvictLast : kEvictFirst);
  }
  __syncwarp();
}

// The copiers' work. With prompts a group's Q comes behind its first K.
struct Copiers {
  const u32 sm;
  const CopiedParams& p;
  Ring ring;
  u32 parity = 1, query_parity = 1;

  DEV void run(const Segment& segment) {
    ring.begin_alone(sm, segment);
#pragma unroll 1
    while (ring.ahead.steps != 0) {
      next<false>();
      if (kPrompts && ring.tile == ring.ahead.group.first_tile) next_query();  // of its group
      next<true>();
    }
  }

 private:
  template <bool values>
  DEV void next() {
    const SlotBarriers barriers{sm, static_cast<u32>(ring.slot)};
    mbar_wait(barriers.empty(), parity);
    if constexpr (config.box_rows != 0) {
      ring.copy_next<values>([&](u32 to, i32 tokens) { load_tile<values>(sm, p, ring, to, tokens); });
    } else {
      ring.copy_next<values>();
      copies_arrive(barriers.full());
    }
    if (ring.slot == 0) parity ^= 1;
  }
  DEV void next_query() {
    const QueryBarriers query(sm);
    mbar_wait(query.empty(), query_parity);
    copy_query<false>(sm, p, ring.ahead.group);
    copies_arrive(query.full());
    query_parity ^= 1;
  }
};

// consume(segment, end): the work of the warps that hold rows, from the CTA's first segment to the step `end`. Each
// role finds them for itself: no register holds them from here on to its part of the code.
template <class Consume>
DEV void beside_copiers(u32 sm, const CopiedParams& p, const Line& line, const Consume& consume) {
  init_barriers(sm);
  i32 end;
  // Each role in one branch of one if/else, or setmaxnreg is ignored.
  if (warp_uniform(threadIdx.x / 128) == kThreads / 128) {
    registers_down<kCopierRegisters>();
    const Segment segment = line.open(line_block(p), end);
    Copiers{sm, p, {p, line, end}}.run(segment);
  } else {
    registers_up<kConsumerRegisters>();
    const Segment segment = line.open(line_block(p), end);
    consume(segment, end);
  }
}

}  // namespace onepass::decode
