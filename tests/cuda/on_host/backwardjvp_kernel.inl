// Included by the files that print_kernels writes: the kernels of src/cuda/backward_jvp with those behind them.
#define KERNEL_ON_TENSOR_CORES
#include "on_host/backwardplain_kernel.inl"
