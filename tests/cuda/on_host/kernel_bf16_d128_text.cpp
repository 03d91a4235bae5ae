#define KERNEL_NAME bf16_d128
#define KERNEL_PROBLEM "h2/1 d128 bf16 varlen=1,100,0,33/70,130,7,0 causal_bottom_right lse"
#define KERNEL_FEATURES {128, 128, Type::bf16, Type::bf16, false, true, true}
#define KERNEL_CONFIG {4, 2, 48, 2, false, 2, 16, true}
#define KERNEL_PRODUCTS "cuda/sm80/products_16.cuh"
#include "on_host/kernel_text.inl"
