// y = x w^T + bias for few rows x: bound by reading w.
//
// w takes the 16-row side of mma.m16n8k16, rows of x the 8-column side, so that up to 8 rows of x cost what one does.
// A block goes through tiles of rows of w, each whole or a split of it along k; w and x come through one ring in shared
// memory that runs on from tile to tile, most of it always under way: some 150 KB of a multiprocessor.
//
// Tiles that make whole rounds of all blocks are taken whole. What is left would leave blocks without work: all blocks
// share its steps along k equally, and a tile's parts leave sums, which the last of them adds up in order: the bits are
// the same every time.
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

// A block's work, step by step: tiles block, block + blocks, .. of the whole ones, then its part of the steps of the
// shared ones.
struct Walk {
  i32 tile, step, end;  // steps of the tile up to `end`
  i32 begin, part, part_end;
  DEV Walk(const FlatGemmParams& p) {
    const i64 all = static_cast<i64>(p.shared) * p.steps, block = blockIdx.x, blocks = gridDim.x;
    part = static_cast<i32>(all * block / blocks);
    part_end = static_cast<i32>(all * (block + 1) / blocks);
    tile = static_cast<i32>(blockIdx.x) - static_cast<i32>(gridDim.x);
    enter(p);
  }
  DEV bool over() const { return begin == end; }
  DEV bool is_whole(const FlatGemmParams& p) const { return begin == 0 && end == p.steps; }
  DEV void enter(const FlatGemmParams& p) {
    begin = step = 0, end = p.steps;
    if (tile < p.whole && (tile += static_cast<i32>(gridDim.x)) < p.whole) return;
    const i32 in_shared = part / p.steps;
    tile = p.whole + in_shared;
    begin = step = part - in_shared * p.steps;
    end = min(p.steps, step + part_end - part);
    part += end - begin;
  }
  DEV void next(const FlatGemmParams& p) {
    if (++step == end) enter(p);
  }
};
// The block whose part has a step of the shared tiles.
DEV i32 owner(const FlatGemmParams& p, i32 at) {
  const i64 all = static_cast<i64>(p.shared) * p.steps;
  return static_cast<i32>(((at + i64{1}) * gridDim.x - 1) / all);
}
// Where a block leaves its sums of a shared tile.
DEV float* partial_of(const FlatGemmParams& p, i32 block, i32 shared_tile) {
  const i64 all = static_cast<i64>(p.shared) * p.steps;
  const i32 first = static_cast<i32>(all * block / gridDim.x) / p.steps;
  return p.partials + (2 * static_cast<i64>(block) + (shared_tile != first)) * p.m * kTileN;
}

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
  if (!at.over()) {
    fetch<kTileN>(p.w, p.w_stride, at.tile * kTileN, p.n, at.step * kStep, p.k, stage);
    fetch<kRowsX>(p.x, p.x_stride, 0, p.m, at.step * kStep, p.k, stage + kTileN * kStep * 2);
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

// What a tile has come to: y, or a part of a shared tile's sums and, of the last of these, what all have come to.
DEV void finish(const FlatGemmParams& p, const Walk& at, float (&sum)[kG.tiles][4], u32 meeting) {
  join(sum, meeting);
  const bool holds = static_cast<i32>(threadIdx.x) < 32 * kG.warps_n;
  if (at.is_whole(p)) {
    if (holds) each_sum(sum, [&](i32 m, i32 n, float value) { write_y(p, m, at.tile * kTileN + n, value); });
    return;
  }
  const i32 shared = at.tile - p.whole;
  if (holds) {
    float* const to = partial_of(p, static_cast<i32>(blockIdx.x), shared);
    each_sum(sum, [&](i32 m, i32 n, float value) {
      if (m < p.m) to[m * kTileN + n] = value;
    });
    memory_fence();
  }
  __syncthreads();
  const i32 first = owner(p, shared * p.steps), last = owner(p, shared * p.steps + p.steps - 1);
  i32 is_last = 0;
  if (threadIdx.x == 0) is_last = atomicAdd(p.counters + shared, 1u) == static_cast<u32>(last - first);
  if (!__syncthreads_or(is_last)) return;
  memory_fence();
  for (i32 i = static_cast<i32>(threadIdx.x); i < p.m * kTileN; i += kGemmThreads) {
    float all = 0.0f;
    for (i32 block = first; block <= last; ++block) all += partial_of(p, block, shared)[i];
    write_y(p, i / kTileN, at.tile * kTileN + i % kTileN, all);
  }
  if (threadIdx.x == 0) p.counters[shared] = 0;
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
    if (!ahead.over()) ahead.next(p);
  }
  i32 slot = 0, free = kStages - 1;
  float sum[kG.tiles][4] = {};
  while (!now.over()) {
    copies_wait<kStages - 2>();
    __syncthreads();  // the step's numbers are there, and all are done with the one before it
    fetch_step(p, ahead, ring + static_cast<u32>(free * kBytes));
    if (!ahead.over()) ahead.next(p);
    multiply(sum, ring + static_cast<u32>(slot * kBytes));
    free = slot;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    if (now.step + 1 == now.end) {
      finish(p, now, sum, meeting);
#pragma unroll
      for (i32 i = 0; i < 4 * kG.tiles; ++i) sum[i / 4][i % 4] = 0.0f;
    }
    now.next(p);
  }
}
