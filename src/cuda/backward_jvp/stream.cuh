// The tensors of a pass on their way to shared memory: held tiles once, streamed blocks twice buffered.
#pragma once
#include "cuda/backward_jvp/work.cuh"
#include "cuda/mma/copy.cuh"

namespace onepass::cuda::backward_jvp {

using namespace mma;  // tiles in shared memory, copies into them and products of them

template <bool kKeys>
struct Pass {
  static constexpr SecondLayout kLayout = layout_of(plain_features, config, kKeys);
  static constexpr i32 kHeld = config.held(), kStreamed = kKeys ? config.by_keys : config.by_rows;
};

// A tensor of queries or keys: where a head's tokens lie.
struct Tensor {
  const void* base;
  const long long (&stride)[3];
  DEV const char* at(i32 batch, i32 head, i32 token) const {
    return static_cast<const char*>(base) +
           (batch * stride[0] + head * stride[1] + static_cast<i64>(token) * stride[2]) * kElementBytes;
  }
};
template <bool kOfKeys>
DEV Tensor tensor_of(const PlainBackwardParams& p, i32 kind) {
  if constexpr (kOfKeys)
    return kind == kLeft        ? Tensor{p.k, p.k_stride}
           : kind == kLeftMoved ? Tensor{p.tk, p.tk_stride}
           : kind == kRight     ? Tensor{p.v, p.v_stride}
                                : Tensor{p.tv, p.tv_stride};
  else
    return kind == kLeft        ? Tensor{p.q, p.q_stride}
           : kind == kLeftMoved ? Tensor{p.tq, p.tq_stride}
           : kind == kRight     ? Tensor{p.dout, p.dout_stride}
                                : Tensor{p.tdout, p.tdout_stride};
}
// head: of the tensor.
template <bool kOfKeys>
DEV const char* tokens_of(const PlainBackwardParams& p, const WorkTile& x, i32 head, i32 kind) {
  return tensor_of<kOfKeys>(p, kind).at(x.map_batch, head, kOfKeys ? x.k_begin : x.q_begin);
}

// f<kind>() for every kind that exists.
template <bool kMoves, class F>
DEV void each_kind(const F& f) {
  f.template operator()<kLeft>();
  f.template operator()<kLeftMoved>();
  f.template operator()<kRight>();
  if constexpr (kMoves) f.template operator()<kRightMoved>();
}
constexpr DEV i32 dim_of(i32 kind) { return kind < kRight ? features.dim_qk : features.dim_v; }

// The held tile from token `first` on, in the copies' group in hand.
template <bool kKeys>
DEV void copy_held(u32 sm, const PlainBackwardParams& p, const WorkTile& x, i32 head, i32 first) {
  using P = Pass<kKeys>;
  each_kind<kMovesHeld<kKeys>>([&]<i32 i>() {
    TileCopy<P::kHeld, dim_of(i), P::kLayout.pitch[i]>{0, tensor_of<kKeys>(p, i).stride[2], kKeys ? x.seq_k : x.seq_q}(
        sm + P::kLayout.held[i], first, tokens_of<kKeys>(p, x, head, i));
  });
}
// Where the streamed tensors begin: read when needed, they occupy no registers. By one thread.
template <bool kKeys>
DEV void store_bases(u32 sm, const PlainBackwardParams& p, const WorkTile& x) {
  using P = Pass<kKeys>;
  const i32 head = kKeys ? x.head : x.head / p.heads_per_kv;
  each_kind<kMovesStreamed<kKeys>>(
      [&]<i32 i>() { store_address(sm + P::kLayout.bases + 8 * i, tokens_of<!kKeys>(p, x, head, i)); });
}
// A block of streamed tokens from `first` on. Rows of queries bring their numbers, which the workspace holds for whole
// blocks, garbage behind the last one.
template <bool kKeys>
DEV void copy_streamed(u32 sm, u32 stage, const PlainBackwardParams& p, const WorkTile& x, i32 first) {
  using P = Pass<kKeys>;
  each_kind<kMovesStreamed<kKeys>>([&]<i32 i>() {
    TileCopy<P::kStreamed, dim_of(i), P::kLayout.pitch[i]>{
        sm + P::kLayout.bases + 8 * i, tensor_of<!kKeys>(p, i).stride[2], kKeys ? x.seq_q : x.seq_k}(
        stage + P::kLayout.block[i], first);
  });
  if constexpr (kKeys) {
    constexpr i32 kChunks = P::kStreamed / 4;
    const i32 thread = static_cast<i32>(opaque_thread()), which = thread / kChunks, chunk = thread % kChunks;
    static_assert(kBlock % P::kStreamed == 0 && 4 * kChunks <= kThreads);
    if (which < 4) {
      const float* const from = (which < 2 ? p.statistics : p.moved) + backward_plain::row_place(p, x, first) +
                                which % 2 * kBlock + 4 * chunk;
      copy_async<16>(stage + P::kLayout.numbers + 16 * thread, reinterpret_cast<const char*>(from), true);
    }
  }
}

// f(stage, first) for every block of the streamed tokens [lo, hi), once it is there.
template <bool kKeys, class F>
DEV void each_block(u32 sm, const PlainBackwardParams& p, const WorkTile& x, i32 key, i32 lo, i32 hi, const F& f) {
  using P = Pass<kKeys>;
  u32 stage = sm + P::kLayout.stages, other = stage + P::kLayout.stage;
  const auto next_of = [&](i32 from) { return next_block<kKeys, P::kHeld, P::kStreamed>(p, x, key, from, hi); };
  i32 first = next_of(lo / P::kStreamed * P::kStreamed);
  if (first >= hi) return;
  copy_streamed<kKeys>(sm, stage, p, x, first);
  copies_commit();
#pragma unroll 1
  while (first < hi) {
    const i32 next = next_of(first + P::kStreamed);
    if (next < hi) copy_streamed<kKeys>(sm, other, p, x, next);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    f(stage, first);
    __syncthreads();  // all reads of the block are done
    first = next;
    const u32 free = stage;
    stage = other, other = free;
  }
}

}  // namespace onepass::cuda::backward_jvp
