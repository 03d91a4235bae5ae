// The end of a held tile: sums become gradients' derivatives, and a mark says whether they are finite.
#pragma once
#include "cuda/backward_jvp/work.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass::cuda::backward_jvp {

// This warp's rows from token `held` on; at: where token 0 of the head lies, in elements. column(j, quad): of an
// element. Returns 0, or NaN if a sum is not finite.
template <i32 dim, i32 N, class Column>
DEV float write_sums(const float (&sum)[N], void* to, i64 at, i64 stride, i32 held, i32 tokens, const Column& column) {
  using Format = ElementOf<backward_features.gradients>::Format;
  const u32 lane = threadIdx.x % 32;
  float probe = 0.0f;
#pragma unroll
  for (i32 j = 0; j < N; ++j) {
    const i32 token = held + static_cast<i32>(lane / 4) + 8 * row_of_element(j), d = column(j, lane % 4);
    probe = fmaf(sum[j], 0.0f, probe);
    if (token < tokens && d < dim) static_cast<Format::Raw*>(to)[at + token * stride + d] = Format::round(sum[j]);
  }
  return probe;
}

// A NaN or an infinity may come from a hidden pair, or from an operand beyond fp16: the kernels of cuda.backward_plain
// compute such a block again, pair by pair. block: where marks of the block that holds token `held` begin. part: this
// warp's, of `parts` warps that hold the same tokens.
template <i32 parts>
DEV void mark(unsigned* marks, i64 block, i32 held, i32 tokens, float probe, u32 part) {
  const bool wrong = __any_sync(0xffffffffu, probe != 0.0f);
  if (held >= tokens || threadIdx.x % 32 != 0) return;
  marks[(block * (kBlock / 16) + held % kBlock / 16) * parts + part] = wrong;
}

// A slope's gradient over a warp's sixteen keys from `own` on, of which every lane has a part. It is written for each
// part of a block that exists.
DEV void write_slope(const PlainBackwardParams& p, const KeyTile& k, i32 head, i32 own, float slope, bool writes) {
  slope = warp_sum(slope);
  if (threadIdx.x % 32 == 0 && own / kBlock * kBlock < k.seq_k && writes) *slope_part(p, k, head, own) = slope;
}

}  // namespace onepass::cuda::backward_jvp
