#define EMULATED_NAME f16_interleaved_packed
#define EMULATED_CONFIG      \
  {.data = ScalarType::f16,  \
   .cache = ScalarType::f16, \
   .table = ScalarType::f32, \
   .interleaved = true,      \
   .packed = true,           \
   .paged = false,           \
   .at_once = 8}
#include "on_host/append_source.inl"
