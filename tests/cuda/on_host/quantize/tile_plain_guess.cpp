#define EMULATED_NAME tile_plain_guess
#define EMULATED_PROBLEM "quantize b2 h2 s600x96 bf16 descale=1h1"
#define EMULATED_CONFIG         \
  {.input = ScalarType::bf16,   \
   .dim = 96,                   \
   .hadamard = false,           \
   .centered = false,           \
   .by_block = false,           \
   .vectors = true,             \
   .tiles = true,               \
   .rows = 128,                 \
   .part = QuantizePart::guess, \
   .shared = true,              \
   .several = true}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
