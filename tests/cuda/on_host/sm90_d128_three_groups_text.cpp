#define KERNEL_NAME d128_three_groups
#define KERNEL_PROBLEM "b1 h1 s1600x170 d128 bf16 lse"
#define KERNEL_FEATURES {128, 128, Type::bf16, Type::bf16}
#define KERNEL_CONFIG {3, 80, 2, 2, true, true, false, 0, 32, 160}
#include "on_host/sm90_text.inl"
