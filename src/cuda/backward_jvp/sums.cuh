// The end of a held tile: sums become gradients' derivatives, and a mark says whether they are finite.
#pragma once
#include "cuda/backward_jvp/terms.cuh"

namespace onepass::cuda::backward_jvp {

template <i32 dim>
constexpr i32 kOwnSums = sm80::own_sums(round_up(dim, 16));

// This warp's rows from token `held` on; at: where token 0 of the head lies, in elements. Returns 0, or NaN if a sum is
// not finite.
template <i32 dim>
DEV float write_sums(const float (&sum)[1][kOwnSums<dim>], void* to, i64 at, i64 stride, i32 held, i32 tokens) {
  using Format = ElementOf<backward_features.gradients>::Format;
  const u32 lane = threadIdx.x % 32;
  float probe = 0.0f;
#pragma unroll
  for (i32 j = 0; j < kOwnSums<dim>; ++j) {
    const i32 token = held + static_cast<i32>(lane / 4) + 8 * row_of_element(j), d = sm80::own_column(j, lane % 4);
    probe = fmaf(sum[0][j], 0.0f, probe);
    if (token < tokens && d < dim) static_cast<Format::Raw*>(to)[at + token * stride + d] = Format::round(sum[0][j]);
  }
  return probe;
}

// A NaN or an infinity may come from a hidden pair, or from an operand beyond fp16: the kernels of cuda.backward_plain
// compute such a block again, pair by pair. block: where marks of the block that holds token `held` begin.
DEV void mark(unsigned* marks, i64 block, i32 held, i32 tokens, float probe) {
  const bool wrong = __any_sync(0xffffffffu, probe != 0.0f);
  if (held >= tokens || threadIdx.x % 32 != 0) return;
  marks[(block * (kBlock / 16) + held % kBlock / 16) * kShare + (kShare == 1 ? 0 : sm80::own_part())] = wrong;
}

}  // namespace onepass::cuda::backward_jvp
