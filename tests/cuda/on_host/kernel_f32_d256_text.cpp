#define KERNEL_NAME f32_d256
#define KERNEL_PROBLEM "b1 h1 s70x100 d200/256 fp32 scale=-0.1 lse"
#define KERNEL_FEATURES                                                 \
  {200,   256,   Type::f32, Type::f32, false,      false, false, false, \
   false, false, false,     false,     Type::none, false, false, true}
#define KERNEL_CONFIG {4, 1, 16, 1, false, 2, 16, true}
#define KERNEL_PRODUCTS "cuda/sm80/products_f32.cuh"
#include "on_host/kernel_text.inl"
