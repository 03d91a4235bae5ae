#define KERNEL_NAME f16_d59
#define KERNEL_PROBLEM "b1 h4/2 s70x133 d59/43 fp16 softcap=20 bias=fp16:bhqk alibi sinks dropout=0.2 seed=7 lse"
#define KERNEL_FEATURES                                               \
  {59,   43,   Type::f16, Type::f16, false, false, false, true, true, \
   true, true, false,     Type::f16, false, false, false, true}
#define KERNEL_CONFIG {4, 1, 64, 2, true, 2, 2, false}
#define KERNEL_PRODUCTS "cuda/sm80/products_16.cuh"
#include "on_host/kernel_text.inl"
