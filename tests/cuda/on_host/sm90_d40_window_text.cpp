#define KERNEL_NAME d40_window
#define KERNEL_PROBLEM "b1 h2/1 s140x200 d40/48 bf16 bias=bf16:1hqk window=60:20 out=fp32 lse"
#define KERNEL_FEATURES \
  {40, 48, Type::bf16, Type::f32, true, true, false, false, false, false, false, false, Type::bf16}
#define KERNEL_CONFIG {2, 64, 2, 2, false, false, false, 1, 24, 240}
#include "on_host/sm90_text.inl"
