#define EMULATED_NAME bf16_interleaved_paged
#define EMULATED_CONFIG       \
  {.data = ScalarType::bf16,  \
   .cache = ScalarType::bf16, \
   .table = ScalarType::bf16, \
   .interleaved = true,       \
   .packed = false,           \
   .paged = true,             \
   .at_once = 8}
#include "on_host/append_source.inl"
