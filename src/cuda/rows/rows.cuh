// Rows of one tensor to those of another: copied, rounded from fp32, or added or compared in fp32. Each piece of a row
// has one thread, so sums have the same bits every time.
#pragma once
#include "cuda/device/formats.cuh"

#include "cuda/rows/rows.hpp"

namespace onepass {

template <ScalarType type>
DEV void store_element(void* base, i64 at, float x) {
  using Format = typename ElementOf<type>::Format;
  static_cast<typename Format::Raw*>(base)[at] = Format::round(x);
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kRowsThreads)
    move_rows(const __grid_constant__ onepass::RowsParams p) {
  using namespace onepass;
  constexpr i32 n = rows_config.at_once;
  const i64 step = i64{gridDim.x} * kRowsThreads;
  for (i64 i = i64{blockIdx.x} * kRowsThreads + threadIdx.x; i < p.all_pieces; i += step) {
    const u32 piece = static_cast<u32>(i), row = piece / p.pieces, pair = row / p.rows, batch = pair / p.heads;
    const i64 column = static_cast<i64>(piece - row * p.pieces) * n;
    const auto place = [&](const long long(&stride)[4]) {
      return batch * stride[0] + (pair - batch * p.heads) * stride[1] + (row - pair * p.rows) * stride[2] +
             column * stride[3];
    };
    const i64 from = place(p.from_stride), to = place(p.to_stride);
    if constexpr (rows_config.from == rows_config.to && rows_config.work == RowsWork::copy) {
      using Raw = typename ElementOf<rows_config.to>::Format::Raw;
      const auto* const source = static_cast<const Raw*>(p.from) + from;
      auto* const target = static_cast<Raw*>(p.to) + to;
      if constexpr (n == 1)
        *target = *source;
      else
        *reinterpret_cast<Bytes<16>*>(target) = *reinterpret_cast<const Bytes<16>*>(source);
    } else {
      float x[n];
#pragma unroll
      for (i32 c = 0; c < n; ++c) x[c] = element_at<rows_config.from>(p.from, from + c);
#pragma unroll
      for (i32 c = 0; c < n; ++c) {
        if constexpr (rows_config.work == RowsWork::add) x[c] += element_at<rows_config.to>(p.to, to + c);
        if constexpr (rows_config.work == RowsWork::take_larger) {
          const float most = element_at<rows_config.to>(p.to, to + c);
          if (!(x[c] > most) && x[c] == x[c]) x[c] = most;
        }
        store_element<rows_config.to>(p.to, to + c, x[c]);
      }
    }
  }
}
