// The end of a tile: dK and dV, and marks of those that are not finite.
#pragma once
#include "cuda/attention/backward/fallback.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/sm80/backward/tile.cuh"

namespace onepass::sm80 {

template <class Format>
DEV void store_two(typename Format::Raw* to, float a, float b) {
  if constexpr (Format::kPacked == 2)
    *reinterpret_cast<u32*>(to) = Format::pack(a, b);
  else
    *reinterpret_cast<Bytes<8>*>(to) = {{__float_as_uint(a), __float_as_uint(b)}};
}
// Rows of a gradient by plain stores; false if something is not finite.
template <class Format, i32 dim, i32 N>
DEV bool store_gradient(void* to, const long long (&stride)[3], const KeyTile& x, i32 first, const float (&sum)[N],
                        float scale) {
  const u32 quad = opaque_thread() % 4;
  const FragmentRows rows = FragmentRows::from(first);
  float zero = 0.0f;
#pragma unroll
  for (i32 j = 0; j < N; j += 2) {
    const i32 key = rows.row[j >> 1 & 1], d = own_column(j, quad);
    const float a = scale * sum[j], b = scale * sum[j + 1];
    zero += a * 0.0f + b * 0.0f;
    if (key >= x.seq_k || d >= dim) continue;
    const i64 at = token_offset(stride, x.map_batch, x.head, x.k_begin + key) + d;
    auto* const place = static_cast<typename Format::Raw*>(to) + at;
    if constexpr (config.pairs) {
      store_two<Format>(place, a, b);
    } else {
      place[0] = Format::round(a);
      if (d + 1 < dim) place[1] = Format::round(b);
    }
  }
  return zero == 0.0f;
}
DEV void store_keys(const BackwardParams& p, const KeyTile& x, const float (&dk)[kRowTiles][kKSums],
                    const float (&dv)[kRowTiles][kVSums]) {
  using Format = ElementOf<backward_features.gradients>::Format;
  u32 broken = 0;  // a bit for each sixteen keys
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const i32 first = x.key + static_cast<i32>(own_keys()) + 16 * r;
    bool finite = true;
    if constexpr (backward_features.dk)
      finite = store_gradient<Format, features.dim_qk>(p.dk, p.dk_stride, x, first, dk[r], p.scale);
    if constexpr (backward_features.dv) {
      const float scale = features.dropout ? p.dropout.keep_scale : 1.0f;
      finite = store_gradient<Format, features.dim_v>(p.dv, p.dv_stride, x, first, dv[r], scale) && finite;
    }
    broken |= finite ? 0u : 1u << r;
  }
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const i32 first = x.key + static_cast<i32>(own_keys()) + 16 * r;
    if ((broken >> r & 1) != 0 && first < x.seq_k) mark_keys(p, x, first);
  }
}

}  // namespace onepass::sm80
