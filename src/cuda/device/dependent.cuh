// Programmatic dependent launch (PTX ISA 8.x, griddepcontrol; sm_90): kernels of a call that start while the one in
// front comes to its end. One that is launched so touches no memory before wait_for_kernel_before().
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

// Until the kernel in front has ended and all that it has written is there.
DEV void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel behind may start as blocks of this one leave their multiprocessors, once all of them have said so.
DEV void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace onepass
