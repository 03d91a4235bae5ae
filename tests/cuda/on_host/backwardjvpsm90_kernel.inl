// Included by the files that print_kernels writes: the kernels of src/cuda/backward_jvp/sm90 with those behind them.
#define KERNEL_ON_HOPPER
#include "on_host/backwardplain_kernel.inl"
