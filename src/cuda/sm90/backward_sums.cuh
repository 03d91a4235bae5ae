// Where a number of dQ's sums belongs, for the kernel that converts them (attention/backward_post.cuh).
#pragma once
#include "cuda/device/types.cuh"

#include "cuda/sm90/backward_sums.hpp"

namespace onepass {

struct SumPlace {
  i32 row, column;
};
DEV SumPlace sum_place(i32 at) {
  constexpr i32 kFirst = sm90::dq_columns(features.dim_qk, backward_shape.block_q, 0),
                kSecond = sm90::dq_columns(features.dim_qk, backward_shape.block_q, 1);
  const i32 group = at >= 64 * kFirst, in = at - group * (64 * kFirst), lane = in / 4 % 32, i = in % 4;
  const i32 of_warp = 16 * (group ? kSecond : kFirst), warp = in / of_warp, column = in % of_warp / 128 * 8;
  constexpr bool kByRows = backward_shape.block_q == 128;
  return {(kByRows ? group * 64 : 0) + warp * 16 + i / 2 * 8 + lane / 4,
          (kByRows ? 0 : group * kFirst) + column + lane % 4 * 2 + i % 2};
}

}  // namespace onepass
