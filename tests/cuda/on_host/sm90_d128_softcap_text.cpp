#define KERNEL_NAME d128_softcap
#define KERNEL_PROBLEM "b1 h2/1 s150x300 d128 bf16 softcap=20 alibi sinks lse"
#define KERNEL_FEATURES                                                  \
  {128,  128,   Type::bf16, Type::bf16, false, false, false, true, true, \
   true, false, false,      Type::none, false, false, false, true}
#define KERNEL_CONFIG {2, 128, 2, 2, true, false, false, 0, 24, 240}
#include "on_host/sm90_text.inl"
