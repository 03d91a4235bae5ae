#define KERNEL_NAME d64
#define KERNEL_PROBLEM "b2 h2/1 s130x200 d64 bf16 lse"
#define KERNEL_FEATURES {64, 64, Type::bf16, Type::bf16}
#define KERNEL_CONFIG {3, 128, 2, 2, true, true, false, 0, 32, 160}
#include "on_host/sm90_text.inl"
