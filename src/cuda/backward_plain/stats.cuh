// In front of everything: of each query row what its weights refer to, D = rowsum(dO * O) - dLSE, and the derivative of
// D; parts of the sinks' gradient. A CTA for each block of query rows of each head, a warp for a row.
#pragma once
#include "cuda/backward_plain/pairs.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass::cuda::backward_plain {

// A number of `result` that is exactly 0 stands for no visible key, whatever the gradient holds.
DEV float row_product(const void* result, const long long (&stride)[3], const void* gradient,
                      const long long (&gradient_stride)[3], const WorkTile& x) {
  const Rows a = query_rows(result, stride, x), b = query_rows(gradient, gradient_stride, x);
  float sum = 0.0f;
#pragma unroll 1
  for (i32 d = static_cast<i32>(threadIdx.x % 32); d < features.dim_v; d += 32) {
    const float value = element_at<kOutput>(a.base, a.at + d);
    if (value != 0.0f) sum = fmaf(value, element_at<kOutput>(b.base, b.at + d), sum);
  }
  return warp_sum(sum);
}

DEV float number_at(const float* base, const long long (&stride)[3], const WorkTile& x) {
  return base[query_rows(base, stride, x).at];
}

// The numbers of the row x.row, in every lane. by_sink: the row's part of the sinks' gradient is added.
DEV RowNumbers find_numbers(const PlainBackwardParams& p, const WorkTile& x, float& by_sink) {
  const float lse = number_at(p.lse, p.lse_stride, x);
  if (lse == kNegInf) return {kNegInf, 0.0f, 0.0f, 0.0f};
  RowNumbers r = {reference_of(lse), row_product(p.out, p.out_stride, p.dout, p.dout_stride, x), 0.0f, 0.0f};
  if constexpr (backward_features.dlse) r.d -= number_at(p.dlse, p.dlse_stride, x);
  if constexpr (backward_features.dentropy) {
    r.moved_lse = number_at(p.dentropy, p.dentropy_stride, x);
    r.d += r.dentropy() * number_at(p.entropy, p.entropy_stride, x);
  }
  if constexpr (kTangents) {
    r.moved_lse = number_at(p.tlse, p.tlse_stride, x);
    r.moved_d = row_product(p.tout, p.tout_stride, p.dout, p.dout_stride, x);
    if constexpr (plain_features.tdout) r.moved_d += row_product(p.out, p.out_stride, p.tdout, p.tdout_stride, x);
    if constexpr (plain_features.tdlse) r.moved_d -= number_at(p.tdlse, p.tdlse_stride, x);
  }
  if constexpr (backward_features.dsinks) {
    const float w = weight_of((p.sinks[x.head * p.sink_stride] - lse) * static_cast<float>(kLog2e));
    const float moved = plain_features.tsinks ? p.tsinks[x.head * p.tsink_stride] : 0.0f;
    by_sink -= kTangents                    ? w * fmaf(moved - r.moved_lse, r.d, r.moved_d)
               : backward_features.dentropy ? w * fmaf(r.dentropy(), log_weight(w), r.d)
                                            : w * r.d;
  }
  return r;
}

}  // namespace onepass::cuda::backward_plain

extern "C" __global__ void __launch_bounds__(onepass::kPlainThreads)
    attention_backward_plain_stats(const __grid_constant__ onepass::PlainBackwardParams p) {
  using namespace onepass;
  using namespace onepass::cuda::backward_plain;
  extern __shared__ __align__(128) unsigned char smem[];
  constexpr i32 kWarps = kPlainThreads / 32;
  const u32 sm = shared_address(smem);
  const i32 warp = static_cast<i32>(threadIdx.x / 32);
  const i32 head = static_cast<i32>(blockIdx.x) / p.q_blocks, block = static_cast<i32>(blockIdx.x) % p.q_blocks;
  const WorkTile x = rows_of_block(p, head, block);
  float by_sink = 0.0f;
#pragma unroll 1
  for (i32 i = warp; x.exists() && i < min(kBlock, x.seq_q - x.row); i += kWarps) {
    WorkTile one = x;
    one.row += i;
    const RowNumbers r = find_numbers(p, one, by_sink);
    if (threadIdx.x % 32 != 0) continue;
    const i64 at = row_place(p, x, one.row);
    p.statistics[at] = r.reference, p.statistics[at + kBlock] = r.d;
    p.moved[at] = r.moved_lse, p.moved[at + kBlock] = r.moved_d;
  }
  if constexpr (backward_features.dsinks) {
    if (threadIdx.x % 32 == 0) store_word(sm + 4 * warp, __float_as_int(by_sink));
    __syncthreads();
    if (threadIdx.x == 0) {  // in one order
      float sum = 0.0f;
      for (i32 i = 0; i < kWarps; ++i) sum += load_one(sm + 4 * i);
      p.sink_parts[place_of(p, head, block)] = sum;
    }
  }
}
