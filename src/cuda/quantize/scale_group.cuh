// Heads that share a scale: its estimate from a sample of their rows, and the amax that the CTAs of the first launch
// have found.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/device/reduce.cuh"

#include "cuda/quantize/quantize_params.hpp"

namespace onepass {

constexpr i32 kThreads = kQuantizeTileThreads, kWarps = kThreads / 32;

// The maximum over the CTA, in all of its threads. place: 0 or 1, another one than in the call before.
DEV float cta_max(float own, u32 shared, u32 place) { return block_max<kWarps>(own, shared + place * kWarps * 4); }

// Two absolute values of 16 bits; those that are not finite become 0.
template <ScalarType type>
DEV u32 finite_halves(u32 sizes) {
  constexpr u32 kInfinity = type == ScalarType::bf16 ? 0x7f80u : 0x7c00u;
  return ((sizes & 0xffffu) < kInfinity ? sizes & 0xffffu : 0) | (sizes >> 16 < kInfinity ? sizes & 0xffff0000u : 0);
}

template <i32 job>
struct ScaleGroup {
  static constexpr QuantizeConfig kQ = quantize_jobs.job[job];
  using Format = typename ElementOf<kQ.input>::Format;

  const QuantizeParams& p;
  i32 first;  // head

  DEV static ScaleGroup of(const QuantizeParams& p, i32 head) {
    const i32 b = head / p.heads, h = head % p.heads;
    return {p, b / p.group_batch * p.group_batch * p.heads + h / p.group_heads * p.group_heads};
  }
  // Group `number` of all.
  DEV static ScaleGroup at(const QuantizeParams& p, i32 number) {
    const i32 across = p.heads / p.group_heads;
    return {p, number / across * p.group_batch * p.heads + number % across * p.group_heads};
  }
  DEV i32 heads() const { return p.group_batch * p.group_heads; }
  DEV i32 head(i32 i) const { return first + i / p.group_heads * p.heads + i % p.group_heads; }

  // The sample: 4 KB of the head's rows, or 16 KB of all heads of the group; a thread has 16 bytes of 1 or 4 rows.
  static constexpr i32 kRowLanes = kQ.dim / 8, kSampledRows = kThreads / kRowLanes, kSamples = kQ.shared ? 4 : 1;
  using Sample = Bytes<16>[kSamples];
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
  // The amax that the group is expected to have: four times that of the sample. Of rotated rows it is twice the bound
  // sum |x| / sqrt(n) of the sample.
  DEV float estimated_amax(const Sample& sample, u32 shared) const {
    float amax = 0.0f;
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
      amax = fmaxf(amax, kQ.hadamard ? 2.0f * p.root * sum : 4.0f * large);
    }
    return cta_max(amax, shared, 0);
  }

  // The amax over all CTAs; finite: none found an infinity.
  DEV float found_amax(bool& finite, u32 shared) const {
    float amax = 0.0f, infinite = 0.0f;
#pragma unroll 4
    for (i32 i = static_cast<i32>(threadIdx.x); i < heads() * p.groups; i += kThreads) {
      const float found = p.amax[static_cast<i64>(head(i / p.groups)) * p.groups + i % p.groups];
      if (__float_as_int(found) < 0) infinite = 1.0f;
      amax = fmaxf(amax, fabsf(found));
    }
    amax = cta_max(amax, shared, 0);
    finite = cta_max(infinite, shared, 1) == 0.0f;
    return amax;
  }

 private:
  DEV Bytes<16> piece(i32 of_head, i32 row) const {
    const i64 from = of_head / p.heads * p.x_stride[0] + of_head % p.heads * p.x_stride[1] + row * p.x_stride[2];
    const i32 column = static_cast<i32>(threadIdx.x) % kRowLanes * 8;
    return *reinterpret_cast<const Bytes<16>*>(static_cast<const u16*>(p.x) + from + column);
  }
};

}  // namespace onepass
