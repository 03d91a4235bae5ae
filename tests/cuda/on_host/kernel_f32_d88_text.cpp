#define KERNEL_NAME f32_d88
#define KERNEL_PROBLEM "b2 h2/1 s130x90 d88 fp32 mask=11qk lse"
#define KERNEL_FEATURES {88, 88, Type::f32, Type::f32, false, false, false, false, false, false, false, true}
#define KERNEL_CONFIG {4, 1, 16, 2, false, 2, 16, true}
#define KERNEL_PRODUCTS "cuda/sm80/products_f32.cuh"
#include "on_host/kernel_text.inl"
