// A stub for src/cuda/device/dependent.cuh: kernels run one after the other.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

DEV void wait_for_kernel_before() {}
DEV void let_next_kernel_start() {}

}  // namespace onepass
