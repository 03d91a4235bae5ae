#define KERNEL_NAME d96_packed
#define KERNEL_PROBLEM "h2/1 d96 bf16 varlen=1,100,0,133/70,130,7,300 softcap=20 causal_bottom_right lse"
#define KERNEL_FEATURES                                                    \
  {96,    96,    Type::bf16, Type::bf16, false, true,  true,  true, false, \
   false, false, false,      Type::none, false, false, false, true}
#define KERNEL_CONFIG {2, 64, 2, 2, false, false, false, 0, 56, 224}
#include "on_host/sm90_text.inl"
