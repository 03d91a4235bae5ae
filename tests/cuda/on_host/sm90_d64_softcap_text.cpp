#define KERNEL_NAME d64_softcap
#define KERNEL_PROBLEM "b1 h2/1 s140x250 d64 fp16 softcap=20 causal_bottom_right lse"
#define KERNEL_FEATURES                                                   \
  {64,    64,    Type::f16, Type::f16,  false, true,  false, true, false, \
   false, false, false,     Type::none, false, false, false, true}
#define KERNEL_CONFIG {2, 128, 2, 1, true, true, true, 0, 24, 240}
#include "on_host/sm90_text.inl"
