#define EMULATED_NAME bf16_one_by_one
#define EMULATED_CONFIG       \
  {.data = ScalarType::bf16,  \
   .cache = ScalarType::bf16, \
   .table = ScalarType::f32,  \
   .interleaved = true,       \
   .packed = true,            \
   .paged = true,             \
   .at_once = 1}
#include "on_host/append_source.inl"
