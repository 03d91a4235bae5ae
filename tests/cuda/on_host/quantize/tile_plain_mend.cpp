#define EMULATED_NAME tile_plain_mend
#define EMULATED_PROBLEM ""
#define EMULATED_CONFIG        \
  {.input = ScalarType::bf16,  \
   .dim = 96,                  \
   .hadamard = false,          \
   .centered = false,          \
   .by_block = false,          \
   .vectors = true,            \
   .tiles = true,              \
   .rows = 128,                \
   .part = QuantizePart::mend, \
   .shared = true}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
