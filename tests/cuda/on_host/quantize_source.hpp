// The quantizing kernels' device source, compiled for some of its configs. Structures of the library travel as
// pointers: each text has its own, of the same layout.
#pragma once

namespace warps {

struct QuantizeSource {
  const char* problem;                               // a line that it is a kernel of
  const void* config;                                // QuantizeConfig
  void (*run)(const void* params, unsigned blocks);  // QuantizeParams
};
extern const QuantizeSource quantize_tile_block, quantize_tile_block_plain, quantize_tile_guess, quantize_tile_mend,
    quantize_tile_own_guess, quantize_tile_own_mend, quantize_tile_wide_guess, quantize_tile_wide_mend,
    quantize_tile_shared_guess, quantize_tile_shared_mend, quantize_tile_plain_guess, quantize_tile_plain_mend,
    quantize_f32_survey, quantize_f32_means, quantize_f16_odd;

}  // namespace warps
