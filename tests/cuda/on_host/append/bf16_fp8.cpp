#define EMULATED_NAME bf16_fp8
#define EMULATED_CONFIG       \
  {.data = ScalarType::bf16,  \
   .cache = ScalarType::e4m3, \
   .table = ScalarType::f32,  \
   .interleaved = false,      \
   .packed = true,            \
   .paged = true,             \
   .at_once = 8}
#include "on_host/append_source.inl"
