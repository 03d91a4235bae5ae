#define KERNEL_NAME d64_bias_causal
#define KERNEL_PROBLEM "b3 h2/1 s130x200 d64 bf16 bias=bf16:1hqk causal_bottom_right lse"
#define KERNEL_FEATURES \
  {64, 64, Type::bf16, Type::bf16, false, true, false, false, false, false, false, false, Type::bf16}
#define KERNEL_CONFIG {2, 128, 2, 1, true, true, true, 1, 24, 240}
#include "on_host/sm90_text.inl"
