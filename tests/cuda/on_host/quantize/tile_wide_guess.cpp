#define EMULATED_NAME tile_wide_guess
#define EMULATED_PROBLEM "quantize b1 h2 s390x256 bf16 descale=bh1 hadamard seed=3"
#define EMULATED_CONFIG       \
  {.input = ScalarType::bf16, \
   .dim = 256,                \
   .hadamard = true,          \
   .centered = false,         \
   .by_block = false,         \
   .vectors = true,           \
   .tiles = true,             \
   .rows = 128,               \
   .part = QuantizePart::guess}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
