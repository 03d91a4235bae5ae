// Behind a backward pass: dQ from its fp32 sums, and what is not finite in dQ, dK and dV once more. A warp converts
// sixteen rows of a head in registers; lanes of a quad swap columns, so that each writes eight neighbours at once.
//
// The family says in front of this file where sums stand: i32 sum_tile(i32 row, i32 n), the first of the 128 numbers of
// rows `row` to `row` + 15 of a block and columns 8 n to 8 n + 7, which lie as lane_sum says.
#pragma once
#include "cuda/attention/backward/dq_sums.cuh"
#include "cuda/attention/backward/repair_keys.cuh"
#include "cuda/attention/backward/repair_queries.cuh"
#include "cuda/device/order.cuh"
#include "cuda/device/shared.cuh"

namespace onepass {

constexpr i32 kPostThreads = 256;
static_assert(kBlockQ % 16 == 0);

// Tiles of sixteen rows x eight columns side by side, and how many a warp loads at once: up to 8 KB.
constexpr i32 kTilesAcross = ceil_div(features.dim_qk, 8),
              kTilesAtOnce = kTilesAcross > 12 ? 16 : round_up(kTilesAcross, 4);
// CTAs of a multiprocessor: registers of the conversion alone.
constexpr bool kNarrowSums =
    kTilesAtOnce <= 12 || (kTilesAcross <= 16 && backward_features.gradients == ScalarType::f32);
constexpr i32 kPostCtas = kTilesAtOnce <= 8 ? 4 : kNarrowSums ? 3 : 2;

// This lane's numbers of a tile: rows lane / 4 and + 8, columns 2 (lane % 4) and + 1.
struct SumsOfTile {
  float x[4];
  DEV void load(const float* tile) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    if constexpr (kAddsFour) {
      load_global(x, tile + lane_sum(lane, 0));
    } else {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) x[i] = tile[lane_sum(lane, i)];
    }
  }
};

// Transposes words within a quad: word i of lane `own` becomes word `own` of lane i.
DEV void transpose_quad(u32 (&w)[4], u32 own) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = own & static_cast<u32>(step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const u32 got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + step], step);
      w[i] = upper ? got : w[i];
      w[i + step] = upper ? w[i + step] : got;
    }
  }
}

// Eight columns of a row from `column` on, if they exist.
template <class Format>
DEV void write_eight(typename Format::Raw* row, i32 column, const u32 (&words)[4]) {
  if constexpr (backward_shape.write_bytes == 16 && features.dim_qk % 8 == 0) {
    if (column < features.dim_qk) store_global(row + column, words);
  } else {
#pragma unroll
    for (i32 e = 0; e < 8; ++e)
      if (column + e < features.dim_qk) row[column + e] = static_cast<typename Format::Raw>(words[e / 2] >> e % 2 * 16);
  }
}
// Two columns of a row of fp32.
DEV void write_two(float* row, i32 column, float a, float b) {
  if constexpr (backward_shape.write_bytes >= 8 && features.dim_qk % 2 == 0) {
    if (column < features.dim_qk)
      *reinterpret_cast<Bytes<8>*>(row + column) = {{__float_as_uint(a), __float_as_uint(b)}};
  } else {
    if (column < features.dim_qk) row[column] = a;
    if (column + 1 < features.dim_qk) row[column + 1] = b;
  }
}

// Half `y` of four tiles side by side, from column 8 n on: a row for each quad.
template <class Format>
DEV void write_four(typename Format::Raw* row, bool exists, i32 n, const SumsOfTile* tiles, i32 y, float scale) {
  const u32 quad = threadIdx.x % 4;
  if constexpr (Format::kPacked == 2) {
    u32 words[4];
#pragma unroll
    for (i32 k = 0; k < 4; ++k) words[k] = Format::pack(tiles[k].x[2 * y] * scale, tiles[k].x[2 * y + 1] * scale);
    transpose_quad(words, quad);
    if (exists) write_eight<Format>(row, 8 * (n + static_cast<i32>(quad)), words);
  } else {
#pragma unroll
    for (i32 k = 0; k < 4; ++k)
      if (exists)
        write_two(row, 8 * (n + k) + 2 * static_cast<i32>(quad), tiles[k].x[2 * y] * scale,
                  tiles[k].x[2 * y + 1] * scale);
  }
}

// Rows `first` to `first` + 15 of block x. broken: of each half of them, bits of the lanes that had a number that is
// not finite.
DEV void convert_rows(const BackwardParams& p, const WorkTile& x, const float* sums, i32 first, u32 (&broken)[2]) {
  using Format = typename ElementOf<backward_features.gradients>::Format;
  const i32 row = x.row + first + static_cast<i32>(threadIdx.x % 32 / 4);
  float probe[2] = {0.0f, 0.0f};
#pragma unroll 1
  for (i32 n = 0; n < kTilesAcross; n += kTilesAtOnce) {
    SumsOfTile tiles[kTilesAtOnce];
#pragma unroll
    for (i32 k = 0; k < kTilesAtOnce; ++k)
      if (n + k < kTilesAcross) tiles[k].load(sums + sum_tile(first, n + k));
#pragma unroll
    for (i32 y = 0; y < 2; ++y) {
      typename Format::Raw* const to = static_cast<typename Format::Raw*>(p.dq) +
                                       token_offset(p.dq_stride, x.map_batch, x.head, x.q_begin + row + 8 * y);
#pragma unroll
      for (i32 k = 0; k < kTilesAtOnce; k += 4) {
        if (n + k >= kTilesAcross) break;
        write_four<Format>(to, row + 8 * y < x.seq_q, n + k, tiles + k, y, p.scale);
      }
#pragma unroll
      for (i32 k = 0; k < kTilesAtOnce; ++k)
        if (n + k < kTilesAcross)
          probe[y] = probe_finite(probe_finite(probe[y], tiles[k].x[2 * y] * p.scale), tiles[k].x[2 * y + 1] * p.scale);
    }
  }
#pragma unroll
  for (i32 y = 0; y < 2; ++y) broken[y] = __ballot_sync(0xffffffffu, row + 8 * y < x.seq_q && probe[y] != 0.0f);
}

// The sixteen rows of a warp: from `first` on of a head's block.
struct WarpRows {
  i32 place, head, block, first;
  static DEV WarpRows of(const BackwardParams& p) {
    constexpr u32 kParts = kBlockQ / 16;
    const u32 part = blockIdx.x * (kPostThreads / 32) + threadIdx.x / 32, place = part / kParts,
              head = place / static_cast<u32>(p.q_blocks);
    return {static_cast<i32>(place), static_cast<i32>(head),
            static_cast<i32>(place) - static_cast<i32>(head) * p.q_blocks, static_cast<i32>(part % kParts) * 16};
  }
};

// A bit for each of sixteen rows of dQ that may be not finite as they stand: a row has pairs and dS of each is not
// finite, or no hidden pair has a part in it.
DEV u32 rows_as_meant(const BackwardParams& p, const WorkTile& x, i32 first) {
  const i32 row = first + static_cast<i32>(threadIdx.x % 16);
  const RowStatistics of = statistics_at(p, x, min(row, x.seq_q - 1));  // a row of each lane at once
  u32 lost = __ballot_sync(0xffffffffu, row < x.seq_q && (of.reference != of.reference || !is_finite(of.d))) & 0xffffu;
  u32 meant = backward_shape.careful && p.notes->found == kTookCare ? ~lost : 0u;
#pragma unroll 1
  for (i32 i = 0; lost != 0; ++i, lost >>= 1)
    if ((lost & 1) != 0 && sees_key(p, x, first + i)) meant |= 1u << i;
  return meant;
}

// The rows of dQ that are not finite once more, but for those that are meant to be so. broken: as convert_rows says.
DEV void repair_rows(const BackwardParams& p, u32 broken_above, u32 broken_below) {
  const WarpRows own = WarpRows::of(p);
  const WorkTile x = rows_of_block(p, own.head, own.block);
  const i32 first = x.row + own.first, lane = static_cast<i32>(threadIdx.x % 32);
  const u32 right = rows_as_meant(p, x, first);
  u32 rows = 0;
#pragma unroll 1
  for (i32 row = 0; row < 16; ++row) {
    if (((row < 8 ? broken_above : broken_below) >> row % 8 * 4 & 0xf) == 0 || (right >> row & 1) != 0) continue;
    if constexpr (fallback::kRepairs)
      rows |= row % 8 == lane / 4 ? 0xffffu << row / 8 * 16 : 0u;
    else
      fallback_query(p, x, first + row);
  }
  if constexpr (fallback::kRepairs)
    if (__any_sync(fallback::kAll, rows != 0)) fallback::QueryRepair{p, x, first, lane}.run(rows);
}

DEV bool has_broken_keys(const BackwardParams& p) {
  return kKeyParts > 0 && p.broken_keys[0] == static_cast<u32>(p.call);
}

// Rows that are not finite once more. A function that is called: the conversion would lose CTAs to its registers.
__device__ __noinline__ void repair(const BackwardParams& p, u32 broken_above, u32 broken_below, u32 memory) {
  if constexpr (backward_features.dq) {
    __syncwarp();  // what these lanes have stored stands before what others store again
    if ((broken_above | broken_below) != 0) repair_rows(p, broken_above, broken_below);
  }
  if constexpr (kKeyParts > 0)
    if (has_broken_keys(p)) repair_marked_keys<kKeyParts, kPostThreads / 32>(p, memory);
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kPostThreads, onepass::kPostCtas)
    attention_backward_post(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  extern __shared__ __align__(128) unsigned char smem[];
  wait_for_kernel_before();
  const bool keys = has_broken_keys(p);  // read ahead of the conversion
  u32 broken[2] = {0, 0};
  if constexpr (backward_features.dq) {
    const WarpRows own = WarpRows::of(p);
    const WorkTile x = own.head < p.heads ? rows_of_block(p, own.head, own.block) : WorkTile{.row = -1};
    if (x.row >= 0 && x.row + own.first < x.seq_q) convert_rows(p, x, dq_sums_of(p, own.place), own.first, broken);
  }
  if (keys || (broken[0] | broken[1]) != 0) repair(p, broken[0], broken[1], shared_address(smem));
}
