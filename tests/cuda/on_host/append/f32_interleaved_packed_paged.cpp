#define EMULATED_NAME f32_interleaved_packed_paged
#define EMULATED_CONFIG      \
  {.data = ScalarType::f32,  \
   .cache = ScalarType::f32, \
   .table = ScalarType::f32, \
   .interleaved = true,      \
   .packed = true,           \
   .paged = true,            \
   .at_once = 8}
#include "on_host/append_source.inl"
