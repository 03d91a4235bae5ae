#define KERNEL_NAME d128_80_bias_fp32
#define KERNEL_PROBLEM "b1 h2/1 s130x200 d128/80 bf16 bias=fp32:1hqk lse"
#define KERNEL_FEATURES \
  {128, 80, Type::bf16, Type::bf16, false, false, false, false, false, false, false, false, Type::f32}
#define KERNEL_CONFIG {2, 64, 2, 2, false, false, false, 1, 56, 224}
#include "on_host/sm90_text.inl"
