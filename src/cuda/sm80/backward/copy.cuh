// The copies of the backward kernel: a tile of keys, and blocks of rows with their statistics.
#pragma once
#include "cuda/attention/backward/fallback.cuh"
#include "cuda/sm80/backward/tile.cuh"

namespace onepass::sm80 {

DEV const char* token_0(const void* base, const long long (&stride)[3], const KeyTile& x, i32 head, i32 begin) {
  return static_cast<const char*>(base) + token_offset(stride, x.map_batch, head, begin) * kElementBytes;
}
DEV void copy_keys(u32 sm, const BackwardParams& p, const KeyTile& x) {
  const TileCopy<kBlockN, features.dim_qk, kLayout.qk_pitch, 4> k{0, p.k_stride[2], x.seq_k};
  k(sm + kLayout.k, x.key, token_0(p.k, p.k_stride, x, x.head, x.k_begin));
  if constexpr (!config.held) {
    const TileCopy<kBlockN, features.dim_v, kLayout.v_pitch, 4> v{0, p.v_stride[2], x.seq_k};
    v(sm + kLayout.v, x.key, token_0(p.v, p.v_stride, x, x.head, x.k_begin));
  }
}

// dO in fp32 where q, k and v have 16 bits, through registers: its rounding, and behind that tile what is left,
// rounded.
template <class Format>
DEV void copy_parts(u32 to, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  if constexpr (Format::kPacked == 2) {
    constexpr i32 kChunks = round_up(features.dim_v, 16 * kShare) / 8;
    const float* const from =
        static_cast<const float*>(p.dout) + token_offset(p.dout_stride, x.map_batch, step.head, x.q_begin);
#pragma unroll 1
    for (i32 i = static_cast<i32>(opaque_thread()); i < kBlockM * kChunks; i += kThreads) {
      const i32 row = i / kChunks, chunk = i % kChunks, token = step.m * kBlockM + row;
      u32 high[4], low[4];
#pragma unroll
      for (i32 e = 0; e < 4; ++e) {
        float whole[2], rest[2];
#pragma unroll
        for (i32 k = 0; k < 2; ++k) {
          const i32 d = 8 * chunk + 2 * e + k;
          whole[k] = token < x.seq_q && d < features.dim_v ? from[token * p.dout_stride[2] + d] : 0.0f;
          rest[k] = whole[k] - Format::unpack(Format::round(whole[k]));
        }
        high[e] = Format::pack(whole[0], whole[1]);
        low[e] = Format::pack(rest[0], rest[1]);
      }
      const u32 at = to + swizzled(row, chunk, kLayout.v_pitch);
      store_four(at, high[0], high[1], high[2], high[3]);
      store_four(at + kLayout.dout_bytes, low[0], low[1], low[2], low[3]);
    }
  }
}
constexpr i32 kAtOnce = kWide ? 4 : kBlockM;
// Q, or dO, of a block that exists.
DEV void copy_q(u32 sm, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  const TileCopy<kBlockM, features.dim_qk, kLayout.qk_pitch, kAtOnce> q{0, p.q_stride[2], x.seq_q};
  q(step.q(sm), step.m * kBlockM, token_0(p.q, p.q_stride, x, step.head, x.q_begin));
}
DEV void copy_dout(u32 sm, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  if constexpr (forward_features.output == features.input) {
    const TileCopy<kBlockM, features.dim_v, kLayout.v_pitch, kAtOnce> dout{0, p.dout_stride[2], x.seq_q};
    dout(step.dout(sm), step.m * kBlockM, token_0(p.dout, p.dout_stride, x, step.head, x.q_begin));
  } else {
    copy_parts<Element>(step.dout(sm), p, x, step);
  }
}
DEV void copy_queries(u32 sm, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  if (!step.exists(p, x)) return;
  copy_q(sm, p, x, step);
  copy_dout(sm, p, x, step);
}
DEV void copy_statistics(u32 sm, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  if (!step.exists(p, x)) return;
  const u32 thread = opaque_thread();
  if (thread < kLayout.statistics_bytes / 16) {
    const float* const from = statistics_of(p, place_of(p, step.head, first_q_block(p, x.batch) + step.m));
    copy_async<16>(step.statistics(sm) + 16 * thread, reinterpret_cast<const char*>(from + 4 * thread), true);
  }
}

}  // namespace onepass::sm80
