// A warp's sums by mma.sync: their columns, and whose they are.
#pragma once
#include "cuda/backward_jvp/products.cuh"
#include "cuda/backward_jvp/results.cuh"

namespace onepass::cuda::backward_jvp {

template <i32 dim>
constexpr i32 kOwnSums = sm80::own_sums(round_up(dim, 16));
struct OwnColumns {
  DEV i32 operator()(i32 j, u32 quad) const { return sm80::own_column(j, quad); }
};
DEV u32 own_share() { return kShare == 1 ? 0 : sm80::own_part(); }

}  // namespace onepass::cuda::backward_jvp
