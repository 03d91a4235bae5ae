#define KERNEL_NAME f32_d40
#define KERNEL_PROBLEM "b1 h4/2 s70x100 d40 fp32 causal_bottom_right lse"
#define KERNEL_FEATURES {40, 40, Type::f32, Type::f32, false, true}
#define KERNEL_CONFIG {4, 2, 32, 2, false, 2, 16, true}
#define KERNEL_PRODUCTS "cuda/sm80/products_f32.cuh"
#include "on_host/kernel_text.inl"
