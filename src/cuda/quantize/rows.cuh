// Rows of any type and length to fp8_e4m3, four threads each: amax -> scale -> store. Means of columns may be taken
// out.
//
// A CTA has 128 rows, or 32 where rows share nothing within the launch. x is read once if at most 128 rows share a
// scale and there are no means. Else a launch before, the amax pass, reads it too, in chunks of a head; every CTA of
// the second launch combines the chunks' results in one order.
#pragma once
#include "algebra/descale.hpp"
#include "cuda/quantize/row.cuh"

namespace onepass {

// A chunk of a head: the bound of its rows and the sums of its columns.
DEV void amax_pass(const QuantizeParams& p, u32 shared) {
  const u32 columns = shared + kQ.columns_at();
  const i32 head = static_cast<i32>(blockIdx.x) / p.pieces, piece = static_cast<i32>(blockIdx.x) % p.pieces;
  const i64 at = head / p.heads * p.x_stride[0] + head % p.heads * p.x_stride[1];
  const i32 last = min(p.used_rows(), (piece + 1) * p.piece_rows);
  float sum[kRuns][kRun] = {}, amax = 0.0f;
  for (i32 first = piece * p.piece_rows; first < last; first += kQ.rows) {
    const i32 i = first + static_cast<i32>(threadIdx.x / kLanes);
    QuantizeRow row;
    row.load(p, at + i * p.x_stride[2], i < last);
    amax = fmaxf(amax, row.bound(p));
    if constexpr (kQ.centered) row.each([&](float& x, i32, i32 r, i32 j) { sum[r][j] += finite_or_zero(x); });
  }
  if constexpr (kQ.centered) {
#pragma unroll
    for (i32 r = 0; r < kRuns; ++r) {
#pragma unroll
      for (i32 j = 0; j < kRun; ++j) {
#pragma unroll
        for (i32 lane = kLanes; lane < 32; lane *= 2) sum[r][j] += __shfl_xor_sync(0xffffffffu, sum[r][j], lane);
        const i32 c = QuantizeRow::column(r) + j;
        if (threadIdx.x % 32 < kLanes && c < kQ.dim)
          store_word(columns + (threadIdx.x / 32 * kQ.dim + c) * 4, __float_as_int(sum[r][j]));
      }
    }
  }
  amax = block_max<kWarps>(amax, shared);  // a barrier: the sums are there
  if (threadIdx.x == 0) p.amax[blockIdx.x] = amax;
  if constexpr (kQ.centered) {
    for (i32 c = static_cast<i32>(threadIdx.x); c < kQ.dim; c += kThreads) {
      float all = 0.0f;
      for (i32 w = 0; w < kWarps; ++w) all += load_one(columns + (w * kQ.dim + c) * 4);
      p.sums[static_cast<i64>(blockIdx.x) * kQ.dim + c] = all;
    }
  }
}

// The amax of all heads that share a head's scale, from the chunks' results. One whole warp computes it.
DEV float found_amax(const QuantizeParams& p, i32 head) {
  const i32 batch = head / p.heads / p.group_batch * p.group_batch, h = head % p.heads / p.group_heads * p.group_heads;
  const i32 count = p.group_batch * p.group_heads * p.pieces;
  float amax = 0.0f;
  for (i32 i = static_cast<i32>(threadIdx.x % 32); i < count; i += 32) {
    const i32 pair = i / p.pieces;
    const i32 of = (batch + pair / p.group_heads) * p.heads + h + pair % p.group_heads;
    amax = fmaxf(amax, p.amax[static_cast<i64>(of) * p.pieces + i % p.pieces]);
  }
  amax = warp_max(amax);
  return kQ.centered ? 2.0f * amax : amax;  // the absolute value of a mean is at most the amax
}

// The means of a head's columns, from the chunks' sums, into shared memory; block 0 writes them out.
DEV void take_means(const QuantizeParams& p, i32 head, i32 block, i32 used, u32 columns) {
  const i32 b = head / p.heads, h = head % p.heads;
  for (i32 c = static_cast<i32>(threadIdx.x); c < kQ.dim; c += kThreads) {
    float all = 0.0f;
    for (i32 piece = 0; piece < p.pieces; ++piece)
      all += p.sums[(static_cast<i64>(head) * p.pieces + piece) * kQ.dim + c];
    const float mean = used > 0 ? all / static_cast<float>(used) : 0.0f;
    store_word(columns + c * 4, __float_as_int(mean));
    if (block == 0) p.mean[b * p.mean_stride[0] + h * p.mean_stride[1] + c * p.mean_stride[2]] = mean;
  }
  __syncthreads();
}

DEV void quantize_block(const QuantizeParams& p, u32 shared) {
  const u32 columns = shared + kQ.columns_at();
  const i32 head = static_cast<i32>(blockIdx.x / static_cast<u32>(p.blocks)),
            block = static_cast<i32>(blockIdx.x % static_cast<u32>(p.blocks));
  const i32 b = head / p.heads, h = head % p.heads, i = block * kQ.rows + static_cast<i32>(threadIdx.x / kLanes);
  const i32 used = p.used_rows();
  QuantizeRow row;
  row.load(p, b * p.x_stride[0] + h * p.x_stride[1] + i * p.x_stride[2], i < used);
  if constexpr (kQ.centered) {
    take_means(p, head, block, used, columns);
    row.each([&](float& x, i32 c, i32, i32) { x -= c < kQ.dim && i < used ? load_one(columns + c * 4) : 0.0f; });
  }
  if constexpr (kQ.hadamard) row.rotate(p);
  const float amax = kQ.by_block ? block_max<kWarps>(row.amax(), shared) : found_amax(p, head);
  const float scale = descale_for(amax);
  if (threadIdx.x == 0 && (kQ.by_block ? block * kQ.rows < p.rows : block == 0))
    p.descale[b * p.descale_stride[0] + h * p.descale_stride[1] + block * p.descale_stride[2]] = scale;
  if (i < p.rows) row.store(p, b * p.y_stride[0] + h * p.y_stride[1] + i * p.y_stride[2], scale);
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kThreads, (onepass::kRuns <= 4        ? 1024
                                                                 : onepass::kThreads >= 128 ? 768
                                                                                            : 512) /
                                                                    onepass::kThreads)
    quantize_rows(const __grid_constant__ onepass::QuantizeParams p) {
  extern __shared__ __align__(128) unsigned char smem[];
  const onepass::u32 shared = onepass::shared_address(smem);
  if constexpr (onepass::kQ.part == onepass::QuantizePart::amax)
    onepass::amax_pass(p, shared);
  else
    onepass::quantize_block(p, shared);
}
