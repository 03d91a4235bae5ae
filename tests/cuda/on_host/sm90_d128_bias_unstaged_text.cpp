#define KERNEL_NAME d128_bias_unstaged
#define KERNEL_PROBLEM "b1 h2/1 s140x150 d128 bf16 bias=bf16:11qk lse"
#define KERNEL_FEATURES \
  {128, 128, Type::bf16, Type::bf16, false, false, false, false, false, false, false, false, Type::bf16}
#define KERNEL_CONFIG {2, 64, 2, 2, false, false, false, 0, 56, 224}
#include "on_host/sm90_text.inl"
