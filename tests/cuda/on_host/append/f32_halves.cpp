#define EMULATED_NAME f32_halves
#define EMULATED_CONFIG      \
  {.data = ScalarType::f32,  \
   .cache = ScalarType::f32, \
   .table = ScalarType::f32, \
   .interleaved = false,     \
   .packed = false,          \
   .paged = false,           \
   .at_once = 8}
#include "on_host/append_source.inl"
