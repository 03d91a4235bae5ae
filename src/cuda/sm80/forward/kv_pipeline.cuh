// The pipeline of K and V through shared memory, the copy of Q, and the addresses that they begin at.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/mma/block_ring.cuh"
#include "cuda/mma/copy.cuh"
#include "cuda/sm80/forward/products.cuh"

namespace onepass::sm80 {

// Blocks of K and of V.
struct KeyValueCopies {
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
  // Every row of a paged cache is looked up; its sequence and head are in shared memory after the first block's
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
};
using KeyValueRing = BlockRing<KeyValueCopies, kStages>;

DEV KeyValueRing ring_of(u32 sm, const ForwardParams& p, const WorkTile& x) {
  return {{sm + kLayout.k,
           sm + kLayout.v,
           {sm + kLayout.bases + 8, p.k_stride[2], x.seq_k},
           {sm + kLayout.bases + 16, p.v_stride[2], x.seq_k},
           sm + kLayout.bases + 24,
           x.n_hi - 1,
           p}};
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
