#define EMULATED_NAME tile_own_guess
#define EMULATED_PROBLEM "quantize b1 h2 s390x128 fp16 descale=bh1 hadamard"
#define EMULATED_CONFIG      \
  {.input = ScalarType::f16, \
   .dim = 128,               \
   .hadamard = true,         \
   .centered = false,        \
   .by_block = false,        \
   .vectors = true,          \
   .tiles = true,            \
   .rows = 128,              \
   .part = QuantizePart::guess}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
