// After the backward kernel: dQ from its sums, which lie in the order of the accumulators. A warp converts sixteen rows
// by 32 columns at a time; quads exchange columns so that a lane writes eight neighbours at once.
#pragma once
#include "cuda/sm90/backward_epilogue.cuh"

namespace onepass::sm90 {

// Column groups of eight of each warpgroup's share, and parts of four of them.
template <u32 group>
constexpr i32 kColumnGroups = kDqN<group> / 8;
template <u32 group>
constexpr i32 kParts = (kColumnGroups<group> + 3) / 4;
constexpr i32 kPartsOfBlock = 4 * (kParts<0> + kParts<1>);

struct Part {
  i32 group, warp, u, groups;  // warpgroup, its warp, the first column group of how many
  static DEV Part of(i32 n) {  // warps of the first warpgroup first
    Part x;
    x.group = n >= 4 * kParts<0>;
    const i32 parts = x.group ? kParts<1> : kParts<0>, in = n - (x.group ? 4 * kParts<0> : 0);
    x.warp = in / parts;
    x.u = in % parts * 4;
    x.groups = x.group ? kColumnGroups<1> : kColumnGroups<0>;
    return x;
  }
  DEV i32 first_float() const {  // of the block's sums
    return group * (64 * static_cast<i32>(kDqN<0>)) + (warp * groups + u) * 128;
  }
};

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

struct SumsOfPart {
  float x[4][4];  // of a column group: rows g, g, g + 8, g + 8; columns 2 t and + 1
};
DEV void write_part(const BackwardParams& p, const WorkTile& at, const Part& part, const SumsOfPart& sums) {
  using Raw = Gradient::Raw;
  const i32 lane = threadIdx.x % 32, left = part.groups - part.u;
  const i32 row = at.row + (kByRows ? part.group * 64 : 0) + part.warp * 16 + lane / 4;
  const i32 column0 = (kByRows ? 0 : part.group * static_cast<i32>(kDqN<0>)) + part.u * 8;
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
          if (r < at.seq_q && k < left && column + e < features.dim_qk)
            to[column + e] = sums.x[k][2 * y + e] * p.scale;
      }
    } else {
      u32 words[4];
#pragma unroll
      for (i32 k = 0; k < 4; ++k)
        words[k] = pack_gradient<Gradient>(sums.x[k][2 * y] * p.scale, sums.x[k][2 * y + 1] * p.scale);
      exchange_columns(words);
      const i32 column = column0 + 8 * (lane % 4);
      if (r >= at.seq_q || lane % 4 >= left) continue;
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
  constexpr i32 kAtOnce = 4;  // loads of several parts are under way together
  const i32 lane = threadIdx.x % 32;
  const i64 parts = static_cast<i64>(p.heads) * p.q_blocks * kPartsOfBlock;
  for (i64 first = (blockIdx.x * 8ll + threadIdx.x / 32) * kAtOnce; first < parts; first += gridDim.x * 8ll * kAtOnce) {
    SumsOfPart sums[kAtOnce];
#pragma unroll
    for (i32 n = 0; n < kAtOnce; ++n) {
      const Part part = Part::of(static_cast<i32>((first + n) % kPartsOfBlock));
      const float* const from = dq_sums_of(p, (first + n) / kPartsOfBlock) + part.first_float() + lane * 4;
#pragma unroll
      for (i32 k = 0; k < 4; ++k)
        if (first + n < parts && part.u + k < part.groups) load_global(sums[n].x[k], from + k * 128);
    }
#pragma unroll
    for (i32 n = 0; n < kAtOnce; ++n) {
      if (first + n >= parts) break;
      const i32 block = static_cast<i32>((first + n) / kPartsOfBlock);
      const WorkTile at = rows_of_block(p, block / p.q_blocks, block % p.q_blocks);
      if (at.row >= 0) write_part(p, at, Part::of(static_cast<i32>((first + n) % kPartsOfBlock)), sums[n]);
    }
  }
}
