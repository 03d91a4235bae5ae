#define KERNEL_NAME d128_bias_mask
#define KERNEL_PROBLEM "b1 h2/1 s140x200 d128 bf16 bias=fp16:bhqk mask=11qk lse"
#define KERNEL_FEATURES \
  {128, 128, Type::bf16, Type::bf16, false, false, false, false, false, false, false, true, Type::f16}
#define KERNEL_CONFIG {2, 128, 2, 1, true, true, true, 1, 24, 240}
#include "on_host/sm90_text.inl"
