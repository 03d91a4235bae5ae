#define EMULATED_NAME tile_block_plain
#define EMULATED_PROBLEM "quantize b1 h1 s390x96 fp16 descale=bhn"
#define EMULATED_CONFIG      \
  {.input = ScalarType::f16, \
   .dim = 96,                \
   .hadamard = false,        \
   .centered = false,        \
   .by_block = true,         \
   .vectors = true,          \
   .tiles = true,            \
   .rows = 128,              \
   .part = QuantizePart::write}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
