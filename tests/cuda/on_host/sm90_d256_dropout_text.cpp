#define KERNEL_NAME d256_dropout
#define KERNEL_PROBLEM "b1 h2/1 s130x70 d256 bf16 dropout=0.2 seed=7 lse"
#define KERNEL_FEATURES {256, 256, Type::bf16, Type::bf16, false, false, false, false, false, false, true}
#define KERNEL_CONFIG {2, 32, 2, 1, false, false, false, 0, 56, 224}
#include "on_host/sm90_text.inl"
