#define EMULATED_NAME bf16_blocks
#define EMULATED_PROBLEM "quantize b2 h1 s140x128 bf16 descale=bhn hadamard seed=7"
#define EMULATED_CONFIG       \
  {.input = ScalarType::bf16, \
   .dim = 128,                \
   .hadamard = true,          \
   .centered = false,         \
   .by_block = true,          \
   .vectors = true,           \
   .rows = 128,               \
   .lanes = 2,                \
   .part = QuantizePart::write}
#include "on_host/quantize_source.inl"
