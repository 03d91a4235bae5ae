#define EMULATED_NAME bf16_survey
#define EMULATED_PROBLEM ""
#define EMULATED_CONFIG       \
  {.input = ScalarType::bf16, \
   .dim = 96,                 \
   .hadamard = true,          \
   .centered = false,         \
   .by_block = false,         \
   .vectors = true,           \
   .rows = 32,                \
   .lanes = 4,                \
   .part = QuantizePart::survey}
#include "on_host/quantize_source.inl"
