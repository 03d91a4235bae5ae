// What heads that share a factor have in common: a guess of it from a few of their rows, and the largest of the numbers
// that blocks of threads have found in them. With what the threads of a block find together.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/device/shared.cuh"

#include "cuda/quantize/quantize_params.hpp"

namespace onepass {

constexpr i32 kThreads = kQuantizeTileThreads, kWarps = kThreads / 32;

// Of all lanes.
DEV float warp_max(float x) {
#pragma unroll
  for (i32 lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}
DEV bool finite(float x) { return x - x == 0.0f; }

// Of all threads of the block, in all of them; turn: 0 or 1, one after the other.
DEV float block_max(float own, u32 shared, u32 turn) {
  const u32 at = shared + turn * kWarps * 4;
  own = warp_max(own);
  if (threadIdx.x % 32 == 0) store_word(at + threadIdx.x / 32 * 4, __float_as_int(own));
  __syncthreads();
  i32 most[kWarps];  // of numbers that are not negative, as integers
#pragma unroll
  for (i32 i = 0; i < kWarps; i += 4) load_four(at + i * 4, most[i], most[i + 1], most[i + 2], most[i + 3]);
#pragma unroll
  for (i32 i = 1; i < kWarps; ++i) most[0] = max(most[0], most[i]);
  return __int_as_float(most[0]);
}

// Of two sizes those that are finite.
template <ScalarType type>
DEV u32 finite_halves(u32 sizes) {
  constexpr u32 kInfinity = type == ScalarType::bf16 ? 0x7f80u : 0x7c00u;
  return ((sizes & 0xffffu) < kInfinity ? sizes & 0xffffu : 0) | (sizes >> 16 < kInfinity ? sizes & 0xffff0000u : 0);
}

template <i32 job>
struct QuantizeGroup {
  static constexpr QuantizeConfig kQ = quantize_jobs.job[job];
  using Format = typename ElementOf<kQ.input>::Format;

  const QuantizeParams& p;
  i32 first;  // head

  DEV static QuantizeGroup of(const QuantizeParams& p, i32 head) {
    const i32 b = head / p.heads, h = head % p.heads;
    return {p, b / p.group_batch * p.group_batch * p.heads + h / p.group_heads * p.group_heads};
  }
  DEV i32 heads() const { return p.group_batch * p.group_heads; }
  DEV i32 head(i32 i) const { return first + i / p.group_heads * p.heads + i % p.group_heads; }

  // How large numbers may become, judged by 4 KB of a head's rows, or 16 KB of all that share its factor: four times
  // the largest of them, and where they are mixed twice what sum |x| / root n lets one become. Pieces of these rows,
  // and what the block makes of them.
  static constexpr i32 kRowLanes = kQ.dim / 8, kSampledRows = kThreads / kRowLanes, kSamples = kQ.shared ? 4 : 1;
  using Sample = Bytes<16>[kSamples];
  DEV Bytes<16> piece(i32 of_head, i32 row) const {
    const i64 from = of_head / p.heads * p.x_stride[0] + of_head % p.heads * p.x_stride[1] + row * p.x_stride[2];
    const i32 column = static_cast<i32>(threadIdx.x) % kRowLanes * 8;
    return *reinterpret_cast<const Bytes<16>*>(static_cast<const u16*>(p.x) + from + column);
  }
  DEV void load(Sample& sample, i32 own_head) const {
    const i32 i = static_cast<i32>(threadIdx.x) / kRowLanes;
    const auto part = [](i32 of, i32 n, i32 all) { return static_cast<i32>(static_cast<i64>(of) * n / all); };
#pragma unroll
    for (i32 s = 0; s < kSamples; ++s) sample[s] = {};
    const i32 rows = p.used_rows();
    if (i >= kSampledRows || rows == 0) return;
    constexpr i32 kAll = kSampledRows * kSamples;
#pragma unroll
    for (i32 s = 0; s < kSamples; ++s) {  // heads in order, rows out of order
      const i32 n = i * kSamples + s;
      if constexpr (kQ.shared)
        sample[s] = piece(head(part(heads(), n, kAll)), part(rows, n * 5 % kAll, kAll));
      else
        sample[s] = piece(own_head, part(rows, n, kAll));
    }
  }
  DEV float guess(const Sample& sample, u32 shared) const {
    float most = 0.0f;
#pragma unroll
    for (i32 s = 0; s < kSamples; ++s) {
      float large = 0.0f, sum = 0.0f;
#pragma unroll
      for (i32 w = 0; w < 8; ++w) {
        const u32 two = finite_halves<kQ.input>(sample[s].word[w / 2] & 0x7fff7fffu);
        const float size = Format::unpack(static_cast<u16>(two >> w % 2 * 16));
        large = fmaxf(large, size), sum += size;
      }
      if constexpr (kQ.hadamard) {
#pragma unroll
        for (i32 lane = kRowLanes / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
      }
      most = fmaxf(most, kQ.hadamard ? 2.0f * p.root * sum : 4.0f * large);
    }
    return block_max(most, shared, 0);
  }

  // Of what all blocks of threads have found; clean: there is no infinity.
  DEV float largest(bool& clean, u32 shared) const {
    float most = 0.0f, infinite = 0.0f;
#pragma unroll 4
    for (i32 i = static_cast<i32>(threadIdx.x); i < heads() * p.groups; i += kThreads) {
      const float found = p.most[static_cast<i64>(head(i / p.groups)) * p.groups + i % p.groups];
      if (__float_as_int(found) < 0) infinite = 1.0f;
      most = fmaxf(most, fabsf(found));
    }
    most = block_max(most, shared, 0);
    clean = block_max(infinite, shared, 1) == 0.0f;
    return most;
  }
};

}  // namespace onepass
