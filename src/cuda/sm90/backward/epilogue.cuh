// The end of a tile: dK and dV on their way out, from registers.
#pragma once
#include "cuda/attention/backward/fallback.cuh"
#include "cuda/sm90/backward/tile.cuh"

namespace onepass::sm90 {

using Gradient = ElementOf<backward_features.gradients>::Format;

template <class Format>
DEV u32 pack_gradient(float low, float high) {
  if constexpr (sizeof(typename Format::Raw) == 2)
    return Format::pack(low, high);
  else
    return 0;  // never asked for
}
template <class Format>
DEV u32 probe_packed(u32 x, u32 probe) {  // 0 while everything is finite
  if constexpr (sizeof(typename Format::Raw) == 2)
    return Format::times_zero_plus(x, probe);
  else
    return 0;
}
DEV void store_two_words(void* to, u32 a, u32 b) {
  struct alignas(8) Words {
    u32 word[2];
  };
  *static_cast<Words*>(to) = {{a, b}};
}

// Sixteen rows of a fragment times `factor`. `first`: the warp's first row within the tensor; rows: how many of the
// sixteen exist. Two lanes swap halves of two groups of eight columns, so that a quad writes whole sectors. False for a
// lane of whose numbers one is not finite as it is stored.
template <int dim, int N>
DEV bool store_gradient(void* base, const long long (&stride)[3], i32 batch, i32 head, i32 first, i32 rows,
                        const float (&a)[N], float factor) {
  using Raw = Gradient::Raw;
  const u32 lane = threadIdx.x % 32, quad = lane % 4, odd = lane & 1;
  const i32 row = static_cast<i32>(lane / 4);
  float probe = 0.0f;
  u32 packed_probe = 0;
  Raw* at = static_cast<Raw*>(base) + batch * stride[0] + head * stride[1] + static_cast<i64>(first + row) * stride[2];
#pragma unroll
  for (i32 y = 0; y < 2; ++y, at += 8 * stride[2]) {
    const bool exists = row + 8 * y < rows;
#pragma unroll
    for (i32 g = 0; g < N / 8; ++g) {  // 16 columns
      const float* const x = a + 8 * g + 2 * y;
      if constexpr (sizeof(Raw) == 4) {
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
          const i32 column = g * 16 + half * 8 + static_cast<i32>(quad) * 2;
          const float c[2] = {x[4 * half] * factor, x[4 * half + 1] * factor};
          probe = probe_finite(probe_finite(probe, c[0]), c[1]);
          if (!exists || column >= dim) continue;
          if constexpr (dim % 2 == 0) {
            store_two_words(at + column, __float_as_uint(c[0]), __float_as_uint(c[1]));
          } else {
            at[column] = c[0];
            if (column + 1 < dim) at[column + 1] = c[1];
          }
        }
      } else {
        const u32 low = pack_gradient<Gradient>(x[0] * factor, x[1] * factor),
                  high = pack_gradient<Gradient>(x[4] * factor, x[5] * factor);
        packed_probe = probe_packed<Gradient>(low, probe_packed<Gradient>(high, packed_probe));
        const u32 got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        const u32 words[2] = {odd ? got : low, odd ? high : got};
        const i32 column = g * 16 + static_cast<i32>(odd) * 8 + static_cast<i32>(quad / 2) * 4;
        if (!exists || column >= dim) continue;
        if constexpr (dim % 4 == 0) {
          store_two_words(at + column, words[0], words[1]);
        } else {
#pragma unroll
          for (i32 e = 0; e < 4; ++e)
            if (column + e < dim) at[column + e] = static_cast<Raw>(words[e / 2] >> e % 2 * 16);
        }
      }
    }
  }
  return probe == 0.0f && (packed_probe & 0x7fff7fff) == 0;
}

// Keys that no row sees: dK = dV = 0, by one whole warp that has few registers: element by element.
template <i32 dim>
DEV void write_zeros(void* base, const long long (&stride)[3], const KeyTile& x) {
  using Raw = Gradient::Raw;
  const i32 count = min(static_cast<i32>(kBlockN), x.seq_k - x.key) * dim;
#pragma unroll 1
  for (i32 i = static_cast<i32>(opaque_thread() % 32); i < count; i += 32) {
    const i32 row = i / dim;
    static_cast<Raw*>(base)[x.map_batch * stride[0] + x.head * stride[1] +
                            static_cast<i64>(x.k_begin + x.key + row) * stride[2] + (i - row * dim)] = Raw{};
  }
}
DEV void write_no_keys(const BackwardParams& p, const KeyTile& x) {
  if constexpr (backward_features.dk) write_zeros<features.dim_qk>(p.dk, p.dk_stride, x);
  if constexpr (backward_features.dv) write_zeros<features.dim_v>(p.dv, p.dv_stride, x);
  if constexpr (backward_features.dslopes) {
    const i32 lane = static_cast<i32>(opaque_thread() % 32), key = x.key + lane / backward_shape.key_warps * 16;
#pragma unroll 1
    for (i32 head = 0; head < p.heads_per_kv; ++head)
      if (key < min(x.key + static_cast<i32>(kBlockN), x.seq_k))
        *slope_part(p, x, x.head * p.heads_per_kv + head, key, lane % backward_shape.key_warps) = 0.0f;
  }
}

}  // namespace onepass::sm90
