#define EMULATED_NAME f16_fp8_one_by_one
#define EMULATED_CONFIG       \
  {.data = ScalarType::f16,   \
   .cache = ScalarType::e4m3, \
   .table = ScalarType::f32,  \
   .interleaved = true,       \
   .packed = true,            \
   .paged = true,             \
   .at_once = 1}
#include "on_host/append_source.inl"
