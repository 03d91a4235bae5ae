// y = x w^T + bias for few rows x: bound by reading w.
//
// w takes the 16-row side of mma.m16n8k16, rows of x the 8-column side, so that up to 8 rows of x cost what one does.
// A block goes through tiles of rows of w, each whole or a split of it along k; w and x come through one ring in shared
// memory that runs on from tile to tile, most of it always under way: some 150 KB of a multiprocessor.
//
// Splits leave partial sums; the last block of a group of tiles adds them up in order: the bits are the same every
// time.
#pragma once
#include "cuda/attention/formats.cuh"
#include "cuda/device/copy_async.cuh"
#include "cuda/device/dependent.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"

#include "cuda/gemm/flat_gemm_params.hpp"

namespace onepass {

constexpr FlatGemmConfig kG = gemm_config;
using Input = ElementOf<kG.input>::Format;
using Output = ElementOf<kG.output>::Format;
constexpr i32 kTileN = kG.tile_n(), kRowsX = 8 * kG.tiles, kStep = kG.step(), kPieces = kStep / 8;  // of 16 bytes
constexpr i32 kWarpStep = kStep / kG.warps_k();

// Where piece `i` of a row of a stage lies: eight rows of one piece lie in different banks.
DEV u32 place(i32 row, i32 i) { return static_cast<u32>((row * kPieces + (i ^ row % 8)) * 16); }

// A block's work, step by step: tiles block, block + blocks, ..; of each, in turn, its splits' steps.
struct Walk {
  i32 item, step, steps;
  DEV Walk(const FlatGemmParams& p) : item(static_cast<i32>(blockIdx.x)) { enter(p); }
  DEV bool over(const FlatGemmParams& p) const { return item >= p.tiles_n * p.splits; }
  DEV i32 tile(const FlatGemmParams& p) const { return item / p.splits; }
  DEV i32 split(const FlatGemmParams& p) const { return item % p.splits; }
  DEV i32 k(const FlatGemmParams& p) const { return (split(p) * p.split_steps + step) * kStep; }
  DEV void enter(const FlatGemmParams& p) {
    step = 0;
    steps = max(1, min(p.split_steps, (p.k + kStep - 1) / kStep - split(p) * p.split_steps));
  }
  DEV void next(const FlatGemmParams& p) {
    if (++step < steps) return;
    item += static_cast<i32>(gridDim.x);
    enter(p);
  }
};

// `count` rows of a matrix from row `first` on, kStep numbers of each from k on; what is not there as zeros.
template <i32 kCount>
DEV void fetch(const void* base, const long long (&stride)[2], i32 first, i32 rows, i32 k, i32 end, u32 to) {
#pragma unroll
  for (i32 j = 0; j < (kCount * kPieces + kGemmThreads - 1) / kGemmThreads; ++j) {
    const i32 i = static_cast<i32>(threadIdx.x) + j * kGemmThreads;
    if (kCount * kPieces % kGemmThreads != 0 && i >= kCount * kPieces) break;
    const i32 row = i / kPieces, at = k + 8 * (i % kPieces);
    const auto* const from = static_cast<const u16*>(base) + (first + row) * stride[0];
    if constexpr (kG.vectors) {
      copy_async<16>(to + place(row, i % kPieces), reinterpret_cast<const char*>(from + at),
                     first + row < rows && at < end);
    } else {
      u32 word[4] = {};
#pragma unroll
      for (i32 e = 0; e < 8; ++e)
        if (first + row < rows && at + e < end)
          word[e / 2] |= static_cast<u32>(from[(at + e) * stride[1]]) << e % 2 * 16;
      store_four(to + place(row, i % kPieces), word[0], word[1], word[2], word[3]);
    }
  }
}
DEV void fetch_step(const FlatGemmParams& p, const Walk& at, u32 stage) {
  if (!at.over(p)) {
    fetch<kTileN>(p.w, p.w_stride, at.tile(p) * kTileN, p.n, at.k(p), p.k, stage);
    fetch<kRowsX>(p.x, p.x_stride, 0, p.m, at.k(p), p.k, stage + kTileN * kStep * 2);
  }
  copies_commit();
}

// sum[tile] += a warp's 16 rows of w times x over its part of a stage.
DEV void multiply(float (&sum)[kG.tiles][4], u32 stage) {
  const i32 lane = static_cast<i32>(threadIdx.x % 32), warp = static_cast<i32>(threadIdx.x / 32);
  const i32 row = 16 * (warp % kG.warps_n) + lane % 16, from = warp / kG.warps_n * (kWarpStep / 8);
  const u32 x = stage + kTileN * kStep * 2;
#pragma unroll
  for (i32 s = 0; s < kWarpStep / 32; ++s) {
    u32 a[2][4];
    ldmatrix4(a[0], stage + place(row, from + 4 * s + lane / 16));
    ldmatrix4(a[1], stage + place(row, from + 4 * s + 2 + lane / 16));
#pragma unroll
    for (i32 t = 0; t < kG.tiles; ++t) {
      u32 b[4];
      ldmatrix4(b, x + place(8 * t + lane % 8, from + 4 * s + lane / 8));
      mma_16816(Input{}, sum[t], a[0], b[0], b[1]);
      mma_16816(Input{}, sum[t], a[1], b[2], b[3]);
    }
  }
}

DEV void write_y(const FlatGemmParams& p, i32 m, i32 n, float sum) {
  if (kG.bias && n < p.n) sum += Input::unpack(static_cast<const u16*>(p.bias)[n * p.bias_stride]);
  if (m < p.m && n < p.n) static_cast<Output::Raw*>(p.y)[m * p.y_stride[0] + n * p.y_stride[1]] = Output::round(sum);
}

// f(m, column of the tile, sum) of a lane's numbers.
template <class F>
DEV void each_sum(const float (&sum)[kG.tiles][4], const F& f) {
  const i32 lane = static_cast<i32>(threadIdx.x % 32), warp = static_cast<i32>(threadIdx.x / 32) % kG.warps_n;
#pragma unroll
  for (i32 t = 0; t < kG.tiles; ++t)
#pragma unroll
    for (i32 i = 0; i < 4; ++i) f(8 * t + 2 * (lane % 4) + i % 2, 16 * warp + lane / 4 + i / 2 * 8, sum[t][i]);
}

// The sums of the warps that share k meet in shared memory, one word of all lanes behind the other; the first warps
// have the whole afterwards.
DEV void join(float (&sum)[kG.tiles][4], u32 meeting) {
  if (kG.warps_k() == 1) return;
  const i32 part = static_cast<i32>(threadIdx.x) / (32 * kG.warps_n);
  const u32 word = 32 * kG.warps_n * 4, mine = meeting + threadIdx.x % (32 * kG.warps_n) * 4;
#pragma unroll
  for (i32 i = 0; i < 4 * kG.tiles; ++i)
    if (part > 0)
      store_word(mine + static_cast<u32>((part - 1) * 4 * kG.tiles + i) * word, __float_as_int(sum[i / 4][i % 4]));
  __syncthreads();
  if (part > 0) return;
#pragma unroll
  for (i32 other = 0; other < kG.warps_k() - 1; ++other)
#pragma unroll
    for (i32 i = 0; i < 4 * kG.tiles; ++i)
      sum[i / 4][i % 4] += load_one(mine + static_cast<u32>(other * 4 * kG.tiles + i) * word);
}

// Adds up what the splits of a group of tiles have left; by the block that came last.
DEV void unite(const FlatGemmParams& p, i32 group) {
  const i32 first = group * p.group, last = min(first + p.group, p.tiles_n), each = p.m * kTileN;
  const i64 split = static_cast<i64>(p.tiles_n) * each;
  for (i32 i = first * each + static_cast<i32>(threadIdx.x); i < last * each; i += kGemmThreads) {
    float sum = 0.0f;
    for (i32 s = 0; s < p.splits; ++s) sum += p.partials[s * split + i];
    write_y(p, i % each / kTileN, i / each * kTileN + i % kTileN, sum);
  }
}

// What a tile's split has come to: y, or a partial sum and, of the group's last block, what all have come to.
DEV void finish(const FlatGemmParams& p, const Walk& at, float (&sum)[kG.tiles][4], u32 meeting) {
  join(sum, meeting);
  const bool holds = static_cast<i32>(threadIdx.x) < 32 * kG.warps_n;
  const i32 tile = at.tile(p);
  if (p.splits == 1) {
    if (holds) each_sum(sum, [&](i32 m, i32 n, float value) { write_y(p, m, tile * kTileN + n, value); });
    return;
  }
  if (holds) {
    float* const to = p.partials + (static_cast<i64>(at.split(p)) * p.tiles_n + tile) * p.m * kTileN;
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
  float sum[kG.tiles][4] = {};
  while (!now.over(p)) {
    copies_wait<kStages - 2>();
    __syncthreads();  // the step's numbers are there, and all are done with the one before it
    fetch_step(p, ahead, ring + static_cast<u32>(free * kBytes));
    if (!ahead.over(p)) ahead.next(p);
    multiply(sum, ring + static_cast<u32>(slot * kBytes));
    free = slot;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    if (now.step + 1 == now.steps) {
      finish(p, now, sum, meeting);
#pragma unroll
      for (i32 i = 0; i < 4 * kG.tiles; ++i) sum[i / 4][i % 4] = 0.0f;
    }
    now.next(p);
  }
}
