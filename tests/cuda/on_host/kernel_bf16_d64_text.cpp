#define KERNEL_NAME bf16_d64
#define KERNEL_PROBLEM "b1 h4/2 s200x150 d64 bf16 window=40:20 lse"
#define KERNEL_FEATURES {64, 64, Type::bf16, Type::bf16, true, true}
#define KERNEL_CONFIG {4, 2, 48, 2, false, 3, 16, true}
#define KERNEL_PRODUCTS "cuda/sm80/products_16.cuh"
#include "on_host/kernel_text.inl"
