// The choice of a backward's kernel. A product multiplies a hidden pair's 0 with whatever the tensors hold, so a NaN or
// an infinity leaks. The fast kernel computes each row of a gradient that is not finite again, pair by pair. A careful
// one keeps hidden pairs out of its products, at some percent of the time. The pre kernel, which reads dO and the LSEs
// anyway, chooses: it needs no certainty, since either kernel is right.
#pragma once
#include "algebra/nonfinite.hpp"
#include "cuda/attention/backward/tile.cuh"
#include "cuda/device/math.cuh"

namespace onepass {

// Some elements of a row, read at once.
template <ScalarType type, i32 bytes>
struct RowPart {
  static constexpr i32 kElement = bytes_of(type), kCount = bytes / kElement;
  u32 word[ceil_div(bytes, 4)];
  DEV void load(const void* base, i64 at) {
    const char* const from = static_cast<const char*>(base) + at * kElement;
    if constexpr (bytes >= 4) {
      const auto x = *reinterpret_cast<const Bytes<bytes>*>(from);
#pragma unroll
      for (i32 i = 0; i < bytes / 4; ++i) word[i] = x.word[i];
    } else {
      word[0] = *reinterpret_cast<const u16*>(from);
    }
  }
  DEV float operator[](i32 i) const {
    if constexpr (kElement == 4) return __uint_as_float(word[i]);
    using Format = typename ElementOf<type>::Format;
    return Format::unpack(static_cast<typename Format::Raw>(word[i / 2] >> i % 2 * 16));
  }
};

// The findings of a lane of the pre kernel.
struct NeedOfCare {
  // Elements of dO beyond the one may overflow dP; weights of rounded LSEs up to the other are at most 1.1.
  static constexpr float kHugeDout = 1e30f, kHugeLse = 1e6f;
  float largest = 0.0f;  // NaN if any is
  bool found = false;

  DEV void add(float x) {
    if constexpr (backward_shape.careful) largest = max_or_nan(largest, fabsf(x));
  }
  // A query that is not finite has an LSE that is NaN or infinite, or its sink's. Behind a softcap or a score_mod its
  // scores may be finite, and it is not found here.
  template <i32 lanes>
  DEV void add_query(const BackwardParams& p, const WorkTile& x, i32 row, u32 lane, float lse) {
    if constexpr (backward_shape.careful) {
      found = found || !(lse <= kHugeLse);
      bool look = lse == kNegInf;
      if constexpr (forward_features.sinks) look = look || lse <= p.sinks[x.head * p.sink_stride];
      if (look) found = found || finds_in_query<lanes>(p, x, row, lane);
    }
  }
  // By all threads of the block.
  DEV void tell(const BackwardParams& p) const {
    if constexpr (backward_shape.careful) {
      const bool any = __syncthreads_or(found || !(largest <= kHugeDout));
      if (threadIdx.x != 0) return;
      if (blockIdx.x == 0) p.notes->found = 0;
      if (any) p.notes->careful_call = p.call;
    }
  }

 private:
  // By the lanes of a row, of which each looks at some elements.
  template <i32 lanes>
  static DEV bool finds_in_query(const BackwardParams& p, const WorkTile& x, i32 row, u32 lane) {
    const i64 at =
        x.map_batch * p.q_stride[0] + x.head * p.q_stride[1] + static_cast<i64>(x.q_begin + row) * p.q_stride[2];
    float sum = 0.0f;
#pragma unroll 1
    for (i32 d = static_cast<i32>(lane); d < features.dim_qk; d += lanes)
      sum = probe_finite(sum, element_at<features.input>(p.q, at + d));
    return sum != 0.0f;
  }
};

}  // namespace onepass
