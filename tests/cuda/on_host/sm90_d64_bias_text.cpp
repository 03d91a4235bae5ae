#define KERNEL_NAME d64_bias
#define KERNEL_PROBLEM "b2 h2/1 s200x136 d64 bf16 bias=bf16:11qk alibi sinks lse"
#define KERNEL_FEATURES \
  {64, 64, Type::bf16, Type::bf16, false, false, false, false, true, true, false, false, Type::bf16}
#define KERNEL_CONFIG {3, 128, 2, 1, false, true, false, 1, 32, 160}
#include "on_host/sm90_text.inl"
