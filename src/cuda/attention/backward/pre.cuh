// In front of a backward pass: of each query row D = rowsum(dO * O) - dLSE + dH H, for an entropy H, and what its
// weights refer to; zeros for dQ's sums; the gradient of the sinks; whether the call needs care. A CTA for each block
// of query rows of each head.
#pragma once
#include "cuda/attention/backward/careful.cuh"
#include "cuda/attention/backward/score.cuh"
#include "cuda/attention/tile_turns.cuh"
#include "cuda/device/order.cuh"

namespace onepass {

constexpr i32 kPreThreads = 256;  // with 4 bytes of shared memory each

// Lanes that share a row, and how many elements of it each reads at once; several rows to a warp where rows are short.
struct PreLanes {
  static constexpr ScalarType kType = forward_features.output;
  static constexpr i32 kBytes =
      backward_shape.read_bytes < bytes_of(kType) ? bytes_of(kType) : backward_shape.read_bytes;
  static constexpr i32 kAtOnce = kBytes / bytes_of(kType), kParts = ceil_div(features.dim_v, kAtOnce);
  static constexpr i32 kLanes = kParts <= 4 ? 4 : kParts <= 8 ? 8 : kParts <= 16 ? 16 : 32;
  static constexpr i32 kRows = 32 / kLanes;  // of a warp at once
};

// A number of O that is exactly 0 stands for no visible key, whatever dO holds.
DEV float add_product(float sum, float out, float dout) { return out == 0.0f ? sum : fmaf(out, dout, sum); }

// rowsum(dO * O), in each of the row's lanes. care: told of the elements of dO that this lane reads.
DEV float row_product(const BackwardParams& p, const WorkTile& x, i32 row, u32 lane, NeedOfCare& care) {
  using L = PreLanes;
  const i64 token = x.q_begin + row;
  const i64 out = x.map_batch * p.out_stride[0] + x.head * p.out_stride[1] + token * p.out_stride[2];
  const i64 dout = x.map_batch * p.dout_stride[0] + x.head * p.dout_stride[1] + token * p.dout_stride[2];
  float sum = 0.0f;
#pragma unroll 2
  for (i32 d = static_cast<i32>(lane) * L::kAtOnce; d < features.dim_v; d += L::kLanes * L::kAtOnce) {
    if (features.dim_v % L::kAtOnce == 0 || d + L::kAtOnce <= features.dim_v) {
      RowPart<L::kType, L::kBytes> o, g;
      o.load(p.out, out + d);
      g.load(p.dout, dout + d);
#pragma unroll
      for (i32 i = 0; i < L::kAtOnce; ++i) {
        sum = add_product(sum, o[i], g[i]);
        care.add(g[i]);
      }
    } else {
      for (i32 i = d; i < features.dim_v; ++i) {
        const float g = element_at<L::kType>(p.dout, dout + i);
        sum = add_product(sum, element_at<L::kType>(p.out, out + i), g);
        care.add(g);
      }
    }
  }
#pragma unroll
  for (i32 step = L::kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kPreThreads)
    attention_backward_pre(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  using L = PreLanes;
  let_next_kernel_start();
  const i32 head = static_cast<i32>(blockIdx.x) / p.q_blocks, block = static_cast<i32>(blockIdx.x) % p.q_blocks;
  const i64 place = place_of(p, head, block);
  const u32 thread = threadIdx.x, lane = thread % L::kLanes;
  const WorkTile x = rows_of_block(p, head, block);
  float by_sink = 0.0f;
  NeedOfCare care;
  if (backward_shape.zero_sums && backward_features.dq) {
    float* const sums = dq_sums_of(p, place);
    for (i32 i = 4 * thread; i < kBlockQ * backward_shape.sum_columns; i += 4 * kPreThreads)
      store_global(sums + i, {0u, 0u, 0u, 0u});
  }
  if (!backward_shape.zero_sums && blockIdx.x == 0 && thread < kZeroWords) p.zeros[thread] = 0;
  if (backward_features.deterministic && thread == 0) p.order[place] = 0;
  if constexpr (backward_shape.turn_keys != 0) {
    if (thread < 32 && x.row >= 0) count_turns(p, x, place);
  }
#pragma unroll 2
  for (i32 first = 0; first < kBlockQ; first += kPreThreads / L::kLanes) {
    const i32 in_block = first + static_cast<i32>(thread) / L::kLanes, row = x.row + in_block;
    if (kBlockQ % (kPreThreads / L::kLanes) != 0 && in_block >= kBlockQ) break;
    const bool exists = x.row >= 0 && row < x.seq_q;
    const float product = row_product(p, exists ? x : WorkTile{}, exists ? row : 0, lane, care);
    const auto at = [&](const long long(&stride)[3]) {
      return x.map_batch * stride[0] + head * stride[1] + static_cast<i64>(x.q_begin + row) * stride[2];
    };
    float lse = kNegInf, d = 0.0f;
    [[maybe_unused]] float dentropy = 0.0f;
    if (exists && (lane == 0 || backward_shape.careful)) lse = p.lse[at(p.lse_stride)];
    if (exists) care.add_query<L::kLanes>(p, x, row, lane, lse);
    if (lane != 0) continue;
    if (exists) {
      if (lse != kNegInf) {
        d = product;
        if constexpr (backward_features.dlse) d -= p.dlse[at(p.dlse_stride)];
        if constexpr (backward_features.dentropy) {
          dentropy = p.dentropy[at(p.dentropy_stride)];
          d += dentropy * p.entropy[at(p.entropy_stride)];
          dentropy *= static_cast<float>(kLn2);
        }
        if constexpr (backward_features.dsinks) {
          const float w = weight_of((p.sinks[head * p.sink_stride] - lse) * static_cast<float>(kLog2e));
          by_sink += less_entropy(-d, dentropy, w) * w;
        }
        care.add(d);
      }
    }
    float* const to = statistics_of(p, place) + statistic_at(in_block);
    to[0] = reference_of(lse);
    to[kBlockQ] = d;
    if constexpr (backward_features.dentropy) to[2 * kBlockQ] = dentropy;
  }
  care.tell(p);
  if constexpr (backward_features.dsinks) {
    extern __shared__ __align__(128) unsigned char smem[];
    const u32 parts = shared_address(smem);
    store_word(parts + 4 * thread, static_cast<i32>(__float_as_uint(by_sink)));
    __syncthreads();
    if (thread == 0) {  // in one order
      float sum = 0.0f;
      for (i32 i = 0; i < kPreThreads; i += L::kLanes) sum += load_one(parts + 4 * i);
      p.sink_parts[place] = sum;
    }
  }
}
