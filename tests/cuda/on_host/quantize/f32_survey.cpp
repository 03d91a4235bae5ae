#define EMULATED_NAME f32_survey
#define EMULATED_PROBLEM ""
#define EMULATED_CONFIG      \
  {.input = ScalarType::f32, \
   .dim = 80,                \
   .hadamard = false,        \
   .centered = true,         \
   .by_block = false,        \
   .vectors = true,          \
   .tiles = false,           \
   .rows = 128,              \
   .part = QuantizePart::survey}
#include "on_host/quantize_source.inl"
