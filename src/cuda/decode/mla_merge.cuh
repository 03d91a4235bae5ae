// The parts of rows that several blocks of mla.cuh have worked on become results: a part of 64 rows is 128 KB, too much
// for one block to add up (b1 x 8k: 180 us). Launched behind mla.cuh where any group may be cut; what is whole is left
// alone.
//
// A block of threads is two times 128 of them, four columns each. They take a row each, or, where parts are many
// (DecodeParams::merge_slices), one row, every second part each, which shared memory then brings together.
#pragma once
#include "cuda/decode/mla_tile.cuh"

#include "cuda/decode/parts.cuh"
#include "cuda/device/dependent.cuh"

namespace onepass::decode {

constexpr i32 kSlices = kMlaMergeThreads / 128, kSliceBytes = 128 * 32;

struct RowMerge {
  const DecodeParams& p;
  const Parts& parts;
  const Group& g;
  const u32 sm, slice, quad;

  DEV u32 place(u32 of) const { return sm + of * kSliceBytes + quad * 32; }
  DEV u32 flag(i32 row) const { return sm + kMlaMergeFlags + 4 * static_cast<u32>(row); }
  DEV void join(RowSums& x) const {
    store_sums(place(slice), x.all);
    store_four(place(slice) + 16, __float_as_uint(x.o[0]), __float_as_uint(x.o[1]), __float_as_uint(x.o[2]),
               __float_as_uint(x.o[3]));
    __syncthreads();
    const auto unit = unit_of(p);
    for (u32 i = 1; slice == 0 && i < kSlices; ++i) {
      const Sums other = load_sums(place(i));
      float lo[2], hi[2];
      load_pair(lo, place(i) + 16);
      load_pair(hi, place(i) + 24);
      const float sums[4] = {other.state.m, other.state.l, other.norm}, o[4] = {lo[0], lo[1], hi[0], hi[1]};
      x.meet(unit, sums[0]);
      x.absorb_part(sums, o, unit.share(sums[0], x.reference));
    }
    __syncthreads();
  }
  // Rows first, first + step, ...; by all threads.
  DEV void rows(i32 first, i32 step, bool sliced) const {
    const i32 column = static_cast<i32>(quad) * 4;
#pragma unroll 1
    for (; first < g.rows(p); first += step) {
      const i32 row = sliced ? first : first + static_cast<i32>(slice);
      const bool exists = row < g.rows(p);
      RowSums x;
      if (exists) x.add<4>(parts, row, column, sliced ? slice : 0, sliced ? kSlices : 1);
      if (sliced) join(x);
      if (exists && !(sliced && slice != 0) && !x.put(p, g, row, column)) store_word(flag(row), 1);
    }
    __syncthreads();
    for (i32 row = own_warp(); row < g.rows(p); row += kMlaMergeThreads / 32) {
      if (load_word(flag(row)) != 0) fall_back(p, g, row);
    }
  }
};

}  // namespace onepass::decode

extern "C" __global__ void __launch_bounds__(onepass::decode::kMlaMergeThreads, 3)
    attention_mla_merge(const __grid_constant__ onepass::decode::DecodeParams p) {
  using namespace onepass;
  using namespace onepass::decode;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const Line line(p);
  const i32 groups = p.groups * p.batch, number = static_cast<i32>(blockIdx.x) % groups,
            share = static_cast<i32>(blockIdx.x) / groups, shares = static_cast<i32>(gridDim.x) / groups;
  const Group g = line.group(number);
  if (threadIdx.x < kRows) store_word(sm + kMlaMergeFlags + 4 * threadIdx.x, 0);
  wait_for_kernel_before();
  __syncthreads();
  const Parts parts(p, line, g);
  if (parts.count == 1) return;
  const bool sliced = p.merge_slices != 0;
  const i32 at_once = sliced ? 1 : kSlices;
  RowMerge{p, parts, g, sm, threadIdx.x / 128, threadIdx.x % 128}.rows(share * at_once, shares * at_once, sliced);
}
