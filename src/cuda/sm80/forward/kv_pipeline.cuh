// The pipeline of K and V through shared memory, the copy of Q, and the addresses that they begin at.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/mma/block_ring.cuh"
#include "cuda/mma/copy.cuh"
#include "cuda/sm80/forward/products.cuh"

namespace onepass::sm80 {

// Blocks of K and of V. Rows of a paged cache lie where the page table says. One thread for each key finds them, a step
// of the ring before they are copied: the addresses of K's rows are stored behind the copies of V, those of V's rows
// behind the copies of K. The kernel took 1.2 to 1.6 times as long with all threads that copy a row finding it
// (docs/notes/sm80-forward.md).
struct KeyValueCopies {
  u32 k_tiles, v_tiles, k_rows, v_rows;
  TileCopy<kBlockN, features.dim_qk, kLayout.k_pitch> copy_k;
  TileCopy<kBlockN, features.dim_v, kLayout.v_pitch> copy_v;
  u32 at;    // of the first block's number in shared memory; a paged cache's sequence and head follow
  i32 last;  // blocks last, last - 1, ... first()
  const ForwardParams& p;
  mutable i32 page;  // the table's entry for this thread's key of the block to be found

  DEV i32 first() const { return load_word(at); }
  static DEV u32 slot(i32 n) { return static_cast<u32>(n) % kStages; }
  DEV u32 k_tile(i32 n) const { return k_tiles + slot(n) * kLayout.k_bytes; }
  DEV u32 v_tile(i32 n) const { return v_tiles + slot(n) * kLayout.v_bytes; }
  DEV void load_k(i32 n) const {
    if (n >= first()) copy(copy_k, k_tile(n), n, k_rows);
    copies_commit();
    find(n, v_rows, p.v, p.v_stride);
    look_up(n - 1);
  }
  DEV void load_v(i32 n) const {
    if (n >= first()) copy(copy_v, v_tile(n), n, v_rows);
    copies_commit();
    find(n - 1, k_rows, p.k, p.k_stride);
  }
  // K's rows of the last block, before anything is copied.
  DEV void find_first() const {
    look_up(last);
    find(last, k_rows, p.k, p.k_stride);
  }

 private:
  template <class Copy>
  DEV void copy(const Copy& rows, u32 to, i32 n, u32 addresses) const {
    if constexpr (features.paged)
      rows.each(to, addresses);
    else
      rows(to, n * kBlockN);
  }
  // This thread's key of block n; -1: none.
  DEV i32 key_of(i32 n) const {
    static_assert(kThreads >= kBlockN);
    const i32 i = static_cast<i32>(opaque_thread()), key = n * kBlockN + i;
    return i < kBlockN && n >= first() && key < copy_k.tokens ? key : -1;
  }
  DEV KeyValueView view() const {
    return {static_cast<i32>(load_word(at + 4)), static_cast<i32>(load_word(at + 8)), 0};
  }
  DEV void look_up(i32 n) const {
    if constexpr (!features.paged) return;
    if (const i32 key = key_of(n); key >= 0) page = view().entry(p, key).batch;
  }
  DEV void find(i32 n, u32 rows, const void* base, const long long (&stride)[3]) const {
    const i32 i = static_cast<i32>(opaque_thread());
    if (!features.paged || i >= kBlockN) return;
    const char* row = nullptr;
    if (const i32 key = key_of(n); key >= 0) {
      const KeyValueView from = view();
      const KeyValueView::Place place = from.in_page(p, page, key);
      if (place.exists()) row = static_cast<const char*>(base) + from.offset(stride, place) * kElementBytes;
    }
    store_address(rows + 8 * i, row);
  }
};
struct KeyValueRing : BlockRing<KeyValueCopies, kStages> {
  // With pages each step copies from the addresses that the one before it has stored.
  DEV void begin() const {
    if constexpr (features.paged) {
      find_first();
      __syncthreads();
      load_k(last);
#pragma unroll
      for (i32 i = 1; i < kStages; ++i) {
        __syncthreads();
        load_v(last - i + 1);
        __syncthreads();
        load_k(last - i);
      }
    } else {
      BlockRing::begin();
    }
  }
};

DEV KeyValueRing ring_of(u32 sm, const ForwardParams& p, const WorkTile& x) {
  return {{{sm + kLayout.k,
            sm + kLayout.v,
            sm + kLayout.rows,
            sm + kLayout.rows + 8 * kBlockN,
            {sm + kLayout.bases + 8, p.k_stride[2], x.seq_k},
            {sm + kLayout.bases + 16, p.v_stride[2], x.seq_k},
            sm + kLayout.bases + 24,
            x.n_hi - 1,
            p,
            0}}};
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

}  // namespace onepass::sm80
