#define EMULATED_NAME tile_block
#define EMULATED_PROBLEM "quantize b1 h1 s530x128 bf16 descale=bhn hadamard seed=7"
#define EMULATED_CONFIG       \
  {.input = ScalarType::bf16, \
   .dim = 128,                \
   .hadamard = true,          \
   .centered = false,         \
   .by_block = true,          \
   .vectors = true,           \
   .tiles = true,             \
   .rows = 128,               \
   .part = QuantizePart::write}
#define EMULATED_TILES
#include "on_host/quantize_source.inl"
