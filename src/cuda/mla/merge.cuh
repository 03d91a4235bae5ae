// The parts of rows that several blocks of mla.cuh have worked on become results: a part of 64 rows is 128 KB, too much
// for one block to add up (b1 x 8k: 180 us). Launched behind mla.cuh where any group may be cut; what is whole is left
// alone.
//
// A CTA is two times 128 of them, four columns each. They take four rows each, two parts at a time: eight
// loads of 16 bytes on their way for every thread, since a row alone waits for memory as long as four do. Where parts
// are many (attention_mla_merge_many) both halves take the same row, every second part each, eight at a time, which
// shared memory then brings together. Two kernels: either's code comes cold from memory.
#pragma once
#include "cuda/mla/tile.cuh"

#include "cuda/decode/combine.cuh"
#include "cuda/device/order.cuh"

namespace onepass::decode {

constexpr i32 kSlices = kMlaMergeThreads / 128, kSliceBytes = 128 * 32;
// Four spill 8 bytes where each has a second sum or a largest score.
constexpr i32 kRowsAtOnce = kRoundedSums || forward_features.row_max ? 2 : 4;

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
      const float sums[4] = {other.state.m, other.state.l, other.norm, other.most}, o[4] = {lo[0], lo[1], hi[0], hi[1]};
      x.meet(unit, sums[0]);
      x.absorb_part(sums, o, unit.part_weight(sums[0], x.reference));
    }
    __syncthreads();
  }
  DEV i32 column() const { return static_cast<i32>(quad) * 4; }
  DEV void put(const RowSums& x, i32 row) const {
    if (const RowFlag what = x.put(p, g, row, column()); what != kRight) store_word(flag(row), what);
  }
  // kRowsAtOnce rows from `first` on; those past the last one are added up and not written.
  DEV void some_rows(i32 first) const {
    const auto unit = unit_of(p);
    const auto row = [&](i32 i) { return min(first + i, g.rows(p) - 1); };
    RowSums all[kRowsAtOnce];
#pragma unroll 1
    for (i32 part = 0; part < parts.count; part += 2) {
      float sums[kRowsAtOnce][2][4], x[kRowsAtOnce][2][4];
#pragma unroll
      for (i32 i = 0; i < kRowsAtOnce; ++i) {
#pragma unroll
        for (i32 j = 0; j < 2; ++j) {  // the last part again counts for nothing
          const i32 slot = parts.slot(min(part + j, parts.count - 1));
          load_global(sums[i][j], parts.partials.sums(slot, row(i)));
          load_global(x[i][j], parts.partials.output(slot, row(i)) + column());
        }
      }
#pragma unroll
      for (i32 i = 0; i < kRowsAtOnce; ++i) {
        all[i].meet(unit, fmaxf(sums[i][0][0], sums[i][1][0]));
        all[i].absorb_part(sums[i][0], x[i][0], unit.part_weight(sums[i][0][0], all[i].reference));
        all[i].absorb_part(sums[i][1], x[i][1],
                           part + 1 < parts.count ? unit.part_weight(sums[i][1][0], all[i].reference) : 0.0f);
      }
    }
#pragma unroll
    for (i32 i = 0; i < kRowsAtOnce; ++i) {
      if (first + i < g.rows(p)) put(all[i], first + i);
    }
  }
  DEV void one_row(i32 row) const {
    RowSums x;
    x.add<8>(parts, row, column(), slice, kSlices);
    join(x);
    if (slice == 0) put(x, row);
  }
  // This block's of `shares`.
  template <bool many>
  DEV void run(i32 share, i32 shares) const {
    constexpr i32 at_once = many ? 1 : kSlices * kRowsAtOnce;
#pragma unroll 1
    for (i32 first = share * at_once; first < g.rows(p); first += shares * at_once) {
      if constexpr (many)
        one_row(first);
      else
        some_rows(first + static_cast<i32>(slice) * kRowsAtOnce);
    }
    __syncthreads();
    run_fallback(sm + kMlaMergeFlags, p, g);
  }
};

template <bool many>
DEV void merge_parts(u32 sm, const DecodeParams& p) {
  const Line line(p);
  const i32 groups = p.groups * p.batch, at = line_block(p), share = at / groups,
            shares = static_cast<i32>(gridDim.x) / (groups * p.co_scheduled);
  const Group g = line.group(at - share * groups);
  if (threadIdx.x < kRows) store_word(sm + kMlaMergeFlags + 4 * threadIdx.x, 0);
  wait_for_kernel_before();
  __syncthreads();
  const Parts parts(p, line, g);
  if (parts.count == 1) return;
  RowMerge{p, parts, g, sm, threadIdx.x / 128, threadIdx.x % 128}.run<many>(share, shares);
}

}  // namespace onepass::decode

extern "C" __global__ void __launch_bounds__(onepass::decode::kMlaMergeThreads, 2)
    attention_mla_merge(const __grid_constant__ onepass::decode::DecodeParams p) {
  extern __shared__ __align__(128) unsigned char smem[];
  onepass::decode::merge_parts<false>(onepass::shared_address(smem), p);
}
extern "C" __global__ void __launch_bounds__(onepass::decode::kMlaMergeThreads, 2)
    attention_mla_merge_many(const __grid_constant__ onepass::decode::DecodeParams p) {
  extern __shared__ __align__(128) unsigned char smem[];
  onepass::decode::merge_parts<true>(onepass::shared_address(smem), p);
}
