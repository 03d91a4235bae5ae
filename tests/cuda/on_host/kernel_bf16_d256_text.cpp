#define KERNEL_NAME bf16_d256
#define KERNEL_PROBLEM "b1 h2/1 s33x150 d256 bf16 out=fp32 lse"
#define KERNEL_FEATURES {256, 256, Type::bf16, Type::f32}
#define KERNEL_CONFIG {4, 1, 64, 1, false, 2, 16, false}
#define KERNEL_PRODUCTS "cuda/sm80/products_16.cuh"
#include "on_host/kernel_text.inl"
