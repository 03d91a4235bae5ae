#define EMULATED_NAME tile_own_mend
#define EMULATED_PROBLEM ""
#define EMULATED_CONFIG      \
  {.input = ScalarType::f16, \
   .dim = 128,               \
   .hadamard = true,         \
   .centered = false,        \
   .by_block = false,        \
   .vectors = true,          \
   .tiles = true,            \
   .rows = 128,              \
   .part = QuantizePart::mend}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
