#define EMULATED_NAME f16_copied
#define EMULATED_CONFIG       \
  {.data = ScalarType::f16,   \
   .cache = ScalarType::f16,  \
   .table = ScalarType::none, \
   .interleaved = false,      \
   .packed = false,           \
   .paged = false,            \
   .at_once = 8}
#include "on_host/append_source.inl"
