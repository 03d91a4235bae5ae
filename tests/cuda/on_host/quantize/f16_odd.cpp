#define EMULATED_NAME f16_odd
#define EMULATED_PROBLEM "quantize b1 h2 s150x63 fp16 descale=1hn hadamard"
#define EMULATED_CONFIG      \
  {.input = ScalarType::f16, \
   .dim = 63,                \
   .hadamard = true,         \
   .centered = false,        \
   .by_block = true,         \
   .vectors = false,         \
   .tiles = false,           \
   .rows = 128,              \
   .part = QuantizePart::write}
#include "on_host/quantize_source.inl"
