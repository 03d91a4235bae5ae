// Attention forward for sm_80 and later: O = softmax(scores) V and its row log-sum-exp, by mma.sync and cp.async.
//
// A block of threads draws tiles of work (head, query rows) from a counter, longest first; each of its warps holds
// row_tiles times sixteen of the rows, alone. A warp's work on a block of keys:
//
//   S = Q K^T           fragments of Q (registers or shared memory) and K (shared memory); fp32 S in registers
//   P = 2^(S - m)       lazy online softmax in registers; S's fragment layout is the A-operand layout of P V
//   O += P V            P from registers, V from shared memory read transposed
//
// The products are those of the file that the config includes (products_16.cuh, products_f32.cuh). README.md has the
// schedule in steps, the budgets and what was measured.
#pragma once
#include "cuda/attention/fallback.cuh"
#include "cuda/mma/copy.cuh"
#include "cuda/sm80/forward/epilogue.cuh"
#include "cuda/sm80/forward/products.cuh"

namespace onepass::sm80 {

// Rings of K and V blocks. Block n's copies begin when its slot is free and the step before it is under way:
// K, V, K, V ... each in a group of its own, so that 2 (stages - 1) groups are younger than the one that is waited for.
struct KeyValueRing {
  u32 k_tiles, v_tiles;
  TileCopy<kBlockN, features.dim_qk, kLayout.k_pitch> copy_k;
  TileCopy<kBlockN, features.dim_v, kLayout.v_pitch> copy_v;
  u32 at;    // of the first block's number in shared memory
  i32 last;  // blocks last, last - 1, ... first()
  const ForwardParams& p;

  DEV i32 first() const { return load_word(at); }
  static DEV u32 slot(i32 n) { return static_cast<u32>(n) % kStages; }
  DEV u32 k_tile(i32 n) const { return k_tiles + slot(n) * kLayout.k_bytes; }
  DEV u32 v_tile(i32 n) const { return v_tiles + slot(n) * kLayout.v_bytes; }
  DEV void load_k(i32 n) const {
    if (n >= first()) copy(copy_k, k_tile(n), n * kBlockN, p.k, p.k_stride);
    copies_commit();
  }
  DEV void load_v(i32 n) const {
    if (n >= first()) copy(copy_v, v_tile(n), n * kBlockN, p.v, p.v_stride);
    copies_commit();
  }
  // Where there are pages, every row is looked up; which sequence and head they are of lies behind the first block's
  // number.
  template <class Copy>
  DEV void copy(const Copy& rows, u32 to, i32 key, const void* base, const long long (&stride)[3]) const {
    if constexpr (features.paged) {
      const KeyValueView view{static_cast<i32>(load_word(at + 4)), static_cast<i32>(load_word(at + 8)), 0};
      rows.each(to, key, [&](i32 j) -> const char* {
        const KeyValueView::Place place = view.place(p, j);
        return place.exists() ? static_cast<const char*>(base) + view.offset(stride, place) * kElementBytes : nullptr;
      });
    } else {
      rows(to, key);
    }
  }
  DEV void begin() const {
    load_k(last);
#pragma unroll
    for (i32 i = 1; i < kStages; ++i) {
      load_v(last - i + 1);
      load_k(last - i);
    }
  }
  // K of block n is here, and every warp is done with V of block n + 1.
  DEV void take_k(i32 n) const {
    copies_wait<2 * (kStages - 1)>();
    __syncthreads();
    load_v(n - kStages + 1);
  }
  // V of block n is here, and every warp is done with K of block n.
  DEV void take_v(i32 n) const {
    copies_wait<2 * (kStages - 1)>();
    __syncthreads();
    load_k(n - kStages);
  }
};

DEV KeyValueRing ring_of(u32 sm, const ForwardParams& p, const WorkTile& x) {
  return {sm + kLayout.k,
          sm + kLayout.v,
          {sm + kLayout.bases + 8, p.k_stride[2], x.seq_k},
          {sm + kLayout.bases + 16, p.v_stride[2], x.seq_k},
          sm + kLayout.bases + 24,
          x.n_hi - 1,
          p};
}
DEV void copy_query(u32 sm, const ForwardParams& p, const WorkTile& x) {
  const TileCopy<kBlockM, features.dim_qk, kLayout.q_pitch> copy{sm + kLayout.bases, p.q_stride[2], x.seq_q};
  copy(sm + kLayout.q, x.row);
}
// Stores the addresses of the tile's first tokens of q, k and v, and its first block. They are read when needed and do
// not occupy registers.
DEV void store_bases(u32 to, const ForwardParams& p, const WorkTile& x) {
  const auto store = [&](u32 at, const void* tensor, i64 offset) {
    store_address(at, static_cast<const char*>(tensor) + offset * kElementBytes);
  };
  const KeyValueView keys_and_values = KeyValueView::of(p, x);
  store(to, p.q, x.map_batch * p.q_stride[0] + x.head * p.q_stride[1] + x.q_begin * p.q_stride[2]);
  store_word(to + 24, x.n_lo);
  if constexpr (features.paged) {
    store_word(to + 28, keys_and_values.batch);
    store_word(to + 32, keys_and_values.head);
  } else {
    const KeyValueView::Place first = keys_and_values.place(p, 0);
    store(to + 8, p.k, keys_and_values.offset(p.k_stride, first));
    store(to + 16, p.v, keys_and_values.offset(p.v_stride, first));
  }
}

DEV WorkTile take_tile(u32 from, const ForwardParams& p) {
  WorkTile x = load_tile(from);
  if constexpr (!features.packed) {  // what the parameters know needs no registers
    x.q_begin = 0, x.seq_q = p.seq_q;
    x.map_batch = x.batch;
  }
  if constexpr (!features.packed_k()) x.k_begin = 0;
  if constexpr (!features.packed_k() && !features.seqused) x.seq_k = p.seq_k;
  return x;
}

template <i32 n>
struct RowScores {
  Scores of[n];
};
template <i32 n>
DEV RowScores<n> row_scores(const ForwardParams& p) {
  if constexpr (n == 1)
    return {{{p}}};
  else
    return {{{p}, {p}}};
}

DEV void open_rows(Scores (&scores)[kRowTiles], const WorkTile& x) {
  const i32 first = x.row + static_cast<i32>(opaque_thread() / 32) * kWarpRows;
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) scores[r].open(x, first, 16 * r);
}
// True if a row of the warp sees a key of block n. The CTA loads everything that one of its warps sees.
DEV bool sees(const Scores (&scores)[kRowTiles], i32 n) {
  return scores[0].sees_before((n + 1) * kBlockN) && scores[kRowTiles - 1].sees_from(n * kBlockN);
}

// Every warp of the block works on the tile of work that lies at `work`; while the first copies are under way,
// `meanwhile` is called.
template <class Meanwhile>
DEV void attend(u32 sm, u32 work, const ForwardParams& p, const Meanwhile& meanwhile) {
  const WorkTile x = take_tile(work, p);
  float s[kRowTiles][kBlockN / 2], o[kRowTiles][kOutN / 2];
  Weights<kBlockN> w[kRowTiles];
  LaneRows rows[kRowTiles];
  QueryOperand query{sm + kLayout.q};
  const KeyValueRing ring = ring_of(sm, p, x);
  copy_query(sm, p, x);  // in the group of the first K
  ring.begin();
  meanwhile();
  auto [scores] = row_scores<kRowTiles>(p);
  open_rows(scores, x);
  for (LaneRows& r : rows) r = {};
  clear(o);
#pragma unroll 1
  for (i32 n = ring.last, fresh = true; n >= ring.first(); --n) {
    ring.take_k(n);
    if (config.q_registers && n == ring.last) query.load();
    const bool seen = sees(scores, n);
    if (seen)
      issue_scores(s, query, ring.k_tile(n));
    else
      clear(s);  // or what stood there would have to be kept
    ring.take_v(n);
    if (!seen) continue;
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
      const BeforeScores known = scores[r].before<kBlockN / 2>(n * kBlockN);
      scores[r].apply(s[r], n * kBlockN, known);
      const auto drop = scores[r].drop(n * kBlockN);
      if (fresh || !softmax_lazy<Element, kRoundedSums>(s[r], w[r], rows[r], scores[r].unit(), drop))
        softmax_exact<Element, kRoundedSums>(s[r], w[r], o[r], rows[r], scores[r].unit(), drop);
    }
    issue_accumulate(o, w, ring.v_tile(n));
    fresh = false;
  }
  const WorkTile y = take_tile(work, p);  // again: its registers were needed in between
  open_rows(scores, y);
  const u32 chain = sm + kLayout.fallback + opaque_thread() / 32 * 4;
  FallbackRows fallback{load_word(chain)};
  store_output(sm, p, y, scores, o, rows, fallback);
  store_word(chain, fallback.last);
}

}  // namespace onepass::sm80

// -------------------------------------------------------------------------------------------------------------- kernel
extern "C" __global__ void __launch_bounds__(onepass::sm80::kThreads, onepass::sm80::config.blocks)
    attention_forward(const __grid_constant__ onepass::ForwardParams p) {
  using namespace onepass;
  using namespace onepass::sm80;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const auto warp = [] { return opaque_thread() / 32; };  // known where it is needed, in no register in between
  const u32 work = sm + kLayout.work, next = work + 64;   // the tile in hand, the one behind it
  const Tiles tiles{p};
  const auto take = [&](i32 number) {  // by the first warp, for all
    const WorkTile x = tiles.order.tile(number);
    if (opaque_thread() == 0) store_tile(next, x);
  };
  const auto take_next = [&] {
    if (warp() == 0) take(tiles.draw());
  };
  if (opaque_thread() % 32 == 0) store_word(sm + kLayout.fallback + 4 * warp(), -1);
  if (warp() == 0) take(tiles.first());
  for (;;) {
    __syncthreads();  // the next tile is known, and this tile's shared memory is free
    const WorkTile x = take_tile(next, p);
    if (x.row < 0) break;
    if (opaque_thread() == 0) {
      store_tile(work, x);
      store_bases(sm + kLayout.bases, p, x);
    }
    __syncthreads();
    if (x.n_lo < x.n_hi) {
      attend(sm, work, p, take_next);
    } else {  // no row sees any key
      take_next();
      write_empty(p, x, x.row + static_cast<i32>(warp()) * kWarpRows, kWarpRows);
    }
  }
  if (warp() == 0) tiles.reset();
  __syncwarp();  // what this warp has stored stands before what it stores again
  run_fallback(p, {load_word(sm + kLayout.fallback + 4 * warp())});
}
