#define EMULATED_NAME tile_guess
#define EMULATED_PROBLEM "quantize b2 h2 s150x64 fp16 descale=bh1 hadamard seed=3"
#define EMULATED_CONFIG      \
  {.input = ScalarType::f16, \
   .dim = 64,                \
   .hadamard = true,         \
   .centered = false,        \
   .by_block = false,        \
   .vectors = true,          \
   .tiles = true,            \
   .rows = 128,              \
   .part = QuantizePart::guess}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
