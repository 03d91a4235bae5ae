// The quantizing kernels' device source, compiled for some of its configs. Structures of the library travel as
// pointers: each text has its own, of the same layout.
#pragma once

namespace warps {

struct QuantizeSource {
  const char* problem;                               // a line that it is a kernel of
  const void* config;                                // QuantizeConfig
  void (*run)(const void* params, unsigned blocks);  // QuantizeParams
};
extern const QuantizeSource quantize_tile_block, quantize_tile_block_plain, quantize_tile_estimate,
    quantize_tile_requantize, quantize_tile_own_estimate, quantize_tile_own_requantize, quantize_tile_wide_estimate,
    quantize_tile_wide_requantize, quantize_tile_shared_estimate, quantize_tile_shared_requantize,
    quantize_tile_plain_estimate, quantize_tile_plain_requantize, quantize_f32_amax, quantize_f32_means,
    quantize_f16_odd;

}  // namespace warps
