// The pipeline of K, V and their tangents through shared memory, the copy of Q and its tangent, and the addresses that
// they begin at.
#pragma once
#include "cuda/attention/key_value_view.cuh"
#include "cuda/jvp/products.cuh"
#include "cuda/mma/block_ring.cuh"
#include "cuda/mma/copy.cuh"

namespace onepass::cuda::jvp {

// Places of the bases, each the address of the tile's first token: q, tq, k, tk, v, tv, then the first block's number.
constexpr u32 kQueries = kLayout.bases, kKeys = kQueries + 16, kValues = kQueries + 32, kFirstBlock = kQueries + 48;

// Blocks of K with its tangent, and of V with its.
struct KeyValueCopies {
  using OfK = TileCopy<kBlockN, features.dim_qk, kLayout.k_pitch>;
  using OfV = TileCopy<kBlockN, features.dim_v, kLayout.v_pitch>;
  u32 sm;
  OfK k, tk;
  OfV v, tv;
  i32 last;  // blocks last, last - 1, ... first()

  DEV i32 first() const { return load_word(sm + kFirstBlock); }
  static DEV u32 slot(i32 n) { return static_cast<u32>(n) % kStages; }
  DEV u32 k_tile(i32 n) const { return sm + kLayout.k + slot(n) * (2 * kLayout.k_bytes); }
  DEV u32 v_tile(i32 n) const { return sm + kLayout.v + slot(n) * (2 * kLayout.v_bytes); }
  DEV void load_k(i32 n) const {
    if (n >= first()) {
      k(k_tile(n), n * kBlockN);
      tk(k_tile(n) + kLayout.k_bytes, n * kBlockN);
    }
    copies_commit();
  }
  DEV void load_v(i32 n) const {
    if (n >= first()) {
      v(v_tile(n), n * kBlockN);
      tv(v_tile(n) + kLayout.v_bytes, n * kBlockN);
    }
    copies_commit();
  }
};
using KeyValueRing = BlockRing<KeyValueCopies, kStages>;

DEV KeyValueRing ring_of(u32 sm, const JvpParams& p, const WorkTile& x) {
  return {{sm,
           {sm + kKeys, p.k_stride[2], x.seq_k},
           {sm + kKeys + 8, p.tk_stride[2], x.seq_k},
           {sm + kValues, p.v_stride[2], x.seq_k},
           {sm + kValues + 8, p.tv_stride[2], x.seq_k},
           x.n_hi - 1}};
}
DEV void copy_queries(u32 sm, const JvpParams& p, const WorkTile& x) {
  using Copy = TileCopy<kBlockM, features.dim_qk, kLayout.q_pitch>;
  Copy{sm + kQueries, p.q_stride[2], x.seq_q}(sm + kLayout.q, x.row);
  Copy{sm + kQueries + 8, p.tq_stride[2], x.seq_q}(sm + kLayout.q + kLayout.q_bytes, x.row);
}
// They are read when needed and do not occupy registers.
DEV void store_bases(u32 sm, const JvpParams& p, const WorkTile& x) {
  const auto store = [&](u32 at, const void* tensor, i64 offset) {
    store_address(sm + at, static_cast<const char*>(tensor) + offset * kElementBytes);
  };
  const auto query = [&](const long long(&stride)[3]) {
    return x.map_batch * stride[0] + x.head * stride[1] + x.q_begin * stride[2];
  };
  const KeyValueView view = KeyValueView::of(p, x);
  const KeyValueView::Place first = view.place(p, 0);
  store(kQueries, p.q, query(p.q_stride));
  store(kQueries + 8, p.tq, query(p.tq_stride));
  store(kKeys, p.k, view.offset(p.k_stride, first));
  store(kKeys + 8, p.tk, view.offset(p.tk_stride, first));
  store(kValues, p.v, view.offset(p.v_stride, first));
  store(kValues + 8, p.tv, view.offset(p.tv_stride, first));
  store_word(sm + kFirstBlock, x.n_lo);
}

}  // namespace onepass::cuda::jvp
