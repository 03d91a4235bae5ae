// A row in the registers of four threads, which have its runs of 8 elements in turn.
//
// A Hadamard product is log2(n) steps of sums and differences: of elements 1 to 4 apart within a thread's run, up to
// the lanes' runs by shuffles, more within the thread again.
#pragma once
#include "cuda/device/e4m3.cuh"
#include "cuda/device/formats.cuh"
#include "cuda/device/reduce.cuh"

#include "cuda/quantize/quantize_params.hpp"

namespace onepass {

constexpr QuantizeConfig kQ = quantize_config;
constexpr i32 kRun = kQuantizeRun, kLanes = kQuantizeLanes, kRuns = ceil_div(kQ.dim, kLanes* kRun);
constexpr i32 kThreads = kQ.threads(), kWarps = kThreads / 32;
constexpr i32 kMixed = kQ.dim & -kQ.dim;  // columns that a rotation mixes

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

  DEV float amax() {  // of this thread's elements; those that are not finite do not count
    float amax = 0.0f;
    each([&](float& y, i32, i32, i32) { amax = fmaxf(amax, fabsf(finite_or_zero(y))); });
    return amax;
  }
  // The largest absolute value that the row's elements can have once they are rotated, in each of its threads: if n are
  // mixed, |x'| <= sum |x| / sqrt(n) <= sqrt(n) * max |x|. Without a rotation it is that of this thread's elements.
  DEV float bound(const QuantizeParams& p) {
    float sum = 0.0f, largest = 0.0f;
    each([&](float& y, i32, i32, i32) {
      const float size = fabsf(finite_or_zero(y));
      sum += size;
      largest = fmaxf(largest, size);
    });
    if constexpr (kQ.hadamard) return fminf(quad_sum(sum) * p.root, quad_max(largest) / p.root);
    return largest;
  }

  DEV void rotate(const QuantizeParams& p) {
#pragma unroll
    for (i32 r = 0; r < kRuns; ++r) {  // a run of 8 columns has a byte of the signs
      const u32 signs = p.sign[r * kLanes * kRun / 32] >> column(r) % 32;
#pragma unroll
      for (i32 i = 0; i < kRun; ++i) x[r][i] = __uint_as_float(__float_as_uint(x[r][i]) ^ (signs >> i << 31));
    }
#pragma unroll
    for (i32 step = 1; step < kMixed; step *= 2) {
#pragma unroll
      for (i32 r = 0; r < kRuns; ++r) {
#pragma unroll
        for (i32 i = 0; i < kRun; ++i) {
          if (step < kRun) {
            if ((i & step) == 0) butterfly(x[r][i], x[r][i | step]);
          } else if (step < kLanes * kRun) {
            const i32 lanes = step / kRun;
            const float other = __shfl_xor_sync(0xffffffffu, x[r][i], lanes);
            x[r][i] = (threadIdx.x & lanes) == 0 ? x[r][i] + other : other - x[r][i];
          } else {
            const i32 runs = step / (kLanes * kRun);
            if ((r & runs) == 0) butterfly(x[r][i], x[(r | runs) % kRuns][i]);
          }
        }
      }
    }
    each([&](float& y, i32, i32, i32) { y *= p.root; });
  }
  DEV static void butterfly(float& a, float& b) {
    const float sum = a + b;
    b = a - b, a = sum;
  }
  // Divides by the scale and rounds.
  DEV void store(const QuantizeParams& p, i64 at, float scale) {
    const float inverse = descale_inverse(scale);
    each([&](float& y, i32, i32, i32) {
      y *= inverse;
      y += y - y;  // an infinity becomes NaN: e4m3 has none
    });
    unsigned char* const to = p.y + at;
#pragma unroll
    for (i32 r = 0; r < kRuns; ++r) {
      const i32 c = column(r);
      const u32 low = to_e4m3(x[r][0], x[r][1], x[r][2], x[r][3]), high = to_e4m3(x[r][4], x[r][5], x[r][6], x[r][7]);
      if constexpr (kQ.vectors) {
        if (c < kQ.dim) *reinterpret_cast<Bytes<8>*>(to + c) = {low, high};
      } else {
#pragma unroll
        for (i32 j = 0; j < kRun; ++j)
          if (c + j < kQ.dim)
            to[(c + j) * p.y_stride[3]] = static_cast<unsigned char>((j < 4 ? low : high) >> j % 4 * 8);
      }
    }
  }
};

}  // namespace onepass
