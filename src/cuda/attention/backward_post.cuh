// Behind a backward pass: dQ from its fp32 sums, a block of threads for each block of query rows of each head.
//
// The family says in front of this file where a sum belongs: SumPlace sum_place(i32 at), the row within its block and
// the column of the block's float number `at`.
#pragma once
#include "cuda/attention/backward_fallback.cuh"
#include "cuda/device/shared.cuh"

namespace onepass {

constexpr i32 kPostThreads = 256;
constexpr i32 kPostPitch =
    backward_shape.sum_columns + 4;  // floats of a row in shared memory: neighbouring rows on other banks
// Shared memory: kBlockQ x kPostPitch floats, then a word for each row.

// Some elements of dQ's row at once.
template <class Format, i32 count>
DEV void write_part(const BackwardParams& p, i64 at, const float (&x)[count]) {
  if constexpr (count * sizeof(typename Format::Raw) == 16) {
    u32 word[4];
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      if constexpr (Format::kPacked == 2)
        word[i] = Format::pack(x[2 * i], x[2 * i + 1]);
      else
        word[i] = __float_as_uint(x[i]);
    }
    store_global(static_cast<typename Format::Raw*>(p.dq) + at, word);
  } else {
#pragma unroll
    for (i32 i = 0; i < count; ++i) write_gradient(p.dq, at + i, x[i]);
  }
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kPostThreads)
    attention_backward_post(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem), broken = sm + 4 * kBlockQ * kPostPitch, thread = threadIdx.x;
  const i32 head = static_cast<i32>(blockIdx.x) / p.q_blocks, block = static_cast<i32>(blockIdx.x) % p.q_blocks;
  const WorkTile x = rows_of_block(p, head, block);
  if (x.row < 0) return;
  const float* const sums = dq_sums_of(p, place_of(p, head, block));
  if (thread < kBlockQ) store_word(broken + 4 * thread, 0);
#pragma unroll 4
  for (i32 at = 4 * thread; at < kBlockQ * backward_shape.sum_columns; at += 4 * kPostThreads) {
    const auto four = *reinterpret_cast<const Bytes<16>*>(sums + at);
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      const SumPlace to = sum_place(at + i);
      store_word(sm + 4 * (to.row * kPostPitch + to.column), static_cast<i32>(four.word[i]));
    }
  }
  __syncthreads();
  constexpr i32 kElement = bytes_of(backward_features.gradients);
  constexpr i32 kAtOnce = backward_shape.write_bytes == 16 && features.dim_qk * kElement % 16 == 0 ? 16 / kElement : 1;
  constexpr i32 kAcross = features.dim_qk / kAtOnce;
  const i32 rows = min(kBlockQ, x.seq_q - x.row);
  for (i32 i = thread; i < rows * kAcross; i += kPostThreads) {
    const i32 row = i / kAcross, column = i % kAcross * kAtOnce;
    float out[kAtOnce], zero = 0.0f;
#pragma unroll
    for (i32 e = 0; e < kAtOnce; ++e) {
      out[e] = p.scale * load_one(sm + 4 * (row * kPostPitch + column + e));
      zero += out[e] * 0.0f;
    }
    if (zero != 0.0f) store_word(broken + 4 * row, 1);
    write_part<ElementOf<backward_features.gradients>::Format>(
        p, token_offset(p.dq_stride, x.map_batch, head, x.q_begin + x.row + row) + column, out);
  }
  __syncthreads();
#pragma unroll 1
  for (i32 row = static_cast<i32>(thread / 32); row < rows; row += kPostThreads / 32)
    if (load_word(broken + 4 * row)) fallback_query(p, x, x.row + row);
}
