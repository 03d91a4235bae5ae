#define EMULATED_NAME f32_means
#define EMULATED_PROBLEM "quantize b1 h3 s530x80 fp32 descale=111 mean"
#define EMULATED_CONFIG      \
  {.input = ScalarType::f32, \
   .dim = 80,                \
   .hadamard = false,        \
   .centered = true,         \
   .by_block = false,        \
   .vectors = true,          \
   .tiles = false,           \
   .rows = 128,              \
   .part = QuantizePart::write}
#include "on_host/quantize_source.inl"
