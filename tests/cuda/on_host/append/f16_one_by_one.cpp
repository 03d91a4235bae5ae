#define EMULATED_NAME f16_one_by_one
#define EMULATED_CONFIG      \
  {.data = ScalarType::f16,  \
   .cache = ScalarType::f16, \
   .table = ScalarType::f16, \
   .interleaved = false,     \
   .packed = true,           \
   .paged = true,            \
   .at_once = 1}
#include "on_host/append_source.inl"
