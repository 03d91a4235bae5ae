// The warp that draws tiles, and lists the blocks of rows that see any of their keys.
#pragma once
#include "cuda/sm90/backward/consumer/pair.cuh"
#include "cuda/sm90/backward/epilogue.cuh"
#include "cuda/sm90/backward/zeros.cuh"

namespace onepass::sm90 {

// Lists the blocks of rows in which a query head sees any of a tile's keys, and leaves out the others at both ends. By
// one warp; the tile stays in its slot, since registers are few.
DEV void list_blocks(const BackwardParams& p, u32 slot) {
  const KeyTile x = load_key_tile(slot);
  const unsigned char* const tiles =
      p.mask.tiles + x.batch * p.mask.tile_stride[0] + x.head * p.heads_per_kv * p.mask.tile_stride[1] + x.key / 32;
  i32 lo = x.m_hi, hi = 0;
#pragma unroll 1
  for (i32 m = x.m_lo / 32 * 32; m < x.m_hi; m += 32) {
    const i32 own = m + static_cast<i32>(opaque_thread() % 32);
    bool seen = own >= x.m_lo && own < x.m_hi;
    if (seen && m < 32 * kListWords) {
      const unsigned char* at = tiles + own * p.mask.tile_stride[2];
      seen = false;
#pragma unroll 1
      for (i32 left = p.mask.tile_stride[1] != 0 ? p.heads_per_kv : 1; left > 0 && !seen; --left) {
        seen = kBlockN == 128 ? *reinterpret_cast<const u32*>(at) != 0 : *reinterpret_cast<const u16*>(at) != 0;
        at += p.mask.tile_stride[1];
      }
    }
    const u32 word = __ballot_sync(0xffffffffu, seen);
    if (m < 32 * kListWords && opaque_thread() % 32 == 0)
      store_word(slot + kTileSlotBytes + m / 8, static_cast<i32>(word));
    if (word == 0) continue;
    lo = min(lo, m + __ffs(static_cast<int>(word)) - 1);
    hi = m + 32 - __clz(static_cast<int>(word));
  }
  __syncwarp();
  if (opaque_thread() % 32 == 0) {
    store_word(slot + 32, lo);
    store_word(slot + 36, max(lo, hi));
  }
  __syncwarp();
}

// Tiles as they are drawn, for both blocks of a pair by the first, which tells the other.
template <class Memory>
struct PairedTiles {
  const BackwardParams& p;
  const Memory& memory;
  TileOrder order{p};
  u32 draws = 0;

  DEV KeyTile next() {
    i32 number = static_cast<i32>(blockIdx.x / kPair);
    if (draws != 0) number = pair_rank() == 0 ? draw(memory.drawn().at(draws - 1)) : told(memory.drawn().at(draws - 1));
    ++draws;
    KeyTile x = order.tile(number);
    if (x.exists()) x.key += static_cast<i32>(pair_rank() * kBlockN);
    return x;
  }
  DEV i32 draw(const auto& to) const {
    u32 number = 0;
    if (opaque_thread() % 32 == 0) {  // alone: the other's answer may end the phase before a second lane has asked
      number = gridDim.x / kPair + atomicAdd(p.counters, 1u);
      to.acquire();
      store_word_there(of_partner(to.stage()), static_cast<i32>(number), of_partner(to.full()));
    }
    return static_cast<i32>(warp_uniform(number));
  }
  DEV i32 told(const auto& from) const {
    if (opaque_thread() % 32 == 0) mbar_arrive_expect(from.full(), 4);
    from.wait();
    const i32 number = load_word(from.stage());
    __syncwarp();
    arrive_there(from.empty(), opaque_thread() % 32 == 0);
    return number;
  }
  DEV void reset() const {
    if (pair_rank() == 0 && opaque_thread() % 32 == 0 && atomicAdd(p.counters + 1, 1u) == gridDim.x / kPair - 1)
      p.counters[0] = p.counters[1] = 0;
  }
};
template <class Memory>
DEV auto tiles_of(const BackwardParams& p, const Memory& memory) {
  if constexpr (kPaired)
    return PairedTiles<Memory>{p, memory};
  else
    return TileScheduler<TileOrder>{p};
}

// Draws tiles; one that does not exist ends everybody's work. A warp of its own: the helpers have 24 registers. A tile
// is drawn when the rows of the last block of the one before are asked for, some three blocks before its end: early
// enough for its K, and late enough that work goes where there is time for it. (Drawn when the one before begins, the
// last tiles wait behind long ones: 1.17 of the time for 32/8 heads of 4k rows, causally, by a model of 132
// multiprocessors.)
DEV void schedule(const SharedMemory& memory, const BackwardParams& p) {
  auto scheduler = tiles_of(p, memory);
  for (u32 tiles = 0;;) {
    if (tiles != 0) {
      const Pipeline<kLayout.schedule> before = memory.schedule().at(tiles - 1);
      fill_until(p, [&] { return before.try_wait_released(); });
      before.wait_released();
    }
    const Pipeline<kLayout.k> k = memory.k().at(tiles);
    fill_until(p, [&] { return k.try_acquire(); });  // here no tile takes registers
    const KeyTile x = scheduler.next();
    k.acquire();
    const Pipeline<kLayout.schedule> to = memory.schedule().at(tiles);
    if (opaque_thread() % 32 == 0) store_tile(to.stage(), x);
    __syncwarp();
    if (x.exists()) {
      if constexpr (kLeavesOut) list_blocks(p, to.stage());
      const KeyTile listed = load_key_tile(to.stage());
      if (listed.m_lo == listed.m_hi) {  // no row sees these keys
        write_no_keys(p, listed);
        __syncwarp();  // every lane has read the slot, where the next tile comes
        continue;
      }
    }
    ++tiles;
    if (opaque_thread() % 32 == 0) mbar_arrive(to.full());
    if (!x.exists()) break;
  }
  fill_until(p, [] { return false; });
  scheduler.reset();
}

}  // namespace onepass::sm90
