#define EMULATED_NAME bf16_heads
#define EMULATED_PROBLEM "quantize b2 h2 s600x96 bf16 descale=1h1 hadamard seed=3"
#define EMULATED_CONFIG       \
  {.input = ScalarType::bf16, \
   .dim = 96,                 \
   .hadamard = true,          \
   .centered = false,         \
   .by_block = false,         \
   .vectors = true,           \
   .rows = 32,                \
   .lanes = 4,                \
   .part = QuantizePart::write}
#include "on_host/quantize_source.inl"
