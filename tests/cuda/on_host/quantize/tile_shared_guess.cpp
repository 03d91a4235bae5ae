#define EMULATED_NAME tile_shared_guess
#define EMULATED_PROBLEM "quantize b1 h2 s560x128 fp16 descale=b11 hadamard"
#define EMULATED_CONFIG         \
  {.input = ScalarType::f16,    \
   .dim = 128,                  \
   .hadamard = true,            \
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
