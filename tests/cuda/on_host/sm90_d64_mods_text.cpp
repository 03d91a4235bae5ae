#define KERNEL_NAME d64_mods
#define KERNEL_PROBLEM "h2/1 d64 bf16 varlen=1,100,0,133/70,130,7,300 mask_mod={k_index % 2 == 0} lse"
#define KERNEL_FEATURES \
  {64, 64, Type::bf16, Type::bf16, false, false, true, false, false, false, false, false, Type::none, false, true}
#define KERNEL_CONFIG {2, 64, 2, 2, false, false, false, 0, 56, 224}
#define KERNEL_MASK_MOD k_index % 2 == 0
#include "on_host/sm90_text.inl"
