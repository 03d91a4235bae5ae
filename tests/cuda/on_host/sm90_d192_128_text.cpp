#define KERNEL_NAME d192_128
#define KERNEL_PROBLEM "b1 h2/1 s140x250 d192/128 bf16 causal_bottom_right lse"
#define KERNEL_FEATURES {192, 128, Type::bf16, Type::bf16, false, true}
#define KERNEL_CONFIG {2, 96, 2, 1, false, false, false, 0, 40, 232}
#include "on_host/sm90_text.inl"
