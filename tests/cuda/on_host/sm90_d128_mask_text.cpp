#define KERNEL_NAME d128_mask
#define KERNEL_PROBLEM "b2 h2/1 s140x330 d128 bf16 mask=b1qk causal_bottom_right lse"
#define KERNEL_FEATURES {128, 128, Type::bf16, Type::bf16, false, true, false, false, false, false, false, true}
#define KERNEL_CONFIG {2, 128, 2, 2, true, true, false, 0, 24, 240}
#include "on_host/sm90_text.inl"
