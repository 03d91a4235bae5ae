// After the backward kernel: dQ from its sums, which lie in the order of the accumulators. A warp converts sixteen rows
// by 32 columns at a time; quads exchange columns so that a lane writes eight neighbours at once.
#pragma once
#include "cuda/sm90/backward_epilogue.cuh"

namespace onepass::sm90 {

constexpr i32 kColumnGroups = kDqN / 8, kParts = (kColumnGroups + 3) / 4;

// x[k]: this lane's two columns of column group k; afterwards all eight columns of group lane % 4.
DEV void exchange_columns(u32 (&x)[4]) {
  const u32 t = threadIdx.x % 4;
  const u32 own[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
  for (u32 k = 0; k < 4; ++k) {
    const u32 with = t ^ k, give = with == 0 ? own[0] : with == 1 ? own[1] : with == 2 ? own[2] : own[3];
    const u32 got = k ? __shfl_xor_sync(0xffffffffu, give, static_cast<int>(k)) : give;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) x[i] = with == i ? got : x[i];
  }
}

// Where a row block's rows lie.
struct RowPlace {
  i32 head, batch, map_batch, m, q_begin, seq_q;
  static DEV RowPlace of(const BackwardParams& p, i32 block) {
    RowPlace x{};
    x.head = block / p.row_blocks;
    const i32 r = block - x.head * p.row_blocks;
    if constexpr (features.packed) {
      const auto first = [&](i32 b) { return p.cu_q[b] / static_cast<i32>(kBlockM) + b; };
      i32 lo = 0, hi = p.batch;  // the last sequence that begins at r or before
      while (hi - lo > 1) {
        const i32 middle = (lo + hi) / 2;
        (first(middle) <= r ? lo : hi) = middle;
      }
      x.batch = lo;
      x.m = r - first(lo);
      x.q_begin = p.cu_q[lo], x.seq_q = p.cu_q[lo + 1] - x.q_begin;
    } else {
      x.map_batch = x.batch = r / p.m_tiles;
      x.m = r - x.batch * p.m_tiles;
      x.seq_q = p.seq_q;
    }
    return x;
  }
};

struct SumsOfPart {
  float x[4][4];  // of a column group: rows g, g, g + 8, g + 8; columns 2 t and + 1
};
// Part `part` of a row block: warpgroup, warp, four column groups.
DEV void write_part(const BackwardParams& p, const RowPlace& at, i32 part, const SumsOfPart& sums) {
  using Raw = Gradient::Raw;
  const i32 lane = threadIdx.x % 32, warp = part / kParts, group = warp / 4, u = part % kParts * 4;
  const i32 row = at.m * static_cast<i32>(kBlockM) + (kByRows ? group * 64 : 0) + warp % 4 * 16 + lane / 4;
  const i32 column0 = (kByRows ? 0 : group * static_cast<i32>(kDqN)) + u * 8;
#pragma unroll
  for (i32 y = 0; y < 2; ++y) {
    const i32 r = row + 8 * y;
    Raw* const to = static_cast<Raw*>(p.dq) + at.map_batch * p.dq_stride[0] + at.head * p.dq_stride[1] +
                    static_cast<i64>(at.q_begin + r) * p.dq_stride[2];
    if constexpr (sizeof(Raw) == 4) {
#pragma unroll
      for (i32 k = 0; k < 4; ++k) {
        const i32 column = column0 + 8 * k + lane % 4 * 2;
        for (i32 e = 0; e < 2; ++e)
          if (r < at.seq_q && u + k < kColumnGroups && column + e < features.dim_qk)
            to[column + e] = sums.x[k][2 * y + e] * p.scale;
      }
    } else {
      u32 words[4];
#pragma unroll
      for (i32 k = 0; k < 4; ++k)
        words[k] = pack_gradient<Gradient>(sums.x[k][2 * y] * p.scale, sums.x[k][2 * y + 1] * p.scale);
      exchange_columns(words);
      const i32 column = column0 + 8 * (lane % 4);
      if (r >= at.seq_q || u + lane % 4 >= kColumnGroups) continue;
      if (features.dim_qk % 8 == 0) {
        if (column < features.dim_qk) store_global(to + column, words);
      } else {
#pragma unroll
        for (i32 e = 0; e < 8; ++e)
          if (column + e < features.dim_qk) to[column + e] = static_cast<Raw>(words[e / 2] >> e % 2 * 16);
      }
    }
  }
}

}  // namespace onepass::sm90

extern "C" __global__ void __launch_bounds__(256)
    attention_backward_dq(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  using namespace onepass::sm90;
  constexpr i32 kAtOnce = 4, kOfBlock = 8 * kParts;  // loads of several parts are under way together
  const i32 lane = threadIdx.x % 32;
  const i64 parts = static_cast<i64>(p.heads) * p.row_blocks * kOfBlock;
  for (i64 first = (blockIdx.x * 8ll + threadIdx.x / 32) * kAtOnce; first < parts; first += gridDim.x * 8ll * kAtOnce) {
    SumsOfPart sums[kAtOnce];
#pragma unroll
    for (i32 n = 0; n < kAtOnce; ++n) {
      const i64 part = first + n;
      const i32 of_block = static_cast<i32>(part % kOfBlock), u = of_block % kParts * 4;
      const float* const from = p.dq_sums + part / kOfBlock * kDqFloats +
                                ((of_block / kParts * kColumnGroups + u) * 32 + lane) * 4;
#pragma unroll
      for (i32 k = 0; k < 4; ++k)
        if (part < parts && u + k < kColumnGroups) load_global(sums[n].x[k], from + k * 128);
    }
#pragma unroll
    for (i32 n = 0; n < kAtOnce; ++n) {
      const i64 part = first + n;
      if (part < parts)
        write_part(p, RowPlace::of(p, static_cast<i32>(part / kOfBlock)), static_cast<i32>(part % kOfBlock), sums[n]);
    }
  }
}
