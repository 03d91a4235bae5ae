// Rows to fp8_e4m3, with a rotation of each row and the mean of each column taken out.
//
// A block of threads has 128 rows, or fewer where no more share anything within the launch, four threads each, in
// registers: x is read once and y written once. What more than 128 rows share, a factor or a mean, is surveyed by a
// launch before, in pieces of a head, whose results the blocks add up in one order. A Hadamard product is log2(n) steps
// of sums and differences: of numbers 1 to 4 apart within a thread's run, up to the lanes' runs by shuffles, more
// within the thread again.
#pragma once
#include "cuda/device/e4m3.cuh"
#include "cuda/device/formats.cuh"
#include "cuda/device/shared.cuh"

#include "algebra/descale.hpp"
#include "cuda/quantize/quantize_params.hpp"

namespace onepass {

constexpr QuantizeConfig kQ = quantize_config;
constexpr i32 kRun = kQuantizeRun, kLanes = kQuantizeLanes, kRuns = (kQ.dim + kLanes * kRun - 1) / (kLanes * kRun);
constexpr i32 kThreads = kQ.threads(), kWarps = kThreads / 32;
constexpr i32 kTogether = kQ.dim & -kQ.dim;  // columns that a rotation mixes

struct QuantizeRow {
  float x[kRuns][kRun];

  DEV static i32 column(i32 run) { return (run * kLanes + static_cast<i32>(threadIdx.x % kLanes)) * kRun; }

  DEV void load(const QuantizeParams& p, i64 at, bool real) {
    using Format = typename ElementOf<kQ.input>::Format;
    using Raw = typename Format::Raw;
    const Raw* const from = static_cast<const Raw*>(p.x) + at;
#pragma unroll
    for (i32 r = 0; r < kRuns; ++r) {
      const i32 c = column(r);
      if constexpr (kQ.vectors) {
        constexpr i32 kWords = kRun * static_cast<i32>(sizeof(Raw)) / 4;
        u32 word[kWords] = {};
        if (real && c < kQ.dim) {
#pragma unroll
          for (i32 w = 0; w < kWords; w += 4) {
            const auto four = *reinterpret_cast<const Bytes<16>*>(reinterpret_cast<const u32*>(from + c) + w);
#pragma unroll
            for (i32 i = 0; i < 4; ++i) word[w + i] = four.word[i];
          }
        }
#pragma unroll
        for (i32 i = 0; i < kRun; ++i) {
          if constexpr (sizeof(Raw) == 4)
            x[r][i] = __uint_as_float(word[i]);
          else
            x[r][i] = Format::unpack(static_cast<u16>(word[i / 2] >> i % 2 * 16));
        }
      } else {
#pragma unroll
        for (i32 i = 0; i < kRun; ++i)
          x[r][i] = real && c + i < kQ.dim ? Format::unpack(from[(c + i) * p.x_stride[3]]) : 0.0f;
      }
    }
  }
  template <class F>
  DEV void each(const F& f) {
#pragma unroll
    for (i32 r = 0; r < kRuns; ++r) {
#pragma unroll
      for (i32 i = 0; i < kRun; ++i) f(x[r][i], column(r) + i, r, i);
    }
  }

  DEV void rotate(const QuantizeParams& p) {
#pragma unroll
    for (i32 r = 0; r < kRuns; ++r) {  // a run of 8 columns has a byte of the signs
      const u32 signs = p.sign[r * kLanes * kRun / 32] >> column(r) % 32;
#pragma unroll
      for (i32 i = 0; i < kRun; ++i) x[r][i] = __uint_as_float(__float_as_uint(x[r][i]) ^ (signs >> i << 31));
    }
#pragma unroll
    for (i32 step = 1; step < kTogether; step *= 2) {
#pragma unroll
      for (i32 r = 0; r < kRuns; ++r) {
#pragma unroll
        for (i32 i = 0; i < kRun; ++i) {
          if (step < kRun) {
            if ((i & step) == 0) turn(x[r][i], x[r][i | step]);
          } else if (step < kLanes * kRun) {
            const i32 lanes = step / kRun;
            const float other = __shfl_xor_sync(0xffffffffu, x[r][i], lanes);
            x[r][i] = (threadIdx.x & lanes) == 0 ? x[r][i] + other : other - x[r][i];
          } else {
            const i32 runs = step / (kLanes * kRun);
            if ((r & runs) == 0) turn(x[r][i], x[(r | runs) % kRuns][i]);
          }
        }
      }
    }
    each([&](float& y, i32, i32, i32) { y *= p.root; });
  }
  static DEV void turn(float& a, float& b) {
    const float sum = a + b;
    b = a - b, a = sum;
  }
};

// Of the threads of a row.
DEV float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
DEV float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEV float finite_or_zero(float x) { return x - x == 0.0f ? x : 0.0f; }
DEV float warp_max(float x) {
#pragma unroll
  for (i32 lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}
// Of all threads of the block, in all of them.
DEV float block_max(float x, u32 shared) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) store_word(shared + threadIdx.x / 32 * 4, __float_as_int(x));
  __syncthreads();
  return warp_max(load_one(shared + threadIdx.x % kWarps * 4));
}

// How large a number of the row can become, in each of its threads: of n that are mixed |x'| <= sum |x| / root n
// <= root n * max |x|.
DEV float reach_of(const QuantizeParams& p, QuantizeRow& row) {
  float all = 0.0f, largest = 0.0f;
  row.each([&](float& x, i32, i32, i32) {
    const float size = fabsf(finite_or_zero(x));
    all += size;
    largest = fmaxf(largest, size);
  });
  if constexpr (kQ.hadamard) return fminf(row_sum(all) * p.root, row_max(largest) / p.root);
  return largest;
}

// A piece of a head.
DEV void survey(const QuantizeParams& p, u32 shared) {
  const u32 columns = shared + kQ.columns_at();
  const i32 head = static_cast<i32>(blockIdx.x) / p.pieces, piece = static_cast<i32>(blockIdx.x) % p.pieces;
  const i64 at = head / p.heads * p.x_stride[0] + head % p.heads * p.x_stride[1];
  const i32 last = min(p.used_rows(), (piece + 1) * p.piece_rows);
  float sum[kRuns][kRun] = {}, most = 0.0f;
  for (i32 first = piece * p.piece_rows; first < last; first += kQ.rows) {
    const i32 i = first + static_cast<i32>(threadIdx.x / kLanes);
    QuantizeRow row;
    row.load(p, at + i * p.x_stride[2], i < last);
    most = fmaxf(most, reach_of(p, row));
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
  most = block_max(most, shared);  // a barrier: the sums are there
  if (threadIdx.x == 0) p.most[blockIdx.x] = most;
  if constexpr (kQ.centered) {
    for (i32 c = static_cast<i32>(threadIdx.x); c < kQ.dim; c += kThreads) {
      float all = 0.0f;
      for (i32 w = 0; w < kWarps; ++w) all += load_one(columns + (w * kQ.dim + c) * 4);
      p.sums[static_cast<i64>(blockIdx.x) * kQ.dim + c] = all;
    }
  }
}

// How large numbers can become in all that share a head's factor; by one whole warp.
DEV float surveyed(const QuantizeParams& p, i32 head) {
  const i32 batch = head / p.heads / p.group_batch * p.group_batch, h = head % p.heads / p.group_heads * p.group_heads;
  const i32 count = p.group_batch * p.group_heads * p.pieces;
  float most = 0.0f;
  for (i32 i = static_cast<i32>(threadIdx.x % 32); i < count; i += 32) {
    const i32 pair = i / p.pieces;
    const i32 of = (batch + pair / p.group_heads) * p.heads + h + pair % p.group_heads;
    most = fmaxf(most, p.most[static_cast<i64>(of) * p.pieces + i % p.pieces]);
  }
  most = warp_max(most);
  return kQ.centered ? 2.0f * most : most;  // a mean reaches no further than the numbers that it is of
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
    for (i32 c = static_cast<i32>(threadIdx.x); c < kQ.dim; c += kThreads) {
      float all = 0.0f;
      for (i32 piece = 0; piece < p.pieces; ++piece)
        all += p.sums[(static_cast<i64>(head) * p.pieces + piece) * kQ.dim + c];
      const float mean = used > 0 ? all / static_cast<float>(used) : 0.0f;
      store_word(columns + c * 4, __float_as_int(mean));
      if (block == 0) p.mean[b * p.mean_stride[0] + h * p.mean_stride[1] + c * p.mean_stride[2]] = mean;
    }
    __syncthreads();
    row.each([&](float& x, i32 c, i32, i32) { x -= c < kQ.dim && i < used ? load_one(columns + c * 4) : 0.0f; });
  }
  if constexpr (kQ.hadamard) row.rotate(p);
  float most = 0.0f;
  if constexpr (kQ.by_block) {
    row.each([&](float& x, i32, i32, i32) { most = fmaxf(most, fabsf(finite_or_zero(x))); });
    most = block_max(most, shared);
  } else {
    most = surveyed(p, head);
  }
  const float factor = descale_for(most);
  if (threadIdx.x == 0 && (kQ.by_block ? block * kQ.rows < p.rows : block == 0))
    p.descale[b * p.descale_stride[0] + h * p.descale_stride[1] + block * p.descale_stride[2]] = factor;
  if (i >= p.rows) return;
  const float inverse = descale_inverse(factor);
  row.each([&](float& x, i32, i32, i32) {
    x *= inverse;
    x += x - x;  // an infinity becomes NaN: e4m3 has none
  });
  unsigned char* const to = p.y + b * p.y_stride[0] + h * p.y_stride[1] + i * p.y_stride[2];
#pragma unroll
  for (i32 r = 0; r < kRuns; ++r) {
    const i32 c = QuantizeRow::column(r);
    const float* const x = row.x[r];
    const u32 low = to_e4m3(x[0], x[1], x[2], x[3]), high = to_e4m3(x[4], x[5], x[6], x[7]);
    if constexpr (kQ.vectors) {
      if (c < kQ.dim) *reinterpret_cast<Bytes<8>*>(to + c) = {low, high};
    } else {
#pragma unroll
      for (i32 j = 0; j < kRun; ++j)
        if (c + j < kQ.dim) to[(c + j) * p.y_stride[3]] = static_cast<unsigned char>((j < 4 ? low : high) >> j % 4 * 8);
    }
  }
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kThreads, (onepass::kRuns <= 4        ? 1024
                                                                 : onepass::kThreads >= 128 ? 768
                                                                                            : 512) /
                                                                    onepass::kThreads)
    quantize_rows(const __grid_constant__ onepass::QuantizeParams p) {
  extern __shared__ __align__(128) unsigned char smem[];
  const onepass::u32 shared = onepass::shared_address(smem);
  if constexpr (onepass::kQ.part == onepass::QuantizePart::survey)
    onepass::survey(p, shared);
  else
    onepass::quantize_block(p, shared);
}
