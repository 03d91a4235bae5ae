// y = x w^T + bias for few rows x: bound by reading w.
//
// w takes the 16-row side of mma.m16n8k16, rows of x the 8-column side, so that up to 8 rows of x cost what one does.
// A block goes through tiles of rows of w, each whole or a split of it along k; w and x come through one ring in shared
// memory that runs on from tile to tile, most of it always under way: some 150 KB of a multiprocessor.
//
// Splits leave partial sums; the last block of a group of tiles adds them up in order: the bits are the same every
// time.
#pragma once
#include "cuda/device/copy_async.cuh"
#include "cuda/device/formats.cuh"
#include "cuda/device/order.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/mma/mma.cuh"

#include "cuda/gemm/flat_gemm_params.hpp"

namespace onepass {

constexpr FlatGemmConfig kG = gemm_config;
using Input = ElementOf<kG.input>::Format;
using Output = ElementOf<kG.output>::Format;
constexpr i32 kTileN = kG.tile_n(), kRowsX = 8 * kG.tiles, kStep = kG.step(), kPieces = kStep / 8;  // of 16 bytes
constexpr i32 kWarpStep = kStep / kG.warps_k();
constexpr i32 kSums = kG.blocks * kG.tiles;  // of a warp, of 16 x 8 each

// Where piece `i` of a row of a stage lies: eight rows of one piece lie in different banks.
DEV u32 place(i32 row, i32 i) { return static_cast<u32>((row * kPieces + (i ^ row % 8)) * 16); }

// Row `tile` of w begins at: tiles have p.each rows or one more, so that blocks read the same number of bytes.
DEV i32 first_row(const FlatGemmParams& p, i32 tile) { return tile * p.each + min(tile, p.more); }

// A block's work, step by step: tiles block, block + blocks, ..; of each, in turn, its splits' steps.
struct Walk {
  i32 item, step, steps;
  i32 tile, split, first, end;  // of the item; the tile's rows
  DEV Walk(const FlatGemmParams& p) : item(static_cast<i32>(blockIdx.x)) { enter(p); }
  DEV bool over(const FlatGemmParams& p) const { return item >= p.tiles_n * p.splits; }
  DEV i32 k(const FlatGemmParams& p) const { return (split * p.split_steps + step) * kStep; }
  DEV void enter(const FlatGemmParams& p) {
    tile = item / p.splits, split = item % p.splits;
    first = first_row(p, tile), end = first_row(p, tile + 1);
    step = 0;
    steps = max(1, min(p.split_steps, ceil_div(p.k, kStep) - split * p.split_steps));
  }
  DEV void next(const FlatGemmParams& p) {
    if (++step < steps) return;
    item += static_cast<i32>(gridDim.x);
    enter(p);
  }
};

// Loads kCount rows of a matrix from row `first` on, kStep elements of each from k on, with zeros behind `end`. Rows
// from `rows` on are not loaded: their sums are not used.
template <i32 kCount>
DEV void fetch(const void* base, const long long (&stride)[2], i32 first, i32 rows, i32 k, i32 end, u32 to) {
  constexpr i32 kRowsAtOnce = kGemmThreads / kPieces, kTimes = ceil_div(kCount, kRowsAtOnce);
  const i32 row = static_cast<i32>(threadIdx.x) / kPieces, piece = static_cast<i32>(threadIdx.x) % kPieces;
  const i32 at = k + 8 * piece;
  const u16* from = static_cast<const u16*>(base) + (first + row) * stride[0] + at * stride[1];
#pragma unroll
  for (i32 j = 0; j < kTimes; ++j, from += kRowsAtOnce * stride[0]) {
    const i32 mine = row + j * kRowsAtOnce;
    const bool wanted = first + mine < rows && (kCount % kRowsAtOnce == 0 || mine < kCount);
    if constexpr (kG.vectors) {
      copy_async_if(wanted, to + place(mine, piece), reinterpret_cast<const char*>(from), at < end);
    } else if (wanted) {
      u32 word[4] = {};
#pragma unroll
      for (i32 e = 0; e < 8; ++e)
        if (at + e < end) word[e / 2] |= static_cast<u32>(from[e * stride[1]]) << e % 2 * 16;
      store_four(to + place(mine, piece), word[0], word[1], word[2], word[3]);
    }
  }
}
DEV void fetch_step(const FlatGemmParams& p, const Walk& at, u32 stage) {
  if (!at.over(p)) {
    fetch<kTileN>(p.w, p.w_stride, at.first, at.end, at.k(p), p.k, stage);
    fetch<kRowsX>(p.x, p.x_stride, 0, p.m, at.k(p), p.k, stage + kTileN * kStep * 2);
  }
  copies_commit();
}

// sum[block * tiles + tile] += a warp's first kBlocks blocks of 16 rows of w times x over its part of a stage.
template <i32 kBlocks>
DEV void multiply_blocks(float (&sum)[kSums][4], u32 stage) {
  const i32 lane = static_cast<i32>(threadIdx.x % 32), warp = static_cast<i32>(threadIdx.x / 32);
  const i32 row = 16 * kG.blocks * (warp % kG.warps_n) + lane % 16, from = warp / kG.warps_n * (kWarpStep / 8);
  const u32 x = stage + kTileN * kStep * 2;
#pragma unroll
  for (i32 s = 0; s < kWarpStep / 32; ++s) {
    u32 a[kBlocks][2][4];
#pragma unroll
    for (i32 block = 0; block < kBlocks; ++block) {
      ldmatrix4(a[block][0], stage + place(row + 16 * block, from + 4 * s + lane / 16));
      ldmatrix4(a[block][1], stage + place(row + 16 * block, from + 4 * s + 2 + lane / 16));
    }
#pragma unroll
    for (i32 t = 0; t < kG.tiles; ++t) {
      u32 b[4];
      ldmatrix4(b, x + place(8 * t + lane % 8, from + 4 * s + lane / 8));
#pragma unroll
      for (i32 block = 0; block < kBlocks; ++block) {
        mma_16816(Input{}, sum[block * kG.tiles + t], a[block][0], b[0], b[1]);
        mma_16816(Input{}, sum[block * kG.tiles + t], a[block][1], b[2], b[3]);
      }
    }
  }
}
// Skips shared-memory reads for rows that this warp does not own.
DEV void multiply(float (&sum)[kSums][4], u32 stage, i32 rows) {
  const i32 mine = rows - 16 * kG.blocks * (static_cast<i32>(threadIdx.x / 32) % kG.warps_n);
  if (mine > 16 * (kG.blocks - 1))
    multiply_blocks<kG.blocks>(sum, stage);
  else if (kG.blocks > 1 && mine > 0)
    multiply_blocks<1>(sum, stage);
}

DEV void write_y(const FlatGemmParams& p, i32 m, i32 tile, i32 column, float sum) {
  const i32 n = first_row(p, tile) + column;
  if (m >= p.m || n >= first_row(p, tile + 1)) return;
  if (kG.bias) sum += Input::unpack(static_cast<const u16*>(p.bias)[n * p.bias_stride]);
  static_cast<Output::Raw*>(p.y)[m * p.y_stride[0] + n * p.y_stride[1]] = Output::round(sum);
}

// f(m, column of the tile, sum) of a lane's numbers.
template <class F>
DEV void each_sum(const float (&sum)[kSums][4], const F& f) {
  const i32 lane = static_cast<i32>(threadIdx.x % 32), warp = static_cast<i32>(threadIdx.x / 32) % kG.warps_n;
#pragma unroll
  for (i32 b = 0; b < kSums; ++b)
#pragma unroll
    for (i32 i = 0; i < 4; ++i)
      f(b % kG.tiles * 8 + 2 * (lane % 4) + i % 2, 16 * (kG.blocks * warp + b / kG.tiles) + lane / 4 + i / 2 * 8,
        sum[b][i]);
}

// The sums of the warps that share k meet in shared memory, one word of all lanes behind the other; the first warps
// have the whole afterwards.
DEV void join(float (&sum)[kSums][4], u32 meeting) {
  if (kG.warps_k() == 1) return;
  const i32 part = static_cast<i32>(threadIdx.x) / (32 * kG.warps_n);
  const u32 word = 32 * kG.warps_n * 4, mine = meeting + threadIdx.x % (32 * kG.warps_n) * 4;
#pragma unroll
  for (i32 i = 0; i < 4 * kSums; ++i)
    if (part > 0)
      store_word(mine + static_cast<u32>((part - 1) * 4 * kSums + i) * word, __float_as_int(sum[i / 4][i % 4]));
  __syncthreads();
  if (part > 0) return;
#pragma unroll
  for (i32 other = 0; other < kG.warps_k() - 1; ++other)
#pragma unroll
    for (i32 i = 0; i < 4 * kSums; ++i)
      sum[i / 4][i % 4] += load_one(mine + static_cast<u32>(other * 4 * kSums + i) * word);
}

// Adds up what the splits of a group of tiles have left; by the block that came last.
DEV void unite(const FlatGemmParams& p, i32 group) {
  const i32 first = group * p.group, last = min(first + p.group, p.tiles_n), each = p.m * kTileN;
  const i64 split = static_cast<i64>(p.tiles_n) * each;
  for (i32 i = first * each + static_cast<i32>(threadIdx.x); i < last * each; i += kGemmThreads) {
    float sum = 0.0f;
    for (i32 s = 0; s < p.splits; ++s) sum += p.partials[s * split + i];
    write_y(p, i % each / kTileN, i / each, i % kTileN, sum);
  }
}

// Writes y, or a partial sum; the group's last CTA adds up the partial sums.
DEV void finish(const FlatGemmParams& p, const Walk& at, float (&sum)[kSums][4], u32 meeting) {
  join(sum, meeting);
  const bool holds = static_cast<i32>(threadIdx.x) < 32 * kG.warps_n;
  const i32 tile = at.tile;
  if (p.splits == 1) {
    if (holds) each_sum(sum, [&](i32 m, i32 n, float value) { write_y(p, m, tile, n, value); });
    return;
  }
  if (holds) {
    float* const to = p.partials + (static_cast<i64>(at.split) * p.tiles_n + tile) * p.m * kTileN;
    each_sum(sum, [&](i32 m, i32 n, float value) {
      if (m < p.m) to[m * kTileN + n] = value;
    });
    memory_fence();
  }
  __syncthreads();
  const i32 group = tile / p.group, tiles = min(p.group, p.tiles_n - group * p.group);
  i32 last = 0;
  if (threadIdx.x == 0) last = atomicAdd(p.counters + group, 1u) == static_cast<u32>(tiles * p.splits) - 1;
  if (!__syncthreads_or(last)) return;
  memory_fence();
  unite(p, group);
  if (threadIdx.x == 0) p.counters[group] = 0;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kGemmThreads, 1)
    flat_gemm(const __grid_constant__ onepass::FlatGemmParams p) {
  using namespace onepass;
  extern __shared__ __align__(128) unsigned char smem[];
  constexpr i32 kStages = kG.stages, kBytes = kG.stage_bytes();
  const u32 ring = shared_address(smem), meeting = ring + kStages * kBytes;
  let_next_kernel_start();
  wait_for_kernel_before();
  Walk ahead(p), now(p);
  for (i32 s = 0; s < kStages - 1; ++s) {
    fetch_step(p, ahead, ring + static_cast<u32>(s * kBytes));
    if (!ahead.over(p)) ahead.next(p);
  }
  i32 slot = 0, free = kStages - 1;
  float sum[kSums][4] = {};
  while (!now.over(p)) {
    copies_wait<kStages - 2>();
    __syncthreads();  // the step's numbers are there, and all are done with the one before it
    fetch_step(p, ahead, ring + static_cast<u32>(free * kBytes));
    if (!ahead.over(p)) ahead.next(p);
    multiply(sum, ring + static_cast<u32>(slot * kBytes), now.end - now.first);
    free = slot;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    if (now.step + 1 == now.steps) {
      finish(p, now, sum, meeting);
#pragma unroll
      for (i32 i = 0; i < 4 * kSums; ++i) sum[i / 4][i % 4] = 0.0f;
    }
    now.next(p);
  }
}
