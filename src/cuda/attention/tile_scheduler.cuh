// The tiles of work, the order in which they come, and how they are drawn. More orders: tile_orders.cuh.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/device/reduce.cuh"

#include "cuda/attention/forward.hpp"

namespace onepass {

// A tile of work: block_m query rows of one head against blocks [n_lo, n_hi) of block_n keys, visited from the last to
// the first.
struct WorkTile {
  i32 row = -1;                            // first query row within its sequence; -1: no more work
  i32 number = 0;                          // of the tile
  i32 head = 0, batch = 0, map_batch = 0;  // map_batch: coordinate in the tensor maps, 0 if packed
  i32 q_begin = 0, k_begin = 0, seq_q = 0, seq_k = 0;
  i32 n_lo = 0, n_hi = 0;
  DEV bool exists() const { return row >= 0; }
};
// Where the keys of the tile's sequence begin and how many there are. A length beyond what the cache holds is cut.
DEV void find_keys(const ForwardParams& p, WorkTile& x) {
  x.k_begin = 0, x.seq_k = p.seq_k;
  if constexpr (features.packed_k()) x.k_begin = p.cu_k[x.batch], x.seq_k = p.cu_k[x.batch + 1] - x.k_begin;
  if constexpr (features.seqused) x.seq_k = max(0, min(p.seqused[x.batch * p.seqused_stride], p.seq_k));
}
using Band32 = BasicBandMask<i32>;
DEV Band32 band_of(const AttentionParams& p, i32 seq_q, i32 seq_k) {
  return {seq_q, seq_k, p.align_bottom ? seq_k - seq_q : p.offset, features.bounded_left ? p.left : -1,
          features.bounded_right ? p.right : -1};
}

// The boolean mask's state of a tile (hidden, mixed, full) for every 32 keys; a block uses that of its first key.
DEV const unsigned char* mask_tiles(const AttentionParams& p, const WorkTile& x) {
  return p.mask.tiles + x.batch * p.mask.tile_stride[0] + x.head * p.mask.tile_stride[1] +
         x.row / 64 * p.mask.tile_stride[2];
}
// The block after n of the tile's walk from the last to the first; n > n_lo. What the mask empties is left out.
template <i32 block_n>
DEV i32 next_block(const AttentionParams& p, const WorkTile& x, i32 n) {
  --n;
  if constexpr (features.bool_mask) {
    const unsigned char* const tiles = mask_tiles(p, x);
    while (n > x.n_lo && tiles[n * block_n / 32] == kAllMasked) --n;
  }
  return n;
}

// Parts that sequences consist of, of(sequence) each, counted by one whole warp.
template <class Of>
struct SequenceParts {
  Of of;
  i32 count;  // sequences

  DEV i32 all() const {
    i32 sum = 0;
    for (i32 b = threadIdx.x % 32; b < count; b += 32) sum += of(b);
    return warp_sum(sum);
  }
  // The sequence that holds part r, 32 sequences at a time; returns the part's number within it. No register holds the
  // lane in between: a scheduler's warp has 24.
  DEV i32 find(i32 r, i32& sequence) const {
    const i32 lane = static_cast<i32>(opaque_thread() % 32);
    for (i32 first = 0;; first += 32) {
      const i32 own = first + lane < count ? of(first + lane) : 0;
      i32 upto = own;  // inclusive prefix sum
#pragma unroll
      for (i32 step = 1; step < 32; step *= 2) {
        const i32 before = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += before;
      }
      const u32 beyond = __ballot_sync(0xffffffffu, upto > r);
      if (beyond) {
        const i32 at = __ffs(static_cast<int>(beyond)) - 1;
        sequence = first + at;
        return r - __shfl_sync(0xffffffffu, upto - own, at);
      }
      r -= __shfl_sync(0xffffffffu, upto, 31);
    }
  }
};

// Packed sequences of `least` tokens or more, in tiles of `block` tokens.
template <i32 block>
struct TilesOfSequence {
  const int* cu;  // where they begin, and the last one ends
  i32 least = 0;
  DEV i32 operator()(i32 sequence) const {
    const i32 tokens = cu[sequence + 1] - cu[sequence];
    if (features.shared() && tokens < least) return 0;
    return (tokens + block - 1) / block;
  }
};
template <i32 block>
using SequenceTiles = SequenceParts<TilesOfSequence<block>>;

// An order of work is a policy: how many tiles there are, and what tile number n is. RowsOuter is the forward pass: a
// tile is block_m query rows of one head against the keys that they see. The heads of a group come together (their K
// and V stay in L2); within a sequence the last rows first where the band is bounded right, since they see most.
// Packed: head by head, sequence by sequence; the tiles of a sequence are counted from its length, so all of them
// exist. Every method is called by one whole warp.
template <i32 block_m, i32 block_n>
struct RowsOuter {
  using Tile = WorkTile;
  using Params = ForwardParams;
  const Params& p;
  i32 tiles = 0, per_head = 0;

  DEV explicit RowsOuter(const Params& params) : p(params), tiles(params.tiles) {
    if constexpr (features.packed) {
      per_head = sequences().all();
      tiles = per_head * p.heads;
    }
  }
  DEV SequenceTiles<block_m> sequences() const { return {{p.cu_q, p.least_rows}, p.batch}; }

  DEV i32 count() const { return tiles; }
  DEV WorkTile tile(i32 number) const {
    WorkTile x;
    if (number >= tiles) return x;
    x.number = number;
    i32 m, of;
    if constexpr (features.packed) {
      x.head = number / per_head;
      x.map_batch = 0;
      m = sequences().find(number - x.head * per_head, x.batch);
      of = sequences().of(x.batch);
      x.q_begin = p.cu_q[x.batch], x.seq_q = p.cu_q[x.batch + 1] - x.q_begin;
    } else {
      const i32 per = opaque(p.head_group) * p.m_tiles, g = number / per, r = number - g * per;
      const i32 in_group = min(p.head_group, p.heads * p.batch - g * p.head_group);
      m = r / in_group;
      of = p.m_tiles;
      const i32 bh = g * p.head_group + (r - m * in_group);
      const i32 inner = p.batch_inner ? p.batch : p.heads, outer = bh / inner;
      x.batch = p.batch_inner ? bh - outer * inner : outer;
      x.head = p.batch_inner ? outer : bh - outer * inner;
      x.map_batch = x.batch;
      x.q_begin = 0, x.seq_q = p.seq_q;
    }
    find_keys(p, x);
    x.row = block_m * (features.bounded_right ? of - 1 - m : m);
    const Band32::Range keys = band_of(p, x.seq_q, x.seq_k).key_range(x.row, min(x.row + block_m, x.seq_q));
    x.n_lo = keys.lo / block_n;
    x.n_hi = ceil_div(keys.hi, block_n);
    if constexpr (features.bool_mask) narrow(x);
    return x;
  }
  // Leaves out what the mask empties at both ends, 32 blocks at a time.
  DEV void narrow(WorkTile& x) const {
    const i32 lane = threadIdx.x % 32;
    const unsigned char* const states = mask_tiles(p, x);
    const auto seen = [&](i32 n) {
      const i32 at = n + lane;
      return __ballot_sync(0xffffffffu, at >= x.n_lo && at < x.n_hi && states[at * block_n / 32] != kAllMasked);
    };
    u32 some = 0;
    for (; x.n_lo < x.n_hi && (some = seen(x.n_lo)) == 0;) x.n_lo += 32;
    if (x.n_lo >= x.n_hi) return;
    x.n_lo += __ffs(static_cast<int>(some)) - 1;
    while ((some = seen(x.n_hi - 32)) == 0) x.n_hi -= 32;
    x.n_hi -= __clz(static_cast<int>(some));
  }
};

// Tiles as they are drawn from the counter by persistent CTAs, in the order of the policy.
template <class Order>
struct TileScheduler {
  using Tile = typename Order::Tile;
  const typename Order::Params& p;
  Order order{p};
  i32 taken = -1;

  DEV Tile next() {
    taken = taken < 0 ? first() : draw();
    return order.tile(taken);
  }
  // The grid has at most as many blocks as there are tiles. Beside another kernel some blocks begin late: they draw.
  DEV i32 first() const { return concurrent() ? draw() : static_cast<i32>(blockIdx.x); }
  DEV i32 draw() const {
    u32 t = 0;
    if (opaque_thread() % 32 == 0) t = (concurrent() ? 0 : gridDim.x) + atomicAdd(p.counters, 1u);
    return warp_uniform(t);
  }
  // The last block leaves the counters as it found them.
  DEV void reset() const {
    const u32 thread = features.packed ? opaque_thread() : threadIdx.x;  // find() above says why
    if (thread % 32 == 0 && atomicAdd(p.counters + 1, 1u) == gridDim.x - 1) p.counters[0] = p.counters[1] = 0;
  }

 private:
  DEV bool concurrent() const {
    if constexpr (features.shared() && requires { p.concurrent; })
      return p.concurrent != 0;
    else
      return false;
  }
};

DEV void store_tile(u32 to, const WorkTile& x) {
  store_four(to, x.row, x.head, x.batch, x.map_batch);
  store_four(to + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  store_four(to + 32, x.n_lo, x.n_hi, x.number, 0);
}
DEV WorkTile load_tile(u32 from) {
  WorkTile x;
  i32 unused;
  load_four(from, x.row, x.head, x.batch, x.map_batch);
  load_four(from + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  load_four(from + 32, x.n_lo, x.n_hi, x.number, unused);
  x.row = static_cast<i32>(warp_uniform(x.row));  // branched on
  x.n_lo = static_cast<i32>(warp_uniform(x.n_lo));
  x.n_hi = static_cast<i32>(warp_uniform(x.n_hi));
  return x;
}

}  // namespace onepass
